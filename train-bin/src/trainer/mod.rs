//! The training loop ([`train`]), one micro-batch of it ([`step`]), and what a step is made of: gradients, clipping,
//! learning-rate schedules, optimizers, guards.

pub mod backend;
pub mod check;
pub mod clip;
pub mod error;
pub mod freeze;
pub mod grads;
pub mod guard;
pub mod metrics;
pub mod noise;
pub mod optimizer;
pub mod plan;
mod prefetch;
pub mod schedule;
pub mod step;
pub mod timing;
pub mod train;
