//! Laws 3, 4 and 6 of the design, on whole models.

use emberlm::trainer::step::Recompute;
use emberlm::{OptimizerBackend, StepOptions, Training, loss_and_grads};
use emberlm_data::{Batch, Target};
use emberlm_lora::walk::set_trainable;
use emberlm_lora::{DropoutKey, LoraConfig, inject};
use emberlm_tests::{assert_close, assert_close_number, relative_error, values};

use crate::support::{
    Flex, NdArray, golden_batch, inputs, load, load_trainable, mean_loss_and_grads,
};

#[test]
fn a_fresh_adapter_changes_nothing() {
    let (config, mut model) = load::<NdArray>("llama");
    let (_, batch) = golden_batch("llama");
    let before = values(model.logits(&inputs(&config, &batch)));
    let lora = LoraConfig { r: 4, alpha: 11.0, ..LoraConfig::default() };
    let names = inject(model.linears_mut(), &lora, 1, &Default::default()).unwrap();
    assert_eq!(names.len(), 7 * config.num_hidden_layers, "seven layers a block, and not the head");
    let after = values(model.logits(&inputs(&config, &batch)));
    assert_eq!(before, after, "bit for bit");
}

#[test]
fn soft_caps_bound_what_is_read_and_what_is_learned_from() {
    let (mut config, batch) = small_scores();
    let logits_of = |config: &emberlm_model::ModelConfig| {
        let model = emberlm_model::random::<Flex>(config, 3, &Default::default());
        let loss = emberlm::loss_sum(&model, config, &batch);
        (values(model.logits(&inputs(config, &batch))), loss)
    };
    let (plain, _) = logits_of(&config);
    let cap = 0.5 * plain.iter().fold(0.0f64, |max, logit| max.max(logit.abs()));
    config.logit_soft_cap = Some(cap);
    let (capped, loss) = logits_of(&config);
    let expected: Vec<f64> = plain.iter().map(|logit| (logit / cap).tanh() * cap).collect();
    assert_close("logits", &capped, &expected, 1e-5);
    let losses = batch.targets.iter().map(|target| {
        let row = &expected[target.index * config.vocab_size..][..config.vocab_size];
        let sum: f64 = row.iter().map(|logit| logit.exp()).sum();
        sum.ln() - row[target.token as usize]
    });
    assert_close_number("loss", loss, losses.sum(), 1e-5);
    // With one that no score comes near, attention is as without.
    config.logit_soft_cap = None;
    config.attention_soft_cap = Some(1e4);
    assert_close("a wide cap", &logits_of(&config).0, &plain, 1e-5);
    config.attention_soft_cap = Some(0.1);
    let (narrow, _) = logits_of(&config);
    assert!(relative_error(&narrow, &plain) > 1e-3, "a narrow cap changes nothing");
}

/// The golden's configuration with weights so large that scores and logits are, too.
fn small_scores() -> (emberlm_model::ModelConfig, Batch) {
    let (file, batch) = golden_batch("llama");
    drop(file);
    let path = emberlm_tests::golden_path("models/llama/config.json");
    let mut config = emberlm_model::ModelConfig::read(&path).unwrap();
    config.initializer_range = 0.3;
    (config, batch)
}

/// Examples one after another in one row, each with its own segment and positions from 0.
fn packed(batch: &Batch, tail: usize) -> Batch {
    let seq = batch.rows * batch.seq + tail;
    let mut packed = Batch {
        rows: 1,
        seq,
        ids: batch.ids.clone(),
        positions: batch.positions.clone(),
        segments: (0..batch.rows * batch.seq).map(|i| 1 + (i / batch.seq) as u32).collect(),
        targets: batch.targets.clone(),
        examples: batch.examples.clone(),
    };
    packed.ids.resize(seq, 0);
    packed.positions.resize(seq, 0);
    packed.segments.resize(seq, 0);
    packed
}

