//! The run as it goes, on stderr: lines, and below them a bar where there is a terminal.

use std::time::Duration;

use crate::memory::footprint::Size;
use crate::memory::peak_memory_mib;
use crate::run::Event;
use indicatif::{ProgressBar, ProgressStyle};

use super::said::said;
use crate::cli::color;

/// What is on it is cut off at the terminal's width; what matters most comes first.
const TEMPLATE: &str = "{bar:24.cyan/dim} {percent:>3} %  {pos}/{len}  {eta} left  {wide_msg}";

/// Lines and a bar.
pub(super) struct Screen {
    bar: ProgressBar,
    quiet: bool,
    log_every: u64,
    /// Whether a step was shown: a run that goes on doesn't begin at the first one.
    has_begun: bool,
}

impl Screen {
    pub(super) fn new(quiet: bool, log_every: u64) -> Self {
        Self { bar: ProgressBar::hidden(), quiet, log_every, has_begun: false }
    }

    pub(super) fn show(&mut self, event: &Event<'_>) {
        if self.quiet {
            return;
        }
        if let Event::Step { log, tokens_per_s } = event {
            let peak = peak_memory_mib();
            self.bar.set_position(log.step);
            if !self.has_begun {
                // Steps of an earlier part say nothing of how fast this one is.
                self.bar.reset_eta();
                self.has_begun = true;
            }
            self.bar.set_message(message(log.loss, log.learning_rate, *tokens_per_s, peak));
        }
        if let Some(lines) = said(event, self.log_every, color::on_stderr()) {
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

/// Hidden where stderr is no terminal.
fn bar(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
        bar.set_style(style.progress_chars("━╸─"));
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn message(loss: f64, rate: f64, tokens_per_s: f64, peak_mib: Option<u64>) -> String {
    let mut message = format!("loss {loss:.4}  rate {rate:.2e}  {tokens_per_s:.0} tokens/s");
    if let Some(peak) = peak_mib {
        message += &format!("  {}", Size(peak << 20));
    }
    message
}

#[cfg(test)]
mod tests {
    use indicatif::{InMemoryTerm, ProgressDrawTarget};

    use super::*;

    #[test]
    fn the_bar_says_how_far_how_well_and_how_fast() {
        let term = InMemoryTerm::new(10, 110);
        let bar = bar(200);
        bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(term.clone())));
        bar.set_position(50);
        bar.set_message(message(2.345_67, 1.5e-4, 432.1, Some(2500)));
        bar.tick();
        let shown = term.contents();
        for part in ["25 %", "50/200", "left", "loss 2.3457", "rate 1.50e-4", "432 tokens/s", "GiB"]
        {
            assert!(shown.contains(part), "no {part:?} in {shown:?}");
        }
    }

    #[test]
    fn a_narrow_terminal_cuts_what_matters_least() {
        let term = InMemoryTerm::new(10, 70);
        let bar = bar(200);
        bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(term.clone())));
        bar.set_message(message(2.0, 1e-4, 1.0, Some(100)));
        bar.set_position(1);
        bar.tick();
        let shown = term.contents();
        assert_eq!(shown.lines().count(), 1, "{shown}");
        assert!(shown.contains("left") && !shown.contains("MiB"), "{shown}");
    }
}
