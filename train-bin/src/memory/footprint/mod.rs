//! Estimates the memory of a run before it starts.
//!
//! Counted, not measured: the bytes of the tensors that the training step holds ([`step`](crate::trainer::step)) at the
//! moments when it holds the most. `docs/performance.md` compares the counts with measured peaks.
//!
//! ```text
//!   weights ─ adapters ─ moments ─┬─ kept by the blocks ─ a chunk of logits          (after forward)
//!                                 ├─ kept by the blocks ─ one block's gradients      (backward begins)
//!                                 └─ all gradients ─ workspace of the largest tensor (optimizer)
//! ```

use std::fmt;

use emberlm_lora::{AdapterShape, LoraConfig, LoraConfigError};
use emberlm_model::{BlockLinear, LinearInput, ModelConfig};
use emberlm_quant::tensor_file::FloatDtype;
use emberlm_quant::{PANEL, QuantFormat, Quantization};
use serde::Serialize;

use crate::trainer::freeze::is_named;
use crate::trainer::optimizer::Algorithm;
use crate::trainer::step::Recompute;
use crate::trainer::step::chunk_rows;

/// The keys of the two large weights outside the blocks.
const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// Bytes of a number in f32.
const FLOAT: u64 = 4;

/// The program with its threads' stacks, in bytes: a measured peak minus all tensors.
const PROGRAM: u64 = 60 << 20;

/// Bytes of the tokenizer's tables per token of the vocabulary.
const VOCABULARY_ENTRY: u64 = 400;

/// Overhead of the allocator as a share of the tensors: freed blocks between used ones.
const ALLOCATOR: f64 = 0.15;

/// The properties of a step that its memory depends on.
#[derive(Debug, Clone)]
pub struct Workload<'a> {
    /// The model.
    pub model: &'a ModelConfig,
    /// Quantization of the linear layers; `None`: dense.
    pub quantization: Option<Quantization>,
    /// The float type of dense weights.
    pub dtype: FloatDtype,
    /// The float type of activations.
    pub activations: FloatDtype,
    /// The adapters; `None`: all weights are trained.
    pub lora: Option<LoraConfig>,
    /// Without adapters: the trainable weights, by parts of their names; empty: all.
    pub trainable: &'a [String],
    /// Rows of the largest micro-batch.
    pub rows: usize,
    /// Its tokens per row, padding included.
    pub seq: usize,
    /// Its supervised tokens.
    pub targets: usize,
    /// Micro-batches of a step.
    pub grad_accumulation: usize,
    /// The recompute mode.
    pub recompute: Recompute,
    /// The optimizer.
    pub optimizer: Algorithm,
}

/// Bytes by purpose, at the moment when their sum is largest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Footprint {
    /// Frozen and trained weights without adapters.
    pub weights: u64,
    /// The adapters.
    pub adapters: u64,
    /// The optimizer's state.
    pub optimizer: u64,
    /// Gradients of the trainable parameters.
    pub gradients: u64,
    /// What the blocks keep for backward.
    pub activations: u64,
    /// Logits of one chunk with their gradient, and the supervised rows.
    pub logits: u64,
    /// Temporary tensors of a block's backward or of the optimizer.
    pub workspace: u64,
    /// The program, its tokenizer, and the overhead of the allocator.
    pub overhead: u64,
}

impl Footprint {
    /// The sum.
    pub fn total(&self) -> u64 {
        self.tensors() + self.overhead
    }

    fn tensors(&self) -> u64 {
        let Self {
            weights, adapters, optimizer, gradients, activations, logits, workspace, ..
        } = self;
        weights + adapters + optimizer + gradients + activations + logits + workspace
    }

