//! Reports: an HTML page on one run or several, made from their folders alone.
//!
//! The page is self-contained, loads nothing from a network, and is complete without its script, which adds values at the
//! pointer and a switch between light and dark.

mod chart;
mod config_view;
mod error;
mod read;
mod samples;
mod scale;
mod summary;
mod sweep;
mod templates;
mod thin;

pub use error::ReportError;
pub use sweep::sweep_page;

use std::path::PathBuf;

use indicatif::HumanCount;
use minijinja::context;
use serde::Serialize;

use crate::run::dataset_stats::DatasetStats;
use chart::{Chart, Curve, LineStyle, Titles, classes};
use read::RunData;
use scale::Spacing;
use templates::environment;

/// A run on the page.
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

/// A data set on the page.
#[derive(Debug, Serialize)]
struct DataView {
    /// Its title, with the names of its runs.
    title: String,
    facts: String,
    chart: Option<Chart>,
}

/// The report on runs, as the text of an HTML page. It depends on the folders alone.
///
/// Missing and damaged files are noted on the page.
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
        // Rates, speeds and memory have a linear axis.
        let may_be_log = is_wide || id == "norm";
        Titles { id, title, unit, x: "step", spacing: Spacing::Linear, may_be_log, is_wide }
    };
    let of_runs = |line_style, points: &dyn Fn(&RunData) -> Vec<thin::Point>| -> Vec<Curve> {
        let curve = |(style, run): (usize, &RunData)| Curve {
            label: if runs.len() == 1 { String::new() } else { run.name.clone() },
            style,
            points: points(run),
            line_style,
        };
        runs.iter().enumerate().map(curve).collect()
    };
    let by_step = |line_style, name: &str| of_runs(line_style, &|run| run.curve(name));
    let mut losses = by_step(LineStyle::Smoothed, "loss");
    let mut evals = of_runs(LineStyle::Dotted, &RunData::eval_curve);
    let nats = "nats per token";
    let mut charts = Vec::new();
    if let ([loss], [eval]) = (&mut losses[..], &mut evals[..]) {
        // For a single run, one chart shows overfitting.
        loss.label = "training".to_owned();
        eval.label = "evaluation".to_owned();
        eval.style = 1;
        losses.append(&mut evals);
        charts.push(Chart::of(&titles("loss", "Loss", nats, true), &losses));
    } else {
        charts.push(Chart::of(&titles("loss", "Training loss", nats, true), &losses));
        charts.push(Chart::of(&titles("eval", "Evaluation loss", nats, true), &evals));
    }
    let norms = by_step(LineStyle::Smoothed, "grad_norm");
    let rates = by_step(LineStyle::Plain, "learning_rate");
    let speeds = by_step(LineStyle::Smoothed, "tokens_per_s");
    charts.push(Chart::of(&titles("norm", "Gradient norm", "before clipping", false), &norms));
    charts.push(Chart::of(&titles("rate", "Learning rate", "", false), &rates));
    charts.push(Chart::of(&titles("speed", "Throughput", "tokens/s", false), &speeds));
    let mut memory = by_step(LineStyle::Plain, "peak_memory_mib");
    let in_gib = memory.iter().flat_map(|curve| &curve.points).any(|(_, mib)| *mib >= 4096.0);
    if in_gib {
        memory.iter_mut().flat_map(|curve| &mut curve.points).for_each(|(_, mib)| *mib /= 1024.0);
    }
    let unit = if in_gib { "GiB, peak so far" } else { "MiB, peak so far" };
    charts.push(Chart::of(&titles("memory", "Memory", unit, false), &memory));
    charts.into_iter().flatten().collect()
}

/// The data sets of the runs, each once.
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
    let count = |n: usize| HumanCount(n as u64);
    let share = 100.0 * set.supervised_tokens as f64 / set.tokens.max(1) as f64;
    let mut facts = vec![
        format!("{} examples", count(set.examples)),
        format!("{} tokens, {share:.0} % supervised", count(set.tokens)),
        format!("longest {} tokens", count(set.longest)),
    ];
    if set.truncated > 0 {
        facts.push(format!("{} truncated", count(set.truncated)));
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
            let of = |n: usize| HumanCount(n as u64);
            let label =
                format!("{} to {} tokens: {} examples", of(bin.from), of(bin.to), of(bin.count));
            (bin.from as f64 - 1.0, bin.to as f64, bin.count as f64, label)
        })
        .collect();
    let titles = Titles {
        id: "lengths",
        title: "Lengths",
        unit: "examples by number of tokens",
        x: "tokens",
        spacing: Spacing::Linear,
        may_be_log: false,
        is_wide: false,
    };
    Chart::bars(&titles, &bars)
}

#[cfg(test)]
mod tests;
