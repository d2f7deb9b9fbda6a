//! The key figures of a run.

use indicatif::HumanCount;
use serde::Serialize;

use super::read::RunData;
use super::scale::number;
use super::thin::{smoothed, span};
use crate::memory::footprint::Size;

/// Bytes of a MiB.
const MIB: f64 = 1_048_576.0;

/// A figure with its name and a note.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    pub(crate) note: String,
}

/// The figures of a run, always the same ones in the same order; unknown values are a dash.
pub(crate) fn figures(run: &RunData) -> Vec<Figure> {
    let figure = |name, value: Option<String>, note: Option<String>| Figure {
        name,
        value: value.unwrap_or_else(|| "–".to_owned()),
        note: note.unwrap_or_default(),
    };
    let last = run.steps.last();
    let losses = run.curve("loss");
    let mean = match span(losses.len()) {
        0 | 1 => losses.clone(),
        span => smoothed(&losses, span),
    };
    let evals = run.eval_curve();
    let best = evals.iter().min_by(|a, b| a.1.total_cmp(&b.1));
    let best_note = best.zip(evals.last()).map(|(best, last)| {
        if best == last {
            format!("perplexity {}", number(last.1.exp()))
        } else {
            format!("best {} at step {}", number(best.1), number(best.0))
        }
    });
    let seconds: f64 = run
        .steps
        .iter()
        .filter_map(|row| {
            Some(row.get("tokens")? / row.get("tokens_per_s").filter(|rate| *rate > 0.0)?)
        })
        .sum();
    let values = |name: &'static str| run.steps.iter().filter_map(move |row| row.get(name));
    let tokens: f64 = values("tokens").sum();
    let supervised: f64 = values("supervised_tokens").sum();
    let paddings: Vec<f64> = values("padding").collect();
    let padding = 100.0 * paddings.iter().sum::<f64>() / paddings.len() as f64;
    let peak = values("peak_memory_mib").reduce(f64::max);
    vec![
        figure(
            "Steps",
            last.map(|row| HumanCount(row.step).to_string()),
            last.and_then(|row| row.get("epoch")).map(|epoch| format!("{} epochs", number(epoch))),
        ),
        figure(
            "Training loss",
            mean.last().map(|(_, loss)| number(*loss)),
            mean.first().map(|(_, loss)| format!("from {}", number(*loss))),
        ),
        figure("Evaluation loss", evals.last().map(|(_, loss)| number(*loss)), best_note),
        figure(
            "Tokens",
            (tokens > 0.0).then(|| short(tokens)),
            (supervised > 0.0).then(|| format!("{} supervised", short(supervised))),
        ),
        figure(
            "Throughput",
            (seconds > 0.0).then(|| number(tokens / seconds)),
            (seconds > 0.0).then(|| "tokens/s".to_owned()),
        ),
        figure(
            "Time in steps",
            (seconds > 0.0).then(|| duration(seconds)),
            (!paddings.is_empty()).then(|| format!("{padding:.0} % padding")),
        ),
        figure("Peak memory", peak.map(|mib| Size((mib * MIB) as u64).to_string()), None),
    ]
}

fn short(count: f64) -> String {
    match count {
        count if count >= 1e9 => format!("{:.2} G", count / 1e9),
        count if count >= 1e6 => format!("{:.2} M", count / 1e6),
        count => HumanCount(count as u64).to_string(),
    }
}

fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, 0, _) => format!("{seconds:.1} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::read::MetricsRow;

    fn value(figures: &[Figure], name: &str) -> String {
        let figure = figures.iter().find(|figure| figure.name == name).unwrap();
        format!("{} | {}", figure.value, figure.note)
    }

    #[test]
    fn figures_follow_from_the_rows() {
        let step = |step: u64, loss: f64, tokens_per_s: f64| {
            MetricsRow::new(
                json!({
                    "step": step, "loss": loss, "epoch": step as f64 / 2.0, "tokens": 100,
                    "supervised_tokens": 40, "tokens_per_s": tokens_per_s, "padding": 0.25,
                    "peak_memory_mib": 5120,
                })
                .as_object()
                .unwrap(),
            )
        };
        let eval = |step: u64, loss: f64| {
            MetricsRow::new(json!({"step": step, "eval_loss": loss}).as_object().unwrap())
        };
        let run = RunData {
            steps: vec![step(1, 3.0, 100.0), step(2, 2.0, 50.0)],
            evals: vec![eval(0, 3.0), eval(1, 2.0), eval(2, 2.5)],
            ..RunData::default()
        };
        let figures = figures(&run);
        assert_eq!(value(&figures, "Steps"), "2 | 1 epochs");
        assert_eq!(value(&figures, "Training loss"), "2 | from 3");
        assert_eq!(value(&figures, "Evaluation loss"), "2.5 | best 2 at step 1");
        assert_eq!(value(&figures, "Tokens"), "200 | 80 supervised");
        // 200 tokens in 1 s and 2 s, not the mean of two rates.
        assert_eq!(value(&figures, "Throughput"), "66.67 | tokens/s");
        assert_eq!(value(&figures, "Time in steps"), "3.0 s | 25 % padding");
        assert_eq!(value(&figures, "Peak memory"), "5.00 GiB | ");
    }

    #[test]
    fn unknown_figures_are_dashes() {
        let figures = figures(&RunData::default());
        assert!(figures.iter().all(|figure| figure.value == "–" && figure.note.is_empty()));
    }
}
