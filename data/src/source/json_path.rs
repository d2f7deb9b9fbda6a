//! Values of nested JSON by path: `translation.en`, `turns.0.text`.

use std::str::FromStr;

use serde_json::Value;

/// The value of a key, or of a path of keys separated by dots.
pub(crate) fn at_path<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    value.get(path).or_else(|| {
        let mut at = value;
        for key in path.split('.') {
            at = match at {
                Value::Array(list) => list.get(usize::from_str(key).ok()?)?,
                other => other.get(key)?,
            };
        }
        Some(at)
    })
}
