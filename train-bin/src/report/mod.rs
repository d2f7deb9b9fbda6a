//! A report: one page in HTML about one run or several, out of nothing but their folders.
//!
//! The page holds everything that it shows, asks nothing of any network, and is complete without its script, which adds
//! values where the pointer is and a switch between light and dark.

mod chart;
mod config_view;
mod read;
mod samples;
mod scale;
mod summary;
mod sweep;
mod thin;

pub use sweep::sweep_page;

use std::path::PathBuf;

use minijinja::{AutoEscape, Environment, context};
use serde::Serialize;

use crate::run::dataset_stats::DatasetStats;
use chart::{Chart, Curve, Look, Titles, classes};
use read::{RunData, StepRow};
use scale::Spacing;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// No run was named.
    #[error("no run folder was named")]
    NoRun,
    /// Not a run folder.
    #[error(
        "{}: no run lies there (none of metrics.jsonl, config.toml, samples.jsonl and data.json). Name a folder that emberlm train wrote to",
        path.display()
    )]
    NotARun {
        /// What was named.
        path: PathBuf,
    },
    /// The page could not be made.
    #[error("the page could not be made: {0}")]
    Page(#[from] minijinja::Error),
}

/// A run as the page has it.
#[derive(Debug, Serialize)]
struct RunView {
    name: String,
    folder: String,
    classes: String,
    settings: String,
    figures: Vec<summary::Figure>,
    notes: Vec<String>,
    config: Option<String>,
}

/// A data set as the page has it.
#[derive(Debug, Serialize)]
struct DataView {
    /// Whose it is.
    title: String,
    facts: String,
    chart: Option<Chart>,
}

/// The report about runs, as the text of an HTML page. It depends on what lies in the folders and on nothing else.
///
/// What is missing or damaged in a folder is left out and noted on the page.
///
/// # Errors
/// [`ReportError`]: a folder without any of a run's files.
pub fn page(folders: &[PathBuf]) -> Result<String, ReportError> {
    if folders.is_empty() {
        return Err(ReportError::NoRun);
    }
    let mut runs = Vec::new();
    for (folder, name) in folders.iter().zip(read::names(folders)) {
        let run = RunData::read(folder);
        let run = run.ok_or_else(|| ReportError::NotARun { path: folder.clone() })?;
        runs.push(RunData { name, ..run });
    }
    let configs: Vec<_> = runs.iter().map(|run| &run.config).collect();
    let differences = config_view::differences(&configs);
    let (prompts, prompts_left_out) = samples::prompts(&runs);
    let views: Vec<RunView> = runs.iter().enumerate().map(|(n, run)| view(n, run)).collect();
    Ok(environment()?.get_template("page.html")?.render(context! {
        runs => views,
        charts => charts(&runs),
        data => data(&runs),
        prompts,
        prompts_left_out,
        differences,
    })?)
}

/// The templates; everything that is filled in is escaped.
fn environment() -> Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.add_template("page.html", include_str!("page.html"))?;
    environment.add_template("frame.html", include_str!("frame.html"))?;
    environment.add_template("sweep.html", include_str!("sweep.html"))?;
    environment.add_template("chart.html", include_str!("chart.html"))?;
    environment
        .add_global("style", minijinja::Value::from_safe_string(include_str!("page.css").into()));
    environment
        .add_global("script", minijinja::Value::from_safe_string(include_str!("page.js").into()));
    Ok(environment)
}

fn view(n: usize, run: &RunData) -> RunView {
    RunView {
        name: run.name.clone(),
        folder: run.folder.display().to_string(),
        classes: classes(n),
        settings: config_view::in_a_line(&run.config).join(" · "),
        figures: summary::figures(run),
        notes: run.notes.clone(),
        config: run.config_text.clone(),
    }
}

