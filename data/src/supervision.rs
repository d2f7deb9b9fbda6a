//! Which of a conversation's turns are trained.

use serde_json::Value;

use crate::error::RowError;
use crate::row::Message;

/// Which of the assistant's turns are trained. Nobody else's ever are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TrainOn {
    /// All of them, whatever marks they carry.
    #[default]
    All,
    /// The last one: what comes before is context.
    Last,
    /// All but those that are marked not to be: a message with `"weight": 0` (as OpenAI's fine-tuning format has it) or
    /// `"train": false` (as axolotl has it). `"weight": 1` and `"train": true` say what holds without a mark.
    Marked,
}

/// The assistant's turns that are to be trained, as indices of messages.
///
/// # Errors
/// A conversation without any turn of the assistant; under [`TrainOn::Marked`] a mark that is none, or one that asks for
/// the training of another's turn.
pub(crate) fn chosen(messages: &[Message], train_on: TrainOn) -> Result<Vec<usize>, RowError> {
    let mut turns: Vec<usize> =
        (0..messages.len()).filter(|&turn| is_assistant(&messages[turn])).collect();
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
                let mark = mark(turn, message)?;
                if mark == Some(true) && !is_assistant(message) {
                    return Err(RowError::MarkOnOther { turn, role: message.role.clone() });
                }
                marks.push(mark);
            }
            turns.retain(|&turn| marks[turn] != Some(false));
        }
    }
    Ok(turns)
}

fn is_assistant(message: &Message) -> bool {
    message.role == "assistant"
}

/// What a message says of itself.
fn mark(turn: usize, message: &Message) -> Result<Option<bool>, RowError> {
    let wrong = |key: &str, expected, found: &Value| RowError::Field {
        key: format!("messages[{turn}].{key}"),
        expected,
        found: found.to_string(),
    };
    let train = match message.extra.get("train") {
        None | Some(Value::Null) => None,
        Some(Value::Bool(train)) => Some(*train),
        Some(other) => return Err(wrong("train", "true or false", other)),
    };
    let weight = match message.extra.get("weight") {
        None | Some(Value::Null) => None,
        Some(value) => match value.as_f64() {
            Some(0.0) => Some(false),
            Some(1.0) => Some(true),
            _ => return Err(wrong("weight", "0 or 1 (a turn is trained or not)", value)),
        },
    };
    match (train, weight) {
        (Some(train), Some(weight)) if train != weight => {
            let key = format!("messages[{turn}]");
            let found = format!("train: {train} and weight: {}", u8::from(weight));
            Err(RowError::Field { key, expected: "marks that agree", found })
        }
        _ => Ok(train.or(weight)),
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

    #[test]
    fn turns_are_chosen_all_last_or_as_they_are_marked() {
        assert_eq!(chosen(&three(), TrainOn::All).unwrap(), [1, 3, 5, 7]);
        assert_eq!(chosen(&three(), TrainOn::Last).unwrap(), [7]);
        assert_eq!(chosen(&three(), TrainOn::Marked).unwrap(), [3, 5]);
        let none = conversation(&[("user", json!({})), ("assistant", json!({"weight": 0}))]);
        assert!(chosen(&none, TrainOn::Marked).unwrap().is_empty());
    }

    #[test]
    fn marks_that_are_none_are_named() {
        for (role, mark, expected) in [
            ("assistant", json!({"weight": 0.5}), "`messages[0].weight`: expected 0 or 1"),
            ("assistant", json!({"train": "yes"}), "`messages[0].train`: expected true or false"),
            ("assistant", json!({"train": true, "weight": 0}), "marks that agree"),
            ("user", json!({"train": true}), "message 0 (`user`) is marked to be trained"),
        ] {
            let messages = conversation(&[(role, mark), ("assistant", json!({}))]);
            let error = chosen(&messages, TrainOn::Marked).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(chosen(&messages, TrainOn::All).is_ok(), "marks are not asked for");
        }
    }
}
