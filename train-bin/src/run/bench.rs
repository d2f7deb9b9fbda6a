//! Benchmark of whole training steps on synthetic tokens.

use std::time::Instant;

use burn::tensor::DType;
use burn::tensor::backend::Backend;
use emberlm_data::{Batch, Target};
use emberlm_lora::random::{generator, unit};
use emberlm_lora::{InjectError, LoraConfig, inject};
use emberlm_model::{CausalLm, ModelConfig, WeightForm};
use emberlm_quant::tensor_file::FloatDtype;
use emberlm_quant::{QuantFormat, Quantization};
use serde::Serialize;

use crate::base::{Base, BaseError};
use crate::memory::footprint::Workload;
use crate::memory::peak_memory_mib;
use crate::trainer::grads::Gradients;
use crate::trainer::optimizer::{AdamWConfig, Algorithm, Optimizer};
use crate::trainer::step::{Recompute, StepOptions, TrainBackend, loss_and_grads};
use crate::trainer::timing::StepPhases;

/// Options of a benchmark.
#[derive(Debug, Clone, Copy)]
pub struct BenchOptions {
    /// Rows of the batch.
    pub batch: usize,
    /// Tokens per row.
    pub seq: usize,
    /// Rank of adapters on all linear layers.
    pub rank: usize,
    /// Share of each row that is supervised, at its end.
    pub supervised: f64,
    /// The recompute mode.
    pub recompute: Recompute,
    /// Quantization of the base's linear layers; 4-bit formats with double quantization.
    pub quant: Option<QuantFormat>,
    /// The float type of the dense weights.
    pub dtype: FloatDtype,
    /// Timed steps, after one for warm-up.
    pub steps: usize,
}

/// The measurements. Seconds are of the median step.
#[derive(Debug, Clone, Serialize)]
pub struct BenchReport {
    /// Always `emberlm`.
    pub tool: &'static str,
    /// Tokens per second of the median step.
    pub tokens_per_s: f64,
    /// Every timed step, in seconds.
    pub step_s: Vec<f64>,
    /// Peak resident set of the process in MiB, loading included.
    pub peak_memory_mib: Option<u64>,
    /// The estimate of `emberlm plan` for such a step, in MiB.
    pub planned_memory_mib: u64,
    /// Blocks, forward.
    pub forward_s: f64,
    /// Final norm, head and loss.
    pub head_s: f64,
    /// Blocks, backward.
    pub backward_s: f64,
    /// Clipping and AdamW.
    pub optimizer_s: f64,
    /// Rows of the batch.
    pub batch: usize,
    /// Tokens per row.
    pub seq: usize,
    /// Rank.
    pub rank: usize,
    /// Supervised share.
    pub supervised: f64,
    /// The recompute mode.
    pub recompute: String,
    /// Quantization of the base's linear layers.
    pub quant: String,
    /// The float type of the dense weights.
    pub dtype: String,
    /// Loss of the last step, as a check of the computation.
    pub loss: f64,
}

