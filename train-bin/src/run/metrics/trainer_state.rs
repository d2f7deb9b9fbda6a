//! `trainer_state.json` as transformers' `Trainer` writes it (`trainer_callback.py`, `TrainerState.save_to_json`), for
//! tools that read it.
//!
//! It is a function of the rows of `metrics.jsonl` and some settings. Where Trainer has no counterpart to what is known
//! here, a key is left out; what isn't known here (`total_flos`) is 0.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

/// Its name.
pub const TRAINER_STATE_FILE: &str = "trainer_state.json";

/// What of a run isn't in the rows.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Steps the run has in all.
    pub max_steps: u64,
    /// Passes over the data it has in all.
    pub epochs: f64,
    /// Rows of a micro-batch.
    pub micro_batch_size: usize,
    /// Steps between logs: each tells the mean loss of so many.
    pub log_every: u64,
    /// Steps between evaluations, if there are any before the end.
    pub eval_every: Option<u64>,
    /// Steps between checkpoints, likewise.
    pub save_every: Option<u64>,
    /// Checkpoints there are: steps and paths.
    pub checkpoints: Vec<(u64, String)>,
}

/// The file, keys in alphabetical order as Trainer's are.
#[derive(Debug, Serialize)]
struct State {
    best_global_step: Option<u64>,
    best_metric: Option<f64>,
    best_model_checkpoint: Option<String>,
    epoch: f64,
    eval_steps: u64,
    global_step: u64,
    is_hyper_param_search: bool,
    is_local_process_zero: bool,
    is_world_process_zero: bool,
    log_history: Vec<BTreeMap<&'static str, Value>>,
    logging_steps: u64,
    max_steps: u64,
    num_input_tokens_seen: u64,
    num_train_epochs: u64,
    save_steps: u64,
    stateful_callbacks: Value,
    total_flos: f64,
    train_batch_size: usize,
    trial_name: Option<String>,
    trial_params: Option<String>,
}

/// Steps and losses since the last log.
#[derive(Default)]
struct Interval {
    losses: f64,
    steps: u64,
}

