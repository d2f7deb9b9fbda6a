//! `trainer_state.json` as transformers' `Trainer` writes it (`trainer_callback.py`, `TrainerState.save_to_json`), for
//! tools that read it.
//!
//! It is a function of the rows of `metrics.jsonl` and some settings. Metrics without a counterpart in Trainer are left out;
//! `total_flos`, which is unknown here, is 0.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

/// Facts about a run that its rows don't contain.
#[derive(Debug, Clone, Default)]
pub struct RunFacts {
    /// Total steps of the run.
    pub max_steps: u64,
    /// Total passes over the data.
    pub epochs: f64,
    /// Rows in a micro-batch.
    pub micro_batch_size: usize,
    /// Steps between logs; the loss of a log is the mean over them.
    pub log_every: u64,
    /// Steps between evaluations, if there are any before the last step.
    pub eval_every: Option<u64>,
    /// Steps between checkpoints, likewise.
    pub save_every: Option<u64>,
    /// Checkpoints: steps and paths.
    pub checkpoints: Vec<(u64, String)>,
}

/// The file, with keys in alphabetical order as Trainer writes them.
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

/// The log entries of a run, and their totals.
#[derive(Default)]
struct LogHistory {
    entries: Vec<BTreeMap<&'static str, Value>>,
    last_step: Option<u64>,
    epoch: f64,
    tokens: u64,
    /// Step and loss of the best evaluation after the first step.
    best: Option<(u64, f64)>,
}

/// Losses since the last log.
#[derive(Default)]
struct Interval {
    losses: f64,
    steps: u64,
}

/// The text of `trainer_state.json` for a run so far. `metrics`: the text of its `metrics.jsonl`; unreadable lines are
/// ignored.
///
/// A log entry is made every `log_every` steps and at the last step; its loss is the mean over the steps since the entry
/// before, as in Trainer. `best_metric` is the lowest loss of an evaluation after the first step.
///
/// # Errors
/// Of serializing JSON; none in practice.
pub fn text(metrics: &str, facts: &RunFacts) -> serde_json::Result<String> {
    let rows: Vec<Value> =
        metrics.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let log_every = facts.log_every.max(1);
    let LogHistory { entries, last_step, epoch, tokens, best } = LogHistory::new(&rows, log_every);
    let global_step = last_step.unwrap_or(0);
    let is_over = global_step >= facts.max_steps;
    let best_checkpoint = best.and_then(|(best, _)| {
        let found = facts.checkpoints.iter().find(|(step, _)| *step == best);
        found.map(|(_, path)| path.clone())
    });
    let state = State {
        best_global_step: best.map(|(step, _)| step),
        best_metric: best.map(|(_, loss)| loss),
        best_model_checkpoint: best_checkpoint,
        epoch,
        eval_steps: facts.eval_every.unwrap_or(facts.max_steps),
        global_step,
        is_hyper_param_search: false,
        is_local_process_zero: true,
        is_world_process_zero: true,
        log_history: entries,
        logging_steps: log_every,
        max_steps: facts.max_steps,
        num_input_tokens_seen: tokens,
        num_train_epochs: facts.epochs.ceil() as u64,
        save_steps: facts.save_every.unwrap_or(facts.max_steps),
        stateful_callbacks: trainer_control(is_over),
        total_flos: 0.0,
        train_batch_size: facts.micro_batch_size,
        trial_name: None,
        trial_params: None,
    };
    Ok(serde_json::to_string_pretty(&state)? + "\n")
}

fn trainer_control(is_over: bool) -> Value {
    json!({
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
    })
}

impl LogHistory {
    fn new(rows: &[Value], log_every: u64) -> Self {
        let number = |row: &Value, key: &str| row.get(key).and_then(Value::as_f64);
        let step_of = |row: &Value| row.get("step").and_then(Value::as_u64);
        let steps = rows.iter().filter(|row| row.get("loss").is_some());
        let mut history = Self { last_step: steps.filter_map(step_of).max(), ..Self::default() };
        let mut since = Interval::default();
        for row in rows {
            let Some(step) = step_of(row) else { continue };
            let mut entry = BTreeMap::from([("step", json!(step))]);
            let mut add = |key| entry.extend(number(row, key).map(|value| (key, json!(value))));
            if let Some(loss) = number(row, "loss") {
                history.epoch = number(row, "epoch").unwrap_or(history.epoch);
                history.tokens += row.get("tokens").and_then(Value::as_u64).unwrap_or(0);
                since.losses += loss;
                since.steps += 1;
                if !step.is_multiple_of(log_every) && Some(step) != history.last_step {
                    continue;
                }
                for key in ["grad_norm", "learning_rate"] {
                    add(key);
                }
                let Interval { losses, steps } = std::mem::take(&mut since);
                entry.insert("loss", json!(losses / steps as f64));
            } else if let Some(loss) = number(row, "eval_loss") {
                for key in ["eval_loss", "eval_perplexity"] {
                    add(key);
                }
                if step > 0 && history.best.is_none_or(|(_, lowest)| loss < lowest) {
                    history.best = Some((step, loss));
                }
            } else {
                continue;
            }
            entry.insert("epoch", json!(history.epoch));
            history.entries.push(entry);
        }
        history
    }
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

    fn state(metrics: &str, facts: &RunFacts) -> Value {
        serde_json::from_str(&text(metrics, facts).unwrap()).unwrap()
    }

    fn facts() -> RunFacts {
        RunFacts {
            max_steps: 4,
            epochs: 1.5,
            micro_batch_size: 8,
            log_every: 2,
            save_every: Some(2),
            checkpoints: vec![(2, "runs/a/checkpoint-2".to_owned())],
            ..RunFacts::default()
        }
    }

    #[test]
    fn log_entries_equal_trainers() {
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
    fn a_run_without_rows_has_a_state() {
        let found = state("", &RunFacts::default());
        assert_eq!((&found["global_step"], &found["best_metric"]), (&json!(0), &Value::Null));
        assert_eq!(found["log_history"], json!([]));
    }

    #[test]
    fn keys_are_sorted_like_trainers() {
        let text = text(METRICS, &facts()).unwrap();
        let keys: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("  \""))
            .filter_map(|line| line.split('"').nth(1))
            .collect();
        assert!(keys.len() > 15 && keys.is_sorted(), "{keys:?}");
    }
}
