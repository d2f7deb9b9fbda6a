//! Law 1: logits, loss and gradients of every golden model equal transformers'.

use std::collections::BTreeSet;

use emberlm::trainer::step::Recompute;
use emberlm::{Generator, OptimizerBackend, Sampling};
use emberlm_data::TextTokenizer;
use emberlm_model::ModelBackend;
use emberlm_tests::{
    GRADIENT_TOLERANCE, VALUE_TOLERANCE, assert_close, assert_close_number, expected, golden_json,
    golden_path, number, values,
};

use crate::support::{
    Flex, MODELS, NdArray, golden_batch, inputs, load, load_trainable, mean_loss_and_grads,
};

pub(crate) fn logits_equal<B: ModelBackend>(name: &str) {
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

pub(crate) fn loss_and_gradients_equal<B: OptimizerBackend>(name: &str) {
    let (config, model) = load_trainable::<B>(name);
    let (golden, batch) = golden_batch(name);
    let json = golden_json(&format!("models/{name}/golden.json"));
    assert_eq!(batch.targets.len() as f64, number(&json, "supervised_tokens"));
    for recompute in [Recompute::None, Recompute::Selective, Recompute::Block] {
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

/// Greedy generation through the cache, token by token, past the trained length where a golden goes there.
pub(crate) fn generation_equals<B: ModelBackend>(name: &str) {
    let (config, model) = load::<B>(name);
    let json = golden_json(&format!("models/{name}/golden.json"));
    let ids = |key: &str| -> Vec<u32> { serde_json::from_value(json[key].clone()).unwrap() };
    let tokenizer = TextTokenizer::from_dir(&golden_path(&format!("models/{name}"))).unwrap();
    let sampling = Sampling { max_new_tokens: 16, ..Sampling::default() };
    let mut generator = Generator::new(&model, &config, &tokenizer);
    let no_stop = BTreeSet::new();
    // The second time most of the prompt comes from the cache.
    for _ in 0..2 {
        let answer = generator.answer(&ids("greedy_prompt"), &sampling, &no_stop, |_| ()).unwrap();
        assert_eq!(answer.ids, ids("greedy_16"), "{name}");
    }
}

#[test]
fn greedy_generation() {
    MODELS.iter().for_each(|name| generation_equals::<NdArray>(name));
    MODELS.iter().for_each(|name| generation_equals::<Flex>(name));
}
