//! Law 7: bad input never panics and never half-works. Each message names what is wrong and what to do.

use std::fs;

use crate::support::{CONVERSATION, Place, golden, stderr};

const TRAIN: &str =
    "train --model model --data rows.jsonl --out run --set train.steps=2 --backend flex";
const EVAL: &str = "eval --model model --data rows.jsonl --backend flex";

/// Breaks something, runs a command, and wants exit code `code` and a message with all of `said`.
fn refused(code: i32, command_line: &str, said: &[&str], break_it: impl FnOnce(&Place)) {
    let place = Place::new();
    break_it(&place);
    let output = place.run(command_line);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{command_line}: {message}");
    assert!(!message.contains("panicked"), "{message}");
    assert!(output.stdout.is_empty(), "nothing on stdout: {:?}", output.stdout);
    for part in said {
        assert!(message.contains(part), "{command_line}: no {part:?} in: {message}");
    }
    assert!(!place.path("run/adapter_model.safetensors").exists(), "no half result");
}

#[test]
fn truncated_weights() {
    refused(1, EVAL, &["model.safetensors", "truncated"], |place| {
        let path = place.path("model/model.safetensors");
        let bytes = fs::read(&path).unwrap();
        fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    });
}

#[test]
fn weights_that_are_not_safetensors() {
    refused(1, EVAL, &["model.safetensors", "Git LFS pointer"], |place| {
        place.write("model/model.safetensors", "version https://git-lfs.github.com/spec/v1\n");
    });
}

#[test]
fn weights_of_a_wrong_dtype() {
    let said = ["dtype of ", "expected F32, F16 or BF16, found I32"];
    refused(1, EVAL, &said, |place| {
        place.patch("model/model.safetensors", "\"F32\"", "\"I32\"");
    });
}

#[test]
fn a_missing_and_an_unknown_tensor() {
    let said = ["missing: model.norm.weight [64]", "unexpected: model.nork.weight"];
    refused(1, EVAL, &said, |place| {
        place.patch("model/model.safetensors", "model.norm.weight", "model.nork.weight");
    });
}

#[test]
fn a_tensor_of_a_wrong_shape() {
    let said = ["shape of model.layers.0.mlp.down_proj.weight: expected [64, 96], found [64, 112]"];
    refused(1, EVAL, &said, |place| {
        place.replace(
            "model/config.json",
            "\"intermediate_size\": 112",
            "\"intermediate_size\": 96",
        );
    });
}

