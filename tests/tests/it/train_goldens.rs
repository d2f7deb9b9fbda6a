//! Law 1 for whole runs: every step's loss, gradient norm and rate, and the final weights, equal PyTorch's.

use std::sync::atomic::AtomicBool;

use emberlm::config::{self, RunConfig};
use emberlm::eval::evaluate::evaluate;
use emberlm::run::{Event, RunOptions, run};
use emberlm_data::{Dataset, ExampleOptions, Format, TextTokenizer, read_rows};
use emberlm_lora::peft::{AdapterFolder, WEIGHTS_FILE};
use emberlm_model::ModelBackend;
use emberlm_quant::TensorFile;
use emberlm_tests::{
    GRADIENT_TOLERANCE, assert_close, assert_close_number, expected, golden_json, golden_path,
    number,
};
use serde_json::Value;

use crate::support::NdArray;

/// The golden's settings as a run configuration.
fn run_config(name: &str, backend: &str, recompute: &str, batch: [usize; 2]) -> (RunConfig, Value) {
    let golden = golden_json(&format!("train/{name}/golden.json"));
    let get = |key: &str| number(&golden, key);
    let base = golden["base"].as_str().unwrap();
    let lora = match golden["init_adapter"].as_str() {
        Some(adapter) => {
            let path = golden_path(&format!("adapters/{adapter}"));
            format!("[lora]\ninit_from = {path:?}")
        }
        None => String::new(),
    };
    let [micro_batch, accumulation] = batch;
    let text = format!(
        "{lora}
        [model]
        path = {:?}
        backend = \"{backend}\"
        [data]
        train = [{:?}]
        shuffle = false
        [train]
        output_dir = \"unused\"
        steps = {}
        micro_batch_size = {micro_batch}
        grad_accumulation = {accumulation}
        learning_rate = {}
        min_learning_rate = {}
        warmup_steps = {}
        weight_decay = {}
        betas = [0.9, 0.999]
        eps = {:e}
        max_grad_norm = {:?}
        decay_norms_and_biases = true
        recompute = \"{recompute}\"",
        golden_path(&format!("models/{base}")),
        golden_path(&format!("train/{name}/data.jsonl")),
        get("steps"),
        get("lr"),
        get("lr_min"),
        get("warmup_steps"),
        get("weight_decay"),
        get("eps"),
        get("max_grad_norm"),
    );
    (config::load_str(&text, "golden", &[]).unwrap(), golden)
}

/// Runs the golden's training and compares every step; returns the folder that it wrote.
fn trajectory_equals(
    name: &str,
    backend: &str,
    recompute: &str,
    batch: [usize; 2],
) -> tempfile::TempDir {
    let (mut config, golden) = run_config(name, backend, recompute, batch);
    let folder = tempfile::tempdir().unwrap();
    config.train.output_dir = folder.path().join("run");
    let expected = golden["steps_log"].as_array().unwrap();
    let mut steps = 0;
    let interrupt = AtomicBool::new(false);
    let options = RunOptions { dry_run: false, interrupt: &interrupt, resume: None };
    run(&config, options, &mut |event| {
        let Event::Step { row } = event else { return };
        let log = &row.metrics;
        let golden = &expected[log.step as usize - 1];
        let what =
            |part: &str| format!("{name} on {backend}, {recompute}, step {}: {part}", log.step);
        assert_eq!(log.supervised_tokens as f64, number(golden, "supervised_tokens"));
        for (part, found) in
            [("loss", log.loss), ("grad_norm", log.grad_norm), ("learning_rate", log.learning_rate)]
        {
            assert_close_number(&what(part), found, number(golden, part), GRADIENT_TOLERANCE);
        }
        steps += 1;
    })
    .unwrap();
    assert_eq!(steps, expected.len(), "every step of the golden");
    folder
}

fn final_adapter_equals(folder: &tempfile::TempDir) {
    let golden =
        TensorFile::open(&golden_path("train/lora-sft/final_adapter.safetensors")).unwrap();
    let ours = TensorFile::open(&folder.path().join("run").join(WEIGHTS_FILE)).unwrap();
    assert_eq!(ours.entries().len(), golden.entries().len());
    for key in golden.entries().keys() {
        assert_close(key, &expected(&ours, key), &expected(&golden, key), GRADIENT_TOLERANCE);
    }
}

/// The mean loss over the golden's conversations, of the model that a run left.
fn final_chat_loss<B: ModelBackend>(name: &str, folder: &tempfile::TempDir) -> f64 {
    let golden = golden_json(&format!("train/{name}/golden.json"));
    let base = golden_path(&format!("models/{}", golden["base"].as_str().unwrap()));
    let run = folder.path().join("run");
    let device = Default::default();
    let (config, model) = if golden["full"].as_bool().unwrap() {
        emberlm_model::load::<B>(&run, &device).unwrap()
    } else {
        let (config, mut model) = emberlm_model::load::<B>(&base, &device).unwrap();
        AdapterFolder::open(&run).unwrap().apply(model.linears_mut(), &device).unwrap();
        (config, model)
    };
    // The run folder brings its tokenizer along.
    let tokenizer = TextTokenizer::from_dir(&run).unwrap();
    let rows = read_rows(&golden_path(&format!("train/{name}/data.jsonl")), Format::Auto).unwrap();
    let data = Dataset::build(&rows, &tokenizer, &ExampleOptions::default()).unwrap();
    evaluate(&model, &config, &data, 0, 3).loss
}

pub(crate) fn whole_run_equals(name: &str, backend: &str, recompute: &str, batch: [usize; 2]) {
    let folder = trajectory_equals(name, backend, recompute, batch);
    if name == "lora-sft" {
        final_adapter_equals(&folder);
    }
    let golden = golden_json(&format!("train/{name}/golden.json"));
    let loss = final_chat_loss::<NdArray>(name, &folder);
    assert_close_number("final loss", loss, number(&golden, "final_chat_loss"), GRADIENT_TOLERANCE);
}

#[test]
fn lora_run_on_ndarray() {
    whole_run_equals("lora-sft", "ndarray", "none", [2, 2]);
    whole_run_equals("lora-sft", "ndarray", "block", [1, 4]);
}

#[test]
fn lora_run_on_flex() {
    whole_run_equals("lora-sft", "flex", "none", [4, 1]);
    whole_run_equals("lora-sft", "flex", "block", [2, 2]);
}

#[test]
fn full_run_on_ndarray() {
    whole_run_equals("full-sft", "ndarray", "none", [2, 2]);
    whole_run_equals("full-sft", "ndarray", "block", [4, 1]);
}

#[test]
fn full_run_on_flex() {
    whole_run_equals("full-sft", "flex", "block", [2, 2]);
}
