//! An adapter folded into its base: a plain Hugging Face folder, compared before it is called done.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use emberlm_data::DataError;
use emberlm_lora::random::{generator, unit};
use emberlm_model::{
    CausalLm, Inputs, LoadError, ModelBackend, ModelConfig, SequenceBatch, weights,
};
use emberlm_quant::atomic_file::replace_folder;
use emberlm_quant::tensor_file::FloatDtype;

use crate::base::{Base, BaseError};

/// What a merge is to do.
#[derive(Debug, Clone, Copy)]
pub struct MergeOptions<'a> {
    /// The adapter's folder.
    pub adapter: &'a Path,
    /// The folder to write.
    pub out: &'a Path,
    /// The float type of the files; `None`: as the base's.
    pub dtype: Option<FloatDtype>,
    /// Replace what is in `out`.
    pub force: bool,
}

/// What a merge came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Merged {
    /// The float type of the files.
    pub dtype: FloatDtype,
    /// Greatest difference between the logits of base + adapter and those of the written folder, relative to the
    /// greatest logit.
    pub difference: f64,
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
    /// The folder has something in it.
    #[error("{}: the folder isn't empty. Name another, or replace it with --force", path.display())]
    Taken {
        /// The folder.
        path: PathBuf,
    },
    /// The merged model isn't the adapted one.
    #[error(
        "the merged model differs from base + adapter by {difference:.1e} of the greatest logit, allowed is {allowed:.0e} in this dtype; nothing was written. Merge in f32, or train in the dtype you merge in"
    )]
    Differs {
        /// The difference.
        difference: f64,
        /// The greatest that would be called rounding.
        allowed: f64,
    },
    /// The folder can't be put in its place.
    #[error("the folder can't be put in its place: {0}")]
    Io(#[from] io::Error),
}

/// Merges, writes beside, reads back, compares, and only then puts the folder in its place.
///
/// # Errors
/// [`MergeError`]; `out` is then as it was.
pub fn merge<B: ModelBackend>(
    base: &Base,
    options: MergeOptions<'_>,
    device: &B::Device,
) -> Result<Merged, MergeError> {
    let MergeOptions { adapter, out, dtype, force } = options;
    let is_taken = fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some());
    if is_taken && !force {
        return Err(MergeError::Taken { path: out.into() });
    }
    let dtype = dtype.unwrap_or(base.stored_dtype());
    let adapted = base.build_with::<B>(Some(adapter), None, device)?;
    let expected = sample_logits(&base.config, &adapted);

    replace_folder(out, |folder| {
        weights::save(folder, &adapted.merge(), &base.config_text, dtype)?;
        base.tokenizer.save(folder)?;
        let (config, merged) = weights::load::<B>(folder, device)?;
        let difference = relative_difference(&sample_logits(&config, &merged), &expected);
        let allowed = allowed_difference(dtype);
        if difference.is_nan() || difference > allowed {
            return Err(MergeError::Differs { difference, allowed });
        }
        Ok(Merged { dtype, difference })
    })
}

/// What rounding the weights to a dtype may do to logits; more means that something else is wrong.
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
