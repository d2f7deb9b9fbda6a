//! Settings that are one of a few names, such as `schedule = "cosine"`.

use std::fmt;
use std::str::FromStr;

use emberlm_quant::tensor_file::FloatDtype;
use emberlm_quant::{QuantFormat, Quantization};
use serde::Serialize;

pub use crate::trainer::backend::Backend;
pub use crate::trainer::step::Recompute;

/// A setting that is one of a few names. The name is what stands in the TOML file, on the command
/// line and in messages.
pub trait Choice: Copy + Send + Sync + 'static {
    /// What is chosen, as messages call it: `backend`.
    const WHAT: &'static str;
    /// Every value, in the order in which messages and the help list them.
    const ALL: &'static [Self];

    /// The name of this value.
    fn name(self) -> &'static str;

    /// All names, in the order of [`Choice::ALL`].
    fn names() -> Vec<&'static str> {
        Self::ALL.iter().map(|choice| choice.name()).collect()
    }

    /// The value with that name.
    ///
    /// # Errors
    /// [`UnknownChoice`], which lists the names, when there is none.
    fn from_name(name: &str) -> Result<Self, UnknownChoice> {
        Self::ALL.iter().copied().find(|choice| choice.name() == name).ok_or_else(|| {
            UnknownChoice { what: Self::WHAT, found: name.to_owned(), choices: Self::names() }
        })
    }
}

/// A name that is none of the choices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a {what}, one of {}, found `{found}`{}", .choices.join(", "), self.remedy())]
pub struct UnknownChoice {
    /// What was to be chosen.
    pub what: &'static str,
    /// The name that was given.
    pub found: String,
    /// The names there are.
    pub choices: Vec<&'static str>,
}

impl UnknownChoice {
    fn remedy(&self) -> String {
        let found = self.found.to_lowercase();
        self.choices
            .iter()
            .map(|choice| (strsim::normalized_damerau_levenshtein(&found, choice), choice))
            .filter(|(likeness, _)| *likeness >= 0.5)
            .max_by(|(a, _), (b, _)| a.total_cmp(b))
            .map(|(_, choice)| format!("; did you mean `{choice}`?"))
            .unwrap_or_default()
    }
}

impl Choice for Backend {
    const WHAT: &'static str = "backend";
    const ALL: &'static [Self] = &[Self::Auto, Self::Flex, Self::NdArray, Self::Wgpu, Self::Cuda];

    fn name(self) -> &'static str {
        Backend::name(self)
    }
}

/// The dtype of frozen weights, and of activations where the backend computes in it: `model.dtype`. What is trained is
/// f32 always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 32-bit float.
    #[default]
    F32,
    /// 16-bit float with the range of f32.
    Bf16,
    /// 16-bit IEEE float.
    F16,
}

impl Dtype {
    /// The crates' own name for it.
    pub fn float(self) -> FloatDtype {
        match self {
            Self::F32 => FloatDtype::F32,
            Self::Bf16 => FloatDtype::Bf16,
            Self::F16 => FloatDtype::F16,
        }
    }
}

impl Choice for Dtype {
    const WHAT: &'static str = "dtype";
    const ALL: &'static [Self] = &[Self::F32, Self::Bf16, Self::F16];

    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }
}

/// How the frozen weights of the linear layers are stored: `model.quant`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Quant {
    /// As they are.
    #[default]
    None,
    /// 4-bit NormalFloat.
    Nf4,
    /// 4-bit float.
    Fp4,
    /// 8-bit integers.
    Int8,
}

impl Quant {
    /// What the loader is asked to do; `None` where weights stay as they are.
    pub fn quantization(self, double_quant: bool, skip: &[String]) -> Option<Quantization> {
        let format = match self {
            Self::None => return None,
            Self::Nf4 => QuantFormat::Nf4,
            Self::Fp4 => QuantFormat::Fp4,
            Self::Int8 => QuantFormat::Int8,
        };
        Some(Quantization { format, double_quant, skip_modules: skip.to_vec() })
    }
}

impl Choice for Quant {
    const WHAT: &'static str = "quantization";
    const ALL: &'static [Self] = &[Self::None, Self::Nf4, Self::Fp4, Self::Int8];

    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Nf4 => "nf4",
            Self::Fp4 => "fp4",
            Self::Int8 => "int8",
        }
    }
}

