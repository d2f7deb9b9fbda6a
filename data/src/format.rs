//! The row formats: which keys a row of each format has, and how a row is read.

use std::str::FromStr;

use clap::ValueEnum;
use serde_json::{Map, Value};

use crate::choice;
use crate::error::{DataError, RowError};
use crate::nearest::nearest;
use crate::row::{Message, Row};

type Object = Map<String, Value>;

/// What a format's keys are and how its rows are read.
struct Spec {
    /// Keys that a row of this format has; of several names for one key, any.
    required: &'static [&'static [&'static str]],
    /// Optional keys in addition to `system` and `tools`.
    optional: &'static [&'static str],
    /// Keys whose values are lists of messages.
    message_lists: &'static [&'static str],
    /// Keys whose values are other lists. In a table, the cells of lists are parsed as JSON.
    lists: &'static [&'static str],
    read: fn(&Object) -> Result<Row, RowError>,
}

const SPEC: Spec = Spec {
    required: &[],
    optional: &[],
    message_lists: &[],
    lists: &[],
    read: |object| Err(unknown(object)),
};

/// Declares [`Format`] with a variant for each entry, and the table [`FORMATS`]: a new format is one new entry.
macro_rules! formats {
    ($($(#[doc = $doc:literal])* $format:ident = $spec:expr;)*) => {
        /// The format of rows. The doc comments are shown in help texts and error messages.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, ValueEnum)]
        #[value(rename_all = "lower")]
        pub enum Format {
            /// Detect the format of each row from its keys
            #[default]
            Auto,
            $($(#[doc = $doc])* $format,)*
        }

        /// In the order in which formats are tried on a row's keys.
        const FORMATS: &[(Format, Spec)] = &[$((Format::$format, $spec)),*];
    };
}

formats! {
    /// `messages` [{role, content}]
    Messages = Spec {
        required: &[&["messages"]],
        message_lists: &["messages"],
        read: |object| conversation(object, ["messages", "conversations"]),
        ..SPEC
    };
    /// `conversations` [{from, value}]
    ShareGpt = Spec {
        required: &[&["conversations"]],
        message_lists: &["conversations"],
        read: |object| conversation(object, ["conversations", "messages"]),
        ..SPEC
    };
    /// `instruction`, `input`, `output`
    Alpaca = Spec {
        required: &[&["instruction"], &["output"]],
        optional: &["input", "history"],
        lists: &["history"],
        read: alpaca,
        ..SPEC
    };
    /// `instruction`, `context`, `response`
    Dolly = Spec {
        required: &[&["instruction"], &["response"]],
        optional: &["context"],
        read: dolly,
        ..SPEC
    };
    /// `prompt`, `completion` (or `response`)
    Prompt = Spec {
        required: &[&["prompt"], &["completion", "response"]],
        read: prompt,
        ..SPEC
    };
    /// `question`, `answer`
    Question = Spec {
        required: &[&["question"], &["answer"]],
        read: |object| pair(object, "question", "answer"),
        ..SPEC
    };
    /// `query`, `response`
    Query = Spec {
        required: &[&["query"], &["response"]],
        read: |object| pair(object, "query", "response"),
        ..SPEC
    };
    /// `text`
    Text = Spec {
        required: &[&["text"]],
        read: |object| Ok(Row::Text(string(object, "text")?.to_owned())),
        ..SPEC
    };
}

/// Keys that rows of every format may have.
pub(crate) const COMMON: [&str; 2] = ["system", "tools"];

impl Format {
    /// Its name in configurations and reports.
    pub fn name(self) -> String {
        choice::name(&self)
    }

    fn spec(self) -> Option<&'static Spec> {
        FORMATS.iter().find(|(format, _)| *format == self).map(|(_, spec)| spec)
    }
}

impl FromStr for Format {
    type Err = DataError;

    fn from_str(name: &str) -> Result<Self, DataError> {
        choice::parse("data.format", name)
    }
}

/// The keys that the formats read, each once.
pub(crate) fn known_keys() -> Vec<&'static str> {
    let mut keys: Vec<&str> = Vec::new();
    let all = FORMATS.iter().flat_map(|(_, spec)| {
        spec.required.iter().copied().flatten().chain(spec.optional).copied()
    });
    for key in all {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

/// Whether rows may lack the key.
pub(crate) fn is_optional(key: &str) -> bool {
    COMMON.contains(&key) || FORMATS.iter().any(|(_, spec)| spec.optional.contains(&key))
}

/// Whether the value of the key is a list of messages.
pub(crate) fn is_message_list(key: &str) -> bool {
    FORMATS.iter().any(|(_, spec)| spec.message_lists.contains(&key))
}

/// Whether the value of the key is a list.
pub(crate) fn is_list(key: &str) -> bool {
    key == "tools"
        || is_message_list(key)
        || FORMATS.iter().any(|(_, spec)| spec.lists.contains(&key))
}

/// Reads a row from a JSON object.
///
/// # Errors
/// Keys that match no format, a field that is missing or of the wrong type.
pub fn row_from_value(value: &Value, format: Format) -> Result<Row, RowError> {
    let object = value.as_object().ok_or(RowError::NotAnObject { found: kind(value) })?;
    let format = match format {
        Format::Auto => detect(object),
        given => Some(given),
    };
    let spec = format.and_then(Format::spec).ok_or_else(|| unknown(object))?;
    (spec.read)(object)
}

/// Data sets made of columns fill absent fields with nulls: those count as absent.
fn has(object: &Object, key: &str) -> bool {
    object.get(key).is_some_and(|value| !value.is_null())
}

/// The first format whose required keys the row has.
pub(crate) fn detect(object: &Object) -> Option<Format> {
    let fits =
        |spec: &Spec| spec.required.iter().all(|names| names.iter().any(|name| has(object, name)));
    FORMATS.iter().find(|(_, spec)| fits(spec)).map(|(format, _)| *format)
}

fn unknown(object: &Object) -> RowError {
    let known = known_keys();
    let suggestion = object
        .keys()
        .filter(|key| !known.contains(&key.as_str()))
        .find_map(|key| nearest(key, known.iter().copied()));
    let found: Vec<String> = object.keys().map(|key| format!("`{key}`")).collect();
    let accepted: Vec<String> = FORMATS.iter().map(|(format, _)| choice::help(format)).collect();
    RowError::UnknownKeys {
        found: if found.is_empty() { "none".into() } else { found.join(", ") },
        suggestion,
        accepted: accepted.join("; "),
    }
}

/// The conversation under the first of the keys, or else under the second.
fn conversation(object: &Object, keys: [&str; 2]) -> Result<Row, RowError> {
    let key = if has(object, keys[0]) { keys[0] } else { keys[1] };
    let list = match object.get(key) {
        Some(Value::Array(list)) if !list.is_empty() => list,
        other => {
            return Err(field(keys[0], "a list of at least one message", other));
        }
    };
    let mut messages = Vec::with_capacity(list.len() + 1);
    if let Some(text) = system(object)?
        && list.iter().all(|m| m.get("role").and_then(Value::as_str) != Some("system"))
        && list.iter().all(|m| m.get("from").and_then(Value::as_str) != Some("system"))
    {
        messages.push(Message::new("system", text));
    }
    for (index, value) in list.iter().enumerate() {
        messages.push(message(value, &format!("{key}[{index}]"))?);
    }
    Ok(Row::Chat { messages, tools: tools(object)? })
}

/// A message of `role` and `content`, or of `from` and `value`.
fn message(value: &Value, path: &str) -> Result<Message, RowError> {
    let object =
        value.as_object().ok_or_else(|| field(path, "a message {role, content}", Some(value)))?;
    let share_gpt = !object.contains_key("role") && object.contains_key("from");
    let [role_key, text_key] = if share_gpt { ["from", "value"] } else { ["role", "content"] };
    let role = match object.get(role_key) {
        Some(Value::String(role)) if !role.is_empty() => role.as_str(),
        other => {
            return Err(field(
                &format!("{path}.{role_key}"),
                "a role: `system`, `user`, `assistant` or `tool`",
                other,
            ));
        }
    };
    let role = match role {
        _ if !share_gpt => role,
        "human" | "user" => "user",
        "gpt" | "assistant" | "chatgpt" | "bing" | "function_call" => "assistant",
        // Chat templates have one role for the results of tools; an unknown role would be dropped silently.
        "observation" | "function" | "tool" => "tool",
        other => other,
    };
    let mut extra: Object = object
        .iter()
        .filter(|(key, value)| *key != role_key && *key != text_key && !value.is_null())
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let path = format!("{path}.{text_key}");
    let content = match object.get(text_key) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => text_of_parts(parts, &path)?,
        None | Some(Value::Null) if has(object, "tool_calls") => {
            extra.insert("content".into(), Value::Null);
            String::new()
        }
        other => return Err(field(&path, "a string, or a list of text parts", other)),
    };
    Ok(Message { role: role.to_owned(), content, extra })
}

/// The texts of a list of content parts, joined.
fn text_of_parts(parts: &[Value], path: &str) -> Result<String, RowError> {
    let mut text = String::new();
    for (index, part) in parts.iter().enumerate() {
        let piece = part.as_str().or_else(|| part.get("text").and_then(Value::as_str)).ok_or_else(
            || field(&format!("{path}[{index}]"), "a part {type: \"text\", text}", Some(part)),
        )?;
        text.push_str(piece);
    }
    Ok(text)
}

fn alpaca(object: &Object) -> Result<Row, RowError> {
    let mut messages = Vec::new();
    if let Some(text) = system(object)? {
        messages.push(Message::new("system", text));
    }
    match object.get("history") {
        None | Some(Value::Null) => {}
        Some(Value::Array(turns)) => {
            for (index, turn) in turns.iter().enumerate() {
                let [user, assistant] = turn
                    .as_array()
                    .and_then(|pair| match pair.as_slice() {
                        [Value::String(user), Value::String(assistant)] => Some([user, assistant]),
                        _ => None,
                    })
                    .ok_or_else(|| {
                        field(&format!("history[{index}]"), "a pair of strings", Some(turn))
                    })?;
                messages.push(Message::new("user", user.as_str()));
                messages.push(Message::new("assistant", assistant.as_str()));
            }
        }
        other => return Err(field("history", "a list of pairs", other)),
    }
    let user = joined(string(object, "instruction")?, optional(object, "input")?);
    messages.push(Message::new("user", user));
    messages.push(Message::new("assistant", string(object, "output")?));
    Ok(Row::Chat { messages, tools: tools(object)? })
}

fn dolly(object: &Object) -> Result<Row, RowError> {
    let user = joined(string(object, "instruction")?, optional(object, "context")?);
    Ok(exchange(system(object)?, user, string(object, "response")?))
}

fn prompt(object: &Object) -> Result<Row, RowError> {
    let key = if has(object, "completion") { "completion" } else { "response" };
    if let (Some(Value::Array(given)), Some(Value::Array(learned))) =
        (object.get("prompt"), object.get(key))
    {
        let mut messages = Vec::with_capacity(given.len() + learned.len());
        for (index, value) in given.iter().enumerate() {
            let path = format!("prompt[{index}]");
            let message = message(value, &path)?;
            if message.role == "assistant" {
                // All of the assistant's turns are trained on; a prompt must not be.
                return Err(field(
                    &path,
                    "a prompt without assistant messages (use `messages` to train on all turns)",
                    Some(value),
                ));
            }
            messages.push(message);
        }
        for (index, value) in learned.iter().enumerate() {
            messages.push(message(value, &format!("{key}[{index}]"))?);
        }
        return Ok(Row::Chat { messages, tools: tools(object)? });
    }
    let prompt = string(object, "prompt")?;
    let completion = string(object, key)?;
    Ok(match system(object)? {
        Some(system) => exchange(Some(system), prompt.to_owned(), completion),
        None => Row::Completion { prompt: prompt.to_owned(), completion: completion.to_owned() },
    })
}

fn pair(object: &Object, question: &str, answer: &str) -> Result<Row, RowError> {
    let user = string(object, question)?.to_owned();
    Ok(exchange(system(object)?, user, string(object, answer)?))
}

fn exchange(system: Option<&str>, user: String, assistant: &str) -> Row {
    let mut messages: Vec<Message> =
        system.map(|text| Message::new("system", text)).into_iter().collect();
    messages.push(Message::new("user", user));
    messages.push(Message::new("assistant", assistant));
    Row::Chat { messages, tools: None }
}

/// Instruction and input as one text, joined as LLaMA-Factory joins them.
fn joined(instruction: &str, input: Option<&str>) -> String {
    match input {
        Some(input) if instruction.is_empty() => input.to_owned(),
        Some(input) => format!("{instruction}\n{input}"),
        None => instruction.to_owned(),
    }
}

fn tools(object: &Object) -> Result<Option<Value>, RowError> {
    match object.get("tools") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
        Some(Value::Array(list)) if list.is_empty() => Ok(None),
        Some(value @ Value::Array(_)) => Ok(Some(value.clone())),
        Some(value @ Value::String(text)) => match serde_json::from_str(text) {
            Ok(Value::Array(list)) if list.is_empty() => Ok(None),
            Ok(list @ Value::Array(_)) => Ok(Some(list)),
            _ => Err(field("tools", "a list of tools, or a JSON string with one", Some(value))),
        },
        other => Err(field("tools", "a list of tools", other)),
    }
}

fn system(object: &Object) -> Result<Option<&str>, RowError> {
    optional(object, "system")
}

fn optional<'a>(object: &'a Object, key: &str) -> Result<Option<&'a str>, RowError> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
        other => Err(field(key, "a string", other)),
    }
}

