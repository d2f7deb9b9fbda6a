//! The trainer as a library, and all that the command line does.
//!
//! [`train()`] is the loop; [`loss_and_grads`] one micro-batch of it; [`run()`] a whole run from a configuration.
#![deny(missing_docs)]

pub mod adamw;
pub mod adamw8bit;
pub mod backend;
pub mod base;
pub mod bench;
pub mod builtin;
pub mod check;
pub mod cli;
pub mod config;
pub mod data_file;
pub mod divergence;
pub mod evaluate;
pub mod footprint;
pub mod generate;
pub mod grads;
pub mod lr_find;
pub mod memory;
pub mod merge;
pub mod optimizer;
pub mod out_folder;
pub mod prepare;
pub mod quantize;
pub mod report;
pub mod requantize;
pub mod run;
pub mod run_folder;
pub mod schedule;
pub mod step;
pub mod tensorboard;
pub mod train;
pub mod trainer_state;

pub use adamw::{AdamW, AdamWConfig};
pub use adamw8bit::AdamW8bit;
pub use base::Base;
pub use divergence::{Divergence, divergence};
pub use evaluate::{Evaluation, evaluate};
pub use generate::{Generator, Sampling};
pub use grads::Gradients;
pub use optimizer::{Optimizer, OptimizerConfig};
pub use run::run;
pub use schedule::LearningRate;
pub use step::{StepOptions, TrainBackend, Training, loss_and_grads, loss_sum};
pub use train::{Plan, train};
