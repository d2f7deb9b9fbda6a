//! Loss and gradients of one micro-batch.
//!
//! Backward runs in stages, to reduce peak memory:
//!
//! ```text
//!   tokens ─► embedding ─► block 0 ─► … ─► block n-1 ─► [supervised rows] ─► chunks of: norm ─► head ─► loss
//!   gradients:       ◄──────────────────────────────────────────────────────── chunk by chunk
//! ```
//!
//! Logits exist for one chunk of supervised positions at a time. With [`Recompute::Selective`] the outputs of norms and of
//! the gated feed-forward are recomputed in backward instead of being kept. With [`Recompute::Block`] the blocks first run
//! without autodiff, keeping each one's input, and then again under autodiff, one at a time from last to first.

use std::borrow::Cow;
use std::fmt;

use burn::module::AutodiffModule;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor, TensorData};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::BalancedCheckpointing;
use clap::ValueEnum;
use emberlm_data::{Batch, Target};
use emberlm_lora::DropoutKey;
use emberlm_lora::walk::count_params;
use emberlm_model::{CausalLm, Inputs, Keep, ModelBackend, ModelConfig, SequenceBatch};
use emberlm_quant::host::{float_tensor, index_tensor};
use serde::Serialize;

use crate::trainer::grads::Gradients;
use crate::trainer::noise::EmbeddingNoise;
use crate::trainer::optimizer::OptimizerBackend;
use crate::trainer::timing::{StepPhases, timed};

/// Activations that backward recomputes, to save memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// None: fastest, most memory.
    None,
    /// The outputs of norms and of the gated feed-forward, which need no matrix product.
    #[default]
    Selective,
    /// Each decoder block from its input: slowest, least memory.
    Block,
}

impl Recompute {
    /// Its name in settings and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Selective => "selective",
            Self::Block => "block",
        }
    }
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A backend of the trainer: autodiff over a backend that runs the model and its optimizer.
pub trait TrainBackend: AutodiffBackend<InnerBackend: OptimizerBackend> + ModelBackend {}
impl<A: AutodiffBackend<InnerBackend: OptimizerBackend> + ModelBackend> TrainBackend for A {}

/// Autodiff over `B` that can recompute cheap operations ([`Keep::Costly`]).
pub type Training<B> = Autodiff<B, BalancedCheckpointing>;

/// Maximum elements of a chunk's logits: 64 MiB in f32.
const LOGITS_PER_CHUNK: usize = 1 << 24;

/// Rows of a chunk for a vocabulary of size `vocab`.
pub(crate) fn chunk_rows(vocab: usize) -> usize {
    (LOGITS_PER_CHUNK / vocab).max(16)
}

/// Copies a batch to a device.
pub fn inputs<B: ModelBackend>(
    config: &ModelConfig,
    batch: &Batch,
    device: &B::Device,
) -> Inputs<B> {
    let Batch { rows, seq, ids, positions, segments, .. } = batch;
    let batch = SequenceBatch { rows: *rows, seq: *seq, ids, positions, segments };
    Inputs::new(config, batch, device)
}

/// As [`inputs`], with noise on the embeddings.
fn noisy_inputs<B: ModelBackend>(
    config: &ModelConfig,
    batch: &Batch,
    noise: Option<&EmbeddingNoise>,
    device: &B::Device,
) -> Inputs<B> {
    let shape = [batch.rows, batch.seq, config.hidden_size];
    let noise = noise.map(|noise| float_tensor(noise.of(batch, config.hidden_size), shape, device));
    inputs(config, batch, device).with_noise(noise)
}

/// The sum of the losses of a batch's supervised tokens times their weights, in nats, without gradients.
pub fn loss_sum<B: ModelBackend>(model: &CausalLm<B>, config: &ModelConfig, batch: &Batch) -> f64 {
    if batch.targets.is_empty() {
        return 0.0;
    }
    let inputs = inputs(config, batch, &model.device());
    let targets = by_weight(&batch.targets);
    let hidden = supervised_rows(model.hidden(&inputs, None), &targets);
    let chunks = chunks(&targets, chunk_rows(config.vocab_size));
    let sizes = chunks.iter().map(|chunk| chunk.len()).collect();
    let sum = |(hidden, targets): (_, &[Target])| {
        let sum = model.loss_sum(hidden, &tokens(targets));
        f64::from(targets[0].weight) * scalar(sum.into_data())
    };
    hidden.split_with_sizes(sizes, 0).into_iter().zip(chunks).map(sum).sum()
}

/// Options of a micro-batch.
#[derive(Debug, Clone, Copy)]
pub struct StepOptions<'a> {
    /// Factor of the loss before backward: 1 / (sum of the weights of the step's supervised tokens).
    pub scale: f64,
    /// The recompute mode.
    pub recompute: Recompute,
    /// Key of the dropout masks, if adapters have dropout.
    pub dropout: Option<&'a DropoutKey>,
    /// Noise on the embeddings.
    pub noise: Option<&'a EmbeddingNoise>,
    /// Where the duration of each phase is added.
    pub phases: Option<&'a StepPhases>,
}

