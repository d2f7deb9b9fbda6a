//! Law 1 for adapters: PEFT's files load, and logits, merged logits, loss and gradients equal PEFT's.

use emberlm::trainer::step::Recompute;
use emberlm::{OptimizerBackend, Training};
use emberlm_lora::peft::{self, AdapterFolder};
use emberlm_model::{CausalLm, ModelBackend, ModelConfig};
use emberlm_quant::TensorFile;
use emberlm_tests::{
    GRADIENT_TOLERANCE, VALUE_TOLERANCE, assert_close, assert_close_number, expected, golden_json,
    golden_path, golden_tensors, number, values,
};

use crate::support::{Flex, NdArray, golden_batch, inputs, load, mean_loss_and_grads};

/// Adapters whose kind is built.
const ADAPTERS: &[&str] = &["lora-all", "lora-qv-qwen2", "rslora", "rank-pattern"];

fn adapted<B: ModelBackend>(name: &str) -> (ModelConfig, CausalLm<B>, AdapterFolder, String) {
    let base =
        golden_json(&format!("adapters/{name}/golden.json"))["base"].as_str().unwrap().to_string();
    let (config, mut model) = load::<B>(&base);
    let folder = AdapterFolder::open(&golden_path(&format!("adapters/{name}"))).unwrap();
    folder.apply(model.linears_mut(), &Default::default()).unwrap();
    (config, model, folder, base)
}

pub(crate) fn equals_peft<B: OptimizerBackend>(name: &str) {
    let golden = golden_tensors(&format!("adapters/{name}/golden.safetensors"));
    let json = golden_json(&format!("adapters/{name}/golden.json"));
    let (config, model, _, base) = adapted::<B>(name);
    let (_, batch) = golden_batch(&base);
    let logits = values(model.logits(&inputs(&config, &batch)));
    assert_close(
        &format!("{name}: logits"),
        &logits,
        &expected(&golden, "logits"),
        VALUE_TOLERANCE,
    );
    let merged = values(model.merge().logits(&inputs(&config, &batch)));
    let merged_golden = expected(&golden, "merged_logits");
    assert_close(&format!("{name}: merged logits"), &merged, &merged_golden, VALUE_TOLERANCE);
    assert_close(&format!("{name}: merged against adapter"), &merged, &logits, VALUE_TOLERANCE);

    let (config, model, _, _) = adapted::<Training<B>>(name);
    for recompute in [Recompute::None, Recompute::Selective, Recompute::Block] {
        let (loss, gradients) = mean_loss_and_grads(&model, &config, &batch, recompute);
        assert_close_number(&format!("{name}: loss"), loss, number(&json, "loss"), VALUE_TOLERANCE);
        let mut compared = 0;
        for key in golden.entries().keys().filter(|key| key.starts_with("grad.")) {
            let ours = our_name(key);
            let gradient =
                gradients.get(&ours).unwrap_or_else(|| panic!("{name}: no gradient of {ours}"));
            assert_close(
                &format!("{name}, {recompute}: gradient of {ours}"),
                &values(gradient.value.clone()),
                &expected(&golden, key),
                GRADIENT_TOLERANCE,
            );
            compared += 1;
        }
        assert!(compared >= 12, "{name}: {compared} gradients in the golden");
        assert_eq!(gradients.iter().count(), compared, "{name}: the base stays frozen");
    }
}

/// `grad.base_model.model.….q_proj.lora_A.weight` as the path of the parameter here.
fn our_name(key: &str) -> String {
    key.replace("grad.base_model.model.", "")
        .replace("lora_A.weight", "adapter.lora_a")
        .replace("lora_B.weight", "adapter.lora_b")
}

fn same_tensors(a: &TensorFile, b: &TensorFile) {
    let keys = |file: &TensorFile| file.entries().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(a), keys(b));
    for (key, entry) in a.entries() {
        assert_eq!(entry.shape, b.entries()[key].shape, "{key}");
        assert_eq!(a.read_f32(key).unwrap(), b.read_f32(key).unwrap(), "{key}");
    }
}

#[test]
fn adapters_on_ndarray() {
    ADAPTERS.iter().for_each(|name| equals_peft::<NdArray>(name));
}

#[test]
fn adapters_on_flex() {
    ADAPTERS.iter().for_each(|name| equals_peft::<Flex>(name));
}

#[test]
fn a_saved_adapter_is_the_one_that_was_loaded() {
    for name in ADAPTERS {
        let (_, mut model, folder, _) = adapted::<NdArray>(name);
        let out = tempfile::tempdir().unwrap();
        peft::save(out.path(), &model.linears_mut(), &folder.config, Some("base")).unwrap();
        let original = golden_tensors(&format!("adapters/{name}/adapter_model.safetensors"));
        same_tensors(&original, &TensorFile::open(&out.path().join(peft::WEIGHTS_FILE)).unwrap());
        assert_eq!(AdapterFolder::open(out.path()).unwrap().config, folder.config);
    }
}

#[test]
fn a_tensor_without_a_layer_and_a_layer_without_a_tensor_are_refused() {
    // The adapter of another base: other shapes and targets.
    let (_, mut model) = load::<NdArray>("llama-tied-bias");
    let folder = AdapterFolder::open(&golden_path("adapters/lora-all")).unwrap();
    let error = folder.apply(model.linears_mut(), &Default::default()).unwrap_err().to_string();
    assert!(
        error.contains("shape of base_model.model.model.layers.0.self_attn.k_proj.lora_B.weight"),
        "{error}"
    );

    let out = tempfile::tempdir().unwrap();
    for file in [peft::CONFIG_FILE, peft::WEIGHTS_FILE] {
        std::fs::copy(golden_path("adapters/lora-all").join(file), out.path().join(file)).unwrap();
    }
    let config = std::fs::read_to_string(out.path().join(peft::CONFIG_FILE)).unwrap();
    let narrower = config.replace("\"down_proj\",", "");
    std::fs::write(out.path().join(peft::CONFIG_FILE), narrower).unwrap();
    let (_, mut model) = load::<NdArray>("llama");
    let folder = AdapterFolder::open(out.path()).unwrap();
    let error = folder.apply(model.linears_mut(), &Default::default()).unwrap_err().to_string();
    assert!(
        error.contains("no layer for: base_model.model.model.layers.0.mlp.down_proj"),
        "{error}"
    );
}

#[test]
fn what_changes_the_computation_and_is_not_known_is_refused_by_name() {
    let out = tempfile::tempdir().unwrap();
    for file in [peft::CONFIG_FILE, peft::WEIGHTS_FILE] {
        std::fs::copy(golden_path("adapters/lora-all").join(file), out.path().join(file)).unwrap();
    }
    let path = out.path().join(peft::CONFIG_FILE);
    let config = std::fs::read_to_string(&path).unwrap();
    for (from, to, named) in [
        ("\"use_dora\": false", "\"use_dora\": true", "use_dora"),
        ("\"bias\": \"none\"", "\"bias\": \"all\"", "bias"),
        ("\"peft_type\": \"LORA\"", "\"peft_type\": \"LOHA\"", "LOHA"),
        ("\"lora_bias\": false", "\"lora_bias\": true", "lora_bias"),
        ("\"modules_to_save\": null", "\"modules_to_save\": [\"lm_head\"]", "modules_to_save"),
    ] {
        assert!(config.contains(from));
        std::fs::write(&path, config.replace(from, to)).unwrap();
        let error = AdapterFolder::open(out.path()).err().expect("refused").to_string();
        assert!(error.contains(named), "{error}");
    }
}
