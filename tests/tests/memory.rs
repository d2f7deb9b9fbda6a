//! How much a training step holds, counted at the allocator: the recompute modes save what they say, and
//! `emberlm plan` counts what is there.
//!
//! A test binary of its own, with a single test: other tests would allocate beside it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use burn_flex::Flex;
use emberlm::memory::footprint::Workload;
use emberlm::trainer::step::Recompute;
use emberlm::{
    AdamWConfig, Algorithm, Gradients, Optimizer, StepOptions, Training, loss_and_grads,
};
use emberlm_data::{Batch, Target};
use emberlm_lora::walk::set_trainable;
use emberlm_lora::{DropoutKey, LoraConfig, Targets, inject};
use emberlm_model::{ModelConfig, random_in};
use emberlm_quant::tensor_file::FloatDtype;
use emberlm_quant::{QuantFormat, Quantization};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is the system allocator's; beside it only two numbers change.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(LIVE.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ROWS: usize = 4;
const SEQ: usize = 256;

fn model_config() -> ModelConfig {
    let text = r#"{
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 2000,
        "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 8, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": true,
        "attention_bias": false, "mlp_bias": false, "initializer_range": 0.02, "torch_dtype": "float32"
    }"#;
    ModelConfig::parse(text, Path::new("config.json")).unwrap()
}

fn batch(rows: usize, seq: usize) -> Batch {
    let ids: Vec<u32> = (0..rows * seq).map(|i| (i * 7919 % 1999) as u32).collect();
    let targets = (0..rows)
        .flat_map(|row| (seq / 2..seq).map(move |at| row * seq + at))
        .map(|at| Target::new(at - 1, ids[at]))
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

/// What is held at most in the second of two steps, beyond what was held before the model was made, in bytes.
fn measured(workload: &Workload<'_>) -> u64 {
    let before = LIVE.load(Relaxed);
    let config = workload.model;
    let device = Default::default();
    let mut model = random_in::<Training<Flex>>(config, workload.dtype, 1, &device);
    if let Some(quantization) = &workload.quantization {
        model = model.quantize(quantization);
    }
    match &workload.lora {
        Some(lora) => drop(inject(model.linears_mut(), lora, 0, &device).unwrap()),
        None => model = set_trainable(model, |_| true),
    }
    let batch = batch(workload.rows, workload.seq);
    let mut optimizer = Optimizer::new(Algorithm::AdamW(AdamWConfig::default()));
    for step in 0..2 {
        PEAK.store(LIVE.load(Relaxed), Relaxed);
        let dropout = DropoutKey { seed: 0, step, micro_batch: 0 };
        let options = StepOptions {
            scale: 1.0 / batch.targets.len() as f64,
            recompute: workload.recompute,
            dropout: Some(&dropout),
            noise: None,
            phases: None,
        };
        let mut gradients = Gradients::default();
        loss_and_grads(&model, config, &batch, options, &mut gradients);
        let norm = gradients.norm();
        gradients.clip(norm, 1.0);
        model = optimizer.step(model, &gradients, 1e-4);
    }
    (PEAK.load(Relaxed) - before) as u64
}

#[test]
fn a_step_holds_what_the_plan_counts_and_recomputing_saves() {
    let config = model_config();
    let all = LoraConfig { r: 8, ..LoraConfig::default() };
    let two = LoraConfig {
        targets: Targets::Names(vec!["q_proj".into(), "v_proj".into()]),
        ..all.clone()
    };
    let upper = LoraConfig { layers_to_transform: Some(vec![5, 6, 7]), ..all.clone() };
    let dropped = LoraConfig { dropout: 0.1, ..all.clone() };
    let nf4 = Quantization::new(QuantFormat::Nf4);
    let cases = [
        ("lora", Some(all.clone()), None, FloatDtype::F32, [ROWS, SEQ]),
        ("lora on q and v", Some(two), None, FloatDtype::F32, [ROWS, SEQ]),
        ("lora on the upper blocks", Some(upper), None, FloatDtype::F32, [ROWS, SEQ]),
        ("lora with dropout", Some(dropped), None, FloatDtype::F32, [ROWS, SEQ]),
        ("lora on bf16", Some(all.clone()), None, FloatDtype::Bf16, [ROWS, SEQ]),
        ("qlora", Some(all.clone()), Some(nf4.clone()), FloatDtype::F32, [ROWS, SEQ]),
        ("qlora on f16", Some(all.clone()), Some(nf4), FloatDtype::F16, [ROWS, SEQ]),
        ("full", None, None, FloatDtype::F32, [ROWS, SEQ]),
        ("lora on a long row", Some(all), None, FloatDtype::F32, [1, 4096]),
    ];
    let (mut off, mut plain, mut bf16_saves) = (Vec::new(), Vec::new(), 0.0);
    for (name, lora, quantization, dtype, [rows, seq]) in cases {
        let mut peaks = Vec::new();
        for recompute in [Recompute::None, Recompute::Selective, Recompute::Block] {
            let workload = Workload {
                model: &config,
                quantization: quantization.clone(),
                trainable: &[],
                dtype,
                activations: FloatDtype::F32,
                lora: lora.clone(),
                rows,
                seq,
                targets: rows * seq / 2,
                grad_accumulation: 1,
                recompute,
                optimizer: Algorithm::AdamW(AdamWConfig::default()),
            };
            let footprint = workload.footprint().unwrap();
            let expected = footprint.total() - footprint.overhead;
            let peak = measured(&workload);
            let ratio = expected as f64 / peak as f64;
            let mib = |bytes: u64| bytes as f64 / (1u64 << 20) as f64;
            println!(
                "{name}, {recompute}: planned {:.1} MiB, held {:.1} MiB, {ratio:.3}",
                mib(expected),
                mib(peak)
            );
            if !(0.9..1.1).contains(&ratio) {
                off.push(format!(
                    "{name}, {recompute}: planned {:.1} MiB, held {:.1} MiB; {footprint:?}",
                    mib(expected),
                    mib(peak)
                ));
            }
            peaks.push(peak);
        }
        if name == "lora on bf16" {
            let elements: usize =
                config.tensors().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
            bf16_saves = (plain[1] - peaks[1]) as f64 / (2 * elements) as f64;
        }
        if name == "lora" {
            plain.clone_from(&peaks);
        }
        let [none, selective, block] = peaks[..] else { unreachable!("three modes") };
        assert!(selective < none && block < selective, "{name}: {none} {selective} {block}");
    }
    // The panel in which they are widened stays with its thread: the modes before have made it.
    assert!((0.95..1.05).contains(&bf16_saves), "bf16 saves {bf16_saves} of 2 bytes a weight");
    assert!(off.is_empty(), "more than 10 % off:\n{}", off.join("\n"));
}
