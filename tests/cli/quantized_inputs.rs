//! Law 7 for quantized checkpoints: whatever is wrong with one is refused by the name of the tensor, before anything runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Place, stderr};

const DATA: &str = "--data rows.jsonl --backend flex";
const Q: &str = "model.layers.1.self_attn.q_proj.weight";

/// A safetensors file in pieces: type, shape and bytes by key.
struct Pieces(BTreeMap<String, (String, Vec<usize>, Vec<u8>)>);

impl Pieces {
    fn read(path: &Path) -> Self {
        let file = fs::read(path).unwrap();
        let header_len = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let (header, data) = file[8..].split_at(header_len);
        let header: BTreeMap<String, Value> = serde_json::from_slice(header).unwrap();
        let number = |value: &Value| value.as_u64().unwrap() as usize;
        let piece = |entry: &Value| {
            let [start, end] = [0, 1].map(|i| number(&entry["data_offsets"][i]));
            let shape = entry["shape"].as_array().unwrap().iter().map(number).collect();
            (entry["dtype"].as_str().unwrap().to_string(), shape, data[start..end].to_vec())
        };
        let tensors = header.iter().filter(|(key, _)| *key != "__metadata__");
        Self(tensors.map(|(key, entry)| (key.clone(), piece(entry))).collect())
    }

    fn write(&self, path: &Path) {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (key, (dtype, shape, bytes)) in &self.0 {
            let offsets = [data.len(), data.len() + bytes.len()];
            let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
            header.insert(key.clone(), entry);
            data.extend(bytes);
        }
        let header = Value::Object(header).to_string().into_bytes();
        let whole = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
        fs::write(path, whole).unwrap();
    }

    fn piece(&mut self, key: &str) -> &mut (String, Vec<usize>, Vec<u8>) {
        self.0.get_mut(key).unwrap_or_else(|| panic!("no {key}"))
    }

    /// Changes the JSON of a quantized weight.
    fn state(&mut self, change: impl FnOnce(&mut Value)) {
        let (_, shape, bytes) = self.piece(&format!("{Q}.quant_state.bitsandbytes__nf4"));
        let mut state: Value = serde_json::from_slice(bytes).unwrap();
        change(&mut state);
        *bytes = state.to_string().into_bytes();
        *shape = vec![bytes.len()];
    }
}

/// Quantizes the golden model, breaks it, and wants `eval` to refuse it with all of `said`.
fn refused(quantize: &str, said: &[&str], break_it: impl FnOnce(&mut Pieces)) {
    let place = Place::new();
    place.succeed(&format!("quantize --model model --out q {quantize}"));
    let path = place.path("q/model.safetensors");
    let mut pieces = Pieces::read(&path);
    break_it(&mut pieces);
    pieces.write(&path);
    wants_refusal(&place, &format!("eval --model q {DATA}"), said);
}

