//! The arguments of commands that load a model.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueHint};
use emberlm_model::WeightForm;
use emberlm_quant::tensor_file::FloatDtype;
use emberlm_quant::{QuantFormat, Quantization};

use super::values::{OrWord, or_word};
use crate::trainer::backend::Backend;

/// The model that a command uses, and how it is held.
#[derive(Debug, Clone, PartialEq, Args)]
pub(crate) struct ModelArgs {
    /// Model, a Hugging Face folder, or `builtin`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) model: PathBuf,
    /// LoRA adapter for it, a PEFT folder such as a run folder
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) adapter: Option<PathBuf>,
    /// Where to compute
    #[arg(long, value_enum, default_value_t)]
    pub(crate) backend: Backend,
    /// Dtype of the weights, and on GPUs of activations
    #[arg(long, value_enum, default_value_t)]
    pub(crate) dtype: FloatDtype,
    /// How the weights of the linear layers are held; none: as they are stored
    #[arg(long, default_value = "none", value_parser = or_word::<QuantFormat>("none"))]
    pub(crate) quant: OrWord<QuantFormat>,
    /// With nf4 and fp4, hold the scales in f32 instead of quantizing them too
    #[arg(long)]
    pub(crate) no_double_quant: bool,
    /// Linear layer that stays dense, such as `down_proj` or `layers.0`; may be given several times
    #[arg(long, value_name = "NAME", requires = "quant", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) quant_skip: Vec<String>,
}

impl ModelArgs {
    /// What the loader is asked to do.
    pub(crate) fn quantization(&self) -> Option<Quantization> {
        self.quant.0.map(|format| Quantization {
            format,
            double_quant: !self.no_double_quant,
            skip_modules: self.quant_skip.clone(),
        })
    }

    /// How the weights are to be held, with what [`quantization`](Self::quantization) gave.
    pub(crate) fn form<'a>(&self, quantization: Option<&'a Quantization>) -> WeightForm<'a> {
        WeightForm { dtype: self.dtype, quantization }
    }
}
