//! Why training stops.

/// Why training stops.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A loss that is NaN or infinite.
    #[error(
        "step {step}: the loss is {loss} on {example}; the first tensor that is not finite is {tensor}. Earlier checkpoints are intact. Lower train.learning_rate, or inspect that example"
    )]
    Loss {
        /// From 1.
        step: u64,
        /// Its value.
        loss: f64,
        /// Its example's place in the data.
        example: String,
        /// The first tensor in forward order that holds NaN or infinity.
        tensor: String,
    },
    /// A gradient that is NaN or infinite, from a finite loss.
    #[error(
        "step {step}: the gradient of {tensor} is not finite, on {examples}. Earlier checkpoints are intact. Lower train.learning_rate, or inspect these examples"
    )]
    Gradient {
        /// From 1.
        step: u64,
        /// The first such parameter.
        tensor: String,
        /// The step's examples, by their place in the data.
        examples: String,
    },
    /// A loss far above the ones before.
    #[error(
        "step {step}: loss spike: {loss:.4}, previously {mean:.4} with standard deviation {deviation:.4}. Examples of the highest loss: {examples}. Inspect them, lower train.learning_rate, or set train.on_spike to \"warn\" or \"skip\""
    )]
    Spike {
        /// From 1.
        step: u64,
        /// Its value.
        loss: f64,
        /// Running mean of the losses before.
        mean: f64,
        /// Their standard deviation.
        deviation: f64,
        /// Examples by their place in the data, with their losses.
        examples: String,
    },
    /// Too many skipped steps in a row.
    #[error(
        "more than {limit} steps in a row were skipped (train.max_skipped). The last one: {why}"
    )]
    TooManySkipped {
        /// The permitted number.
        limit: u64,
        /// Why the last one was skipped.
        why: Box<TrainError>,
    },
    /// Parameters without a gradient in the first step.
    #[error(
        "the first step left {count} trainable parameters without a gradient, among them {names}: they are not part of the computation. This is a bug; please report it"
    )]
    Unreached {
        /// Their number.
        count: usize,
        /// The names of the first few.
        names: String,
    },
}