    /// The parts with their names, in the order of [`Footprint`]'s fields.
    pub fn parts(&self) -> [(&'static str, u64); 8] {
        [
            ("weights", self.weights),
            ("adapters", self.adapters),
            ("optimizer", self.optimizer),
            ("gradients", self.gradients),
            ("activations", self.activations),
            ("logits", self.logits),
            ("workspace", self.workspace),
            ("overhead", self.overhead),
        ]
    }
}

impl Workload<'_> {
    /// The memory of a step.
    ///
    /// # Errors
    /// If a pattern in the adapters' configuration is not a regular expression.
    pub fn footprint(&self) -> Result<Footprint, LoraConfigError> {
        let blocks = self.blocks()?;
        let head_adapter = self.head_adapter()?;
        let in_head = head_adapter.map_or(0, |adapter| adapter.elements() as u64);
        let in_blocks: u64 = blocks.iter().map(Block::adapter_elements).sum();
        let adapters = (in_blocks + in_head) * FLOAT;
        let trained = if self.lora.is_some() { adapters } else { self.trained_weights() };
        let reached = blocks.iter().position(Block::is_trained).unwrap_or(blocks.len());
        let (activations, in_backward) = self.activation_bytes(&blocks[reached..]);
        let embedding = (self.model.vocab_size * self.model.hidden_size) as u64 * FLOAT;
        let head = if self.model.tie_word_embeddings { EMBEDDING } else { HEAD };
        let early = match self.lora {
            Some(_) => trained,
            None if self.trains(head) => embedding,
            None => 0,
        };
        // The gradients of a second micro-batch exist together with the sum of the ones before.
        let held_over = if self.grad_accumulation > 1 { trained } else { 0 };
        let in_optimizer = 4 * self.largest_trained(&blocks);
        let decoding = self.decoding();
        let base = Footprint {
            weights: self.weight_bytes(),
            adapters,
            optimizer: self.optimizer_bytes(&blocks, head_adapter),
            gradients: 0,
            activations: 0,
            logits: 0,
            workspace: decoding,
            overhead: 0,
        };
        let after_forward = Footprint {
            activations,
            logits: self.logit_bytes(),
            gradients: held_over + early,
            ..base
        };
        let backward = Footprint {
            activations,
            workspace: in_backward + decoding,
            gradients: held_over + early,
            ..base
        };
        let optimizer = Footprint {
            gradients: held_over + trained,
            workspace: in_optimizer + decoding,
            ..base
        };
        // Of equal ones, the first.
        let mut most = after_forward;
        for other in [backward, optimizer] {
            if other.tensors() > most.tensors() {
                most = other;
            }
        }
        let program = PROGRAM + VOCABULARY_ENTRY * self.model.vocab_size as u64;
        most.overhead = program + (most.tensors() as f64 * ALLOCATOR) as u64;
        Ok(most)
    }

    /// What the blocks from the lowest trained one up keep for backward with their output or its gradient, and what the
    /// backward of one block needs temporarily.
    fn activation_bytes(&self, blocks: &[Block]) -> (u64, u64) {
        let tokens = (self.rows * self.seq) as u64;
        let hidden = self.model.hidden_size as u64;
        let inner = self.model.intermediate_size as u64;
        let float = self.activations.bytes() as u64;
        let stream = tokens * hidden * float;
        let lowest = blocks.first().map_or(0, |block| block.index);
        let kept = |block: &Block| tokens * block.kept(self, block.index > lowest) * float;
        let (activations, one_block) = match self.recompute {
            Recompute::None | Recompute::Selective => {
                (blocks.iter().map(kept).sum::<u64>() + 2 * stream, 0)
            }
            // The input of the block that is recomputed is among the kept inputs.
            Recompute::Block => {
                let most = blocks.iter().map(kept).max().unwrap_or(stream);
                (stream * (blocks.len() as u64 + 1), most - stream)
            }
        };
        // The gradients of the block's input and output, of the feed-forward's product and of its two factors.
        let in_backward = match blocks {
            [] => 0,
            _ => tokens * (2 * hidden + 3 * inner) * float + one_block,
        };
        (activations, in_backward)
    }

    /// Logits of one chunk with their gradient, and the supervised rows.
    fn logit_bytes(&self) -> u64 {
        let float = self.activations.bytes() as u64;
        let chunk = chunk_rows(self.model.vocab_size).min(self.targets) as u64;
        let supervised = self.targets as u64 * self.model.hidden_size as u64 * float;
        // A frozen head computes the gradient in place.
        let copies = if self.lora.is_some() { 1 } else { 2 };
        copies * chunk * self.model.vocab_size as u64 * float + 3 * supervised
    }

