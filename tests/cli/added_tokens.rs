//! Tokens that are added in training, through every command that meets them afterwards.

use std::fs;

use serde_json::Value;

use crate::support::{Place, golden, stderr};

const ROWS: &str = r#"{"messages":[{"role":"user","content":"How hot?"},{"role":"assistant","content":"<tool>gauge</tool> About 1200."}]}
{"messages":[{"role":"user","content":"How cold?"},{"role":"assistant","content":"<tool>gauge</tool> About 20."}]}
"#;

/// With a head of its own (`llama`), or with the embedding as head.
fn place(model: &str) -> Place {
    let place = Place::new();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(golden(&format!("models/{model}")).join(file), place.path("model").join(file))
            .unwrap();
    }
    place.write("rows.jsonl", ROWS);
    place.write(
        "run.toml",
        "[model]\npath = \"model\"\nbackend = \"flex\"\nadd_tokens = [\"<tool>\", \"</tool>\"]\n\
         [data]\ntrain = \"rows.jsonl\"\n[train]\nsteps = 12\nlearning_rate = 1e-2\n",
    );
    place
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn loss(place: &Place, options: &str) -> f64 {
    let found = place.json(&format!("eval --json --data rows.jsonl --backend flex {options}"));
    found["loss"].as_f64().unwrap()
}

#[test]
fn an_adapter_has_its_added_tokens() {
    for model in ["llama", "llama-tied-bias"] {
        let place = place(model);
        let old = json(&place.read("model/config.json"))["vocab_size"].as_u64().unwrap();
        place.succeed("train run.toml --quiet --out run --set lora.r=4");
        let config = json(&place.read("run/adapter_config.json"));
        let ids = match &config["trainable_token_indices"] {
            Value::Object(tables) => {
                assert_eq!(tables["embed_tokens"], tables["lm_head"]);
                tables["embed_tokens"].clone()
            }
            list => list.clone(),
        };
        let ids: Vec<u64> = ids.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
        assert_eq!((ids.len(), ids[0] + 1), (2, ids[1]));
        assert!(ids[1] >= old, "{ids:?} of {old}: the vocabulary had to grow");
        // The tokens are the tokenizer's, in each of its files.
        let tokenizer = json(&place.read("run/tokenizer.json"));
        let added = tokenizer["added_tokens"].as_array().unwrap();
        let id = |token: &str| added.iter().find(|t| t["content"] == token).map(|t| &t["id"]);
        assert_eq!(id("<tool>"), Some(&Value::from(ids[0])));
        assert_eq!(id("</tool>"), Some(&Value::from(ids[1])));

        let adapted = loss(&place, "--model model --adapter run");
        let before = loss(&place, "--model model");
        assert!(adapted < 0.8 * before, "{model}: {before} → {adapted}");
        // Merged, it is a model with a greater vocabulary.
        place.succeed("merge --model model --adapter run --out merged --backend flex");
        let vocabulary = json(&place.read("merged/config.json"))["vocab_size"].as_u64();
        assert_eq!(vocabulary, Some(ids[1] + 1));
        let merged = loss(&place, "--model merged");
        assert!((merged - adapted).abs() < 1e-5 * adapted, "{model}: {adapted}, merged {merged}");
        place.succeed(
            "generate --model model --adapter run --backend flex --max-new-tokens 8 --prompt hot",
        );

        // Training continues from it, also on a quantized base.
        place.replace("run.toml", "add_tokens = [\"<tool>\", \"</tool>\"]\n", "quant = \"nf4\"\n");
        place.succeed("train run.toml --quiet --out more --set lora.init_from=run");
        let further = loss(&place, "--model model --adapter more --quant nf4");
        assert!(further < adapted, "{model}: {adapted} → {further}");
    }
}

#[test]
fn a_fully_trained_model_grows_with_its_tokens() {
    for model in ["llama", "llama-tied-bias"] {
        let place = place(model);
        let old = json(&place.read("model/config.json"))["vocab_size"].as_u64().unwrap();
        place.succeed("train run.toml --quiet --out run --set train.neftune_alpha=5");
        let config = json(&place.read("run/config.json"));
        assert!(config["vocab_size"].as_u64().unwrap() > old);
        assert_eq!(config["model_type"], json(&place.read("model/config.json"))["model_type"]);
        let (before, after) = (loss(&place, "--model model"), loss(&place, "--model run"));
        assert!(after < 0.8 * before, "{model}: {before} → {after}");
    }
}

#[test]
fn tokens_that_cannot_be_added_are_named() {
    let place = place("llama");
    let refused = |options: &str, expected: &[&str]| {
        let output = place.run(&format!("train run.toml --quiet --out other {options}"));
        assert_eq!(output.status.code(), Some(1), "{options}");
        let message = stderr(&output);
        assert!(expected.iter().all(|part| message.contains(part)), "{options}: {message}");
    };
    refused("--set model.add_tokens=[<tool>,<tool>]", &["model.add_tokens", "each token once"]);
    let known = json(&place.read("model/tokenizer.json"));
    let known = known["added_tokens"][0]["content"].as_str().unwrap().to_owned();
    refused(&format!("--set model.add_tokens=[{known}]"), &["already has it as token", &known]);
    refused(
        "--set lora.r=4 --set lora.target_modules=[q_proj,lm_head]",
        &["lm_head", "lora.target_modules"],
    );
    place.succeed("train run.toml --quiet --out run --set lora.r=4");
    refused("--set lora.init_from=run", &["already has added tokens", "model.add_tokens"]);
}