/// The batch with `extra` padding tokens at each row's end.
fn padded(batch: &Batch, extra: usize) -> Batch {
    let (rows, old, seq) = (batch.rows, batch.seq, batch.seq + extra);
    let widen = |values: &[u32]| {
        values.chunks(old).flat_map(|row| [row, &vec![0; extra]].concat()).collect::<Vec<u32>>()
    };
    let targets = batch
        .targets
        .iter()
        .map(|target| Target { index: target.index / old * seq + target.index % old, ..*target });
    Batch {
        rows,
        seq,
        ids: widen(&batch.ids),
        positions: widen(&batch.positions),
        segments: widen(&batch.segments),
        targets: targets.collect(),
        examples: batch.examples.clone(),
    }
}

fn same_step<B: OptimizerBackend>(
    name: &str,
    a: &Batch,
    b: &Batch,
    modes: [Recompute; 2],
    what: &str,
) {
    let (config, model) = load_trainable::<B>(name);
    let (loss_a, grads_a) = mean_loss_and_grads(&model, &config, a, modes[0]);
    let (loss_b, grads_b) = mean_loss_and_grads(&model, &config, b, modes[1]);
    assert_close_number(&format!("{name}, {what}: loss"), loss_b, loss_a, 1e-5);
    assert_eq!(grads_a.iter().count(), grads_b.iter().count());
    for (key, gradient) in grads_a.iter() {
        let other = values(grads_b.get(key).unwrap().value.clone());
        assert_close(
            &format!("{name}, {what}: {key}"),
            &other,
            &values(gradient.value.clone()),
            1e-4,
        );
    }
}

#[test]
fn packing_and_padding_change_neither_loss_nor_gradients() {
    // A plain one, and one whose rotary angles depend on a sequence's length.
    for name in ["llama", "llama-dynamic-rope"] {
        let (_, batch) = golden_batch(name);
        let modes = [Recompute::None; 2];
        same_step::<NdArray>(name, &batch, &packed(&batch, 3), modes, "packed");
        same_step::<NdArray>(name, &batch, &padded(&batch, 5), modes, "padded");
    }
}

#[test]
fn recompute_modes_give_equal_gradients() {
    for name in ["llama", "qwen2"] {
        let (_, batch) = golden_batch(name);
        for other in [Recompute::Selective, Recompute::Block] {
            let modes = [Recompute::None, other];
            same_step::<NdArray>(name, &batch, &batch, modes, &other.to_string());
            same_step::<Flex>(name, &batch, &batch, modes, &other.to_string());
        }
    }
}

#[test]
fn what_is_made_again_has_the_same_bits() {
    for name in ["llama", "qwen2"] {
        let (_, batch) = golden_batch(name);
        let (config, model) = load_trainable::<Flex>(name);
        let step = |recompute| mean_loss_and_grads(&model, &config, &batch, recompute);
        let ((loss, kept), (again, made)) = (step(Recompute::None), step(Recompute::Selective));
        assert_eq!(loss, again);
        for (key, gradient) in kept.iter() {
            let made = values(made.get(key).unwrap().value.clone());
            assert_eq!(made, values(gradient.value.clone()), "{name}: {key}");
        }
    }
}

#[test]
fn a_training_step_on_flex_equals_one_on_ndarray() {
    for name in ["llama-tied-bias", "llama-yarn-rope", "qwen2"] {
        let (_, batch) = golden_batch(name);
        let (config, flex) = load_trainable::<Flex>(name);
        let (_, ndarray) = load_trainable::<NdArray>(name);
        let (loss, gradients) = mean_loss_and_grads(&flex, &config, &batch, Recompute::None);
        let (expected, reference) = mean_loss_and_grads(&ndarray, &config, &batch, Recompute::None);
        assert_close_number(&format!("{name}: loss"), loss, expected, 1e-5);
        for (key, gradient) in reference.iter() {
            let found = values(gradients.get(key).unwrap().value.clone());
            assert_close(&format!("{name}: {key}"), &found, &values(gradient.value.clone()), 1e-4);
        }
    }
}

