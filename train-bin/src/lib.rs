//! The trainer as a library, and the command line.
//!
//! [`train()`] is the loop; [`loss_and_grads`] one micro-batch of it; [`run()`] a whole run from a configuration.
#![deny(missing_docs)]

pub mod base;
pub mod cli;
pub mod config;
pub mod eval;
pub mod export;
pub mod memory;
pub mod report;
pub mod run;
pub mod settings;
pub mod trainer;

pub use base::Base;
pub use emberlm_model::WeightForm;
pub use eval::divergence::{Divergence, divergence};
pub use eval::evaluate::{Evaluation, evaluate};
pub use eval::generate::{Generator, Sampling};
pub use run::run;
pub use trainer::clip::{ClipConfig, Clipper};
pub use trainer::grads::Gradients;
pub use trainer::optimizer::{
    AdafactorConfig, AdamW8bitConfig, AdamWConfig, Algorithm, LionConfig, MuonConfig, MuonScale,
    Optimizer, OptimizerBackend, OptimizerConfig, OptimizerState, ParamGroups, SgdConfig,
    StateDtype, StateError, StateTensor,
};
pub use trainer::plan::Plan;
pub use trainer::schedule::{Curve, DecayShape, LearningRate};
pub use trainer::step::{StepOptions, TrainBackend, Training, loss_and_grads, loss_sum};
pub use trainer::train::{State, train, train_from};
