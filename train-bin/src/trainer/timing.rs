//! Timing the phases of a step.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Where the time of a step goes. StepPhases add up over micro-batches; on a GPU the work of one may show up in the next.
#[derive(Debug, Default)]
pub struct StepPhases {
    /// Blocks, forward.
    pub forward: Cell<Duration>,
    /// Final norm, head and loss, forward and backward.
    pub head: Cell<Duration>,
    /// Blocks, backward, recomputation included.
    pub backward: Cell<Duration>,
}

/// Runs `work` and adds its duration to `phase`.
pub(crate) fn timed<R>(phase: Option<&Cell<Duration>>, work: impl FnOnce() -> R) -> R {
    let Some(phase) = phase else { return work() };
    let started = Instant::now();
    let result = work();
    phase.set(phase.get() + started.elapsed());
    result
}
