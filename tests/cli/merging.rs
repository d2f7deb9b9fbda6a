//! Merging where it can't be exact: into a base that stays quantized, and into another base than the trained one.

use std::fs;

use emberlm_quant::TensorFile;
use serde_json::Value;

use crate::support::{Place, stderr};

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("no number {key} in {value}"))
}

/// Trains an adapter on `q_proj` in `run` on `model`, with this learning rate.
fn train(place: &Place, model: &str, rate: &str, more: &str) {
    place.succeed(&format!(
        "train --quiet --model {model} --data rows.jsonl --out run --backend flex {more} \
         --set train.steps=5 --set train.learning_rate={rate} --set lora.r=4 \
         --set lora.target_modules=[q_proj]"
    ));
}

/// The bytes of a tensor.
fn bytes(place: &Place, model: &str, key: &str) -> Vec<u8> {
    let file = TensorFile::open(&place.path(model).join("model.safetensors")).unwrap();
    file.read_bytes(key).unwrap().to_vec()
}

const Q: &str = "model.layers.1.self_attn.q_proj.weight";
const K: &str = "model.layers.1.self_attn.k_proj.weight";

#[test]
fn requantizing_reports_how_much_of_the_adapter_survives() {
    for (kind, least) in
        [("--type nf4", 0.3), ("--type fp4 --no-double-quant", 0.2), ("--type int8", 0.9)]
    {
        let place = Place::new();
        place.succeed(&format!("quantize --model model --out q {kind}"));
        train(&place, "q", "3e-2", "");
        place.write("sample.txt", "Steel is hardened, then tempered.");
        let merge = "merge --model q --adapter run --requantize --sample sample.txt --backend flex";
        let found = place.json(&format!("{merge} --out merged --json"));

        let requantized = &found["requantized"];
        assert!(kind.contains(requantized["format"].as_str().unwrap()));
        assert_eq!(found["moved"], Value::Null);
        let layers = requantized["layers"].as_array().unwrap();
        assert_eq!(layers.len(), 3, "q_proj of three blocks");
        for layer in layers {
            assert!(layer["module"].as_str().unwrap().ends_with("self_attn.q_proj"));
            assert!(number(layer, "delta_norm") > 0.0);
            let survives = number(layer, "survives");
            assert!((least..1.7).contains(&survives), "{kind}: {layer}");
            assert!(number(layer, "noise") > 0.0);
        }
        let divergence = &requantized["divergence"];
        let kl = number(divergence, "kl");
        assert!(kl > 0.0 && kl < 1.0, "{kind}: {kl}");
        assert!(number(divergence, "positions") > 5.0);

        // The base's form, its own layers to the byte, and the adapter in the others.
        assert!(place.read("merged/config.json").contains("quantization_config"));
        assert_eq!(bytes(&place, "merged", K), bytes(&place, "q", K));
        assert_ne!(bytes(&place, "merged", Q), bytes(&place, "q", Q));

        let text = place.succeed(&format!("{merge} --out again"));
        for part in ["q_proj", "survives", "all", "KL divergence"] {
            assert!(text.contains(part), "no {part} in {text}");
        }
    }
}

#[test]
fn the_reported_loss_is_that_of_eval() {
    let place = Place::new();
    place.succeed("quantize --model model --out q");
    train(&place, "q", "3e-2", "");
    let loss = |options: &str| {
        let rows = "--data rows.jsonl --backend flex";
        number(&place.json(&format!("eval --json {rows} {options}")), "loss")
    };
    place.succeed("merge --model q --adapter run --out m --requantize --backend flex");
    let (base, adapted, merged) =
        (loss("--model q"), loss("--model q --adapter run"), loss("--model m"));
    assert!(adapted < merged && merged < base, "{base} → {adapted}, requantized {merged}");
}

