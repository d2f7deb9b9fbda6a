//! Why a run fails.

use std::io;

use emberlm_data::DataError;
use emberlm_lora::peft::PeftError;
use emberlm_lora::{InjectError, LoraConfigError};
use emberlm_quant::QuantFormat;

use crate::base::BaseError;
use crate::eval::generate::GenerateError;
use crate::run::checkpoint::CheckpointError;
use crate::run::resume::ResumeError;
use crate::run::run_folder::RunFolderError;
use crate::trainer::backend::BackendError;
use crate::trainer::error::TrainError;
use crate::trainer::freeze::UnknownWeights;

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each variant is what its type says")]
pub enum RunError {
    #[error(transparent)]
    Base(#[from] BaseError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error(transparent)]
    Inject(#[from] InjectError),
    #[error(transparent)]
    Lora(#[from] LoraConfigError),
    #[error(transparent)]
    Adapter(#[from] PeftError),
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error(transparent)]
    Folder(#[from] RunFolderError),
    #[error(transparent)]
    Generate(#[from] GenerateError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Trainable(#[from] UnknownWeights),
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// A file of the base model or of the data could not be read for hashing.
    #[error("cannot hash the files of the base model and the data")]
    Hashing(#[source] io::Error),
    /// Full fine-tuning of a base that is stored quantized.
    #[error(
        "{base} is stored as {format}, and quantized weights cannot be trained. Add a [lora] section, or train the dense model that it was quantized from"
    )]
    QuantizedBase { base: String, format: QuantFormat },
    /// Too small a share of an epoch for one step.
    #[error(
        "train.epochs = {epochs} of {examples} examples is less than one example; raise train.epochs, or set train.steps"
    )]
    NoSteps { epochs: f64, examples: usize },
}
