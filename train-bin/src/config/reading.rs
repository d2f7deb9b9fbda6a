//! How the rows of a run are read: keys of `[data]`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use emberlm_data::{
    DataError, FieldMap, OnError, ReadOptions, Rejects, RowShape, RowTemplates, TextBy,
};
use serde::Serialize;

use crate::settings::{Choice, FaultKind, Reader};

/// How rows are read: the keys of `[data]` next to `format`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Reading {
    /// Custom names for known fields.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, String>,
    /// Template of a prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_template: Option<String>,
    /// Template of the completion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_template: Option<String>,
    /// Template of a system message before the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_template: Option<String>,
    /// Template of plain text, instead of the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text_template: Option<String>,
    /// What counts as one document in plain text.
    pub text_by: TextBy,
    /// What an invalid row does, and how many may be skipped.
    #[serde(flatten)]
    pub on_error: OnError,
    /// Where skipped rows are written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejects: Option<PathBuf>,
}

impl Reading {
    /// `format`: as it is given next to them.
    pub(super) fn read(s: &mut Reader, format: &str) -> Self {
        let mut template = |name, doc, example| {
            s.string(name, doc).example(example).changes_nothing().optional("none")
        };
        let prompt_template = template(
            "prompt_template",
            "Prompt template of a custom format; {name} is a field, {name?} an optional one",
            "\"{title}: {question}\"",
        );
        let completion_template = template(
            "completion_template",
            "Completion template of a custom format",
            "\" {answer}\"",
        );
        let system_template = template(
            "system_template",
            "System-message template of a custom format",
            "\"{rules}\"",
        );
        let text_template = template(
            "text_template",
            "Plain-text template of a custom format, instead of the other three",
            "\"{body}\"",
        );
        let text_by = s
            .choice::<TextBy>("text_by", "Unit of a document in a plain-text file")
            .changes_nothing()
            .or_default();
        let (on_error, rejects) = on_error(s);
        let fields = s
            .setting::<BTreeMap<String, String>>(
                "fields",
                "Map known fields to their names in these rows, such as prompt = \"question\" or completion = \"answer.text\"",
            )
            .also_called(&["field_instruction"])
            .example("{ prompt = \"question\", completion = \"answer.text\" }")
            .changes_nothing()
            .or_default();
        let reading = Self {
            fields,
            prompt_template,
            completion_template,
            system_template,
            text_template,
            text_by,
            on_error,
            rejects,
        };
        reading.check(s, format);
        reading
    }

    fn check(&self, s: &mut Reader, format: &str) {
        let templates =
            ["prompt_template", "completion_template", "system_template", "text_template"];
        let template = templates.into_iter().find(|name| s.is_given(name));
        let fields = s.is_given("fields").then_some("fields");
        let by_name = (format != "auto").then_some("format");
        let ways: Vec<&str> = [template, fields, by_name].into_iter().flatten().collect();
        if let [first, second, ..] = ways.as_slice() {
            let reason = "each determines which fields of a row are read";
            s.contradiction([first, second], reason, "remove one of them");
        }
        // Whether the format is known is found out when the data is read.
        if let Err(error) = self.options("auto") {
            let key = fields.or(template).unwrap_or("format");
            s.fault(key, FaultKind::Refused { message: error.to_string() });
        }
    }

    /// The data crate's options; `format` is the name of a format.
    ///
    /// # Errors
    /// An invalid format, field or template.
    pub fn options(&self, format: &str) -> Result<ReadOptions, DataError> {
        let templates = RowTemplates::new(
            self.system_template.as_deref(),
            self.prompt_template.as_deref(),
            self.completion_template.as_deref(),
            self.text_template.as_deref(),
        )?;
        let fields = FieldMap::new(self.fields.clone())?;
        let shape = match templates {
            Some(templates) => RowShape::Templates(templates),
            None if !self.fields.is_empty() => RowShape::Fields(fields),
            None => RowShape::Keys(format.parse()?),
        };
        Ok(ReadOptions { shape, text_by: self.text_by })
    }

    /// What takes invalid rows.
    ///
    /// # Errors
    /// A file of rejects that cannot be written.
    pub fn rejects(&self) -> Result<Rejects, DataError> {
        let rejects = self.rejects.as_deref().filter(|_| self.on_error != OnError::Fail);
        Rejects::new(self.on_error, rejects)
    }
}

fn on_error(s: &mut Reader) -> (OnError, Option<PathBuf>) {
    let on_error =
        s.choice::<OnError>("on_error", "Handling of invalid rows").changes_nothing().or_default();
    let skips = on_error != OnError::Fail;
    let skip = OnError::Skip { limit: None }.choice_name();
    s.only_with(format!("data.on_error = {skip:?}"), skips, |s| {
        let limit = s
            .whole::<usize>("max_errors", "Maximum number of skipped rows; off: no limit")
            .changes_nothing()
            .or_off(None);
        let rejects = s
            .path("rejects", "File for skipped rows and their errors")
            .example("\"rejects.jsonl\"")
            .changes_nothing()
            .optional("none");
        (if skips { OnError::Skip { limit } } else { on_error }, rejects)
    })
}