#[test]
fn one_batch_of_two_equals_two_of_one() {
    let (config, model) = load_trainable::<NdArray>("llama");
    let (_, batch) = golden_batch("llama");
    let (loss, whole) = mean_loss_and_grads(&model, &config, &batch, Recompute::None);
    let count = batch.targets.len() as f64;
    let mut parts = emberlm::Gradients::default();
    let mut sum = 0.0;
    for row in 0..batch.rows {
        let range = row * batch.seq..(row + 1) * batch.seq;
        let targets = batch.targets.iter().filter(|t| range.contains(&t.index));
        let part = Batch {
            rows: 1,
            seq: batch.seq,
            ids: batch.ids[range.clone()].to_vec(),
            positions: batch.positions[range.clone()].to_vec(),
            segments: batch.segments[range.clone()].to_vec(),
            targets: targets.map(|t| Target { index: t.index - range.start, ..*t }).collect(),
            examples: vec![row],
        };
        let options = StepOptions {
            scale: 1.0 / count,
            recompute: Recompute::None,
            dropout: None,
            noise: None,
            phases: None,
        };
        sum += loss_and_grads(&model, &config, &part, options, &mut parts);
    }
    assert_close_number("loss", sum / count, loss, 1e-5);
    for (key, gradient) in whole.iter() {
        let other = values(parts.get(key).unwrap().value.clone());
        assert_close(key, &other, &values(gradient.value.clone()), 1e-4);
    }
}

#[test]
fn a_recompute_replays_dropout() {
    let (config, mut model) = load::<Training<NdArray>>("llama");
    let lora = LoraConfig { r: 4, dropout: 0.3, ..LoraConfig::default() };
    inject(model.linears_mut(), &lora, 1, &Default::default()).unwrap();
    // B = 0 would hide the masks from the loss.
    for named in model.linears_mut() {
        if let Some(adapter) = &mut named.linear.adapter {
            adapter.lora_b = adapter.lora_b.clone().map(|b| (b + 0.1).detach().require_grad());
        }
    }
    let (_, batch) = golden_batch("llama");
    let step = |recompute, step| {
        let key = DropoutKey { seed: 7, step, micro_batch: 0 };
        let options =
            StepOptions { scale: 1.0, recompute, dropout: Some(&key), noise: None, phases: None };
        let mut gradients = emberlm::Gradients::default();
        let loss = loss_and_grads(&model, &config, &batch, options, &mut gradients);
        (loss, gradients)
    };
    let (loss, gradients) = step(Recompute::None, 0);
    let (other, _) = step(Recompute::None, 1);
    assert!((other - loss).abs() > 1e-3 * loss.abs(), "another step, another mask");
    for recompute in [Recompute::Selective, Recompute::Block] {
        let (again, replayed) = step(recompute, 0);
        assert_close_number("loss", again, loss, 1e-6);
        for (key, gradient) in gradients.iter() {
            let replayed = values(replayed.get(key).unwrap().value.clone());
            assert_close(key, &replayed, &values(gradient.value.clone()), 1e-4);
        }
    }
}

#[test]
fn nothing_below_the_lowest_trained_block_gets_a_gradient() {
    for recompute in [Recompute::None, Recompute::Selective, Recompute::Block] {
        let (config, model) = load::<Training<NdArray>>("llama");
        let model = set_trainable(model, |name| name.starts_with("model.layers.2.mlp"));
        let (_, batch) = golden_batch("llama");
        let (_, gradients) = mean_loss_and_grads(&model, &config, &batch, recompute);
        assert_eq!(gradients.iter().count(), 3);
        let model = set_trainable(model, |name| name.starts_with("lm_head"));
        let (_, gradients) = mean_loss_and_grads(&model, &config, &batch, recompute);
        assert_eq!(gradients.iter().count(), 1);
    }
}