#[test]
fn a_zero_adapter_leaves_the_codes_unchanged() {
    let place = Place::new();
    place.succeed("quantize --model model --out q --no-double-quant");
    train(&place, "q", "1e-30", "");
    let found =
        place.json("merge --model q --adapter run --out m --requantize --json --backend flex");
    assert_eq!(bytes(&place, "m", Q), bytes(&place, "q", Q));
    assert_eq!(number(&found["requantized"]["layers"][0], "survives"), 0.0);
    assert!(number(&found["requantized"]["divergence"], "kl").abs() < 1e-9);
}

#[test]
fn a_dense_base_cannot_be_requantized() {
    let place = Place::new();
    train(&place, "model", "1e-2", "");
    let output = place.run("merge --model model --adapter run --out m --requantize --backend flex");
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(message.contains("stored dense") && message.contains("emberlm quantize"), "{message}");
    assert!(!place.path("m").exists());
}

#[test]
fn merging_a_qlora_adapter_into_the_dense_base_prints_a_warning() {
    let place = Place::new();
    let merge = "merge --model model --adapter run --out m --backend flex --force";
    train(&place, "model", "1e-2", "--set model.quant=nf4 --set model.double_quant=false");
    let output = place.run(merge);
    assert!(output.status.success());
    let message = stderr(&output);
    for part in ["warning", "nf4", "KL divergence", "loss"] {
        assert!(message.contains(part), "no {part} in {message}");
    }
    let found = place.json(&format!("{merge} --json"));
    assert_eq!(
        (&found["moved"]["trained_on"], &found["requantized"]),
        (&"nf4".into(), &Value::Null)
    );
    let divergence = &found["moved"]["divergence"];
    assert!(number(divergence, "kl") > 0.0 && number(divergence, "loss_after") > 0.0);

    // Into the base it was trained on, and with one trained on the dense base: nothing to warn of.
    place.succeed("quantize --model model --out q --no-double-quant");
    let output = place.run("merge --model q --adapter run --out mq --backend flex");
    assert!(output.status.success() && stderr(&output).is_empty(), "{}", stderr(&output));
    train(&place, "model", "1e-2", "--set train.overwrite=true");
    let output = place.run(merge);
    assert!(output.status.success() && stderr(&output).is_empty(), "{}", stderr(&output));
}

#[test]
fn outputs_never_replace_their_inputs() {
    let place = Place::new();
    train(&place, "model", "1e-2", "");
    let files = |folder: &str| fs::read_dir(place.path(folder)).unwrap().count();
    let before = ["model", "run"].map(files);
    for (command, said) in [
        ("merge --model model --adapter run --out model --force", "base model"),
        ("merge --model model --adapter run --out run/../run --force", "adapter"),
        ("merge --model model --adapter run --out . --force", "contains the"),
        ("quantize --model model --out model --force", "contains the model"),
    ] {
        let output = place.run(command);
        assert_eq!(output.status.code(), Some(1), "{command}");
        assert!(stderr(&output).contains(said), "{command}: {}", stderr(&output));
    }
    assert_eq!(["model", "run"].map(files), before);
}

#[test]
fn quantize_replaces_a_folder_only_with_force() {
    let place = Place::new();
    place.succeed("quantize --model model --out q");
    let output = place.run("quantize --model model --out q --type int8");
    assert!(stderr(&output).contains("--force"), "{}", stderr(&output));
    place.succeed("quantize --model model --out q --type int8 --force");
    assert!(place.read("q/config.json").contains("\"load_in_8bit\": true"));
}

#[test]
fn a_missing_or_short_sample() {
    let place = Place::new();
    place.succeed("quantize --model model --out q");
    train(&place, "q", "1e-2", "");
    let merge = "merge --model q --adapter run --out m --requantize --backend flex --json";
    let output = place.run(&format!("{merge} --sample none.txt"));
    assert!(stderr(&output).contains("none.txt"), "{}", stderr(&output));
    assert!(!place.path("m").exists());
    place.write("empty.txt", "");
    let found = place.json(&format!("{merge} --sample empty.txt"));
    assert_eq!(found["requantized"]["divergence"], Value::Null);
}
