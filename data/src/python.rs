//! Python behavior that chat templates rely on: `json.dumps`, `str` of values, tests and methods of strings.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use serde_json::Value as Json;

/// Makes the environment behave like the one in transformers.
pub(crate) fn install(env: &mut Environment<'_>) {
    env.add_filter("tojson", tojson);
    env.set_formatter(print);
    env.set_unknown_method_callback(method);
    // In Python strings are iterable, and mappings have a length and items.
    env.add_test("iterable", |v: &Value| container(v) || v.try_iter().is_ok());
    env.add_test("sequence", container);
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
}

fn container(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map)
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`: no HTML escaping, Python's separators.
fn tojson(value: &Value, indent: Option<Value>, args: Kwargs) -> Result<String, Error> {
    let wrong = |detail: &str| Error::new(ErrorKind::InvalidOperation, format!("tojson: {detail}"));
    if value.is_undefined() {
        return Err(wrong("the value is undefined"));
    }
    let json = serde_json::to_value(value).map_err(|error| wrong(&error.to_string()))?;
    let indent = match indent {
        Some(value) => Some(value),
        None => args.get("indent")?,
    };
    let indent = match indent {
        Some(value) if !value.is_none() => Some(usize::try_from(value)?),
        _ => None,
    };
    let separators: Option<Vec<String>> = args.get("separators")?;
    let mut style = Style {
        indent,
        item: if indent.is_some() { "," } else { ", " }.to_owned(),
        key: ": ".to_owned(),
        sort_keys: args.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ascii: args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    if let Some([item, key]) = separators.as_deref() {
        style.item.clone_from(item);
        style.key.clone_from(key);
    }
    args.assert_all_used()?;
    let mut out = String::new();
    style.write(&mut out, &json, 0);
    Ok(out)
}

struct Style {
    indent: Option<usize>,
    item: String,
    key: String,
    sort_keys: bool,
    ascii: bool,
}

impl Style {
    fn write(&self, out: &mut String, value: &Json, depth: usize) {
        match value {
            Json::Array(list) if list.is_empty() => out.push_str("[]"),
            Json::Object(map) if map.is_empty() => out.push_str("{}"),
            Json::Array(list) => {
                out.push('[');
                for (index, value) in list.iter().enumerate() {
                    self.before_item(out, index, depth + 1);
                    self.write(out, value, depth + 1);
                }
                self.line(out, depth);
                out.push(']');
            }
            Json::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                if self.sort_keys {
                    entries.sort_by_key(|(key, _)| *key);
                }
                out.push('{');
                for (index, (key, value)) in entries.into_iter().enumerate() {
                    self.before_item(out, index, depth + 1);
                    self.string(out, key);
                    out.push_str(&self.key);
                    self.write(out, value, depth + 1);
                }
                self.line(out, depth);
                out.push('}');
            }
            Json::String(text) => self.string(out, text),
            Json::Number(number) => match number.as_f64() {
                Some(float) if number.is_f64() => out.push_str(&float_repr(float)),
                _ => out.push_str(&number.to_string()),
            },
            Json::Bool(_) | Json::Null => out.push_str(&value.to_string()),
        }
    }

    fn before_item(&self, out: &mut String, index: usize, depth: usize) {
        if index > 0 {
            out.push_str(&self.item);
        }
        self.line(out, depth);
    }

    fn line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a string cannot fail.
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// `repr(float)`: the shortest digits, with an exponent outside 1e-4 … 1e16.
fn float_repr(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        format!("{digits}e{sign}{exponent:0>2}")
    } else {
        format!("{value:?}")
    }
}

/// Prints `{{ value }}` like Python's `str`.
fn print(out: &mut Output<'_>, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    let text = match value.kind() {
        ValueKind::Bool | ValueKind::None | ValueKind::Seq | ValueKind::Map | ValueKind::Number => {
            repr(value)
        }
        _ => return minijinja::escape_formatter(out, state, value),
    };
    out.write_str(&text).map_err(Error::from)
}

fn repr(value: &Value) -> String {
    match serde_json::to_value(value) {
        Ok(json) => json_repr(&json),
        Err(_) => value.to_string(),
    }
}

fn json_repr(value: &Json) -> String {
    match value {
        Json::Null => "None".into(),
        Json::Bool(true) => "True".into(),
        Json::Bool(false) => "False".into(),
        Json::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => float_repr(float),
            _ => number.to_string(),
        },
        Json::String(text) => string_repr(text),
        Json::Array(list) => {
            let items: Vec<String> = list.iter().map(json_repr).collect();
            format!("[{}]", items.join(", "))
        }
        Json::Object(map) => {
            let items: Vec<String> = map
                .iter()
                .map(|(key, value)| format!("{}: {}", string_repr(key), json_repr(value)))
                .collect();
            format!("{{{}}}", items.join(", "))
        }
    }
}

fn string_repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_ascii_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// Methods of strings that `pycompat` lacks, then those of `pycompat`.
fn method(
    state: &State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let (Some(text), Some(arg)) = (value.as_str(), args.first().and_then(Value::as_str)) {
        let three = |found: Option<(&str, &str)>, whole: [&str; 3]| {
            let [a, b, c] = found.map_or(whole, |(head, tail)| [head, arg, tail]);
            Value::from_iter([a, b, c])
        };
        match name {
            "removeprefix" => return Ok(text.strip_prefix(arg).unwrap_or(text).into()),
            "removesuffix" => return Ok(text.strip_suffix(arg).unwrap_or(text).into()),
            "partition" => return Ok(three(text.split_once(arg), [text, "", ""])),
            "rpartition" => return Ok(three(text.rsplit_once(arg), ["", "", text])),
            "rsplit" => {
                let most = match args.get(1) {
                    Some(count) => {
                        usize::try_from(i64::try_from(count.clone())?).unwrap_or(usize::MAX - 1)
                    }
                    None => usize::MAX - 1,
                };
                let mut pieces: Vec<&str> = text.rsplitn(most + 1, arg).collect();
                pieces.reverse();
                return Ok(Value::from_iter(pieces));
            }
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::context;

    fn render(template: &str, value: &serde_json::Value) -> String {
        let mut env = Environment::new();
        install(&mut env);
        env.render_str(template, context! { v => Value::from_serialize(value) }).unwrap()
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        let value = serde_json::json!({"b": [1, 2.0, 1e20, 1e-7], "a": {"é<&'": null, "e": []}, "s": "\u{1}\"\n"});
        assert_eq!(
            render("{{ v | tojson }}", &value),
            r#"{"b": [1, 2.0, 1e+20, 1e-07], "a": {"é<&'": null, "e": []}, "s": "\u0001\"\n"}"#
        );
        let value = serde_json::json!({"b": [1, {}], "a": true});
        assert_eq!(
            render("{{ v | tojson(indent=2) }}", &value),
            "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": true\n}"
        );
        assert_eq!(
            render("{{ v | tojson(sort_keys=true, separators=(',', ':')) }}", &value),
            r#"{"a":true,"b":[1,{}]}"#
        );
    }

    #[test]
    fn values_print_as_in_python() {
        let value = serde_json::json!([true, null, 1.5, "it's", {"k": "v"}]);
        assert_eq!(
            render("{{ v }} {{ v[1] }} {{ v[0] }} {{ v[3] }}", &value),
            r#"[True, None, 1.5, "it's", {'k': 'v'}] None True it's"#
        );
    }

    #[test]
    fn strings_have_the_tests_and_methods_of_python() {
        let value = serde_json::json!("a/b/c");
        assert_eq!(
            render(
                "{{ v is iterable }} {{ v.removeprefix('a/') }} {{ v.rsplit('/', 1)[0] }} {{ v.partition('/')[2] }} {{ v.split('/')[-1] }} {{ v[::-1] }}",
                &value
            ),
            "True b/c a/b b/c c c/b/a"
        );
    }
}