    /// The blocks, each with the ranks of its adapters.
    fn blocks(&self) -> Result<Vec<Block>, LoraConfigError> {
        (0..self.model.num_hidden_layers)
            .map(|index| {
                let adapter = |linear: BlockLinear| {
                    let BlockLinear { role, d_out, d_in, .. } = linear;
                    let lora = self.lora.as_ref();
                    let adapter = lora
                        .map(|lora| lora.adapter_shape(&role.path_in(index), false, [d_out, d_in]));
                    Ok((linear, adapter.transpose()?.flatten()))
                };
                let linears: Result<Vec<_>, LoraConfigError> =
                    self.model.block_linears().into_iter().map(adapter).collect();
                let prefix = format!("model.layers.{index}.");
                let whole = self
                    .model
                    .tensors()
                    .iter()
                    .any(|(key, _)| key.starts_with(&prefix) && self.trains(key))
                    || self.trains(EMBEDDING);
                Ok(Block { index, whole, linears: linears? })
            })
            .collect()
    }

    /// Bytes of the optimizer's state, tensor by tensor.
    fn optimizer_bytes(&self, blocks: &[Block], head_adapter: Option<AdapterShape>) -> u64 {
        if self.lora.is_none() {
            let tensors = self.model.tensors();
            let trained = tensors.iter().filter(|(key, _)| self.trains(key));
            return trained.map(|(key, shape)| self.optimizer.state_bytes(key, shape)).sum();
        }
        let of_adapter = |adapter: AdapterShape| -> u64 {
            let params = adapter.params().iter();
            params.map(|param| self.optimizer.state_bytes(param.name, &param.shape(&adapter))).sum()
        };
        blocks.iter().flat_map(Block::adapters).chain(head_adapter).map(of_adapter).sum()
    }

    /// The output head's adapter.
    fn head_adapter(&self) -> Result<Option<AdapterShape>, LoraConfigError> {
        let Some(lora) = self.lora.as_ref().filter(|_| !self.model.tie_word_embeddings) else {
            return Ok(None);
        };
        lora.adapter_shape("lm_head", true, [self.model.vocab_size, self.model.hidden_size])
    }

    /// Whether a weight of the base model is trained.
    fn trains(&self, key: &str) -> bool {
        self.lora.is_none() && is_named(self.trainable, key)
    }

    /// Bytes of the trainable weights of the base model.
    fn trained_weights(&self) -> u64 {
        let tensors = self.model.tensors();
        let trained = tensors.iter().filter(|(key, _)| self.trains(key));
        trained.map(|(_, shape)| shape.iter().product::<usize>() as u64 * FLOAT).sum()
    }

    fn weight_bytes(&self) -> u64 {
        self.model
            .tensors()
            .iter()
            .map(|(key, shape)| {
                let elements = shape.iter().product::<usize>() as u64;
                let name = key.strip_suffix(".weight").unwrap_or(key);
                match (&self.quantization, shape.as_slice()) {
                    (Some(quantization), &[d_out, _])
                        if emberlm_model::weights::is_block_linear(key)
                            && !quantization.skips(name) =>
                    {
                        quantized_bytes(quantization, elements, d_out as u64)
                    }
                    (_, [_]) => elements * self.activations.bytes() as u64,
                    _ => elements * self.dtype.bytes() as u64,
                }
            })
            .sum()
    }

    /// The panel in which the CPU decodes weights that are not f32.
    fn decoding(&self) -> u64 {
        let is_half = self.dtype != FloatDtype::F32 && self.activations == FloatDtype::F32;
        let elements = |linear: &BlockLinear| (linear.d_out * linear.d_in) as u64;
        let largest = match (is_half, &self.quantization) {
            (true, _) => (self.model.vocab_size * self.model.hidden_size) as u64,
            (false, Some(_)) => self.model.block_linears().iter().map(elements).max().unwrap_or(0),
            (false, None) => 0,
        };
        largest.min(PANEL as u64) * FLOAT
    }

