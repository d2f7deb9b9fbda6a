//! Merging an adapter into its base: a plain Hugging Face folder, compared before it is reported as finished.

use std::io;
use std::path::{Path, PathBuf};

use emberlm_data::DataError;
use emberlm_lora::peft::AdapterFolder;
use emberlm_lora::random::{generator, unit};
use emberlm_model::{
    CausalLm, Inputs, LoadError, ModelBackend, ModelConfig, SequenceBatch, WeightForm, load, save,
};
use emberlm_quant::QuantFormat;
use emberlm_quant::atomic_file::replace_folder;
use emberlm_quant::tensor_file::FloatDtype;
use serde::{Serialize, Serializer};

use crate::base::{Base, BaseError};
use crate::eval::divergence::{Divergence, divergence};
use crate::export::out_folder::{self, OutFolderError};
use crate::export::requantize::{self, Survival};

/// Default text for comparing models: everyday English, some arithmetic and a little code.
pub const SAMPLE: &str = include_str!("../../../assets/sample.txt");

/// Maximum tokens of a sample.
const SAMPLE_TOKENS: usize = 2048;

/// Options of a merge.
#[derive(Debug, Clone, Copy)]
pub struct MergeOptions<'a> {
    /// The adapter's folder.
    pub adapter: &'a Path,
    /// The folder to write.
    pub out: &'a Path,
    /// Dtype of the files; `None`: same as the base.
    pub dtype: Option<FloatDtype>,
    /// Quantize the merged layers like those of the base.
    pub requantize: bool,
    /// Text for comparing models that cannot be equal, such as [`SAMPLE`].
    pub sample: &'a str,
    /// Replace the contents of `out`.
    pub force: bool,
}

/// Result of a merge.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Merged {
    /// Dtype of the files: of all tensors, or of those that are not quantized.
    #[serde(serialize_with = "torch_name")]
    pub dtype: FloatDtype,
    /// Largest difference between the logits of the merged model in memory and of the written one, relative to the largest
    /// logit.
    pub difference: f64,
    /// Effect of requantization.
    pub requantized: Option<Requantized>,
    /// Change of the base, if the adapter was trained on a quantized one and merged into a dense one.
    pub moved: Option<Moved>,
}

/// Effect of requantization.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Requantized {
    /// Format of the layers.
    #[serde(serialize_with = "format_name")]
    pub format: QuantFormat,
    /// Survival of all deltas, taken as one vector.
    pub all: Survival,
    /// Survival of each layer's delta.
    pub layers: Vec<Survival>,
    /// From base + adapter to the written model, on the sample; `None` if the sample has fewer than two tokens.
    pub divergence: Option<Divergence>,
}

/// An adapter merged into another base than it was trained on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Moved {
    /// Format of the base in training.
    #[serde(serialize_with = "format_name")]
    pub trained_on: QuantFormat,
    /// From base + adapter, as in training, to the written model, on the sample; `None` if the sample has fewer than two tokens.
    pub divergence: Option<Divergence>,
}

fn torch_name<S: Serializer>(dtype: &FloatDtype, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(dtype.torch_name())
}

fn format_name<S: Serializer>(format: &QuantFormat, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(format.name())
}

/// Why a merge failed.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// The base or the adapter.
    #[error(transparent)]
    Base(#[from] BaseError),
    /// Writing or reading back.
    #[error(transparent)]
    Model(#[from] LoadError),
    /// The tokenizer's files.
    #[error(transparent)]
    Tokenizer(#[from] DataError),
    /// The output folder cannot be used.
    #[error(transparent)]
    Out(#[from] OutFolderError),
    /// Requantization of a dense base.
    #[error(
        "{base} is stored dense, so there is no quantization format to restore. Merge without --requantize, then run: emberlm quantize --model {} --out …", out.display()
    )]
    DenseBase {
        /// The base.
        base: String,
        /// The output folder.
        out: PathBuf,
    },
    /// The merged model does not compute the same as base + adapter.
    #[error(
        "the logits of the merged model differ from base + adapter by {difference:.1e} of the largest logit, expected at most {allowed:.0e} in this dtype; nothing was written. Merge in f32, or train in the dtype of the merged model"
    )]
    Differs {
        /// The difference.
        difference: f64,
        /// The largest difference that is attributed to rounding.
        allowed: f64,
    },
    /// The output folder cannot be moved into place.
    #[error("cannot move the finished folder into place")]
    Io(#[from] io::Error),
}

