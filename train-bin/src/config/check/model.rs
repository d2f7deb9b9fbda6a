//! `[model]`.

use std::path::Path;

use super::Check;
use crate::config::choice::{Dtype, Quant};
use crate::config::error::{Fault, FaultKind};
use crate::config::raw::{Field, RawModel};
use crate::config::{ModelSection, ModelSource};

impl Check {
    pub(super) fn model(&mut self, raw: RawModel, with_lora: bool) -> ModelSection {
        self.unknown_keys("model", &raw.unknown);
        let default = ModelSection::default();
        if !raw.path.is_absent() && !raw.config.is_absent() {
            let reason = "the weights either come from a model's folder or are drawn at random for an architecture";
            self.contradiction(["model.path", "model.config"], reason, "remove one of them");
        }
        let no_model = raw.path.is_absent() && raw.config.is_absent();
        let path = self.path("model.path", raw.path);
        let config = self.path("model.config", raw.config);
        let tokenizer = self.path("model.tokenizer", raw.tokenizer);
        if no_model && tokenizer.is_some() {
            self.faults.push(Fault {
                origin: None,
                kind: FaultKind::Missing {
                    key: "model.path".to_owned(),
                    expected: "the folder of the model",
                    because: format!(
                        "model.tokenizer is given{}, and the built-in model has its own tokenizer",
                        self.beside("model.tokenizer")
                    ),
                    remedy: "set model.path (or model.config), or remove model.tokenizer"
                        .to_owned(),
                },
            });
        }
        let source = match (path, config) {
            (Some(path), _) => ModelSource::Pretrained {
                tokenizer: tokenizer.unwrap_or_else(|| path.clone()),
                path,
            },
            (None, Some(config)) => {
                let folder = || config.parent().unwrap_or(Path::new("")).to_owned();
                ModelSource::Scratch { tokenizer: tokenizer.unwrap_or_else(folder), config }
            }
            (None, None) => ModelSource::Builtin,
        };
        let quant = self.choice("model.quant", raw.quant, default.quant);
        if quant != Quant::None && !with_lora {
            self.faults.push(Fault {
                origin: self.origins.get("model.quant").cloned(),
                kind: FaultKind::Missing {
                    key: "lora".to_owned(),
                    expected: "a section [lora]",
                    because: format!(
                        "model.quant = \"{quant}\" holds weights that cannot be trained themselves"
                    ),
                    remedy: "add [lora], or remove model.quant".to_owned(),
                },
            });
        }
        let quant_skip = self.quant_skip(raw.quant_skip, quant);
        let dtype = self.choice("model.dtype", raw.dtype, default.dtype);
        if dtype != Dtype::F32 && !with_lora {
            let kind = FaultKind::Missing {
                key: "lora".to_owned(),
                expected: "a section [lora]",
                because: format!(
                    "model.dtype = \"{dtype}\" rounds weights to 16 bits, in which the small steps of training would be lost"
                ),
                remedy: "add [lora], or remove model.dtype".to_owned(),
            };
            self.push("model.dtype", kind);
        }
        ModelSection {
            source,
            backend: self.choice("model.backend", raw.backend, default.backend),
            dtype,
            quant,
            double_quant: self
                .given("model.double_quant", raw.double_quant)
                .unwrap_or(default.double_quant),
            quant_skip,
            add_tokens: self.given("model.add_tokens", raw.add_tokens).unwrap_or_default(),
        }
    }

    fn quant_skip(&mut self, field: Field<Vec<String>>, quant: Quant) -> Vec<String> {
        let key = "model.quant_skip";
        let Some(names) = self.given(key, field) else { return Vec::new() };
        if names.iter().any(String::is_empty) {
            self.out_of_range(key, "names of modules", format!("{names:?}"), "none");
        }
        if quant == Quant::None && !names.is_empty() {
            let kind = FaultKind::Missing {
                key: "model.quant".to_owned(),
                expected: "nf4, fp4 or int8",
                because: format!("{key} is given, and nothing is quantized"),
                remedy: format!("set model.quant, or remove {key}"),
            };
            self.push(key, kind);
        }
        names
    }
}
