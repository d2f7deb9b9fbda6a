//! Event files for TensorBoard, with `train.tensorboard = true`.

use std::io;

use crate::config::RunConfig;
use crate::run::Event;
use crate::run::metrics::tensorboard::RunEvents;

/// Writes event files until an error.
pub(super) struct Curves {
    events: Option<RunEvents>,
    failure: Option<io::Error>,
}

impl Curves {
    pub(super) fn new(config: &RunConfig, resumed: bool) -> Self {
        let events = config.train.tensorboard;
        let events = events.then(|| RunEvents::new(&config.train.output_dir, resumed));
        Self { events, failure: None }
    }

    pub(super) fn record(&mut self, event: &Event<'_>) {
        let Some(events) = &mut self.events else { return };
        if let Err(error) = events.record(event) {
            // The run continues without them: metrics.jsonl has the same metrics.
            self.failure = Some(error);
            self.events = None;
        }
    }

    /// Prints the error, once the screen is free.
    pub(super) fn close(&self) {
        if let Some(error) = &self.failure {
            eprintln!("warning: writing TensorBoard event files stopped: {error}");
        }
    }
}