/// Merges, writes to a temporary folder, reads it back, compares, and only then moves it into place.
///
/// # Errors
/// [`MergeError`]; `out` is then unchanged.
pub fn merge<B: ModelBackend>(
    base: &Base,
    options: MergeOptions<'_>,
    device: &B::Device,
) -> Result<Merged, MergeError> {
    let MergeOptions { adapter, out, dtype, requantize, sample, force } = options;
    let mut sources = vec![("adapter", adapter)];
    sources.extend(base.folder.as_deref().map(|folder| ("base model", folder)));
    out_folder::check(out, force, &sources)?;
    let dtype = dtype.unwrap_or(base.stored_dtype());
    let trained_on = AdapterFolder::open(adapter).map_err(BaseError::from)?.trained_on;
    let adapted = base.build_with::<B>(Some(adapter), WeightForm::default(), device)?;
    let stored_as = adapted.quantized().first().map(|(_, weight)| weight.format());
    let (folded, survivals) = match (requantize, stored_as) {
        (false, _) => (adapted.clone().merge(), None),
        (true, Some(format)) => {
            let (model, layers) = requantize::requantize(adapted.clone());
            (model, Some((format, layers)))
        }
        (true, None) => {
            return Err(MergeError::DenseBase { base: base.name.clone(), out: out.into() });
        }
    };
    // A dense model may differ by rounding to `dtype`; a requantized one is compared with itself.
    let expected = sample_logits(&base.config, if requantize { &folded } else { &adapted });

    replace_folder(out, |folder| {
        save(folder, &folded, &base.config_text, dtype)?;
        drop(folded);
        base.tokenizer.save(folder)?;
        let (config, merged) = load::<B>(folder, device)?;
        let difference = relative_difference(&sample_logits(&config, &merged), &expected);
        let allowed = allowed_difference(dtype);
        if difference.is_nan() || difference > allowed {
            return Err(MergeError::Differs { difference, allowed });
        }
        let mut ids = base.tokenizer.encode_document(sample)?;
        ids.truncate(SAMPLE_TOKENS);
        let from = |before: &CausalLm<B>| divergence(&base.config, before, &merged, &ids);
        let requantized = survivals.map(|(format, layers)| Requantized {
            format,
            all: Survival::together("all", &layers),
            layers,
            divergence: from(&adapted),
        });
        let moved = match trained_on {
            Some(quantization) if stored_as.is_none() => {
                let form =
                    WeightForm { quantization: Some(&quantization), ..WeightForm::default() };
                let as_trained = base.build_with::<B>(Some(adapter), form, device)?;
                let divergence = from(&as_trained);
                Some(Moved { trained_on: quantization.format, divergence })
            }
            _ => None,
        };
        Ok(Merged { dtype, difference, requantized, moved })
    })
}

/// Difference of logits that rounding weights to a dtype can cause; a larger one is a bug.
fn allowed_difference(dtype: FloatDtype) -> f64 {
    match dtype {
        FloatDtype::F32 => 1e-4,
        FloatDtype::F16 => 2e-2,
        FloatDtype::Bf16 => 1e-1,
    }
}

/// Logits on 32 random tokens, the same for every model of a vocabulary.
fn sample_logits<B: ModelBackend>(config: &ModelConfig, model: &CausalLm<B>) -> Vec<f32> {
    const TOKENS: usize = 32;
    let mut rng = generator(0, "merge sample", &[]);
    let ids: Vec<u32> =
        (0..TOKENS).map(|_| (unit(&mut rng) * config.vocab_size as f32) as u32).collect();
    let positions: Vec<u32> = (0..TOKENS as u32).collect();
    let batch = SequenceBatch {
        rows: 1,
        seq: TOKENS,
        ids: &ids,
        positions: &positions,
        segments: &[1; TOKENS],
    };
    let inputs = Inputs::new(config, batch, &model.device());
    model.logits(&inputs).into_data().iter::<f32>().collect()
}

fn relative_difference(found: &[f32], expected: &[f32]) -> f64 {
    let greatest = expected.iter().fold(0.0f32, |max, v| max.max(v.abs()));
    let differences = found.iter().zip(expected).map(|(f, e)| (f - e).abs());
    // `f32::max` would drop a NaN, `total_cmp` puts it above all.
    f64::from(differences.max_by(f32::total_cmp).unwrap_or(0.0) / greatest)
}
