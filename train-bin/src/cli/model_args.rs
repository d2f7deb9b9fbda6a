//! The arguments of commands that load a model.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueHint};
use emberlm_model::WeightForm;
use emberlm_quant::tensor_file::FloatDtype;
use emberlm_quant::{QuantFormat, Quantization};

use super::values::{OrWord, or_word};
use crate::trainer::backend::Backend;

/// The model of a command and its format.
#[derive(Debug, Clone, PartialEq, Args)]
pub(crate) struct ModelArgs {
    /// Model: a Hugging Face folder, or `builtin`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) model: PathBuf,
    /// LoRA adapter: a PEFT folder such as a run folder
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) adapter: Option<PathBuf>,
    /// Backend
    #[arg(long, value_enum, default_value_t)]
    pub(crate) backend: Backend,
    /// Dtype of the weights and, on GPUs, of activations
    #[arg(long, value_enum, default_value_t)]
    pub(crate) dtype: FloatDtype,
    /// Quantize the linear layers; none: keep the stored format
    #[arg(long, default_value = "none", value_parser = or_word::<QuantFormat>("none"))]
    pub(crate) quant: OrWord<QuantFormat>,
    /// Keep the scales of nf4 and fp4 in f32 instead of quantizing them too
    #[arg(long)]
    pub(crate) no_double_quant: bool,
    /// Linear layer to keep dense, such as `down_proj` or `layers.0`; repeatable
    #[arg(long, value_name = "NAME", requires = "quant", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) quant_skip: Vec<String>,
}

impl ModelArgs {
    /// The quantization to apply while loading.
    pub(crate) fn quantization(&self) -> Option<Quantization> {
        self.quant.0.map(|format| Quantization {
            format,
            double_quant: !self.no_double_quant,
            skip_modules: self.quant_skip.clone(),
        })
    }

    /// Dtype and quantization, from [`quantization`](Self::quantization).
    pub(crate) fn form<'a>(&self, quantization: Option<&'a Quantization>) -> WeightForm<'a> {
        WeightForm { dtype: self.dtype, quantization }
    }
}