/// Which chat template is applied to the examples: `data.template`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Template {
    /// The one that comes with the tokenizer.
    #[default]
    Auto,
    /// None: the texts as they are.
    None,
}

impl Choice for Template {
    const WHAT: &'static str = "chat template";
    const ALL: &'static [Self] = &[Self::Auto, Self::None];

    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::None => "none",
        }
    }
}

/// Which of the assistant's turns are trained: `data.train_on`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TrainOn {
    /// All of them.
    #[default]
    All,
    /// The last one.
    Last,
    /// All but those marked `weight: 0` or `train: false`.
    Marked,
}

impl TrainOn {
    /// The data crate's name for it.
    pub fn turns(self) -> emberlm_data::TrainOn {
        match self {
            Self::All => emberlm_data::TrainOn::All,
            Self::Last => emberlm_data::TrainOn::Last,
            Self::Marked => emberlm_data::TrainOn::Marked,
        }
    }
}

impl Choice for TrainOn {
    const WHAT: &'static str = "choice of turns";
    const ALL: &'static [Self] = &[Self::All, Self::Last, Self::Marked];

    fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Last => "last",
            Self::Marked => "marked",
        }
    }
}

/// What is one document in a file of plain text: `data.text_by`.
impl Choice for emberlm_data::TextBy {
    const WHAT: &'static str = "way to split plain text";
    const ALL: &'static [Self] = &[Self::File, Self::Paragraph, Self::Line];

    fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Paragraph => "paragraph",
            Self::Line => "line",
        }
    }
}

/// What a row at fault does: `data.on_error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// It is an error.
    #[default]
    Fail,
    /// It is skipped.
    Skip,
}

impl Choice for OnError {
    const WHAT: &'static str = "way with rows at fault";
    const ALL: &'static [Self] = &[Self::Fail, Self::Skip];

    fn name(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Skip => "skip",
        }
    }
}

impl Choice for Recompute {
    const WHAT: &'static str = "recompute mode";
    const ALL: &'static [Self] = &[Self::None, Self::Selective, Self::Block];

    fn name(self) -> &'static str {
        Recompute::name(self)
    }
}

impl FromStr for Backend {
    type Err = UnknownChoice;

    fn from_str(name: &str) -> Result<Self, UnknownChoice> {
        Self::from_name(name)
    }
}

impl FromStr for Dtype {
    type Err = UnknownChoice;

    fn from_str(name: &str) -> Result<Self, UnknownChoice> {
        Self::from_name(name)
    }
}

impl FromStr for Quant {
    type Err = UnknownChoice;

    fn from_str(name: &str) -> Result<Self, UnknownChoice> {
        Self::from_name(name)
    }
}

impl FromStr for Template {
    type Err = UnknownChoice;

    fn from_str(name: &str) -> Result<Self, UnknownChoice> {
        Self::from_name(name)
    }
}

impl FromStr for TrainOn {
    type Err = UnknownChoice;

    fn from_str(name: &str) -> Result<Self, UnknownChoice> {
        Self::from_name(name)
    }
}

impl FromStr for Recompute {
    type Err = UnknownChoice;

    fn from_str(name: &str) -> Result<Self, UnknownChoice> {
        Self::from_name(name)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Quant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for TrainOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name reads back as its value, and serde writes that same name.
    fn names_agree<T: Choice + Serialize + PartialEq + fmt::Debug>() {
        for &choice in T::ALL {
            assert_eq!(T::from_name(choice.name()).unwrap(), choice);
            assert_eq!(serde_json::to_value(choice).unwrap(), choice.name());
        }
    }

    #[test]
    fn every_choice_reads_back_from_its_name() {
        names_agree::<Backend>();
        names_agree::<Dtype>();
        names_agree::<Quant>();
        names_agree::<Template>();
        names_agree::<Recompute>();
    }

    #[test]
    fn an_unknown_name_lists_the_choices_and_the_nearest() {
        let error = "coda".parse::<Backend>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "expected a backend, one of auto, flex, ndarray, wgpu, cuda, found `coda`; did you mean `cuda`?"
        );
        let error = "x".parse::<Template>().unwrap_err();
        assert_eq!(error.to_string(), "expected a chat template, one of auto, none, found `x`");
    }
}
