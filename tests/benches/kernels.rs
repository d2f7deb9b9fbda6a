//! Each CPU kernel beside the portable composition of Burn's operations, on the same backend (Flex) and the same
//! numbers: `cargo bench -p emberlm-tests`. The sizes are those of SmolLM2-135M at 2 × 512 tokens.

use std::hint::black_box;
use std::sync::Arc;

use burn::tensor::{DType, Int, Tensor};
use burn_flex::Flex;
use criterion::{Criterion, criterion_group, criterion_main};
use emberlm_lora::LoraBackend;
use emberlm_lora::random::{generator, normal};
use emberlm_model::{Activation, AttentionMask, ModelBackend, Scoring, portable};
use emberlm_quant::host::{float_tensor, index_tensor};
use emberlm_quant::{QuantBackend, QuantFormat, Quantization, Quantized, QuantizedMatrix};

const BATCH: usize = 2;
const SEQ: usize = 512;
const TOKENS: usize = BATCH * SEQ;
const HIDDEN: usize = 576;
const INNER: usize = 1536;
const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const HEAD_DIM: usize = 64;
const RANK: usize = 16;
const VOCABULARY: usize = 49152;
const EPS: f64 = 1e-5;

fn numbers<const D: usize>(seed: u64, shape: [usize; D]) -> Tensor<Flex, D> {
    let n = shape.iter().product();
    let values = normal(&mut generator(seed, "benches", &[]), n, 1.0);
    float_tensor(values, shape, &Default::default())
}

/// Times two ways to the same result; what they return is dropped outside of the measurement.
fn compare<R>(
    criterion: &mut Criterion,
    name: &str,
    mut kernel: impl FnMut() -> R,
    mut portable: impl FnMut() -> R,
) {
    let mut group = criterion.benchmark_group(name);
    group.sample_size(20);
    group.bench_function("kernel", |bencher| bencher.iter_with_large_drop(|| black_box(kernel())));
    group.bench_function("portable", |bencher| {
        bencher.iter_with_large_drop(|| black_box(portable()))
    });
    group.finish();
}

fn norm(criterion: &mut Criterion) {
    let (x, weight) = (numbers(1, [TOKENS, HIDDEN]), numbers(2, [HIDDEN]));
    let grad = numbers(3, [TOKENS, HIDDEN]);
    compare(
        criterion,
        "rms_norm",
        || Flex::rms_norm(x.clone(), weight.clone(), EPS),
        || portable::rms_norm(x.clone(), weight.clone(), EPS),
    );
    compare(
        criterion,
        "rms_norm_backward",
        || Flex::rms_norm_backward(x.clone(), weight.clone(), grad.clone(), EPS),
        || portable::rms_norm_backward(x.clone(), weight.clone(), grad.clone(), EPS),
    );
}

fn elementwise(criterion: &mut Criterion) {
    let x = numbers(1, [BATCH, SEQ, HEADS, HEAD_DIM]).swap_dims(1, 2);
    let angle = |seed| numbers(seed, [BATCH, 1, SEQ, HEAD_DIM / 2]);
    let (cos, sin) = (angle(2), angle(3));
    compare(
        criterion,
        "rotate_half",
        || Flex::rotate_half(x.clone(), cos.clone(), sin.clone()),
        || portable::rotate_half(x.clone(), cos.clone(), sin.clone()),
    );
    let [gate, up, grad] = [4, 5, 6].map(|seed| numbers(seed, [TOKENS, INNER]));
    let activation = Activation::Silu;
    compare(
        criterion,
        "gated",
        || Flex::gated(gate.clone(), up.clone(), activation),
        || portable::gated(gate.clone(), up.clone(), activation),
    );
    compare(
        criterion,
        "gated_backward",
        || Flex::gated_backward(gate.clone(), up.clone(), grad.clone(), activation),
        || portable::gated_backward(gate.clone(), up.clone(), grad.clone(), activation),
    );
}

