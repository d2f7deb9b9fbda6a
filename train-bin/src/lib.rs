//! The trainer as a library, and all that the command line does.
//!
//! [`train()`] is the loop; [`loss_and_grads`] one micro-batch of it; [`run()`] a whole run from a configuration.
#![deny(missing_docs)]

pub mod backend;
pub mod base;
pub mod bench;
pub mod book;
pub mod builtin;
pub mod check;
pub mod checkpoint;
pub mod cli;
pub mod clip;
pub mod config;
pub mod data_file;
pub mod divergence;
pub mod evaluate;
pub mod file_hash;
pub mod footprint;
pub mod generate;
pub mod grads;
pub mod guard;
pub mod look_inside;
pub mod lr_find;
pub mod manifest;
pub mod memory;
pub mod merge;
pub mod noise;
pub mod optimizer;
pub mod out_folder;
mod prefetch;
pub mod prepare;
pub mod quantize;
pub mod report;
pub mod reproduce;
pub mod requantize;
pub mod resume;
pub mod run;
pub mod run_folder;
pub mod schedule;
pub mod step;
pub mod tensorboard;
pub mod train;
pub mod trained;
pub mod trainer_state;
mod tuning;
mod vocabulary;

pub use base::Base;
pub use clip::{ClipConfig, Clipper};
pub use divergence::{Divergence, divergence};
pub use emberlm_model::WeightForm;
pub use evaluate::{Evaluation, evaluate};
pub use generate::{Generator, Sampling};
pub use grads::Gradients;
pub use optimizer::{
    AdafactorConfig, AdamWConfig, Algorithm, LionConfig, MuonConfig, MuonScale, Optimizer,
    OptimizerBackend, OptimizerConfig, OptimizerState, ParamGroups, SgdConfig, StateDtype,
    StateError, StateTensor,
};
pub use run::run;
pub use schedule::{Curve, DecayShape, LearningRate};
pub use step::{StepOptions, TrainBackend, Training, loss_and_grads, loss_sum};
pub use train::{Plan, State, train, train_from};
