//! Evaluating a model: loss and perplexity, generation, divergence of two models, one batch in detail.

pub mod batch_debug;
pub mod divergence;
pub mod evaluate;
pub mod generate;
