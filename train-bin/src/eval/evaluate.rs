//! Loss and perplexity over supervised tokens.

use emberlm_data::{Batch, Cursor, Dataset, Layout, Loader};
use emberlm_model::{CausalLm, ModelBackend, ModelConfig};
use serde::{Deserialize, Deserializer, Serialize};

use crate::trainer::step::loss_sum;

/// The result of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Mean over all supervised tokens of the negative log-likelihood, in nats; weighted, if the data has weights.
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    /// `exp(loss)`.
    #[serde(deserialize_with = "number")]
    pub perplexity: f64,
    /// Supervised tokens.
    pub supervised_tokens: usize,
    /// Examples.
    pub examples: usize,
}

/// JSON has neither infinity nor NaN: they are written as null.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// Evaluates a model on examples, one per row. `batch_size` influences the result by rounding only.
pub fn evaluate<B: ModelBackend>(
    model: &CausalLm<B>,
    config: &ModelConfig,
    data: &Dataset,
    pad_id: u32,
    batch_size: usize,
) -> Evaluation {
    evaluate_in(Layout::OnePerRow, model, config, data, pad_id, batch_size)
}

/// As [`evaluate`], with another layout of rows, `batch_size` of them at a time. The result is the same up to rounding.
pub fn evaluate_in<B: ModelBackend>(
    layout: Layout,
    model: &CausalLm<B>,
    config: &ModelConfig,
    data: &Dataset,
    pad_id: u32,
    batch_size: usize,
) -> Evaluation {
    let mut sum = 0.0;
    let mut supervised_tokens = 0;
    let mut weight = 0.0;
    let loader = Loader::each_once(data, layout);
    let (rows, _) = loader.take(Cursor::default(), loader.rows_of(0) as usize);
    for rows in rows.chunks(batch_size) {
        let batch = Batch::of_rows(rows, &data.examples, pad_id);
        supervised_tokens += batch.targets.len();
        weight += batch.weight();
        sum += loss_sum(model, config, &batch);
    }
    let loss = sum / weight;
    Evaluation { loss, perplexity: loss.exp(), supervised_tokens, examples: data.examples.len() }
}