    /// Bytes of the largest tensor that the optimizer updates.
    fn largest_trained(&self, blocks: &[Block]) -> u64 {
        let elements = match self.lora {
            None => {
                let tensors = self.model.tensors();
                let trained = tensors.iter().filter(|(key, _)| self.trains(key));
                trained.map(|(_, shape)| shape.iter().product::<usize>()).max().unwrap_or(0) as u64
            }
            Some(_) => blocks.iter().map(Block::largest_adapter_param).max().unwrap_or(0),
        };
        elements * FLOAT
    }
}

/// Codes and scales of a weight: blocks of 64 for 4 bits, rows for 8.
fn quantized_bytes(quantization: &Quantization, elements: u64, rows: u64) -> u64 {
    let blocks = elements.div_ceil(64);
    match (quantization.format, quantization.double_quant) {
        (QuantFormat::Int8, _) => elements + rows * FLOAT,
        (_, false) => elements.div_ceil(2) + blocks * FLOAT,
        (_, true) => elements.div_ceil(2) + blocks + blocks.div_ceil(256) * FLOAT,
    }
}

#[derive(Debug)]
struct Block {
    index: usize,
    /// Whether all its weights are trained.
    whole: bool,
    /// Its linear layers, each with its adapter.
    linears: Vec<(BlockLinear, Option<AdapterShape>)>,
}

impl Block {
    fn adapters(&self) -> impl Iterator<Item = AdapterShape> {
        self.linears.iter().filter_map(|(_, adapter)| *adapter)
    }

    fn is_trained(&self) -> bool {
        self.whole || self.adapters().next().is_some()
    }

    fn adapter_elements(&self) -> u64 {
        self.adapters().map(|adapter| adapter.elements() as u64).sum()
    }

    fn largest_adapter_param(&self) -> u64 {
        let largest = |adapter: AdapterShape| adapter.param_elements().max();
        self.adapters().filter_map(largest).max().unwrap_or(0) as u64
    }

    /// Whether a linear layer that reads one of `inputs` is trained.
    fn trains_reader_of(&self, inputs: &[LinearInput]) -> bool {
        let reads = |linear: &BlockLinear| inputs.contains(&linear.role.input());
        self.whole || self.linears.iter().any(|(linear, a)| a.is_some() && reads(linear))
    }

    /// Elements per token that the block keeps until backward. `reached`: its input has a gradient.
    fn kept(&self, workload: &Workload<'_>, reached: bool) -> u64 {
        use LinearInput::{Attention, AttentionNorm, MlpNorm, MlpProduct};
        let model = workload.model;
        let hidden = model.hidden_size as u64;
        let inner = model.intermediate_size as u64;
        // The input of the second norm.
        let mut kept = hidden;
        if reached || self.trains_reader_of(&[AttentionNorm]) {
            // The input of the first norm, or its output if the input has no gradient.
            kept += hidden;
            // Attention keeps queries, keys, values, its output, and one number per query.
            let attention = self.linears.iter().map(|(linear, _)| match linear.role.input() {
                AttentionNorm => linear.d_out,
                Attention => linear.d_in,
                MlpNorm | MlpProduct => 0,
            });
            kept += attention.sum::<usize>() as u64 + model.num_attention_heads as u64;
        }
        if reached || self.trains_reader_of(&[AttentionNorm, Attention, MlpNorm]) {
            kept += 2 * inner;
        }
        if workload.recompute == Recompute::None {
            kept += if reached && self.trains_reader_of(&[AttentionNorm]) { hidden } else { 0 };
            kept += if self.trains_reader_of(&[MlpNorm]) { hidden } else { 0 };
            kept += if self.trains_reader_of(&[MlpProduct]) { inner } else { 0 };
        }
        kept + self.adapters().map(|adapter| adapter.r as u64).sum::<u64>()
    }
}