fn wants_refusal(place: &Place, command_line: &str, said: &[&str]) {
    let output = place.run(command_line);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(!message.contains("panicked"), "{message}");
    assert!(output.stdout.is_empty(), "nothing on stdout: {:?}", output.stdout);
    for part in said {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
}

/// As [`refused`], for what `config.json` says.
fn config_refused(quantize: &str, from: &str, to: &str, said: &[&str]) {
    let place = Place::new();
    place.succeed(&format!("quantize --model model --out q {quantize}"));
    place.replace("q/config.json", from, to);
    wants_refusal(&place, &format!("eval --model q {DATA}"), said);
}

#[test]
fn an_intact_model_is_not_refused() {
    let place = Place::new();
    for (quantize, like) in [
        ("--type nf4", "nf4"),
        ("--type nf4 --no-double-quant", "nf4 --no-double-quant"),
        ("--type fp4", "fp4"),
        ("--type int8", "int8"),
    ] {
        let out = quantize.replace([' ', '-'], "");
        place.succeed(&format!("quantize --model model --out {out} {quantize}"));
        let loss = |options: &str| {
            place.json(&format!("eval --json {DATA} {options}"))["loss"].as_f64().unwrap()
        };
        // As stored, and quantized while loading.
        assert_eq!(loss(&format!("--model {out}")), loss(&format!("--model model --quant {like}")));
    }
}

#[test]
fn skipped_layers_stay_dense() {
    let place = Place::new();
    place.succeed("quantize --model model --out q --skip down_proj --skip layers.0");
    let pieces = Pieces::read(&place.path("q/model.safetensors"));
    let dtype = |key: &str| pieces.0[key].0.as_str();
    assert_eq!(dtype("model.layers.1.mlp.down_proj.weight"), "F32");
    assert_eq!(dtype("model.layers.0.self_attn.q_proj.weight"), "F32");
    assert_eq!(dtype(Q), "U8");
    place.succeed(&format!("eval --model q {DATA}"));
    wants_refusal(&place, "quantize --model model --out q", &["is not empty"]);
    wants_refusal(&place, "quantize --model model --out r --skip layers", &["no layer left"]);
}

#[test]
fn skipped_layers_while_loading() {
    let place = Place::new();
    place.succeed("quantize --model model --out q --skip down_proj");
    let loss = |options: &str| {
        place.json(&format!("eval --json {DATA} {options}"))["loss"].as_f64().unwrap()
    };
    let skipped = loss("--model model --quant nf4 --quant-skip down_proj");
    assert_eq!(skipped, loss("--model q"));
    assert_ne!(skipped, loss("--model model --quant nf4"));

    let train = |run: &str, model: &str, more: &str| {
        place.succeed(&format!(
            "train --quiet --model {model} --data rows.jsonl --out {run} --backend flex {more} \
             --set train.steps=2 --set lora.r=4"
        ));
        fs::read(place.path(run).join("adapter_model.safetensors")).unwrap()
    };
    let skip = "--set model.quant=nf4 --set model.quant_skip=[down_proj]";
    assert!(train("a", "model", skip) == train("b", "q", ""), "stored and made while loading");
    assert!(place.read("a/config.toml").contains("quant_skip = [\"down_proj\"]"));

    let unknown = &["no linear layer", "down_prj", "down_proj"];
    wants_refusal(
        &place,
        &format!("eval --model model --quant nf4 --quant-skip down_prj {DATA}"),
        unknown,
    );
    wants_refusal(&place, "quantize --model model --out r --skip down_prj", unknown);
    assert!(!place.path("r").exists());
    let usage = place.run(&format!("eval --model model --quant-skip down_proj {DATA}"));
    assert_eq!(usage.status.code(), Some(2), "{}", stderr(&usage));
}

#[test]
fn an_unknown_block_size() {
    refused("", &[Q, "blocksize is 60", "64"], |p| p.state(|state| state["blocksize"] = 60.into()));
}

#[test]
fn a_block_size_that_does_not_fit_the_scales() {
    refused("", &[Q, "absmax: expected 32 elements, found 64"], |p| {
        p.state(|state| state["blocksize"] = 128.into());
    });
}

#[test]
fn missing_scales() {
    refused("", &["missing:", Q, ".absmax"], |p| drop(p.0.remove(&format!("{Q}.absmax"))));
}

#[test]
fn a_shape_of_another_model() {
    refused("", &["expected [64, 64]", "[64, 32]", Q], |p| {
        p.state(|state| state["shape"] = json!([64, 32]));
    });
}

#[test]
fn too_few_codes() {
    refused("", &[Q, "expected 2048 elements, found 2047"], |p| {
        let (_, shape, bytes) = p.piece(Q);
        bytes.pop();
        *shape = vec![bytes.len(), 1];
    });
}

#[test]
fn a_quant_type_that_contradicts_its_key() {
    refused("", &[Q, "quant_type is `fp4`, expected `nf4`"], |p| {
        p.state(|state| state["quant_type"] = "fp4".into());
    });
}

#[test]
fn an_unknown_quant_type() {
    config_refused("", "\"nf4\"", "\"nf3\"", &["bnb_4bit_quant_type", "nf3", "fp4"]);
    refused("", &["missing:", "bitsandbytes__nf4"], |p| {
        let piece = p.0.remove(&format!("{Q}.quant_state.bitsandbytes__nf4")).unwrap();
        p.0.insert(format!("{Q}.quant_state.bitsandbytes__nf3"), piece);
    });
}

#[test]
fn a_state_that_is_not_json() {
    refused("", &[Q, "expected JSON with quant_type, blocksize and shape"], |p| {
        p.piece(&format!("{Q}.quant_state.bitsandbytes__nf4")).2[0] = b'[';
    });
}

#[test]
fn a_map_of_wrong_length_or_of_other_values() {
    refused("", &["quant_map: expected 16 elements, found 15"], |p| {
        let (_, shape, bytes) = p.piece(&format!("{Q}.quant_map"));
        bytes.truncate(60);
        *shape = vec![15];
    });
    refused("", &["quant_map: expected the 16 values of nf4"], |p| {
        p.piece(&format!("{Q}.quant_map")).2.fill(0);
    });
}

#[test]
fn nested_scales_without_their_offset() {
    refused("", &[Q, "nested_offset"], |p| {
        p.state(|state| drop(state.as_object_mut().unwrap().remove("nested_offset")));
    });
}

#[test]
fn nested_scales_without_their_own_scales() {
    refused("", &["missing:", Q, "nested_absmax"], |p| {
        p.0.remove(&format!("{Q}.nested_absmax"));
    });
}

#[test]
fn a_scale_that_is_nan() {
    refused("--no-double-quant", &[Q, "NaN at element 3"], |p| {
        p.piece(&format!("{Q}.absmax")).2[12..16].copy_from_slice(&f32::NAN.to_le_bytes());
    });
}

#[test]
fn int8_rows_without_their_scales() {
    refused("--type int8", &["missing: model.layers.1.self_attn.q_proj.SCB"], |p| {
        p.0.remove("model.layers.1.self_attn.q_proj.SCB");
    });
    refused("--type int8", &["q_proj.weight_format: expected 0"], |p| {
        p.piece("model.layers.1.self_attn.q_proj.weight_format").2[0] = 1;
    });
}

#[test]
fn weights_packed_in_another_type() {
    refused("", &["dtype of", Q, "expected U8, found BF16"], |p| {
        let (dtype, shape, _) = p.piece(Q);
        *dtype = "BF16".into();
        *shape = vec![1024, 1];
    });
}

#[test]
fn a_config_that_contradicts_the_files() {
    config_refused("", "\"bitsandbytes\"", "\"gptq\"", &["quant_method", "gptq", "bitsandbytes"]);
    config_refused("", "\"load_in_4bit\": true", "\"load_in_4bit\": 3", &["load_in_4bit"]);
    let place = Place::new();
    place.succeed("quantize --model model --out q");
    place.replace("q/config.json", "\"quantization_config\"", "\"other\"");
    wants_refusal(
        &place,
        &format!("eval --model q {DATA}"),
        &[Q, "found U8", "no quantization_config"],
    );
}

#[test]
fn another_format_than_the_stored_one() {
    let place = Place::new();
    place.succeed("quantize --model model --out q");
    wants_refusal(&place, &format!("eval --model q --quant fp4 {DATA}"), &["nf4", "fp4", "dense"]);
    place.succeed(&format!("eval --model q --quant nf4 {DATA}"));
}

#[test]
fn full_fine_tuning_of_a_quantized_model() {
    let place = Place::new();
    place.succeed("quantize --model model --out q");
    place.write(
        "run.toml",
        "[model]\npath = \"q\"\nbackend = \"flex\"\n[data]\ntrain = [\"rows.jsonl\"]\n\
         [train]\noutput_dir = \"run\"\nsteps = 1\n",
    );
    wants_refusal(&place, "train run.toml", &["stored as nf4", "[lora]"]);
}

#[test]
fn a_qlora_fine_tune_and_its_merge() {
    let place = Place::new();
    for (model, quant) in [("model", "--set model.quant=nf4"), ("q", "")] {
        if model == "q" {
            place.succeed("quantize --model model --out q");
        }
        let run = format!("run-{model}");
        place.succeed(&format!(
            "train --quiet --model {model} --data rows.jsonl --out {run} --backend flex {quant} \
             --set train.steps=3 --set train.learning_rate=1e-2 --set lora.r=4"
        ));
        place.succeed(&format!(
            "merge --model {model} --adapter {run} --out merged-{model} --backend flex"
        ));
    }
    let adapter = |run: &str| fs::read(place.path(run).join("adapter_model.safetensors")).unwrap();
    assert!(adapter("run-model") == adapter("run-q"), "stored and made while loading: the same");
    assert!(!place.read("merged-q/config.json").contains("quantization_config"));
    let loss =
        |model: &str| place.json(&format!("eval --json {DATA} {model}"))["loss"].as_f64().unwrap();
    let (adapted, merged) = (loss("--model q --adapter run-q"), loss("--model merged-q"));
    assert!((adapted - merged).abs() <= 1e-4 * adapted, "{adapted} merged {merged}");
}