impl StepOptions<'_> {
    /// Without dropout, noise and timing.
    pub fn new(scale: f64, recompute: Recompute) -> Self {
        Self { scale, recompute, dropout: None, noise: None, phases: None }
    }
}

/// Adds the gradients of `scale · (sum of weight · loss over supervised tokens)` to `gradients` and returns that sum,
/// unscaled.
pub fn loss_and_grads<A: TrainBackend>(
    model: &CausalLm<A>,
    config: &ModelConfig,
    batch: &Batch,
    options: StepOptions<'_>,
    gradients: &mut Gradients<A::InnerBackend>,
) -> f64 {
    if !matches!(model.activation_type(), DType::F16 | DType::BF16) {
        return staged(model, config, batch, options, gradients);
    }
    // In 16 bits the gradients of a mean over thousands of tokens would underflow, or be rounded with their factor. Those of
    // the sum do not; they are scaled in f32.
    let mut of_sum = Gradients::default();
    let loss = staged(model, config, batch, StepOptions { scale: 1.0, ..options }, &mut of_sum);
    gradients.add_scaled(of_sum, options.scale);
    loss
}

fn staged<A: TrainBackend>(
    model: &CausalLm<A>,
    config: &ModelConfig,
    batch: &Batch,
    options: StepOptions<'_>,
    gradients: &mut Gradients<A::InnerBackend>,
) -> f64 {
    let StepOptions { recompute, noise, phases, .. } = options;
    match recompute {
        Recompute::None | Recompute::Selective => {
            let keep = match recompute {
                Recompute::None => Keep::All,
                _ => Keep::Costly,
            };
            let inputs = noisy_inputs::<A>(config, batch, noise, &model.device()).keeping(keep);
            let hidden =
                timed(phases.map(|p| &p.forward), || model.hidden(&inputs, options.dropout));
            let plain = hidden.clone().inner();
            let (loss, d_hidden) = timed(phases.map(|p| &p.head), || {
                head_stage(model, config, plain, batch, options.scale, gradients)
            });
            timed(phases.map(|p| &p.backward), || {
                if trained_from(model) != TrainedFrom::Head {
                    let found = backward_from(hidden, d_hidden);
                    gradients.collect::<A, _>("model", &model.model, found);
                }
            });
            loss
        }
        Recompute::Block => {
            let (hidden, kept) =
                timed(phases.map(|p| &p.forward), || blocks_forward(model, config, batch, options));
            let (loss, d_hidden) = timed(phases.map(|p| &p.head), || {
                head_stage(model, config, hidden, batch, options.scale, gradients)
            });
            timed(phases.map(|p| &p.backward), || {
                blocks_backward(model, config, batch, options, kept, d_hidden, gradients);
            });
            loss
        }
    }
}

/// The blocks without autodiff: their output, and the inputs of the blocks from the lowest trained one up.
fn blocks_forward<A: TrainBackend>(
    model: &CausalLm<A>,
    config: &ModelConfig,
    batch: &Batch,
    options: StepOptions<'_>,
) -> (Tensor<A::InnerBackend, 3>, Vec<Tensor<A::InnerBackend, 3>>) {
    let lowest = trained_from(model).lowest_block(model);
    let plain = model.valid();
    let StepOptions { dropout, noise, .. } = options;
    let inputs = noisy_inputs::<A::InnerBackend>(config, batch, noise, &model.device());
    let mut kept = Vec::new();
    let mut x = plain.embed(&inputs);
    for (i, layer) in plain.model.layers.iter().enumerate() {
        if i >= lowest {
            kept.push(x.clone());
        }
        x = layer.forward(x, &inputs, dropout);
    }
    (x, kept)
}

/// The blocks again under autodiff, one at a time from last to first.
fn blocks_backward<A: TrainBackend>(
    model: &CausalLm<A>,
    config: &ModelConfig,
    batch: &Batch,
    options: StepOptions<'_>,
    mut kept: Vec<Tensor<A::InnerBackend, 3>>,
    mut d_x: Tensor<A::InnerBackend, 3>,
    gradients: &mut Gradients<A::InnerBackend>,
) {
    let trained_from = trained_from(model);
    let lowest = trained_from.lowest_block(model);
    let dropout = options.dropout;
    // The noise is a summand: no gradient depends on it.
    let inputs = inputs::<A>(config, batch, &model.device()).keeping(Keep::Costly);
    for (i, layer) in model.model.layers.iter().enumerate().skip(lowest).rev() {
        let Some(x) = kept.pop() else { break };
        let wants_input_gradient = i > lowest || trained_from == TrainedFrom::Embedding;
        let x = Tensor::<A, 3>::from_inner(x).set_require_grad(wants_input_gradient);
        let y = layer.forward(x.clone(), &inputs, dropout);
        let mut found = backward_from(y, d_x.clone());
        if let Some(gradient) = x.grad_remove(&mut found) {
            d_x = gradient;
        }
        gradients.collect::<A, _>(&format!("model.layers.{i}"), layer, found);
    }
    if trained_from == TrainedFrom::Embedding {
        let found = backward_from(model.embed(&inputs), d_x);
        gradients.collect::<A, _>("model.embed_tokens", &model.model.embed_tokens, found);
    }
}

