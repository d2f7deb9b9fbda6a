//! Law 1: logits, loss and gradients of every golden model equal transformers'.

use emberlm::config::Recompute;
use emberlm_model::ModelBackend;
use emberlm_tests::{
    GRADIENT_TOLERANCE, VALUE_TOLERANCE, assert_close, assert_close_number, expected, golden_json,
    number, values,
};

use crate::support::{
    Flex, MODELS, NdArray, golden_batch, inputs, load, load_trainable, mean_loss_and_grads,
};

fn logits_equal<B: ModelBackend>(name: &str) {
    let (config, model) = load::<B>(name);
    let (golden, batch) = golden_batch(name);
    let logits = values(model.logits(&inputs(&config, &batch)));
    assert_close(
        &format!("{name}: logits"),
        &logits,
        &expected(&golden, "logits"),
        VALUE_TOLERANCE,
    );
}

fn loss_and_gradients_equal<B: ModelBackend>(name: &str) {
    let (config, model) = load_trainable::<B>(name);
    let (golden, batch) = golden_batch(name);
    let json = golden_json(&format!("models/{name}/golden.json"));
    assert_eq!(batch.targets.len() as f64, number(&json, "supervised_tokens"));
    for recompute in [Recompute::None, Recompute::Block] {
        let (loss, gradients) = mean_loss_and_grads(&model, &config, &batch, recompute);
        assert_close_number(&format!("{name}: loss"), loss, number(&json, "loss"), VALUE_TOLERANCE);
        let mut compared = 0;
        for key in golden.entries().keys().filter_map(|key| key.strip_prefix("grad.")) {
            let gradient =
                gradients.get(key).unwrap_or_else(|| panic!("{name}: no gradient of {key}"));
            assert_close(
                &format!("{name}, {recompute}: gradient of {key}"),
                &values(gradient.value.clone()),
                &expected(&golden, &format!("grad.{key}")),
                GRADIENT_TOLERANCE,
            );
            compared += 1;
        }
        assert!(compared >= 10, "{name}: {compared} gradients in the golden");
    }
}

#[test]
fn logits_on_ndarray() {
    MODELS.iter().for_each(|name| logits_equal::<NdArray>(name));
}

#[test]
fn logits_on_flex() {
    MODELS.iter().for_each(|name| logits_equal::<Flex>(name));
}

#[test]
fn loss_and_gradients_on_ndarray() {
    MODELS.iter().for_each(|name| loss_and_gradients_equal::<NdArray>(name));
}

#[test]
fn loss_and_gradients_on_flex() {
    MODELS.iter().for_each(|name| loss_and_gradients_equal::<Flex>(name));
}

#[cfg(feature = "wgpu")]
#[test]
fn wgpu_logits_and_gradients() {
    use crate::support::Wgpu;
    for name in ["llama", "qwen2"] {
        logits_equal::<Wgpu>(name);
        loss_and_gradients_equal::<Wgpu>(name);
    }
}