fn string<'a>(object: &'a Object, key: &str) -> Result<&'a str, RowError> {
    match object.get(key) {
        Some(Value::String(text)) => Ok(text),
        other => Err(field(key, "a string", other)),
    }
}

fn field(key: &str, expected: &'static str, found: Option<&Value>) -> RowError {
    RowError::Field {
        key: key.to_owned(),
        expected,
        found: match found {
            None => "nothing: the key is missing".into(),
            Some(Value::Object(object)) => {
                let keys: Vec<&str> = object.keys().map(String::as_str).collect();
                format!("an object with the keys {}", keys.join(", "))
            }
            Some(value) => {
                let text = value.to_string();
                let short: String = text.chars().take(40).collect();
                let dots = if short.len() < text.len() { "…" } else { "" };
                format!("{} {short}{dots}", kind(value))
            }
        },
    }
}

/// The JSON type of a value, for messages.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chat(row: &Row) -> Vec<(&str, &str)> {
        match row {
            Row::Chat { messages, .. } => {
                messages.iter().map(|m| (m.role.as_str(), m.content.as_str())).collect()
            }
            other => panic!("not a chat: {other:?}"),
        }
    }

    fn auto(value: Value) -> Row {
        row_from_value(&value, Format::Auto).unwrap()
    }

    #[test]
    fn each_format_is_detected_from_its_keys() {
        let one = [("user", "q"), ("assistant", "a")];
        for value in [
            json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": [{"type": "text", "text": "a"}]}]}),
            json!({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}),
            json!({"instruction": "q", "input": "", "output": "a", "text": "ignored"}),
            json!({"instruction": "q", "context": "", "response": "a", "category": "x"}),
            json!({"question": "q", "answer": "a"}),
            json!({"query": "q", "response": "a"}),
            json!({"messages": null, "question": "q", "answer": "a"}),
        ] {
            assert_eq!(chat(&auto(value)), one);
        }
        assert_eq!(auto(json!({"text": "t"})), Row::Text("t".into()));
        assert_eq!(
            auto(json!({"prompt": "p", "response": "c"})),
            Row::Completion { prompt: "p".into(), completion: "c".into() }
        );
    }

    #[test]
    fn formats_have_the_names_and_keys_of_the_configuration() {
        let names = Format::value_variants().iter().map(|format| format.name());
        assert_eq!(
            names.collect::<Vec<_>>().join(" "),
            "auto messages sharegpt alpaca dolly prompt question query text"
        );
        let keys = "messages conversations instruction output input history response context prompt completion \
            question answer query text";
        assert_eq!(known_keys().join(" "), keys);
        let lists = ["messages", "conversations", "history", "tools"];
        assert!(lists.iter().all(|key| is_list(key)) && !is_list("output"));
        let optional = ["input", "context", "history", "system", "tools"];
        assert!(optional.iter().all(|key| is_optional(key)) && !is_optional("prompt"));
    }

    #[test]
    fn alpaca_history_and_system_come_first() {
        let row = auto(
            json!({"system": "s", "instruction": "i", "input": "x", "output": "o", "history": [["u", "v"]]}),
        );
        assert_eq!(
            chat(&row),
            [
                ("system", "s"),
                ("user", "u"),
                ("assistant", "v"),
                ("user", "i\nx"),
                ("assistant", "o")
            ]
        );
    }

    #[test]
    fn unknown_keys_are_listed_with_the_nearest_known_one() {
        let error = row_from_value(&json!({"mesages": []}), Format::Auto).unwrap_err().to_string();
        assert!(
            error.contains("`mesages`") && error.contains("Did you mean `messages`?"),
            "{error}"
        );
        assert!(error.contains("`question`, `answer`"), "{error}");
    }

    #[test]
    fn a_message_without_role_is_named() {
        let value = json!({"messages": [{"role": "user", "content": "q"}, {"content": "a"}]});
        let error = row_from_value(&value, Format::Auto).unwrap_err().to_string();
        assert!(error.contains("messages[1].role") && error.contains("missing"), "{error}");
        let value = json!({"messages": [{"role": "user", "content": 7}]});
        let error = row_from_value(&value, Format::Auto).unwrap_err().to_string();
        assert!(error.contains("messages[0].content") && error.contains("a number 7"), "{error}");
    }

    #[test]
    fn null_content_with_tool_calls_stays_null_and_null_extras_are_removed() {
        let row = auto(json!({"messages": [
            {"role": "user", "content": "q", "tool_calls": null},
            {"role": "assistant", "content": null, "tool_calls": [{"name": "f"}]}]}));
        let Row::Chat { messages, .. } = row else { panic!() };
        assert!(messages[0].extra.is_empty());
        assert_eq!(messages[1].to_value()["content"], Value::Null);
    }
}
