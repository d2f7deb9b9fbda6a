//! Models and batches of the goldens, on any backend.

use emberlm::trainer::step::Recompute;
use emberlm::{Gradients, StepOptions, TrainBackend, Training, loss_and_grads};
use emberlm_data::{Batch, Target};
use emberlm_lora::walk::set_trainable;
use emberlm_model::{CausalLm, Inputs, ModelBackend, ModelConfig};
use emberlm_quant::codec::Scales;
use emberlm_quant::{QuantizedMatrix, TensorFile};
use emberlm_tests::{golden_path, golden_tensors};

pub(crate) type NdArray = burn_ndarray::NdArray<f32>;
pub(crate) type Flex = burn_flex::Flex;

/// Every golden model of the families that are built.
pub(crate) const MODELS: &[&str] = &[
    "llama",
    "llama-tied-bias",
    "llama3-rope",
    "llama-linear-rope",
    "llama-dynamic-rope",
    "llama-yarn-rope",
    "qwen2",
];

pub(crate) fn load<B: ModelBackend>(name: &str) -> (ModelConfig, CausalLm<B>) {
    let folder = golden_path(&format!("models/{name}"));
    emberlm_model::load(&folder, &Default::default()).unwrap()
}

/// The golden's two rows of ids with the labels that are not masked.
pub(crate) fn batch(file: &TensorFile) -> Batch {
    let [rows, seq] = file.entries()["input_ids"].shape[..] else { panic!("[rows, seq]") };
    let ids: Vec<u32> = to_u32(&file.read_i64("input_ids").unwrap());
    let labels = file.read_i64("labels").unwrap();
    let mut targets = Vec::new();
    for (i, &label) in labels.iter().enumerate() {
        // The logits at one position predict the next.
        if i % seq > 0 && label >= 0 {
            targets.push(Target::new(i - 1, label as u32));
        }
    }
    let positions = (0..rows * seq).map(|i| (i % seq) as u32).collect();
    let segments = vec![1; rows * seq];
    Batch { rows, seq, ids, positions, segments, targets, examples: (0..rows).collect() }
}

fn to_u32(ids: &[i64]) -> Vec<u32> {
    ids.iter().map(|&id| u32::try_from(id).unwrap()).collect()
}

pub(crate) fn golden_batch(model: &str) -> (TensorFile, Batch) {
    let file = golden_tensors(&format!("models/{model}/golden.safetensors"));
    let batch = batch(&file);
    (file, batch)
}

pub(crate) fn inputs<B: ModelBackend>(config: &ModelConfig, batch: &Batch) -> Inputs<B> {
    emberlm::trainer::step::inputs(config, batch, &Default::default())
}

/// Mean loss over the batch's supervised tokens, and all gradients of it.
pub(crate) fn mean_loss_and_grads<A: TrainBackend>(
    model: &CausalLm<A>,
    config: &ModelConfig,
    batch: &Batch,
    recompute: Recompute,
) -> (f64, Gradients<A::InnerBackend>) {
    let count = batch.targets.len() as f64;
    let options =
        StepOptions { scale: 1.0 / count, recompute, dropout: None, noise: None, phases: None };
    let mut gradients = Gradients::default();
    let sum = loss_and_grads(model, config, batch, options, &mut gradients);
    (sum / count, gradients)
}

/// A golden model under autodiff, every parameter trainable.
pub(crate) fn load_trainable<B: ModelBackend>(name: &str) -> (ModelConfig, CausalLm<Training<B>>) {
    let (config, model) = load::<Training<B>>(name);
    (config, set_trainable(model, |_| true))
}

/// The matrix that bitsandbytes 0.50's AVX-512 kernel makes of these codes and scales.
///
/// Blocks of 64 run through the whole matrix, as it was quantized, also where a row isn't a whole number of them; CUDA,
/// and bitsandbytes' own portable code, read it so. The AVX-512 kernel, with which the goldens were computed, takes rows
/// of a multiple of 16 to begin with scale `row · (d_in / 64)`, rounded down, and so gives most elements of such a matrix
/// another block's scale. We follow the format; to compare all else with the goldens, this makes the same mistake.
pub(crate) fn as_avx512_kernel_reads(matrix: QuantizedMatrix) -> QuantizedMatrix {
    let QuantizedMatrix { format, shape: [d_out, d_in], block, codes, scales } = matrix;
    if d_in % block == 0 || d_in % 16 != 0 {
        return QuantizedMatrix { format, shape: [d_out, d_in], block, codes, scales };
    }
    let scales = scales.to_vec();
    let misread = |i: usize| scales[i * 16 / d_in * (d_in / block) + i * 16 % d_in / block];
    let scales = Scales::Plain((0..d_out * d_in / 16).map(misread).collect());
    QuantizedMatrix { format, shape: [d_out, d_in], block: 16, codes, scales }
}
