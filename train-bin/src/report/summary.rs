//! A run in some numbers.

use serde::Serialize;

use super::read::RunData;
use super::scale::{grouped, number};
use super::thin::{smoothed, span};

/// A number with its name and what is to be said beside it.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    pub(crate) beside: String,
}

/// The figures of a run, always the same ones in the same order; what isn't known is a dash.
pub(crate) fn figures(run: &RunData) -> Vec<Figure> {
    let figure = |name, value: Option<String>, beside: Option<String>| Figure {
        name,
        value: value.unwrap_or_else(|| "–".to_owned()),
        beside: beside.unwrap_or_default(),
    };
    let last = run.steps.last();
    let losses = run.curve(|row| row.loss);
    let mean = match span(losses.len()) {
        0 | 1 => losses.clone(),
        span => smoothed(&losses, span),
    };
    let evals = run.eval_curve();
    let best = evals.iter().min_by(|a, b| a.1.total_cmp(&b.1));
    let best_said = best.zip(evals.last()).map(|(best, last)| {
        if best == last {
            format!("perplexity {}", number(last.1.exp()))
        } else {
            format!("best {} at step {}", number(best.1), number(best.0))
        }
    });
    let seconds: f64 = run
        .steps
        .iter()
        .filter_map(|row| Some(row.tokens? / row.tokens_per_s.filter(|rate| *rate > 0.0)?))
        .sum();
    let sum = |value: fn(&super::read::StepRow) -> Option<f64>| {
        run.steps.iter().filter_map(value).sum::<f64>()
    };
    let tokens = sum(|row| row.tokens);
    let supervised = sum(|row| row.supervised_tokens);
    let paddings: Vec<f64> = run.steps.iter().filter_map(|row| row.padding).collect();
    let padding = 100.0 * paddings.iter().sum::<f64>() / paddings.len() as f64;
    let peak = run.steps.iter().filter_map(|row| row.peak_memory_mib).reduce(f64::max);
    vec![
        figure(
            "Steps",
            last.map(|row| grouped(row.step as f64)),
            last.and_then(|row| row.epoch).map(|epoch| format!("{} epochs", number(epoch))),
        ),
        figure(
            "Training loss",
            mean.last().map(|(_, loss)| number(*loss)),
            mean.first().map(|(_, loss)| format!("from {}", number(*loss))),
        ),
        figure("Evaluation loss", evals.last().map(|(_, loss)| number(*loss)), best_said),
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
        figure("Peak memory", peak.map(memory), None),
    ]
}

/// Mebibytes, or gibibytes where there are many.
fn memory(mib: f64) -> String {
    if mib < 4096.0 { format!("{mib:.0} MiB") } else { format!("{:.1} GiB", mib / 1024.0) }
}

fn short(count: f64) -> String {
    match count {
        count if count >= 1e9 => format!("{:.2} G", count / 1e9),
        count if count >= 1e6 => format!("{:.2} M", count / 1e6),
        count => grouped(count),
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
    use super::*;
    use crate::report::read::{EvalRow, StepRow};

    fn value(figures: &[Figure], name: &str) -> String {
        let figure = figures.iter().find(|figure| figure.name == name).unwrap();
        format!("{} | {}", figure.value, figure.beside)
    }

    #[test]
    fn figures_are_those_of_the_rows() {
        let step = |step, loss, tokens_per_s| StepRow {
            step,
            loss: Some(loss),
            epoch: Some(step as f64 / 2.0),
            tokens: Some(100.0),
            supervised_tokens: Some(40.0),
            tokens_per_s: Some(tokens_per_s),
            padding: Some(0.25),
            peak_memory_mib: Some(5120.0),
            ..StepRow::default()
        };
        let eval = |step, loss| EvalRow { step, eval_loss: Some(loss), ..EvalRow::default() };
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
        assert_eq!(value(&figures, "Peak memory"), "5.0 GiB | ");
    }

    #[test]
    fn nothing_known_is_dashes() {
        let figures = figures(&RunData::default());
        assert!(figures.iter().all(|figure| figure.value == "–" && figure.beside.is_empty()));
    }
}
