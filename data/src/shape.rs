//! From a JSON value to a row, by its keys.

use serde_json::{Map, Value};

use crate::error::RowError;
use crate::nearest::nearest;
use crate::row::{Format, Message, Row};

const ACCEPTED: &str = "`messages` [{role, content}]; `conversations` [{from, value}]; `instruction`, `input`, `output`; \
    `instruction`, `context`, `response`; `prompt`, `completion` (or `response`); `question`, `answer`; `query`, `response`; `text`";
const KNOWN: [&str; 14] = [
    "messages",
    "conversations",
    "instruction",
    "input",
    "output",
    "context",
    "response",
    "prompt",
    "completion",
    "question",
    "answer",
    "query",
    "text",
    "history",
];

type Object = Map<String, Value>;

/// Reads a row made in a program, or parsed from a line.
///
/// # Errors
/// Keys that make no known shape, a field that is missing or of the wrong kind.
pub fn row_from_value(value: &Value, format: Format) -> Result<Row, RowError> {
    let object = value.as_object().ok_or(RowError::NotAnObject { found: kind(value) })?;
    let format = match format {
        Format::Auto => detect(object).ok_or_else(|| unknown(object))?,
        given => given,
    };
    match format {
        Format::Auto => Err(unknown(object)),
        Format::Messages | Format::ShareGpt => conversation(object, format),
        Format::Alpaca => alpaca(object),
        Format::Dolly => {
            let user = joined(string(object, "instruction")?, optional(object, "context")?);
            Ok(exchange(system(object)?, user, string(object, "response")?))
        }
        Format::Prompt => prompt(object),
        Format::Question => pair(object, "question", "answer"),
        Format::Query => pair(object, "query", "response"),
        Format::Text => Ok(Row::Text(string(object, "text")?.to_owned())),
    }
}

/// Data sets made of columns fill absent fields with nulls: those count as absent.
fn has(object: &Object, key: &str) -> bool {
    object.get(key).is_some_and(|value| !value.is_null())
}

pub(crate) fn detect(object: &Object) -> Option<Format> {
    let has = |key| has(object, key);
    Some(match () {
        () if has("messages") => Format::Messages,
        () if has("conversations") => Format::ShareGpt,
        () if has("instruction") && has("output") => Format::Alpaca,
        () if has("instruction") && has("response") => Format::Dolly,
        () if has("prompt") && (has("completion") || has("response")) => Format::Prompt,
        () if has("question") && has("answer") => Format::Question,
        () if has("query") && has("response") => Format::Query,
        () if has("text") => Format::Text,
        () => return None,
    })
}

fn unknown(object: &Object) -> RowError {
    let suggestion = object
        .keys()
        .filter(|key| !KNOWN.contains(&key.as_str()))
        .find_map(|key| nearest(key, KNOWN));
    let found: Vec<String> = object.keys().map(|key| format!("`{key}`")).collect();
    RowError::UnknownKeys {
        found: if found.is_empty() { "none".into() } else { found.join(", ") },
        suggestion,
        accepted: ACCEPTED,
    }
}

fn conversation(object: &Object, format: Format) -> Result<Row, RowError> {
    let keys = match format {
        Format::ShareGpt => ["conversations", "messages"],
        _ => ["messages", "conversations"],
    };
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
        // Chat templates know one role for what a tool answers; an unknown role would be dropped without a word.
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
                // All of the assistant's turns are trained, and a prompt must not be.
                return Err(field(
                    &path,
                    "no assistant's turn in a prompt (use `messages` to train on all turns)",
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

fn pair(object: &Object, ask: &str, answer: &str) -> Result<Row, RowError> {
    let user = string(object, ask)?.to_owned();
    Ok(exchange(system(object)?, user, string(object, answer)?))
}

fn exchange(system: Option<&str>, user: String, assistant: &str) -> Row {
    let mut messages: Vec<Message> =
        system.map(|text| Message::new("system", text)).into_iter().collect();
    messages.push(Message::new("user", user));
    messages.push(Message::new("assistant", assistant));
    Row::Chat { messages, tools: None }
}

/// An instruction and what it is about, joined as LLaMA-Factory joins them.
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
            _ => Err(field("tools", "a list of tools, or that list as JSON", Some(value))),
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
                format!("an object of the keys {}", keys.join(", "))
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
            other => panic!("no chat: {other:?}"),
        }
    }

    fn auto(value: Value) -> Row {
        row_from_value(&value, Format::Auto).unwrap()
    }

    #[test]
    fn each_shape_is_known_by_its_keys() {
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
    fn unknown_keys_are_listed_with_the_nearest() {
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
    fn null_content_beside_tool_calls_stays_null_and_null_extras_go() {
        let row = auto(json!({"messages": [
            {"role": "user", "content": "q", "tool_calls": null},
            {"role": "assistant", "content": null, "tool_calls": [{"name": "f"}]}]}));
        let Row::Chat { messages, .. } = row else { panic!() };
        assert!(messages[0].extra.is_empty());
        assert_eq!(messages[1].to_value()["content"], Value::Null);
    }
}