/// Why a benchmark fails.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each variant is what its type says")]
pub enum BenchError {
    #[error(transparent)]
    Base(#[from] BaseError),
    #[error(transparent)]
    Inject(#[from] InjectError),
}

/// Times whole steps: loss, gradients, clipping, AdamW.
///
/// # Errors
/// [`BenchError`].
pub fn bench<A: TrainBackend>(
    base: &Base,
    options: &BenchOptions,
    device: &A::Device,
) -> Result<BenchReport, BenchError> {
    let quantization = options.quant.map(|format| Quantization {
        format,
        double_quant: true,
        skip_modules: Vec::new(),
    });
    let form = WeightForm { dtype: options.dtype, quantization: quantization.as_ref() };
    let mut model = base.build::<A>(form, device)?;
    let lora =
        LoraConfig { r: options.rank, alpha: 2.0 * options.rank as f64, ..LoraConfig::default() };
    inject(model.linears_mut(), &lora, 0, device)?;
    let batch = synthetic_batch(&base.config, options);
    let planned = planned_bytes(&base.config, &model, options, quantization, lora, &batch)?;
    let supervised = batch.targets.len() as f64;
    let mut optimizer = Optimizer::new(Algorithm::AdamW(AdamWConfig::default()));
    let mut steps = Vec::new();
    let mut loss = 0.0;
    for _ in 0..=options.steps {
        let phases = StepPhases::default();
        let started = Instant::now();
        let mut gradients = Gradients::default();
        let step = StepOptions {
            phases: Some(&phases),
            ..StepOptions::new(1.0 / supervised, options.recompute)
        };
        loss = loss_and_grads(&model, &base.config, &batch, step, &mut gradients) / supervised;
        let before_optimizer = started.elapsed();
        let norm = gradients.norm();
        gradients.clip(norm, 1.0);
        model = optimizer.step(model, &gradients, 2e-4);
        // A device may still be computing; a step ends when its result is there.
        let _ = A::InnerBackend::sync(device);
        steps.push((started.elapsed(), before_optimizer, phases));
    }
    // The first step creates the optimizer's state and compiles kernels.
    let mut timed = steps.split_off(1);
    let step_s: Vec<f64> = timed.iter().map(|(whole, ..)| whole.as_secs_f64()).collect();
    timed.sort_by_key(|(whole, ..)| *whole);
    let (whole, before_optimizer, phases) = &timed[timed.len() / 2];
    Ok(BenchReport {
        tool: "emberlm",
        tokens_per_s: (options.batch * options.seq) as f64 / whole.as_secs_f64(),
        step_s,
        peak_memory_mib: peak_memory_mib(),
        planned_memory_mib: planned >> 20,
        forward_s: phases.forward.get().as_secs_f64(),
        head_s: phases.head.get().as_secs_f64(),
        backward_s: phases.backward.get().as_secs_f64(),
        optimizer_s: (*whole - *before_optimizer).as_secs_f64(),
        batch: options.batch,
        seq: options.seq,
        rank: options.rank,
        supervised: options.supervised,
        recompute: options.recompute.to_string(),
        quant: options.quant.map_or("none", QuantFormat::name).to_owned(),
        dtype: options.dtype.name().to_owned(),
        loss,
    })
}

/// The estimated memory of a step.
fn planned_bytes<A: TrainBackend>(
    config: &ModelConfig,
    model: &CausalLm<A>,
    options: &BenchOptions,
    quantization: Option<Quantization>,
    lora: LoraConfig,
    batch: &Batch,
) -> Result<u64, InjectError> {
    let activations = match model.activation_type() {
        DType::F32 => FloatDtype::F32,
        _ => options.dtype,
    };
    let workload = Workload {
        model: config,
        quantization,
        dtype: options.dtype,
        activations,
        trainable: &[],
        lora: Some(lora),
        rows: options.batch,
        seq: options.seq,
        targets: batch.targets.len(),
        grad_accumulation: 1,
        recompute: options.recompute,
        optimizer: Algorithm::AdamW(AdamWConfig::default()),
    };
    Ok(workload.footprint().map_err(InjectError::Config)?.total())
}

/// Random tokens; the last `supervised` share of each row is supervised.
fn synthetic_batch(config: &ModelConfig, options: &BenchOptions) -> Batch {
    let BenchOptions { batch: rows, seq, supervised, .. } = *options;
    let mut rng = generator(0, "bench", &[]);
    let vocab = config.vocab_size as f32;
    let ids: Vec<u32> = (0..rows * seq).map(|_| (unit(&mut rng) * vocab) as u32).collect();
    let first = ((seq as f64 * (1.0 - supervised)) as usize).max(1);
    let row_targets = |row: usize| (first..seq).map(move |at| (row * seq + at - 1, row * seq + at));
    let targets = (0..rows)
        .flat_map(row_targets)
        .map(|(index, next)| Target::new(index, ids[next]))
        .collect();
    Batch {
        rows,
        seq,
        positions: (0..rows * seq).map(|i| (i % seq) as u32).collect(),
        segments: vec![1; rows * seq],
        targets,
        examples: (0..rows).collect(),
        ids,
    }
}
