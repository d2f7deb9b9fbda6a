//! Rows of `metrics.jsonl`. Every other sink of metrics takes them as (name, value).

use serde::Serialize;
use serde_json::Value;

use crate::eval::evaluate::Evaluation;
use crate::trainer::metrics::StepMetrics;

/// The row of a step. A metric is one field, here or in [`StepMetrics`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepRow {
    /// The trainer's metrics.
    #[serde(flatten)]
    pub metrics: StepMetrics,
    /// Tokens without padding, per second.
    pub tokens_per_s: f64,
    /// Peak resident set of the process so far, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory_mib: Option<u64>,
}

/// The row of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EvalRow {
    /// Steps made before it.
    pub step: u64,
    /// Mean loss over the supervised tokens, in nats.
    pub eval_loss: f64,
    /// `exp(eval_loss)`.
    pub eval_perplexity: f64,
    /// Supervised tokens.
    pub eval_supervised_tokens: usize,
}

impl EvalRow {
    /// The row of `evaluation` after `step` steps.
    pub fn new(step: u64, evaluation: &Evaluation) -> Self {
        Self {
            step,
            eval_loss: evaluation.loss,
            eval_perplexity: evaluation.perplexity,
            eval_supervised_tokens: evaluation.supervised_tokens,
        }
    }
}

/// The numbers of a row by name, in the order of its fields; one that isn't finite is NaN.
pub fn values(row: &impl Serialize) -> Vec<(String, f64)> {
    let Ok(Value::Object(fields)) = serde_json::to_value(row) else { return Vec::new() };
    let number = |(name, value): (String, Value)| match value {
        Value::Number(number) => Some((name, number.as_f64()?)),
        // JSON has neither NaN nor infinity.
        Value::Null => Some((name, f64::NAN)),
        _ => None,
    };
    fields.into_iter().filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::check::Spike;
    use crate::trainer::guard::LossSpike;

    #[test]
    fn a_row_is_flat_and_its_numbers_are_listed_by_name() {
        let metrics = StepMetrics { step: 3, loss: 2.5, tokens: 7, ..StepMetrics::default() };
        let row = StepRow { metrics, tokens_per_s: 40.0, peak_memory_mib: None };
        let text = serde_json::to_string(&row).unwrap();
        assert!(text.starts_with(r#"{"step":3,"epoch":0.0,"loss":2.5,"grad_norm":0.0,"#), "{text}");
        assert!(text.ends_with(r#","tokens_per_s":40.0}"#) && !text.contains("null"), "{text}");
        let values = values(&row);
        let named = |of: &str| values.iter().find(|(name, _)| name == of).map(|(_, value)| *value);
        let keys = ["step", "loss", "tokens", "tokens_per_s", "peak_memory_mib"];
        assert_eq!(keys.map(named), [Some(3.0), Some(2.5), Some(7.0), Some(40.0), None]);
    }

    #[test]
    fn a_spike_lists_its_examples_and_a_loss_of_nan_is_a_number() {
        let spike = Spike {
            stats: LossSpike { loss: 9.0, mean: 2.0, deviation: 0.1 },
            examples: vec![("a.jsonl:3".into(), 9.5)],
        };
        let metrics = StepMetrics {
            loss: f64::NAN,
            spike: Some(spike),
            skipped: Some("why".into()),
            ..StepMetrics::default()
        };
        let row = StepRow { metrics, tokens_per_s: 1.0, peak_memory_mib: Some(5) };
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!(json["spike"], serde_json::json!([["a.jsonl:3", 9.5]]));
        assert_eq!((&json["skipped"], &json["loss"]), (&"why".into(), &Value::Null));
        let values = values(&row);
        let loss = values.iter().find(|(name, _)| name == "loss").unwrap().1;
        assert!(loss.is_nan() && values.iter().all(|(name, _)| name != "spike"));
    }
}
