//! Looking at a model from outside: loss and perplexity, generation, divergence between two models, one batch in detail.

pub mod batch_debug;
pub mod divergence;
pub mod evaluate;
pub mod generate;
