//! `[data]`.

use emberlm_data::date;

use super::Check;
use super::fields::nonzero_usize;
use crate::config::error::FaultKind;
use crate::config::raw::{Field, RawData};
use crate::config::{DataSection, DataSource, ModelSource};

impl Check {
    pub(super) fn data(&mut self, raw: RawData, model: &ModelSource) -> DataSection {
        self.unknown_keys("data", &raw.unknown);
        let default = DataSection::default();
        let is_faulty = matches!(raw.train, Field::Wrong(_));
        let train = self.paths("data.train", raw.train);
        let eval = self.paths("data.eval", raw.eval);
        let because = match (model, eval.is_empty()) {
            _ if is_faulty || !train.is_empty() => None,
            (_, false) => Some(format!("data.eval is given{}", self.beside("data.eval"))),
            (ModelSource::Builtin, true) => None,
            (_, true) => Some("the built-in data is for the built-in model only".to_owned()),
        };
        if let Some(because) = because {
            let kind = FaultKind::Missing {
                key: "data.train".to_owned(),
                expected: "a file to learn from, or a list of such",
                because,
                remedy: "set data.train in the file, or give --data FILE".to_owned(),
            };
            self.push("data.train", kind);
        }
        if self.given("data.packing", raw.packing) == Some(true) {
            self.not_yet("data.packing", "true", "false");
        }
        let format =
            self.given("data.format", raw.format).unwrap_or_else(|| default.format.clone());
        if format.is_empty() {
            self.out_of_range("data.format", "the name of a format", "\"\"", &default.format);
        }
        let at_least_2 = |n| nonzero_usize(n).filter(|n| n.get() >= 2);
        let expected = "a whole number from 2 on: a token and the one it predicts";
        DataSection {
            source: if train.is_empty() {
                DataSource::Builtin
            } else {
                DataSource::Files { train, eval }
            },
            format,
            template: self.choice("data.template", raw.template, default.template),
            max_length: self
                .whole("data.max_length", raw.max_length, expected, default.max_length, at_least_2)
                .unwrap_or(default.max_length),
            shuffle: self.given("data.shuffle", raw.shuffle).unwrap_or(default.shuffle),
            date: self.date(raw.date).unwrap_or(default.date),
        }
    }

    fn date(&mut self, field: Field<String>) -> Option<String> {
        let text = self.given("data.date", field)?;
        if date::is_date(&text) {
            return Some(text);
        }
        self.out_of_range("data.date", "a day as YYYY-MM-DD", format!("{text:?}"), "today");
        None
    }
}
