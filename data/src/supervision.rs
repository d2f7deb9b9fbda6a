//! The turns of a conversation that are trained on, and their loss weights.

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::RowError;
use crate::row::Message;

/// The assistant turns that are trained on. Turns of other roles never are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TrainOn {
    /// All assistant turns; marks have no effect
    #[default]
    All,
    /// The last assistant turn; earlier turns are context
    Last,
    /// All assistant turns except those marked `"train": false` or `"weight": 0`; other weights scale the loss
    ///
    /// `train` is axolotl's key, `weight` that of OpenAI's fine-tuning format. Whole rows can be marked too; the weights of
    /// a row and of a message in it multiply. The default weight is 1.
    Marked,
}

/// An assistant turn that is trained on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Turn {
    /// Index of the message.
    pub(crate) message: usize,
    /// Loss weight of its tokens.
    pub(crate) weight: f32,
}

/// The assistant turns to train on.
///
/// # Errors
/// A conversation without assistant turns; with [`TrainOn::Marked`], an invalid mark, or one that requests training on a
/// turn of another role.
pub(crate) fn chosen(messages: &[Message], train_on: TrainOn) -> Result<Vec<Turn>, RowError> {
    let mut turns: Vec<Turn> = (0..messages.len())
        .filter(|&turn| is_assistant(&messages[turn]))
        .map(|message| Turn { message, weight: 1.0 })
        .collect();
    if turns.is_empty() {
        let mut roles: Vec<String> =
            messages.iter().map(|message| format!("`{}`", message.role)).collect();
        roles.sort();
        roles.dedup();
        return Err(RowError::NoAssistant { roles: roles.join(", ") });
    }
    match train_on {
        TrainOn::All => {}
        TrainOn::Last => turns.drain(..turns.len() - 1).for_each(drop),
        TrainOn::Marked => {
            let mut marks = Vec::with_capacity(messages.len());
            for (turn, message) in messages.iter().enumerate() {
                let mark = mark(&format!("messages[{turn}]"), &message.extra)?;
                if mark.is_some_and(|weight| weight > 0.0) && !is_assistant(message) {
                    return Err(RowError::MarkOnOther { turn, role: message.role.clone() });
                }
                marks.push(mark);
            }
            turns.iter_mut().for_each(|turn| turn.weight = marks[turn.message].unwrap_or(1.0));
            turns.retain(|turn| turn.weight > 0.0);
        }
    }
    Ok(turns)
}

/// The loss weight of a row: 1, unless [`TrainOn::Marked`] applies its marks.
///
/// # Errors
/// An invalid mark.
pub(crate) fn row_weight(marks: &Map<String, Value>, train_on: TrainOn) -> Result<f32, RowError> {
    match train_on {
        TrainOn::All | TrainOn::Last => Ok(1.0),
        TrainOn::Marked => Ok(mark("", marks)?.unwrap_or(1.0)),
    }
}

/// The keys of marks in messages and rows.
pub(crate) const MARKS: [&str; 2] = ["train", "weight"];

fn is_assistant(message: &Message) -> bool {
    message.role == "assistant"
}