/// The loss and the gradient of the blocks' output `hidden`, by chunks of supervised positions. Adds the gradients of head
/// and final norm to `gradients`.
fn head_stage<A: TrainBackend>(
    model: &CausalLm<A>,
    config: &ModelConfig,
    hidden: Tensor<A::InnerBackend, 3>,
    batch: &Batch,
    scale: f64,
    gradients: &mut Gradients<A::InnerBackend>,
) -> (f64, Tensor<A::InnerBackend, 3>) {
    let dims = hidden.dims();
    let [rows, seq, width] = dims;
    let device = hidden.device();
    if batch.targets.is_empty() {
        return (0.0, hidden.zeros_like());
    }
    let targets = by_weight(&batch.targets);
    let supervised = supervised_rows(hidden.clone(), &targets);
    let chunks = chunks(&targets, chunk_rows(config.vocab_size));
    let sizes = chunks.iter().map(|chunk| chunk.len()).collect();
    let mut loss = 0.0;
    let mut d_supervised = Vec::new();
    for (x, targets) in supervised.split_with_sizes(sizes, 0).into_iter().zip(chunks) {
        let weight = f64::from(targets[0].weight);
        let x = Tensor::<A, 2>::from_inner(x).require_grad();
        let sum = model.loss_sum(x.clone(), &tokens(targets));
        loss += weight * scalar(sum.clone().inner().into_data());
        let mut found = (sum * (scale * weight)).backward();
        let d_x = x.grad_remove(&mut found);
        d_supervised.push(d_x.expect("the loss depends on the head's input"));
        gradients.collect::<A, _>("", model, found);
    }
    let zeros = hidden.reshape([rows * seq, width]).zeros_like();
    let d_hidden = zeros.select_assign(
        0,
        positions(&targets, &device),
        Tensor::cat(d_supervised, 0),
        IndexingUpdateOp::Add,
    );
    (loss, d_hidden.reshape(dims))
}

/// Backward from an output with its gradient.
fn backward_from<A: TrainBackend>(
    output: Tensor<A, 3>,
    gradient: Tensor<A::InnerBackend, 3>,
) -> A::Gradients {
    (output * Tensor::from_inner(gradient)).sum().backward()
}

/// The lowest trained part of a model, where backward stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrainedFrom {
    Embedding,
    Block(usize),
    Head,
}

impl TrainedFrom {
    /// The lowest block that needs a gradient.
    fn lowest_block<A: TrainBackend>(self, model: &CausalLm<A>) -> usize {
        match self {
            Self::Embedding => 0,
            Self::Block(lowest) => lowest,
            Self::Head => model.model.layers.len(),
        }
    }
}

fn trained_from<A: TrainBackend>(model: &CausalLm<A>) -> TrainedFrom {
    let embedding = &model.model.embed_tokens;
    let has_token_rows = embedding.tokens.as_ref().is_some_and(|t| t.rows.is_require_grad());
    if embedding.weight.is_require_grad() || has_token_rows {
        return TrainedFrom::Embedding;
    }
    let lowest =
        model.model.layers.iter().position(|layer| count_params::<A, _>(layer).trainable > 0);
    lowest.map_or(TrainedFrom::Head, TrainedFrom::Block)
}

/// Targets sorted by weight: the sum of the losses of one weight is weighted as a whole, so kernels need no weights.
fn by_weight(targets: &[Target]) -> Cow<'_, [Target]> {
    if targets.windows(2).all(|pair| pair[0].weight == pair[1].weight) {
        return Cow::Borrowed(targets);
    }
    let mut sorted = targets.to_vec();
    sorted.sort_by(|a, b| a.weight.total_cmp(&b.weight));
    Cow::Owned(sorted)
}

/// Targets in nonempty chunks of at most `most`, each of one weight.
fn chunks(targets: &[Target], most: usize) -> Vec<&[Target]> {
    let runs = targets.chunk_by(|a, b| a.weight == b.weight);
    runs.flat_map(|run| run.chunks(most)).collect()
}

/// The rows of `[batch, seq, width]` that predict a supervised token: `[targets, width]`.
fn supervised_rows<B: ModelBackend>(hidden: Tensor<B, 3>, targets: &[Target]) -> Tensor<B, 2> {
    let [batch, seq, width] = hidden.dims();
    let positions = positions(targets, &hidden.device());
    hidden.reshape([batch * seq, width]).select(0, positions)
}

fn positions<B: ModelBackend>(targets: &[Target], device: &B::Device) -> Tensor<B, 1, Int> {
    index_tensor(targets.iter().map(|target| target.index), [targets.len()], device)
}

fn tokens(targets: &[Target]) -> Vec<u32> {
    targets.iter().map(|target| target.token).collect()
}

fn scalar(data: TensorData) -> f64 {
    data.iter::<f64>().sum()
}
