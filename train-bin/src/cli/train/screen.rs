//! Progress of a run on stderr: lines, and in a terminal a progress bar below them.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::format_event::format_event;
use crate::cli::color;
use crate::memory::footprint::Size;
use crate::run::Event;
use crate::run::metrics::row::StepRow;

/// The bar is cut off at the terminal's width, so what matters most is first.
const TEMPLATE: &str = "{bar:24.cyan/dim} {percent:>3} %  {pos}/{len}  {eta} left  {wide_msg}";

/// The lines and the bar.
pub(super) struct Screen {
    bar: ProgressBar,
    quiet: bool,
    log_every: u64,
    /// Whether a step of this process was shown.
    has_started: bool,
}

impl Screen {
    pub(super) fn new(quiet: bool, log_every: u64) -> Self {
        Self { bar: ProgressBar::hidden(), quiet, log_every, has_started: false }
    }

    pub(super) fn show(&mut self, event: &Event<'_>) {
        if self.quiet {
            return;
        }
        if let Event::Step { row } = event {
            self.bar.set_position(row.metrics.step);
            if !self.has_started {
                // Steps before a resume must not count in the estimate of the time left.
                self.bar.reset_eta();
                self.has_started = true;
            }
            self.bar.set_message(message(row));
        }
        if let Some(lines) = format_event(event, self.log_every, color::on_stderr()) {
            self.bar.suspend(|| eprintln!("{lines}"));
        }
        if let Event::Model { plan, .. } = event {
            self.bar = bar(plan.steps);
        }
    }

    pub(super) fn close(&self) {
        self.bar.finish_and_clear();
    }
}

/// Hidden if stderr is not a terminal.
fn bar(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
        bar.set_style(style.progress_chars("━╸─"));
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn message(row: &StepRow) -> String {
    let StepRow { metrics, tokens_per_s, peak_memory_mib } = row;
    let (loss, rate) = (metrics.loss, metrics.learning_rate);
    let mut message = format!("loss {loss:.4}  lr {rate:.2e}  {tokens_per_s:.0} tokens/s");
    if let Some(peak) = peak_memory_mib {
        message += &format!("  {}", Size(peak << 20));
    }
    message
}

#[cfg(test)]
mod tests {
    use crate::trainer::metrics::StepMetrics;
    use indicatif::{InMemoryTerm, ProgressDrawTarget};

    use super::*;

    fn row(loss: f64, learning_rate: f64, tokens_per_s: f64, peak_mib: u64) -> StepRow {
        let metrics = StepMetrics { loss, learning_rate, ..StepMetrics::default() };
        StepRow { metrics, tokens_per_s, peak_memory_mib: Some(peak_mib) }
    }

    #[test]
    fn the_bar_shows_progress_loss_and_speed() {
        let term = InMemoryTerm::new(10, 110);
        let bar = bar(200);
        bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(term.clone())));
        bar.set_position(50);
        bar.set_message(message(&row(2.345_67, 1.5e-4, 432.1, 2500)));
        bar.tick();
        let shown = term.contents();
        for part in ["25 %", "50/200", "left", "loss 2.3457", "lr 1.50e-4", "432 tokens/s", "GiB"] {
            assert!(shown.contains(part), "no {part:?} in {shown:?}");
        }
    }

    #[test]
    fn a_narrow_terminal_cuts_the_end() {
        let term = InMemoryTerm::new(10, 70);
        let bar = bar(200);
        bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(term.clone())));
        bar.set_message(message(&row(2.0, 1e-4, 1.0, 100)));
        bar.set_position(1);
        bar.tick();
        let shown = term.contents();
        assert_eq!(shown.lines().count(), 1, "{shown}");
        assert!(shown.contains("left") && !shown.contains("MiB"), "{shown}");
    }
}
