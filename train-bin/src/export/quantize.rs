//! A dense model to a quantized Hugging Face folder, as transformers and bitsandbytes load it.

use std::io;
use std::path::Path;

use emberlm_data::DataError;
use emberlm_model::{LoadError, WeightForm, save};
use emberlm_quant::atomic_file::replace_folder;
use emberlm_quant::{QuantBackend, Quantization};

use crate::base::{Base, BaseError};
use crate::export::out_folder::{self, OutFolderError};

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
    /// The folder can't be written to.
    #[error(transparent)]
    Out(#[from] OutFolderError),
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

/// Quantizes the linear layers of `base` and writes the model to `out`: beside it first, then in its place. With `force`,
/// what is in `out` is replaced.
///
/// # Errors
/// [`QuantizeError`]; `out` is then as it was.
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
