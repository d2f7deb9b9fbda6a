//! Weighted losses: the weighted sum over the sum of weights, however rows are laid out and whatever is recomputed.

use burn_ndarray::NdArray;
use emberlm::trainer::step::Recompute;
use emberlm::trainer::step::loss_sum;
use emberlm::{Gradients, StepOptions, Training, loss_and_grads};
use emberlm_data::{Batch, Target};
use emberlm_model::ModelConfig;
use emberlm_tests::{assert_close, assert_close_number, values};

use crate::support::{golden_batch, load_trainable};

type Model = emberlm_model::CausalLm<Training<NdArray>>;

fn sum_and_grads(
    model: &Model,
    config: &ModelConfig,
    batch: &Batch,
    scale: f64,
    recompute: Recompute,
) -> (f64, Gradients<NdArray>) {
    let mut gradients = Gradients::default();
    let options = StepOptions { scale, recompute, dropout: None, noise: None, phases: None };
    let sum = loss_and_grads(model, config, batch, options, &mut gradients);
    (sum, gradients)
}

/// Weights that change from token to token, some of them alike and some 1.
fn weigh(batch: &Batch) -> Batch {
    const WEIGHTS: [f32; 5] = [1.0, 0.25, 3.0, 0.25, 0.6];
    let weigh = |(i, target): (usize, &Target)| Target { weight: WEIGHTS[i % 5], ..*target };
    let targets = batch.targets.iter().enumerate().map(weigh).collect();
    Batch { targets, ..batch.clone() }
}

#[test]
fn a_weight_is_a_factor_on_loss_and_gradient() {
    let (config, model) = load_trainable::<NdArray>("llama");
    let (_, batch) = golden_batch("llama");
    let weighted = weigh(&batch);
    let scale = 1.0 / weighted.weight();
    let (sum, gradients) = sum_and_grads(&model, &config, &weighted, scale, Recompute::None);

    // Each target by itself, of weight 1, and weighted afterwards.
    let mut expected_sum = 0.0;
    let mut expected = Gradients::default();
    for target in &weighted.targets {
        let alone = Batch { targets: vec![Target { weight: 1.0, ..*target }], ..batch.clone() };
        let weight = f64::from(target.weight);
        let options = StepOptions {
            scale: scale * weight,
            recompute: Recompute::None,
            dropout: None,
            noise: None,
            phases: None,
        };
        expected_sum += weight * loss_and_grads(&model, &config, &alone, options, &mut expected);
    }
    assert_close_number("loss", sum, expected_sum, 1e-5);
    for (key, gradient) in gradients.iter() {
        let expected = values(expected.get(key).unwrap().value.clone());
        assert_close(key, &values(gradient.value.clone()), &expected, 1e-4);
    }
    use burn::module::AutodiffModule;
    assert_close_number("no gradients", loss_sum(&model.valid(), &config, &weighted), sum, 1e-5);

    for recompute in [Recompute::Selective, Recompute::Block] {
        let (again, other) = sum_and_grads(&model, &config, &weighted, scale, recompute);
        assert_close_number("loss", again, sum, 1e-6);
        for (key, gradient) in gradients.iter() {
            let other = values(other.get(key).unwrap().value.clone());
            assert_close(key, &other, &values(gradient.value.clone()), 1e-5);
        }
    }
}

#[test]
fn one_weight_for_all_is_none() {
    let (config, model) = load_trainable::<NdArray>("llama");
    let (_, batch) = golden_batch("llama");
    let targets = batch.targets.iter().map(|target| Target { weight: 2.0, ..*target }).collect();
    let doubled = Batch { targets, ..batch.clone() };
    let mean = |batch: &Batch| {
        let (sum, gradients) =
            sum_and_grads(&model, &config, batch, 1.0 / batch.weight(), Recompute::None);
        (sum / batch.weight(), gradients)
    };
    let ((loss, gradients), (same, others)) = (mean(&batch), mean(&doubled));
    assert_close_number("loss", same, loss, 1e-12);
    for (key, gradient) in gradients.iter() {
        let other = values(others.get(key).unwrap().value.clone());
        assert_close(key, &other, &values(gradient.value.clone()), 1e-6);
    }
}