/// The weight that a message or a row (`place` is empty) is marked with.
fn mark(place: &str, marks: &Map<String, Value>) -> Result<Option<f32>, RowError> {
    let path = |key: &str| match (place, key) {
        ("", key) => key.to_owned(),
        (place, "") => place.to_owned(),
        (place, key) => format!("{place}.{key}"),
    };
    let wrong = |key: &str, expected, found: &Value| RowError::Field {
        key: path(key),
        expected,
        found: found.to_string(),
    };
    let given = |key: &str| marks.get(key).filter(|value| !value.is_null());
    let train = match given("train") {
        None => None,
        Some(Value::Bool(train)) => Some(*train),
        // The cells of a table are text.
        Some(Value::String(text)) if ["true", "false"].contains(&text.as_str()) => {
            Some(text == "true")
        }
        Some(other) => return Err(wrong("train", "true or false", other)),
    };
    let weight = match given("weight") {
        None => None,
        Some(value) => {
            let number = match value {
                Value::String(text) => text.trim().parse().ok(),
                value => value.as_f64(),
            };
            let weight = number.map(|number: f64| number as f32).filter(|weight| {
                weight.is_finite() && *weight >= 0.0 && (*weight > 0.0 || number == Some(0.0))
            });
            let expected = "a number of at least 0 (the loss weight of its tokens)";
            Some(weight.ok_or_else(|| wrong("weight", expected, value))?)
        }
    };
    match (train, weight) {
        (Some(train), Some(weight)) if train != (weight > 0.0) => {
            let found = format!("train: {train} and weight: {weight}");
            let key = if place.is_empty() { "train".to_owned() } else { place.to_owned() };
            Err(RowError::Field { key, expected: "`train` and `weight` that agree", found })
        }
        (Some(train), None) => Ok(Some(f32::from(u8::from(train)))),
        (_, weight) => Ok(weight),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn conversation(marks: &[(&str, Value)]) -> Vec<Message> {
        let message = |(role, mark): &(&str, Value)| {
            let mut message = Message::new(*role, "x");
            message.extra.extend(mark.as_object().cloned().unwrap_or_default());
            message
        };
        marks.iter().map(message).collect()
    }

    fn three() -> Vec<Message> {
        conversation(&[
            ("user", json!({"weight": 0})),
            ("assistant", json!({"weight": 0})),
            ("user", json!({"train": false})),
            ("assistant", json!({"train": true, "weight": 1.0})),
            ("user", json!({})),
            ("assistant", json!({})),
            ("user", json!({})),
            ("assistant", json!({"train": false})),
            ("user", json!({})),
        ])
    }

    fn indices(turns: &[Turn]) -> Vec<usize> {
        turns.iter().map(|turn| turn.message).collect()
    }

    #[test]
    fn turns_are_chosen_by_train_on() {
        let chosen = |train_on| indices(&chosen(&three(), train_on).unwrap());
        assert_eq!(chosen(TrainOn::All), [1, 3, 5, 7]);
        assert_eq!(chosen(TrainOn::Last), [7]);
        assert_eq!(chosen(TrainOn::Marked), [3, 5]);
        let none = conversation(&[("user", json!({})), ("assistant", json!({"weight": 0}))]);
        assert!(super::chosen(&none, TrainOn::Marked).unwrap().is_empty());
    }

    #[test]
    fn weights_are_read_from_the_marks() {
        let messages = conversation(&[
            ("assistant", json!({"weight": 0.25})),
            ("assistant", json!({"train": true, "weight": "2.5"})),
            ("assistant", json!({"train": "true"})),
            ("assistant", json!({"train": false, "weight": 0.0})),
        ]);
        let weights = |train_on| -> Vec<(usize, f32)> {
            let turns = chosen(&messages, train_on).unwrap();
            turns.iter().map(|turn| (turn.message, turn.weight)).collect()
        };
        assert_eq!(weights(TrainOn::Marked), [(0, 0.25), (1, 2.5), (2, 1.0)]);
        assert_eq!(weights(TrainOn::All), [(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0)]);
        let row = |marks: Value| row_weight(marks.as_object().unwrap(), TrainOn::Marked);
        assert_eq!(row(json!({})).unwrap(), 1.0);
        assert_eq!(row(json!({"weight": 0.5})).unwrap(), 0.5);
        assert_eq!(row(json!({"train": false})).unwrap(), 0.0);
        let error = row(json!({"train": false, "weight": 0.5})).unwrap_err().to_string();
        assert!(error.contains("`train`: expected `train` and `weight` that agree"), "{error}");
    }

    #[test]
    fn invalid_marks_are_reported() {
        for (role, mark, expected) in [
            (
                "assistant",
                json!({"weight": -1}),
                "`messages[0].weight`: expected a number of at least 0",
            ),
            ("assistant", json!({"weight": 1e-60}), "`messages[0].weight`: expected a number"),
            ("assistant", json!({"weight": "much"}), "`messages[0].weight`: expected a number"),
            ("assistant", json!({"weight": 1e60}), "`messages[0].weight`: expected a number"),
            ("assistant", json!({"train": "yes"}), "`messages[0].train`: expected true or false"),
            ("assistant", json!({"train": true, "weight": 0}), "`train` and `weight` that agree"),
            ("user", json!({"train": true}), "message 0 (`user`) is marked for training"),
            ("user", json!({"weight": 0.5}), "message 0 (`user`) is marked for training"),
        ] {
            let messages = conversation(&[(role, mark), ("assistant", json!({}))]);
            let error = chosen(&messages, TrainOn::Marked).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(chosen(&messages, TrainOn::All).is_ok(), "marks have no effect");
        }
    }
}
