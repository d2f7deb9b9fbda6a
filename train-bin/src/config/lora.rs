//! `[lora]`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use emberlm_lora::Targets;
use serde::Serialize;

use super::nonzero;
use crate::settings::Reader;

/// `[lora]`: the adapters to train.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoraSection {
    /// Where the adapters come from.
    #[serde(flatten)]
    pub start: LoraStart,
    /// Probability with which an element of an adapter's input is dropped, 0 ≤ p < 1.
    pub dropout: f64,
}

/// Where adapters come from.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum LoraStart {
    /// New ones, whose delta is zero.
    Fresh {
        /// The rank.
        r: NonZeroUsize,
        /// The delta is scaled by `alpha / r`; greater than 0.
        alpha: f64,
        /// The linear layers that get an adapter.
        target_modules: Targets,
        /// Scale by `alpha / sqrt(r)` instead.
        use_rslora: bool,
    },
    /// Those in a PEFT adapter folder, with the rank, alpha, targets and scaling of its `adapter_config.json`.
    InitFrom {
        /// The folder.
        init_from: PathBuf,
    },
}

impl LoraSection {
    pub(super) fn read(s: &mut Reader) -> Self {
        let init_from = s
            .path("init_from", "Folder of an adapter to continue training; it determines rank, alpha, targets and scaling")
            .example("\"runs/a\"")
            .changes_nothing()
            .optional("new adapters");
        if init_from.is_some() {
            for name in ["r", "alpha", "target_modules", "use_rslora"] {
                if s.is_given(name) {
                    let key = format!("lora.{name}");
                    let reason = format!("{key} comes from the adapter");
                    s.contradiction([&key, "lora.init_from"], &reason, &format!("remove {key}"));
                }
            }
        }
        let r = s
            .whole::<NonZeroUsize>("r", "Rank of the adapters")
            .also_called(&["rank", "lora_r", "lora_rank"])
            .changes_weights()
            .or(nonzero(16));
        let alpha = s
            .number("alpha", "Scaling of the delta: alpha / r")
            .above(0.0)
            .also_called(&["lora_alpha"])
            .example("32.0")
            .changes_weights()
            .or_else("twice the rank", || 2.0 * r.get() as f64);
        let target_modules = s
            .setting::<Targets>(
                "target_modules",
                "Linear layers to adapt: `\"all-linear\"` (all but the head), a regular expression for whole paths, or a list of the last parts of paths",
            )
            .also_called(&["lora_target_modules"])
            .changes_weights()
            .or(Targets::AllLinear);
        let use_rslora = s
            .boolean("use_rslora", "Scale by alpha / sqrt(r) instead of alpha / r (rsLoRA)")
            .changes_weights()
            .or(false);
        let start = match init_from {
            Some(init_from) => LoraStart::InitFrom { init_from },
            None => LoraStart::Fresh { r, alpha, target_modules, use_rslora },
        };
        let dropout = s
            .number("dropout", "Dropout probability on the inputs of adapters, in training")
            .at_least(0.0)
            .below(1.0)
            .also_called(&["lora_dropout"])
            .or(0.0);
        Self { start, dropout }
    }
}

impl Default for LoraSection {
    fn default() -> Self {
        Self::read(&mut Reader::new(crate::settings::Layers::default()))
    }
}
