//! A run's events as lines of text, for the terminal and the dashboard.

use emberlm_data::{CacheEvent, Layout, Summary};
use emberlm_lora::walk::ParamCount;
use indicatif::HumanCount;

use crate::cli::plan::proposals;
use crate::config::{Change, shown};
use crate::memory::footprint::{MemoryEstimate, Size};
use crate::run::Event;
use crate::run::metrics::row::StepRow;
use crate::run::prepare::SourceDraws;
use crate::trainer::check::Spike;
use crate::trainer::metrics::StepMetrics;
use crate::trainer::plan::Plan;

/// The lines of an event; `None` for one without any. `ansi`: whether colours can be shown.
pub(super) fn format_event(event: &Event<'_>, log_every: u64, ansi: bool) -> Option<String> {
    Some(match event {
        Event::Skipped { faults } => format!("skipped   {faults}"),
        Event::Cache(event) => cache(event),
        Event::Data { train, eval, mixture, preview } => {
            data(train, *eval, mixture, &preview(ansi), ansi)
        }
        Event::Memory { estimate } => memory(estimate),
        Event::Model { backend, count, plan, rows } => model(backend, count, plan, *rows),
        Event::BatchDebug { batch } => batch.to_string(),
        Event::Warning { text } => format!("warning: {text}"),
        Event::Damaged { errors } => {
            errors.iter().map(|error| format!("warning: {error}")).collect::<Vec<_>>().join("\n")
        }
        Event::Resumed { from: None, .. } => {
            "resume    no checkpoint yet: starting from the beginning".into()
        }
        Event::Resumed { from: Some(path), step, changes } => {
            let mut lines = vec![format!("resume    from step {step}, {}", shown(path).display())];
            lines.extend(changes.iter().map(|change: &Change| format!("changed   {change}")));
            lines.join("\n")
        }
        Event::Evaluated { step, evaluation, is_best } => format!(
            "step {step:>5}  eval loss {:.4}  perplexity {:.2}{}",
            evaluation.loss,
            evaluation.perplexity,
            if *is_best { "  (best so far)" } else { "" }
        ),
        Event::Answered { .. } => return None,
        Event::Step { row } => {
            let mut lines = warnings(&row.metrics);
            if row.metrics.step.is_multiple_of(log_every) {
                lines.push(step(row));
            }
            if lines.is_empty() {
                return None;
            }
            lines.join("\n")
        }
        Event::Saved { path } => format!("saved     {}", shown(path).display()),
    })
}

fn cache(event: &CacheEvent) -> String {
    match event {
        CacheEvent::Found { path } => format!("tokens    found in {}", shown(path).display()),
        CacheEvent::Written { path } => format!("tokens    written to {}", shown(path).display()),
        CacheEvent::Damaged { path, why } => {
            format!("warning: {} {why}; tokenizing again", shown(path).display())
        }
    }
}

fn data(
    train: &Summary,
    eval: Option<&Summary>,
    mixture: &[SourceDraws],
    preview: &str,
    ansi: bool,
) -> String {
    let mut lines = vec![format!("data      {train}")];
    for SourceDraws { paths, examples, draws } in mixture {
        let names: Vec<_> = paths.iter().map(|path| shown(path).display().to_string()).collect();
        let names = names.join(", ");
        lines
            .push(format!("mixture   {draws} draws per epoch from {examples} examples of {names}"));
    }
    lines.extend(eval.map(|eval| format!("eval      {eval}")));
    let mark = if ansi { "green text" } else { "⟦…⟧" };
    lines.push(format!("first example; {mark} is trained on:\n{}\n", indented(preview)));
    lines.join("\n")
}

fn memory(estimate: &MemoryEstimate) -> String {
    let required = Size(estimate.footprint.total());
    let mut text = match estimate.available.map(Size) {
        Some(available) => format!("memory    about {required} required, {available} available"),
        None => format!("memory    about {required} required"),
    };
    if !estimate.fits() {
        let proposals = proposals(&estimate.proposals);
        text +=
            &format!("\nwarning: this may not fit. To reduce memory, in this order:\n{proposals}");
    }
    text
}

fn model(backend: &str, count: &ParamCount, plan: &Plan, rows: u64) -> String {
    let what = match plan.layout {
        Layout::Packed => format!("packed rows, {rows} per epoch"),
        _ => "examples".to_owned(),
    };
    format!(
        "training {} of {} parameters ({:.2} %) on {backend}: {} steps of {} × {} {what}",
        HumanCount(count.trainable as u64),
        HumanCount(count.total as u64),
        100.0 * count.trainable as f64 / count.total as f64,
        plan.steps,
        plan.grad_accumulation,
        plan.micro_batch_size,
    )
}

fn step(row: &StepRow) -> String {
    let StepRow { metrics, tokens_per_s, .. } = row;
    format!(
        "step {:>5}  epoch {:>6.2}  loss {:.4}  grad norm {:.3}  lr {:.2e}  {tokens_per_s:.0} tokens/s  padding {:.0} %",
        metrics.step,
        metrics.epoch,
        metrics.loss,
        metrics.grad_norm,
        metrics.learning_rate,
        100.0 * metrics.padding,
    )
}

/// Warnings about a step.
fn warnings(metrics: &StepMetrics) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(Spike { stats, examples }) = &metrics.spike {
        let examples: Vec<String> =
            examples.iter().map(|(at, loss)| format!("{at} ({loss:.3})")).collect();
        lines.push(format!(
            "warning: step {}: loss spike: {:.4}, previously {:.4} ± {:.4}; examples of the highest loss: {}",
            metrics.step,
            stats.loss,
            stats.mean,
            stats.deviation,
            examples.join(", ")
        ));
    }
    if let Some(why) = &metrics.skipped {
        lines.push(format!("warning: the step is skipped and the weights are unchanged. {why}"));
    }
    lines
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  │ {line}")).collect::<Vec<_>>().join("\n")
}
