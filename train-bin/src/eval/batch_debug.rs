//! `train.debug = true`: the first micro-batch token by token, with statistics of its activations and gradients.

use std::fmt::{self, Write as _};

use burn::module::AutodiffModule;
use burn::tensor::{Tensor, backend::Backend};
use emberlm_data::{Batch, Dataset, TextTokenizer};
use emberlm_model::{CausalLm, ModelBackend, ModelConfig};

use crate::trainer::grads::Gradients;
use crate::trainer::plan::Plan;
use crate::trainer::step::{StepOptions, TrainBackend, inputs, loss_and_grads};

/// Maximum tokens shown of a row.
const SHOWN: usize = 256;

/// One micro-batch in detail; its `Display` is a page of text.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchDebug {
    /// Rows, and tokens per row.
    pub shape: [usize; 2],
    /// Mean loss over the supervised tokens, in nats.
    pub loss: f64,
    /// The rows.
    pub rows: Vec<Row>,
    /// Activations by module.
    pub activations: Vec<(String, TensorStats)>,
    /// Gradients of the loss by parameter, with their norm.
    pub gradients: Vec<(String, f64, TensorStats)>,
}

/// A row of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The places of its examples in the data.
    pub sources: Vec<String>,
    /// Its tokens.
    pub tokens: Vec<Token>,
}

/// A token in its row.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Its text.
    pub text: String,
    /// Sequence of the row, from 1; 0: padding.
    pub segment: u32,
    /// Position within the sequence.
    pub position: u32,
    /// The next token, if it is supervised.
    pub label: Option<(u32, String)>,
}

/// Statistics of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TensorStats {
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation.
    pub deviation: f64,
    /// Their maximum absolute value.
    pub max_abs: f64,
}

impl TensorStats {
    fn of<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Self {
        let values: Vec<f64> = tensor.into_data().iter::<f64>().collect();
        let count = values.len().max(1) as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        // Unlike `max`, this propagates NaN.
        let max_abs = values.iter().fold(0.0, |max_abs: f64, value| {
            if value.is_nan() || max_abs.is_nan() { f64::NAN } else { max_abs.max(value.abs()) }
        });
        Self { mean, deviation: variance.sqrt(), max_abs }
    }
}

/// Runs the first micro-batch of a run in detail, without changing the model.
pub fn batch_debug<A: TrainBackend>(
    model: &CausalLm<A>,
    config: &ModelConfig,
    data: &Dataset,
    tokenizer: &TextTokenizer,
    pad_id: u32,
    plan: &Plan,
) -> BatchDebug {
    let loader = plan.loader(data);
    let (rows, _) = loader.take(loader.cursor(0), plan.micro_batch_size);
    let batch = Batch::of_rows(&rows, &data.examples, pad_id);
    let supervised = batch.targets.len();
    let mut gradients = Gradients::default();
    let options = StepOptions::new(1.0 / supervised.max(1) as f64, plan.recompute);
    let loss_sum = loss_and_grads(model, config, &batch, options, &mut gradients);
    let stats_of = |value: Tensor<A::InnerBackend, 1>| {
        let norm = value.clone().powi_scalar(2).sum().into_data().iter::<f64>().sum::<f64>().sqrt();
        (norm, TensorStats::of(value))
    };
    let gradients = gradients.iter().map(|(name, gradient)| {
        let (norm, stats) = stats_of(gradient.value.clone());
        (name.to_owned(), norm, stats)
    });
    BatchDebug {
        shape: [batch.rows, batch.seq],
        loss: loss_sum / supervised as f64,
        rows: described(&batch, data, tokenizer),
        gradients: gradients.collect(),
        activations: activations(&model.valid(), config, &batch),
    }
}

fn described(batch: &Batch, data: &Dataset, tokenizer: &TextTokenizer) -> Vec<Row> {
    let text = |id: u32| tokenizer.decode(&[id], false).unwrap_or_default();
    let mut labels = vec![None; batch.ids.len()];
    for target in &batch.targets {
        labels[target.index] = Some((target.token, text(target.token)));
    }
    let mut examples = batch.examples.iter();
    let row = |row: usize| {
        let range = row * batch.seq..(row + 1) * batch.seq;
        let sequences = batch.segments[range.clone()].iter().max().copied().unwrap_or(0);
        let sources = examples.by_ref().take(sequences as usize);
        Row {
            sources: sources.map(|&example| data.examples.source(example).to_string()).collect(),
            tokens: range
                .map(|at| Token {
                    id: batch.ids[at],
                    text: text(batch.ids[at]),
                    segment: batch.segments[at],
                    position: batch.positions[at],
                    label: labels[at].clone(),
                })
                .collect(),
        }
    };
    (0..batch.rows).map(row).collect()
}

fn activations<B: ModelBackend>(
    model: &CausalLm<B>,
    config: &ModelConfig,
    batch: &Batch,
) -> Vec<(String, TensorStats)> {
    let inputs = inputs::<B>(config, batch, &model.device());
    let mut x = model.embed(&inputs);
    let mut found = vec![("model.embed_tokens".to_owned(), TensorStats::of(x.clone()))];
    for (i, layer) in model.model.layers.iter().enumerate() {
        x = layer.forward(x, &inputs, None);
        found.push((format!("model.layers.{i}"), TensorStats::of(x.clone())));
    }
    // The logits of one row only: all of them may not fit in memory.
    let [_, seq, width] = x.dims();
    let logits = model.head(x.slice([0..1, 0..seq.min(SHOWN)]).reshape([seq.min(SHOWN), width]));
    found.push(("logits (of the first row)".to_owned(), TensorStats::of(logits)));
    found
}

