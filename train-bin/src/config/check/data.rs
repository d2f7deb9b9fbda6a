//! `[data]`: the examples.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use emberlm_data::date;

use super::Check;
use super::fields::{is_positive, nonzero_usize};
use crate::config::error::{Fault, FaultKind};
use crate::config::raw::{Field, RawData, RawSource};
use crate::config::{DataSection, DataSource, Layout, MixtureSource, ModelSource};

impl Check {
    pub(super) fn data(&mut self, raw: RawData, model: &ModelSource) -> DataSection {
        self.unknown_keys("data", &raw.unknown);
        let default = DataSection::default();
        let format =
            self.given("data.format", raw.format).unwrap_or_else(|| default.format.clone());
        if format.is_empty() {
            self.out_of_range("data.format", "the name of a format", "\"\"", &default.format);
        }
        let reading = self.reading(raw.reading, &format);
        let shuffle = self.given("data.shuffle", raw.shuffle).unwrap_or(default.shuffle);
        let layout = self.layout(raw.packing, raw.group_by_length, shuffle);
        DataSection {
            source: self.data_source(raw.train, raw.source, raw.eval, model),
            format,
            template: self.choice("data.template", raw.template, default.template),
            train_on: self.choice("data.train_on", raw.train_on, default.train_on),
            max_length: self.max_length(raw.max_length, default.max_length),
            layout,
            shuffle,
            date: self.date(raw.date).unwrap_or(default.date),
            prompts: self.given("data.prompts", raw.prompts).unwrap_or_default(),
            cache_dir: self.path("data.cache_dir", raw.cache_dir),
            reading,
        }
    }

    fn max_length(&mut self, field: Field<i64>, default: NonZeroUsize) -> NonZeroUsize {
        let at_least_2 = |n| nonzero_usize(n).filter(|n| n.get() >= 2);
        let expected = "a whole number from 2 on: a token and the one it predicts";
        self.whole("data.max_length", field, expected, default, at_least_2).unwrap_or(default)
    }

    fn layout(&mut self, packing: Field<bool>, group: Field<bool>, shuffle: bool) -> Layout {
        let packing = self.given("data.packing", packing).unwrap_or(false);
        let group = self.given("data.group_by_length", group).unwrap_or(false);
        if packing && group {
            let reason = "packed rows are full, so there is nothing to gain by grouping them";
            let keys = ["data.packing", "data.group_by_length"];
            self.contradiction(keys, reason, "remove one of them");
        }
        if group && !shuffle {
            let reason = "grouping puts the examples in an order of its own";
            let keys = ["data.group_by_length", "data.shuffle"];
            self.contradiction(keys, reason, "remove one of them");
        }
        match (packing, group) {
            (true, _) => Layout::Packed,
            (false, true) => Layout::ByLength,
            (false, false) => Layout::OnePerRow,
        }
    }

    fn data_source(
        &mut self,
        train: Field<crate::config::raw::Paths>,
        source: Field<Vec<RawSource>>,
        eval: Field<crate::config::raw::Paths>,
        model: &ModelSource,
    ) -> DataSource {
        if !train.is_absent() && !source.is_absent() {
            let reason = "each says what to learn from";
            self.contradiction(["data.train", "data.source"], reason, "remove one of them");
        }
        let is_faulty = matches!(train, Field::Wrong(_)) || !source.is_absent();
        let train = self.paths("data.train", train);
        let eval = self.paths("data.eval", eval);
        let sources = self.given("data.source", source).map(|sources| self.sources(sources));
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
        match sources {
            Some(sources) => DataSource::Mixture { sources, eval },
            None if train.is_empty() => DataSource::Builtin,
            None => DataSource::Files { train, eval },
        }
    }

    fn sources(&mut self, raw: Vec<RawSource>) -> Vec<MixtureSource> {
        if raw.is_empty() {
            self.out_of_range("data.source", "at least one source", "[]", "no mixture");
        }
        let sources = raw.into_iter().enumerate();
        sources.map(|(n, source)| self.source(&format!("data.source[{n}]"), source)).collect()
    }

    fn source(&mut self, place: &str, raw: RawSource) -> MixtureSource {
        // Their place in the file is that of the list.
        let origin = self.origins.get("data.source").cloned();
        let [path_key, weight_key] = ["path", "weight"].map(|key| format!("{place}.{key}"));
        if let Some(origin) = &origin {
            for key in [&path_key, &weight_key] {
                self.origins.insert(key.clone(), origin.clone());
            }
        }
        for name in raw.unknown.keys() {
            let likeness = |key: &str| strsim::normalized_damerau_levenshtein(key, name);
            let nearest = ["path", "weight"].into_iter().find(|key| likeness(key) >= 0.5);
            let kind = FaultKind::UnknownKey {
                key: format!("{place}.{name}"),
                nearest: nearest.map(|key| format!("{place}.{key}")),
                known: vec![path_key.clone(), weight_key.clone()],
            };
            self.faults.push(Fault { origin: origin.clone(), kind });
        }
        let is_absent = raw.path.is_absent();
        let is_given = matches!(raw.path, Field::Given(_));
        let paths: Vec<PathBuf> = self.paths(&path_key, raw.path);
        if is_absent {
            let kind = FaultKind::Missing {
                key: path_key.clone(),
                expected: "a file to learn from, or a list of such",
                because: "it is what a source is".to_owned(),
                remedy: "add it, or remove the source".to_owned(),
            };
            self.push(&path_key, kind);
        }
        if is_given && paths.is_empty() {
            self.out_of_range(&path_key, "at least one file", "[]", "no such source");
        }
        let expected = "a number greater than 0";
        let weight = self.number(&weight_key, raw.weight, expected, 1.0, is_positive);
        MixtureSource { paths, weight }
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
