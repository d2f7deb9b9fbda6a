//! `[lora]`.

use super::Check;
use super::fields::{is_positive, is_share, nonzero_usize};
use crate::config::error::FaultKind;
use crate::config::raw::{Field, RawLora, RawTargets};
use crate::config::{LoraSection, LoraStart, Targets};

impl Check {
    pub(super) fn lora(&mut self, raw: RawLora) -> LoraSection {
        self.unknown_keys("lora", &raw.unknown);
        let default = LoraSection::default();
        if !raw.init_from.is_absent() {
            for (key, given) in [
                ("lora.r", !raw.r.is_absent()),
                ("lora.alpha", !raw.alpha.is_absent()),
                ("lora.target_modules", !raw.target_modules.is_absent()),
                ("lora.use_rslora", !raw.use_rslora.is_absent()),
            ] {
                if given {
                    let reason = format!("{key} comes from the adapter");
                    self.contradiction([key, "lora.init_from"], &reason, &format!("remove {key}"));
                }
            }
        }
        let init_from = self.path("lora.init_from", raw.init_from);
        let r = self.whole(
            "lora.r",
            raw.r,
            "a whole number from 1 on",
            LoraSection::DEFAULT_R,
            nonzero_usize,
        );
        let r = r.unwrap_or(LoraSection::DEFAULT_R);
        let default_alpha = LoraSection::default_alpha(r);
        let alpha = self.number(
            "lora.alpha",
            raw.alpha,
            "a number greater than 0",
            default_alpha,
            is_positive,
        );
        let target_modules = self.targets(raw.target_modules);
        let use_rslora = self.given("lora.use_rslora", raw.use_rslora).unwrap_or(false);
        let start = match init_from {
            Some(path) => LoraStart::InitFrom(path),
            None => LoraStart::Fresh { r, alpha, target_modules, use_rslora },
        };
        let expected = "a number from 0 on, less than 1";
        LoraSection {
            start,
            dropout: self.number("lora.dropout", raw.dropout, expected, default.dropout, is_share),
        }
    }

    fn targets(&mut self, field: Field<RawTargets>) -> Targets {
        let key = "lora.target_modules";
        match self.given(key, field) {
            None => Targets::AllLinear,
            Some(RawTargets::Text(text)) if text == "all-linear" => Targets::AllLinear,
            Some(RawTargets::Text(text)) => {
                if text.is_empty() {
                    self.out_of_range(
                        key,
                        "\"all-linear\", a regular expression or a list of names",
                        "\"\"",
                        "all-linear",
                    );
                } else if let Err(error) = fancy_regex::Regex::new(&text) {
                    let reason = error.to_string();
                    let reason = reason
                        .lines()
                        .last()
                        .unwrap_or_default()
                        .trim_start_matches("error: ")
                        .to_owned();
                    self.push(
                        key,
                        FaultKind::Pattern { key: key.to_owned(), found: text.clone(), reason },
                    );
                }
                Targets::Regex(text)
            }
            Some(RawTargets::Names(names)) => {
                if names.is_empty() || names.iter().any(String::is_empty) {
                    self.out_of_range(
                        key,
                        "names of modules, at least one",
                        format!("{names:?}"),
                        "all-linear",
                    );
                }
                Targets::List(names)
            }
        }
    }
}