/// The text of `trainer_state.json` for a run so far. `metrics`: the text of its `metrics.jsonl`; lines that can't be read
/// are passed over, as everything but this file is still sound then.
///
/// A log is made each `log_every` steps and at the last step; its loss is the mean over the steps since the one before, as
/// Trainer has it. `best_metric` is the least loss of an evaluation after the first step.
///
/// # Errors
/// None in practice: of serializing JSON.
pub fn text(metrics: &str, facts: &Facts) -> serde_json::Result<String> {
    let rows: Vec<Value> =
        metrics.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let number = |row: &Value, key: &str| row.get(key).and_then(Value::as_f64);
    let step_of = |row: &Value| row.get("step").and_then(Value::as_u64);
    let last_step = rows.iter().filter(|row| row.get("loss").is_some()).filter_map(step_of).max();
    let log_every = facts.log_every.max(1);
    let mut epoch = 0.0;
    let mut tokens = 0;
    let mut since = Interval::default();
    let mut log_history = Vec::new();
    let mut best: Option<(f64, u64)> = None;
    for row in &rows {
        let Some(step) = step_of(row) else { continue };
        let mut log = BTreeMap::from([("step", json!(step))]);
        if let Some(loss) = number(row, "loss") {
            epoch = number(row, "epoch").unwrap_or(epoch);
            tokens += row.get("tokens").and_then(Value::as_u64).unwrap_or(0);
            since.losses += loss;
            since.steps += 1;
            if !step.is_multiple_of(log_every) && Some(step) != last_step {
                continue;
            }
            let Interval { losses, steps } = std::mem::take(&mut since);
            log.insert("loss", json!(losses / steps as f64));
            for key in ["grad_norm", "learning_rate"] {
                log.extend(number(row, key).map(|value| (key, json!(value))));
            }
        } else if let Some(loss) = number(row, "eval_loss") {
            log.insert("eval_loss", json!(loss));
            let perplexity = number(row, "eval_perplexity");
            log.extend(perplexity.map(|value| ("eval_perplexity", json!(value))));
            if step > 0 && best.is_none_or(|(least, _)| loss < least) {
                best = Some((loss, step));
            }
        } else {
            continue;
        }
        log.insert("epoch", json!(epoch));
        log_history.push(log);
    }
    let global_step = last_step.unwrap_or(0);
    let is_over = global_step >= facts.max_steps;
    let best_checkpoint = best.and_then(|(_, best)| {
        let found = facts.checkpoints.iter().find(|(step, _)| *step == best);
        found.map(|(_, path)| path.clone())
    });
    let state = State {
        best_global_step: best.map(|(_, step)| step),
        best_metric: best.map(|(loss, _)| loss),
        best_model_checkpoint: best_checkpoint,
        epoch,
        eval_steps: facts.eval_every.unwrap_or(facts.max_steps),
        global_step,
        is_hyper_param_search: false,
        is_local_process_zero: true,
        is_world_process_zero: true,
        log_history,
        logging_steps: log_every,
        max_steps: facts.max_steps,
        num_input_tokens_seen: tokens,
        num_train_epochs: facts.epochs.ceil() as u64,
        save_steps: facts.save_every.unwrap_or(facts.max_steps),
        stateful_callbacks: json!({
            "TrainerControl": {
                "args": {
                    "should_epoch_stop": false,
                    "should_evaluate": false,
                    "should_log": false,
                    "should_save": true,
                    "should_training_stop": is_over,
                },
                "attributes": {},
            }
        }),
        total_flos: 0.0,
        train_batch_size: facts.micro_batch_size,
        trial_name: None,
        trial_params: None,
    };
    Ok(serde_json::to_string_pretty(&state)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = r#"{"step":0,"eval_loss":1.0,"eval_perplexity":2.7}
{"step":1,"epoch":0.5,"loss":4.0,"grad_norm":2.0,"learning_rate":0.1,"tokens":10}
{"step":2,"epoch":1.0,"loss":3.0,"grad_norm":1.5,"learning_rate":0.2,"tokens":20}
{"step":2,"eval_loss":2.5,"eval_perplexity":12.2}
{"step":3,"epoch":1.5,"loss":2.0,"grad_norm":1.0,"learning_rate":0.1,"tokens":30}
not a row
{"step":3,"eval_loss":2.6,"eval_perplexity":13.5}
"#;

    fn state(metrics: &str, facts: &Facts) -> Value {
        serde_json::from_str(&text(metrics, facts).unwrap()).unwrap()
    }

    fn facts() -> Facts {
        Facts {
            max_steps: 4,
            epochs: 1.5,
            micro_batch_size: 8,
            log_every: 2,
            save_every: Some(2),
            checkpoints: vec![(2, "runs/a/checkpoint-2".to_owned())],
            ..Facts::default()
        }
    }

    #[test]
    fn logs_are_those_that_trainer_would_have() {
        let found = state(METRICS, &facts());
        let expected = json!([
            {"step": 0, "epoch": 0.0, "eval_loss": 1.0, "eval_perplexity": 2.7},
            {"step": 2, "epoch": 1.0, "loss": 3.5, "grad_norm": 1.5, "learning_rate": 0.2},
            {"step": 2, "epoch": 1.0, "eval_loss": 2.5, "eval_perplexity": 12.2},
            {"step": 3, "epoch": 1.5, "loss": 2.0, "grad_norm": 1.0, "learning_rate": 0.1},
            {"step": 3, "epoch": 1.5, "eval_loss": 2.6, "eval_perplexity": 13.5},
        ]);
        assert_eq!(found["log_history"], expected);
        for (key, value) in [
            ("global_step", json!(3)),
            ("max_steps", json!(4)),
            ("epoch", json!(1.5)),
            ("num_train_epochs", json!(2)),
            ("num_input_tokens_seen", json!(60)),
            ("best_metric", json!(2.5)),
            ("best_global_step", json!(2)),
            ("best_model_checkpoint", json!("runs/a/checkpoint-2")),
            ("logging_steps", json!(2)),
            ("save_steps", json!(2)),
            ("train_batch_size", json!(8)),
        ] {
            assert_eq!(found[key], value, "{key}");
        }
    }

    #[test]
    fn a_run_without_rows_has_a_state_too() {
        let found = state("", &Facts::default());
        assert_eq!((&found["global_step"], &found["best_metric"]), (&json!(0), &Value::Null));
        assert_eq!(found["log_history"], json!([]));
    }

    #[test]
    fn keys_are_in_order_as_trainers_are() {
        let text = text(METRICS, &facts()).unwrap();
        let keys: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("  \""))
            .filter_map(|line| line.split('"').nth(1))
            .collect();
        assert!(keys.len() > 15 && keys.is_sorted(), "{keys:?}");
    }
}
