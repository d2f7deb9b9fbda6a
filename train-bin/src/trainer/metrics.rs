//! The metrics of a step.

use serde::Serialize;

use crate::trainer::check::Spike;

/// The metrics of a step, under the names that they have in `metrics.jsonl`: a field here is written to every sink.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct StepMetrics {
    /// Steps made, this one included.
    pub step: u64,
    /// Passes over the data so far.
    pub epoch: f64,
    /// Mean loss over the step's supervised tokens, by their weights, in nats, before the step.
    pub loss: f64,
    /// Norm of all gradients before clipping.
    pub grad_norm: f64,
    /// Learning rate of the step.
    pub learning_rate: f64,
    /// Supervised tokens.
    pub supervised_tokens: usize,
    /// Tokens that went through the model, without padding.
    pub tokens: usize,
    /// Share of padding in everything that went through the model.
    pub padding: f64,
    /// Why the weights were left unchanged, if they were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// The loss spike, if the loss is far above the ones before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spike: Option<Spike>,
}
