//! The part of a row that is compared.

use clap::ValueEnum;
use xxhash_rust::xxh3::Xxh3;

use crate::row::Row;

/// The part of a row that is compared with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Part {
    /// The whole row
    #[default]
    Row,
    /// The input: prompt, or system, user and tool messages; for plain text, everything
    Prompt,
    /// The text to learn: completion, or assistant messages; for plain text, everything
    Answer,
}

impl Part {
    /// The part's texts, each with its role.
    pub(crate) fn texts(self, row: &Row) -> Vec<(&str, &str)> {
        let all: Vec<(&str, &str)> = match row {
            Row::Text(text) => return vec![("text", text)],
            Row::Completion { prompt, completion } => {
                vec![("user", prompt), ("assistant", completion)]
            }
            Row::Chat { messages, .. } => messages
                .iter()
                .map(|message| (message.role.as_str(), message.content.as_str()))
                .collect(),
        };
        match self {
            Self::Row => all,
            Self::Prompt => all.into_iter().filter(|(role, _)| *role != "assistant").collect(),
            Self::Answer => all.into_iter().filter(|(role, _)| *role == "assistant").collect(),
        }
    }

    /// The part's texts, joined.
    pub(crate) fn text(self, row: &Row) -> String {
        let texts = self.texts(row);
        let mut text = String::with_capacity(texts.iter().map(|(_, text)| text.len() + 1).sum());
        for (_, piece) in texts {
            text.push_str(piece);
            text.push('\n');
        }
        text
    }

    /// A hash of the part's roles, texts and tool calls.
    pub(crate) fn hash(self, row: &Row) -> [u64; 2] {
        let mut hasher = Xxh3::new();
        let mut field = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        for (role, text) in self.texts(row) {
            field(role);
            field(text);
        }
        if let Row::Chat { messages, tools } = row {
            for message in messages.iter().filter(|message| !message.extra.is_empty()) {
                let own = match self {
                    Self::Row => true,
                    Self::Prompt => message.role != "assistant",
                    Self::Answer => message.role == "assistant",
                };
                if own {
                    field(&serde_json::Value::Object(message.extra.clone()).to_string());
                }
            }
            if let Some(tools) = tools.as_ref().filter(|_| self != Self::Answer) {
                field(&tools.to_string());
            }
        }
        let hash = hasher.digest128();
        [(hash >> 64) as u64, hash as u64]
    }
}
