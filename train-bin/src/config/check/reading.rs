//! The keys that say how rows are read.

use super::Check;
use crate::config::choice::OnError;
use crate::config::error::FaultKind;
use crate::config::raw::{Off, OrOff, RawReading};
use crate::config::reading::Reading;

impl Check {
    /// `format`: as it is given beside them.
    pub(super) fn reading(&mut self, raw: RawReading, format: &str) -> Reading {
        let has_fields = !raw.fields.is_absent();
        let templates = [
            ("data.prompt_template", !raw.prompt_template.is_absent()),
            ("data.completion_template", !raw.completion_template.is_absent()),
            ("data.system_template", !raw.system_template.is_absent()),
            ("data.text_template", !raw.text_template.is_absent()),
        ];
        let template = templates.iter().find(|(_, given)| *given).map(|(key, _)| *key);
        let by_name = (format != "auto").then_some("data.format");
        let fields = has_fields.then_some("data.fields");
        let ways: Vec<&str> = [template, fields, by_name].into_iter().flatten().collect();
        if let [first, second, ..] = ways.as_slice() {
            let reason = "each says by which fields a row is understood";
            self.contradiction([first, second], reason, "remove one of them");
        }
        let skips_only = [
            ("data.max_errors", !raw.max_errors.is_absent()),
            ("data.rejects", !raw.rejects.is_absent()),
        ];
        let on_error = self.choice("data.on_error", raw.on_error, OnError::default());
        let limit = self.given("data.max_errors", raw.max_errors);
        let has_limit = matches!(limit, Some(OrOff::On(_)));
        for (key, given) in skips_only {
            if given && on_error == OnError::Fail && (has_limit || key == "data.rejects") {
                let reason = format!("{key} is for rows that are skipped");
                let remedy = format!("set data.on_error = \"skip\", or remove {key}");
                self.contradiction([key, "data.on_error"], &reason, &remedy);
            }
        }
        let max_errors = match limit {
            None | Some(OrOff::Off(Off)) => None,
            Some(OrOff::On(number)) => {
                let expected = "a whole number from 0 on, or false for any number";
                let limit = usize::try_from(number).ok();
                if limit.is_none() {
                    self.out_of_range("data.max_errors", expected, number, "false");
                }
                limit
            }
        };
        let reading = Reading {
            fields: self.given("data.fields", raw.fields).unwrap_or_default(),
            prompt_template: self.given("data.prompt_template", raw.prompt_template),
            completion_template: self.given("data.completion_template", raw.completion_template),
            system_template: self.given("data.system_template", raw.system_template),
            text_template: self.given("data.text_template", raw.text_template),
            text_by: self.choice("data.text_by", raw.text_by, Default::default()),
            on_error,
            max_errors,
            rejects: self.path("data.rejects", raw.rejects),
        };
        // Whether the format is known is found out when the data is read.
        if let Err(error) = reading.options("auto") {
            let key = if has_fields { "data.fields" } else { template.unwrap_or("data") };
            self.push(key, FaultKind::Refused { message: error.to_string() });
        }
        reading
    }
}
