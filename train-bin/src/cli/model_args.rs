//! The arguments of commands that load a model.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueHint};
use emberlm_model::WeightForm;
use emberlm_quant::Quantization;

use super::values::choice;
use crate::config::{Backend, Dtype, Quant};

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
    #[arg(long, default_value_t, value_parser = choice::<Backend>())]
    pub(crate) backend: Backend,
    /// Dtype of the weights, and on GPUs of activations
    #[arg(long, default_value_t, value_parser = choice::<Dtype>())]
    pub(crate) dtype: Dtype,
    /// How the weights of the linear layers are held; none: as they are stored
    #[arg(long, default_value_t, value_parser = choice::<Quant>())]
    pub(crate) quant: Quant,
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
        self.quant.quantization(!self.no_double_quant, &self.quant_skip)
    }

    /// How the weights are to be held, with what [`quantization`](Self::quantization) gave.
    pub(crate) fn form<'a>(&self, quantization: Option<&'a Quantization>) -> WeightForm<'a> {
        WeightForm { dtype: self.dtype.float(), quantization }
    }
}