/// A change of settings that reduces memory. Only quantization, proposed last, influences the result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Proposal {
    /// Settings to change, as `--set` takes them.
    pub set: Vec<String>,
    /// Memory of the run with this change and all before it, in bytes.
    pub total: u64,
    /// Whether it fits.
    pub fits: bool,
}

/// The changes, in order, until a run fits into `limit` bytes: smaller micro-batches with more accumulation, then
/// recomputation, then quantized base weights. Empty if it fits already; even the last one may not fit.
///
/// # Errors
/// As [`Workload::footprint`].
pub fn proposals(workload: &Workload<'_>, limit: u64) -> Result<Vec<Proposal>, LoraConfigError> {
    let mut workload = workload.clone();
    let mut proposals = Vec::new();
    if workload.footprint()?.total() <= limit {
        return Ok(proposals);
    }
    let mut propose = |workload: &Workload<'_>, set: Vec<String>| {
        let total = workload.footprint()?.total();
        proposals.push(Proposal { set, total, fits: total <= limit });
        Ok::<bool, LoraConfigError>(total <= limit)
    };
    // Halved while it is even, so that the step has the same examples.
    let mut smaller = workload.clone();
    while smaller.rows.is_multiple_of(2) {
        smaller.rows /= 2;
        smaller.targets = smaller.targets.div_ceil(2);
        smaller.grad_accumulation *= 2;
        if smaller.footprint()?.total() <= limit {
            break;
        }
    }
    if smaller.rows < workload.rows {
        let set = vec![
            format!("train.micro_batch_size={}", smaller.rows),
            format!("train.grad_accumulation={}", smaller.grad_accumulation),
        ];
        if propose(&smaller, set)? {
            return Ok(proposals);
        }
        workload = smaller;
    }
    for recompute in [Recompute::Selective, Recompute::Block] {
        let saves = match (workload.recompute, recompute) {
            (Recompute::None, _) | (Recompute::Selective, Recompute::Block) => true,
            _ => continue,
        };
        workload.recompute = recompute;
        if saves && propose(&workload, vec![format!("train.recompute={recompute}")])? {
            return Ok(proposals);
        }
    }
    if workload.lora.is_some() && workload.quantization.is_none() {
        workload.quantization = Some(Quantization::new(QuantFormat::Nf4));
        propose(&workload, vec!["model.quant=nf4".into()])?;
    }
    Ok(proposals)
}

/// The estimated memory of a run, and the memory available.
#[derive(Debug, Clone)]
pub struct MemoryEstimate {
    /// The estimate.
    pub footprint: Footprint,
    /// Rows of the largest micro-batch.
    pub rows: usize,
    /// Its tokens per row.
    pub seq: usize,
    /// The recompute mode.
    pub recompute: Recompute,
    /// Bytes available; `None` if unknown.
    pub available: Option<u64>,
    /// Changes that reduce memory, if it does not fit.
    pub proposals: Vec<Proposal>,
}

impl MemoryEstimate {
    /// The memory of `workload`, and proposals if it exceeds `available`.
    ///
    /// # Errors
    /// As [`Workload::footprint`].
    pub fn of(workload: &Workload<'_>, available: Option<u64>) -> Result<Self, LoraConfigError> {
        let proposals = match available {
            Some(limit) => proposals(workload, limit)?,
            None => Vec::new(),
        };
        Ok(Self {
            footprint: workload.footprint()?,
            rows: workload.rows,
            seq: workload.seq,
            recompute: workload.recompute,
            available,
            proposals,
        })
    }

    /// Whether it fits, as far as is known.
    pub fn fits(&self) -> bool {
        self.available.is_none_or(|available| self.footprint.total() <= available)
    }
}

/// Bytes in a readable unit: `1.25 GiB`, `640 MiB`.
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.0 as f64 / (1u64 << 20) as f64;
        let text = match mib {
            mib if mib >= 1024.0 => format!("{:.2} GiB", mib / 1024.0),
            mib if mib >= 1.0 => format!("{mib:.0} MiB"),
            _ => format!("{} bytes", self.0),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests;