fn charts(runs: &[RunData]) -> Vec<Chart> {
    let titles = |id, title, unit, is_wide| {
        // Rates, speeds and memory are read against 0.
        let may_be_log = is_wide || id == "norm";
        Titles { id, title, unit, x: "step", spacing: Spacing::Linear, may_be_log, is_wide }
    };
    let of_runs = |look, points: &dyn Fn(&RunData) -> Vec<thin::Point>| -> Vec<Curve> {
        let curve = |(style, run): (usize, &RunData)| Curve {
            label: if runs.len() == 1 { String::new() } else { run.name.clone() },
            style,
            points: points(run),
            look,
        };
        runs.iter().enumerate().map(curve).collect()
    };
    let by_step = |look, value: fn(&StepRow) -> Option<f64>| of_runs(look, &|run| run.curve(value));
    let mut losses = by_step(Look::Smoothed, |row| row.loss);
    let mut evals = of_runs(Look::Dotted, &RunData::eval_curve);
    let nats = "nats a token";
    let mut charts = Vec::new();
    if let ([loss], [eval]) = (&mut losses[..], &mut evals[..]) {
        // One run: learning and overfitting are seen against each other.
        loss.label = "training".to_owned();
        eval.label = "evaluation".to_owned();
        eval.style = 1;
        losses.append(&mut evals);
        charts.push(Chart::of(&titles("loss", "Loss", nats, true), &losses));
    } else {
        charts.push(Chart::of(&titles("loss", "Training loss", nats, true), &losses));
        charts.push(Chart::of(&titles("eval", "Evaluation loss", nats, true), &evals));
    }
    let norms = by_step(Look::Smoothed, |row| row.grad_norm);
    let rates = by_step(Look::Plain, |row| row.learning_rate);
    let speeds = by_step(Look::Smoothed, |row| row.tokens_per_s);
    charts.push(Chart::of(&titles("norm", "Gradient norm", "before clipping", false), &norms));
    charts.push(Chart::of(&titles("rate", "Learning rate", "", false), &rates));
    charts.push(Chart::of(&titles("speed", "Throughput", "tokens/s", false), &speeds));
    let mut memory = by_step(Look::Plain, |row| row.peak_memory_mib);
    let in_gib = memory.iter().flat_map(|curve| &curve.points).any(|(_, mib)| *mib >= 4096.0);
    if in_gib {
        memory.iter_mut().flat_map(|curve| &mut curve.points).for_each(|(_, mib)| *mib /= 1024.0);
    }
    let unit = if in_gib { "GiB, greatest so far" } else { "MiB, greatest so far" };
    charts.push(Chart::of(&titles("memory", "Memory", unit, false), &memory));
    charts.into_iter().flatten().collect()
}

/// Histograms of lengths: the same data is shown once.
fn data(runs: &[RunData]) -> Vec<DataView> {
    let mut sets: Vec<(&'static str, &DatasetStats, Vec<&str>)> = Vec::new();
    for run in runs {
        let Some(data) = &run.data else { continue };
        let own = [("Training data", Some(&data.train)), ("Evaluation data", data.eval.as_ref())];
        for (what, set) in own {
            let Some(set) = set else { continue };
            match sets.iter_mut().find(|(of, other, _)| *of == what && *other == set) {
                Some((_, _, names)) => names.push(&run.name),
                None => sets.push((what, set, vec![&run.name])),
            }
        }
    }
    let view = |(what, set, names): (&'static str, &DatasetStats, Vec<&str>)| {
        let title = if names.len() == runs.len() {
            what.to_owned()
        } else {
            format!("{what}: {}", names.join(", "))
        };
        DataView { title, facts: facts(set), chart: lengths(set) }
    };
    sets.into_iter().map(view).collect()
}

fn facts(set: &DatasetStats) -> String {
    let count = |n: usize| scale::grouped(n as f64);
    let share = 100.0 * set.supervised_tokens as f64 / set.tokens.max(1) as f64;
    let mut facts = vec![
        format!("{} examples", count(set.examples)),
        format!("{} tokens, {share:.0} % supervised", count(set.tokens)),
        format!("longest {}", count(set.longest)),
    ];
    if set.truncated > 0 {
        facts.push(format!("{} cut", count(set.truncated)));
    }
    if set.dropped > 0 {
        facts.push(format!("{} dropped", count(set.dropped)));
    }
    facts.join(" · ")
}

fn lengths(set: &DatasetStats) -> Option<Chart> {
    let bars: Vec<_> = set
        .lengths
        .iter()
        .map(|bin| {
            let of = |n: usize| scale::grouped(n as f64);
            let label =
                format!("{} to {} tokens: {} examples", of(bin.from), of(bin.to), of(bin.count));
            (bin.from as f64 - 1.0, bin.to as f64, bin.count as f64, label)
        })
        .collect();
    let titles = Titles {
        id: "lengths",
        title: "Lengths",
        unit: "examples by their number of tokens",
        x: "tokens",
        spacing: Spacing::Linear,
        may_be_log: false,
        is_wide: false,
    };
    Chart::bars(&titles, &bars)
}

#[cfg(test)]
mod tests;
