//! A dense model to a quantized Hugging Face folder, as transformers and bitsandbytes load it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use emberlm_data::DataError;
use emberlm_model::{LoadError, weights};
use emberlm_quant::atomic_file::replace_folder;
use emberlm_quant::{QuantBackend, Quantization};

use crate::base::{Base, BaseError};

/// What quantizing came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantizeReport {
    /// Layers that were quantized.
    pub layers: usize,
    /// Elements of their weights.
    pub parameters: usize,
    /// Bytes that codes and scales take.
    pub bytes: usize,
}

/// Why quantizing failed.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// The model.
    #[error(transparent)]
    Base(#[from] BaseError),
    /// Writing.
    #[error(transparent)]
    Model(#[from] LoadError),
    /// The tokenizer's files.
    #[error(transparent)]
    Tokenizer(#[from] DataError),
    /// The folder has something in it.
    #[error("{}: the folder isn't empty. Name another", path.display())]
    Taken {
        /// The folder.
        path: PathBuf,
    },
    /// Every layer was to be skipped.
    #[error("no layer is left to quantize; skipped are: {}", skipped.join(", "))]
    NothingToDo {
        /// What was skipped.
        skipped: Vec<String>,
    },
    /// The folder can't be put in its place.
    #[error("the folder can't be put in its place: {0}")]
    Io(#[from] io::Error),
}

/// Quantizes the linear layers of `base` and writes the model to `out`: beside it first, then in its place.
///
/// # Errors
/// [`QuantizeError`]; `out` is then as it was.
pub fn quantize<B: QuantBackend>(
    base: &Base,
    out: &Path,
    quantization: &Quantization,
    device: &B::Device,
) -> Result<QuantizeReport, QuantizeError> {
    if fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(QuantizeError::Taken { path: out.into() });
    }
    let model = base.build::<B>(Some(quantization), device)?;
    let mut report = QuantizeReport { layers: 0, parameters: 0, bytes: 0 };
    for (_, weight) in model.quantized() {
        report.layers += 1;
        report.parameters += weight.dims().iter().product::<usize>();
        report.bytes += weight.memory();
    }
    if report.layers == 0 {
        return Err(QuantizeError::NothingToDo { skipped: quantization.skip_modules.clone() });
    }
    replace_folder(out, |folder| {
        weights::save(folder, &model, &base.config_text, base.stored_dtype())?;
        Ok(base.tokenizer.save(folder)?)
    })
    .map(|()| report)
}
