//! What is said of a run as it goes, line by line, wherever the lines are shown.

use crate::config::shown;
use crate::memory::footprint::Size;
use crate::run::Event;
use crate::run::prepare::Drawn;
use crate::trainer::train::{Spike, StepLog};
use emberlm_data::{CacheEvent, Layout};

use crate::cli::plan::proposals;

/// The lines about an event; none for one that nothing is said of. `ansi`: whether colours can be shown.
pub(super) fn said(event: &Event<'_>, log_every: u64, ansi: bool) -> Option<String> {
    Some(match event {
        Event::Skipped { faults } => format!("skipped   {faults}"),
        Event::Cache(event) => match event {
            CacheEvent::Found { path } => format!("tokens    found in {}", shown(path).display()),
            CacheEvent::Written { path } => {
                format!("tokens    written to {}", shown(path).display())
            }
            CacheEvent::Damaged { path, why } => {
                format!("warning: {} {why}; it is made again", shown(path).display())
            }
        },
        Event::Data { train, eval, mixture, preview } => {
            let mut lines = vec![format!("data      {train}")];
            for Drawn { paths, examples, draws } in *mixture {
                let names: Vec<_> =
                    paths.iter().map(|path| shown(path).display().to_string()).collect();
                let names = names.join(", ");
                lines.push(format!(
                    "mixture   {draws} draws an epoch from {examples} examples of {names}"
                ));
            }
            lines.extend(eval.map(|eval| format!("held out  {eval}")));
            let example = indented(&preview(ansi));
            lines.push(format!("example, its trained part marked:\n{example}\n"));
            lines.join("\n")
        }
        Event::Memory { need } => {
            let (total, free) = (Size(need.footprint.total()), need.available.map(Size));
            let mut text = match free {
                Some(free) => format!("memory    about {total} needed, {free} free"),
                None => format!("memory    about {total} needed"),
            };
            if !need.fits() {
                let proposals = proposals(&need.proposals);
                text += &format!(
                    "\nwarning: this may not fit. What would help, one after another:\n{proposals}"
                );
            }
            text
        }
        Event::Model { backend, count, plan, rows } => {
            let what = match plan.layout {
                Layout::Packed => format!("packed rows, {rows} an epoch"),
                _ => "examples".to_owned(),
            };
            format!(
                "training {} of {} parameters ({:.2} %) on {backend}: {} steps of {} × {} {what}",
                grouped(count.trainable),
                grouped(count.total),
                100.0 * count.trainable as f64 / count.total as f64,
                plan.steps,
                plan.grad_accumulation,
                plan.micro_batch_size,
            )
        }
        Event::BatchDebug { inside } => inside.to_string(),
        Event::Warning { what } => format!("warning: {what}"),
        Event::Damaged { why } => {
            why.iter().map(|why| format!("warning: {why}")).collect::<Vec<_>>().join("\n")
        }
        Event::Resumed { from: None, .. } => {
            "resume    no checkpoint yet: from the beginning".into()
        }
        Event::Resumed { from: Some(path), step, changes } => {
            let mut lines =
                vec![format!("resume    after step {step}, from {}", shown(path).display())];
            lines.extend(changes.iter().map(|change| format!("changed   {change}")));
            lines.join("\n")
        }
        Event::Evaluated { step, evaluation, is_best } => format!(
            "step {step:>5}  held-out loss {:.4}  perplexity {:.2}{}",
            evaluation.loss,
            evaluation.perplexity,
            if *is_best { "  (best so far)" } else { "" }
        ),
        Event::Answered { .. } => return None,
        Event::Step { log, tokens_per_s } => {
            let mut lines = warnings(log);
            if log.step.is_multiple_of(log_every) {
                lines.push(format!(
                    "step {:>5}  epoch {:>6.2}  loss {:.4}  grad norm {:.3}  rate {:.2e}  {:.0} tokens/s  padding {:.0} %",
                    log.step,
                    log.epoch,
                    log.loss,
                    log.grad_norm,
                    log.learning_rate,
                    tokens_per_s,
                    100.0 * log.padding,
                ));
            }
            if lines.is_empty() {
                return None;
            }
            lines.join("\n")
        }
        Event::Saved { path } => format!("saved     {}", shown(path).display()),
    })
}

/// What looks wrong about a step.
fn warnings(log: &StepLog) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(Spike { unusual, examples }) = &log.spike {
        let named: Vec<String> =
            examples.iter().map(|(at, loss)| format!("{at} ({loss:.3})")).collect();
        lines.push(format!(
            "warning: step {}: loss {:.4} is far above the {:.4} ± {:.4} before; the highest losses: {}",
            log.step,
            unusual.loss,
            unusual.mean,
            unusual.deviation,
            named.join(", ")
        ));
    }
    if let Some(why) = &log.skipped {
        lines.push(format!("warning: the weights stay as they are. {why}"));
    }
    lines
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  │ {line}")).collect::<Vec<_>>().join("\n")
}

/// `1234567` as `1 234 567`.
pub(super) fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut grouped = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    grouped
}
