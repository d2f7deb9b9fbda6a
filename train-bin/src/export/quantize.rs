//! Quantizing a dense model: a Hugging Face folder that transformers and bitsandbytes load.

use std::io;
use std::path::Path;

use emberlm_data::DataError;
use emberlm_model::{LoadError, WeightForm, save};
use emberlm_quant::atomic_file::replace_folder;
use emberlm_quant::{QuantBackend, Quantization};

use crate::base::{Base, BaseError};
use crate::export::out_folder::{self, OutFolderError};

/// Result of quantizing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantizeReport {
    /// Layers that were quantized.
    pub layers: usize,
    /// Elements of their weights.
    pub parameters: usize,
    /// Bytes of codes and scales.
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
    /// The output folder cannot be used.
    #[error(transparent)]
    Out(#[from] OutFolderError),
    /// All layers are skipped.
    #[error("no layer left to quantize; skipped: {}. Skip fewer layers", skipped.join(", "))]
    NothingToDo {
        /// What was skipped.
        skipped: Vec<String>,
    },
    /// The output folder cannot be moved into place.
    #[error("cannot move the finished folder into place")]
    Io(#[from] io::Error),
}

/// Quantizes the linear layers of `base` and writes the model to a temporary folder, then moves it to `out`. With `force`,
/// the contents of `out` are replaced.
///
/// # Errors
/// [`QuantizeError`]; `out` is then unchanged.
pub fn quantize<B: QuantBackend>(
    base: &Base,
    out: &Path,
    force: bool,
    quantization: &Quantization,
    device: &B::Device,
) -> Result<QuantizeReport, QuantizeError> {
    let sources = base.folder.as_deref().map(|folder| ("model", folder));
    out_folder::check(out, force, sources.as_slice())?;
    let form = WeightForm { quantization: Some(quantization), ..WeightForm::default() };
    let model = base.build::<B>(form, device)?;
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
        save(folder, &model, &base.config_text, base.stored_dtype())?;
        Ok(base.tokenizer.save(folder)?)
    })
    .map(|()| report)
}