impl fmt::Display for BatchDebug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rows, seq] = self.shape;
        let labels = |row: &Row| row.tokens.iter().filter(|token| token.label.is_some()).count();
        let supervised: usize = self.rows.iter().map(labels).sum();
        writeln!(
            f,
            "The first micro-batch: {rows} rows of {seq} tokens, {supervised} supervised, loss {:.4}",
            self.loss
        )?;
        for (i, row) in self.rows.iter().enumerate() {
            writeln!(f, "\nrow {i}: {}", row.sources.join(", "))?;
            writeln!(f, "{:>7} {:>8} {:>7}  {:<20} label", "segment", "position", "id", "token")?;
            for token in row.tokens.iter().take(SHOWN) {
                let Token { id, text, segment, position, label } = token;
                if *segment == 0 {
                    let padding = row.tokens.iter().filter(|token| token.segment == 0).count();
                    writeln!(f, "        {padding} padding tokens")?;
                    break;
                }
                write!(f, "{segment:>7} {position:>8} {id:>7}  {:<20}", quoted(text))?;
                match label {
                    Some((id, text)) => writeln!(f, " {id} {}", quoted(text))?,
                    None => f.write_char('\n')?,
                }
            }
            if row.tokens.len() > SHOWN {
                writeln!(f, "        … {} more", row.tokens.len() - SHOWN)?;
            }
        }
        writeln!(f, "\n{:<58} {:>11} {:>11} {:>11}", "forward", "mean", "std", "max abs")?;
        for (place, TensorStats { mean, deviation, max_abs }) in &self.activations {
            writeln!(f, "{place:<58} {mean:>11.3e} {deviation:>11.3e} {max_abs:>11.3e}")?;
        }
        writeln!(f, "\n{:<58} {:>11} {:>11} {:>11}", "gradients", "norm", "std", "max abs")?;
        for (name, norm, TensorStats { deviation, max_abs, .. }) in &self.gradients {
            writeln!(f, "{name:<58} {norm:>11.3e} {deviation:>11.3e} {max_abs:>11.3e}")?;
        }
        Ok(())
    }
}

/// In quotes, with control characters escaped.
fn quoted(text: &str) -> String {
    format!("{text:?}")
}

#[cfg(all(test, feature = "cpu"))]
mod tests {
    use burn_flex::Flex;
    use emberlm_data::ExampleOptions;
    use emberlm_lora::{LoraConfig, inject};

    use super::*;
    use crate::WeightForm;
    use crate::base::builtin;
    use crate::trainer::step::Training;

    #[test]
    fn shown_tokens_and_labels_equal_the_examples() {
        let base = builtin::base().unwrap();
        let mut model =
            base.build::<Training<Flex>>(WeightForm::default(), &Default::default()).unwrap();
        inject(model.linears_mut(), &LoraConfig::default(), 0, &Default::default()).unwrap();
        let rows = &builtin::train_rows().unwrap()[..3];
        let data = Dataset::build(rows, &base.tokenizer, &ExampleOptions::default()).unwrap();
        let mut plan = Plan::new(1, 2, 1e-3);
        plan.shuffle = false;
        let debug = batch_debug(&model, &base.config, &data, &base.tokenizer, 0, &plan);
        for (i, row) in debug.rows.iter().enumerate() {
            let example = data.examples.get(i);
            assert_eq!(row.sources, [example.source.to_string()]);
            for (at, token) in row.tokens.iter().enumerate() {
                let label = example.loss_mask.get(at + 1).is_some_and(|supervised| *supervised);
                assert_eq!(
                    token.label.as_ref().map(|(id, _)| *id),
                    label.then(|| example.ids[at + 1])
                );
                assert_eq!(token.segment == 0, at >= example.ids.len());
            }
        }
        // B is zero at first, so the gradient of A is zero.
        let zero = |name: &str| name.ends_with("lora_a");
        assert!(debug.gradients.iter().all(|(name, norm, _)| zero(name) == (*norm == 0.0)));
        assert_eq!(debug.activations.len(), base.config.num_hidden_layers + 2);
        let page = debug.to_string();
        for text in ["2 rows of", "model.layers.0", "logits", "lora_b", "label"] {
            assert!(page.contains(text), "{page}");
        }
    }

    #[test]
    fn statistics_propagate_nan() {
        let device = Default::default();
        let stats = TensorStats::of(Tensor::<Flex, 1>::from_floats([1.0, -3.0, 2.0], &device));
        assert_eq!((stats.mean, stats.max_abs), (0.0, 3.0));
        assert!((stats.deviation - (14.0f64 / 3.0).sqrt()).abs() < 1e-6);
        let stats = TensorStats::of(Tensor::<Flex, 1>::from_floats([1.0, f32::NAN], &device));
        assert!(stats.max_abs.is_nan() && stats.mean.is_nan());
    }
}