#[test]
fn a_weight_that_is_nan() {
    refused(1, EVAL, &["model.norm.weight", "NaN", "undamaged copy"], |place| {
        let path = place.path("model/model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let json: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
        let at = json["model.norm.weight"]["data_offsets"][0].as_u64().unwrap() as usize;
        bytes[8 + header + at..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
        fs::write(path, bytes).unwrap();
    });
}

#[test]
fn a_missing_shard() {
    let said = ["model.safetensors.index.json", "model-00002-of-00002.safetensors", "Download"];
    refused(1, EVAL, &said, |place| {
        fs::rename(
            place.path("model/model.safetensors"),
            place.path("model/model-00001-of-00002.safetensors"),
        )
        .unwrap();
        place.write(
            "model/model.safetensors.index.json",
            r#"{"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors", "lm_head.weight": "model-00002-of-00002.safetensors"}}"#,
        );
    });
}

#[test]
fn a_folder_without_weights() {
    refused(
        1,
        EVAL,
        &["neither model.safetensors nor", "PyTorch pickles", "save_pretrained"],
        |place| {
            fs::rename(
                place.path("model/model.safetensors"),
                place.path("model/pytorch_model.bin"),
            )
            .unwrap();
        },
    );
}

#[test]
fn a_folder_without_a_tokenizer() {
    refused(1, EVAL, &["no tokenizer.json", "config.json"], |place| {
        fs::remove_file(place.path("model/tokenizer.json")).unwrap();
    });
}

#[test]
fn a_model_folder_that_does_not_exist() {
    refused(1, &EVAL.replace("model --data", "nowhere --data"), &["nowhere/config.json"], |_| ());
}

#[test]
fn a_config_that_is_not_json() {
    refused(1, EVAL, &["config.json", "line 3"], |place| {
        place.write("model/config.json", "{\n\"model_type\": \"llama\",\n oops }");
    });
}

#[test]
fn an_unknown_family() {
    refused(1, EVAL, &["`model_type` is `mamba`", "llama, qwen2"], |place| {
        place.replace(
            "model/config.json",
            "\"model_type\": \"llama\"",
            "\"model_type\": \"mamba\"",
        );
    });
}

#[test]
fn an_unknown_rope_type_and_activation() {
    let said = ["rope_parameters.rope_type", "`spiral`", "`hidden_act` is `relu6`", "silu"];
    refused(1, EVAL, &said, |place| {
        place.replace(
            "model/config.json",
            "\"rope_type\": \"default\"",
            "\"rope_type\": \"spiral\"",
        );
        place.replace("model/config.json", "\"silu\"", "\"relu6\"");
    });
}

#[test]
fn heads_that_do_not_divide() {
    let said = ["num_attention_heads is 4, expected a multiple of num_key_value_heads (3)"];
    refused(1, EVAL, &said, |place| {
        place.replace(
            "model/config.json",
            "\"num_key_value_heads\": 2",
            "\"num_key_value_heads\": 3",
        );
    });
}

#[test]
fn a_tokenizer_of_another_model() {
    let said = ["the tokenizer has 385 tokens, but the model only 384", "do not match"];
    refused(1, EVAL, &said, |place| {
        place.replace(
            "model/tokenizer.json",
            "\"added_tokens\": [",
            r#""added_tokens": [{"id": 384, "content": "<|new|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},"#,
        );
    });
}

#[test]
fn an_unknown_key_in_the_configuration() {
    let said = ["run.toml:3", "`train.lerning_rate`", "`train.learning_rate`"];
    refused(2, "train run.toml", &said, |place| {
        place.write("run.toml", "[train]\nsteps = 2\nlerning_rate = 1e-3\n");
    });
}

#[test]
fn an_unknown_key_on_the_command_line() {
    let command_line = format!("{TRAIN} --set train.grad_acumulation=2");
    refused(2, &command_line, &["`train.grad_acumulation`", "grad_accumulation", "--set"], |_| ());
}

#[test]
fn a_configuration_that_is_not_toml() {
    refused(2, "train run.toml", &["run.toml:2"], |place| {
        place.write("run.toml", "[train]\nsteps = = 2\n");
    });
}

#[test]
fn settings_that_exclude_each_other() {
    refused(2, "train run.toml", &["train.epochs", "train.steps", "contradict"], |place| {
        place.write("run.toml", "[train]\nsteps = 2\nepochs = 1\n");
    });
}

#[test]
fn an_empty_data_file() {
    refused(1, TRAIN, &["rows.jsonl", "no rows"], |place| place.write("rows.jsonl", ""));
}

#[test]
fn a_data_file_that_does_not_exist() {
    refused(1, &TRAIN.replace("rows.jsonl", "nowhere.jsonl"), &["nowhere.jsonl"], |_| ());
}

#[test]
fn a_row_without_known_keys() {
    refused(1, TRAIN, &["rows.jsonl:2", "quesion", "question"], |place| {
        place.write(
            "rows.jsonl",
            format!("{CONVERSATION}\n{{\"quesion\":\"a\",\"answer\":\"b\"}}\n"),
        );
    });
}

#[test]
fn wrong_json_at_line_17() {
    refused(1, TRAIN, &["rows.jsonl:17", "invalid JSON"], |place| {
        let mut rows = format!("{CONVERSATION}\n").repeat(16);
        rows.push_str("{\"messages\": [}\n");
        place.write("rows.jsonl", rows);
    });
}

#[test]
fn a_message_without_a_role() {
    refused(1, TRAIN, &["rows.jsonl:1", "role"], |place| {
        place.write("rows.jsonl", "{\"messages\":[{\"content\":\"a\"}]}\n");
    });
}

#[test]
fn a_conversation_without_an_answer() {
    refused(1, TRAIN, &["rows.jsonl:1", "assistant"], |place| {
        place.write("rows.jsonl", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}\n");
    });
}

#[test]
fn conversations_without_a_chat_template() {
    refused(1, TRAIN, &["chat template"], |place| {
        fs::remove_file(place.path("model/chat_template.jinja")).unwrap();
    });
}

#[test]
fn a_template_without_the_assistant() {
    refused(1, TRAIN, &["template", "assistant"], |place| {
        place.write(
            "model/chat_template.jinja",
            "{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] }}{% endif %}{% endfor %}",
        );
    });
}

#[test]
fn a_template_that_is_not_jinja() {
    refused(1, TRAIN, &["chat_template.jinja"], |place| {
        place.write("model/chat_template.jinja", "{% for m in messages %}{{ m['content'] ");
    });
}

#[test]
fn examples_that_are_all_too_long() {
    let command_line = format!("{TRAIN} --set data.max_length=4");
    refused(
        1,
        &command_line,
        &["nothing to train on", "within the first 4 tokens", "data.max_length"],
        |_| (),
    );
}

#[test]
fn a_target_that_matches_nothing() {
    let command_line = format!("{TRAIN} --set lora.target_modules=[q_proj,query]");
    refused(1, &command_line, &["`query`", "q_proj", "all-linear"], |_| ());
}

#[test]
fn an_existing_run_folder() {
    refused(1, TRAIN, &["run", "metrics.jsonl", "train.overwrite=true"], |place| {
        fs::create_dir(place.path("run")).unwrap();
        place.write("run/metrics.jsonl", "");
    });
}

#[test]
fn a_backend_that_is_not_built_in() {
    if cfg!(feature = "cuda") {
        return;
    }
    let command_line = EVAL.replace("flex", "cuda");
    refused(1, &command_line, &["cuda", "not in this build", "--features cuda"], |_| ());
}

#[test]
#[cfg(feature = "ndarray")]
fn a_dtype_that_the_backend_lacks() {
    let train = TRAIN.replace("flex", "ndarray");
    let command_line = format!("{train} --dtype bf16");
    refused(1, &command_line, &["dtype bf16", "no such type", "Use f32"], |_| ());
}

#[test]
fn a_folder_without_an_adapter() {
    let command_line = format!("{EVAL} --adapter model");
    refused(1, &command_line, &["adapter_config.json not found"], |_| ());
}

#[test]
fn an_adapter_of_another_model() {
    let adapter = golden("adapters/lora-qv-qwen2");
    let command_line = format!("{EVAL} --adapter {}", adapter.display());
    let said = ["adapter_model.safetensors does not match the model", "layers.2.self_attn.q_proj"];
    refused(1, &command_line, &said, |place| {
        place.replace("model/config.json", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2");
        let kept = place.path("model/model.safetensors");
        // A base of two blocks: the adapter's third has no place.
        truncate_blocks(&kept);
    });
}

/// Rewrites a safetensors file without the tensors of `model.layers.2`.
fn truncate_blocks(path: &std::path::Path) {
    use emberlm_quant::tensor_file::{FloatDtype, NamedTensor, TensorFile, write_tensors};
    let file = TensorFile::open(path).unwrap();
    let kept = file.entries().iter().filter(|(key, _)| !key.starts_with("model.layers.2."));
    let tensors: Vec<_> = kept
        .map(|(key, entry)| NamedTensor {
            name: key.clone(),
            shape: entry.shape.clone(),
            values: Box::new(|| file.read_f32(key).unwrap()),
        })
        .collect();
    write_tensors(path, &tensors, FloatDtype::F32).unwrap();
}

#[test]
fn an_adapter_of_an_unknown_kind() {
    let command_line = format!("{EVAL} --adapter dora");
    refused(1, &command_line, &["adapter_config.json", "use_dora", "not supported"], |place| {
        fs::create_dir(place.path("dora")).unwrap();
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            fs::copy(golden("adapters/lora-all").join(file), place.path("dora").join(file))
                .unwrap();
        }
        place.replace("dora/adapter_config.json", "\"use_dora\": false", "\"use_dora\": true");
    });
}

#[test]
fn a_merge_into_a_folder_that_is_not_empty() {
    let adapter = golden("adapters/lora-all");
    let command_line =
        format!("merge --model model --out taken --backend flex --adapter {}", adapter.display());
    refused(1, &command_line, &["taken", "--force"], |place| {
        fs::create_dir(place.path("taken")).unwrap();
        place.write("taken/notes.txt", "mine");
    });
}

#[test]
fn a_failed_merge_with_force_leaves_the_folder_unchanged() {
    let adapter = golden("adapters/lora-qv-qwen2");
    let place = Place::new();
    fs::create_dir(place.path("taken")).unwrap();
    place.write("taken/notes.txt", "mine");
    truncate_blocks(&place.path("model/model.safetensors"));
    place.replace("model/config.json", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2");
    let merge = "merge --model model --out taken --force --backend flex --adapter";
    assert_eq!(place.run(&format!("{merge} {}", adapter.display())).status.code(), Some(1));
    assert_eq!(place.read("taken/notes.txt"), "mine");

    // And one that succeeds replaces all of it.
    let place = Place::new();
    fs::create_dir(place.path("taken")).unwrap();
    place.write("taken/notes.txt", "mine");
    place.succeed(&format!("{merge} {}", golden("adapters/lora-all").display()));
    assert!(!place.path("taken/notes.txt").exists());
    assert!(place.path("taken/model.safetensors").exists());
}

#[test]
fn training_that_diverges() {
    let command_line = format!(
        "{TRAIN} --set train.learning_rate=1e30 --set train.steps=9 --set train.warmup_steps=0 --set train.max_grad_norm=0"
    );
    refused(1, &command_line, &["step ", "rows.jsonl:1", "finite", "learning_rate"], |_| ());
}