fn attention(criterion: &mut Criterion) {
    let heads = |seed, heads| numbers(seed, [BATCH, heads, SEQ, HEAD_DIM]);
    let (q, k, v, grad) =
        (heads(1, HEADS), heads(2, KV_HEADS), heads(3, KV_HEADS), heads(4, HEADS));
    let scoring = Scoring::scaled(0.125);
    let packed: Vec<u32> = (0..TOKENS).map(|i| (i % SEQ / 128) as u32 + 1).collect();
    for (name, segments) in [("one sequence", vec![1; TOKENS]), ("four packed", packed)] {
        let mask = Arc::new(AttentionMask::new(BATCH, SEQ, 0, &segments, None));
        compare(
            criterion,
            &format!("attention, {name}"),
            || Flex::attention_forward(q.clone(), k.clone(), v.clone(), &mask, scoring),
            || portable::attention_forward(q.clone(), k.clone(), v.clone(), &mask, scoring),
        );
        let (out, log_sum) =
            Flex::attention_forward(q.clone(), k.clone(), v.clone(), &mask, scoring);
        let inputs =
            || (q.clone(), k.clone(), v.clone(), out.clone(), log_sum.clone(), grad.clone());
        compare(
            criterion,
            &format!("attention_backward, {name}"),
            || {
                let (q, k, v, out, log_sum, grad) = inputs();
                Flex::attention_backward(q, k, v, out, log_sum, grad, &mask, scoring)
            },
            || {
                let (q, k, v, out, log_sum, grad) = inputs();
                portable::attention_backward(q, k, v, out, log_sum, grad, &mask, scoring)
            },
        );
    }
}

fn cross_entropy(criterion: &mut Criterion) {
    const ROWS: usize = 128;
    let logits = numbers(1, [ROWS, VOCABULARY]);
    let targets: Tensor<Flex, 1, Int> =
        index_tensor((0..ROWS).map(|i| i * 331), [ROWS], &Default::default());
    compare(
        criterion,
        "cross_entropy_with_grad",
        || Flex::cross_entropy_with_grad(logits.clone(), targets.clone(), None),
        || portable::cross_entropy_with_grad(logits.clone(), targets.clone(), None),
    );
}

fn adapter(criterion: &mut Criterion) {
    let (x, base) = (numbers(1, [TOKENS, HIDDEN]), numbers(2, [TOKENS, INNER]));
    let (a, b) = (numbers(3, [RANK, HIDDEN]), numbers(4, [INNER, RANK]));
    compare(
        criterion,
        "add_delta",
        || Flex::add_delta_forward(base.clone(), x.clone(), a.clone(), b.clone(), 2.0).0,
        || {
            base.clone()
                + (x.clone().matmul(a.clone().transpose()) * 2.0).matmul(b.clone().transpose())
        },
    );
}

fn quantized(criterion: &mut Criterion) {
    let values = normal(&mut generator(1, "benches", &[]), INNER * HIDDEN, 0.05);
    let matrix =
        QuantizedMatrix::quantize(&values, [INNER, HIDDEN], &Quantization::new(QuantFormat::Nf4));
    let weight: Quantized<Flex> = Quantized::new(matrix, &Default::default());
    let dense = || emberlm_quant::portable::dequantize(&weight, DType::F32);
    for tokens in [1, TOKENS] {
        let x = numbers(2, [tokens, HIDDEN]);
        compare(
            criterion,
            &format!("matmul_quantized, {tokens} tokens"),
            || Flex::matmul_quantized(x.clone(), &weight),
            || x.clone().matmul(dense().transpose()),
        );
    }
    let grad = numbers(3, [TOKENS, INNER]);
    compare(
        criterion,
        "matmul_quantized_backward",
        || Flex::matmul_quantized_backward(grad.clone(), &weight),
        || grad.clone().matmul(dense()),
    );
}

criterion_group!(kernels, norm, elementwise, attention, cross_entropy, adapter, quantized);
criterion_main!(kernels);
