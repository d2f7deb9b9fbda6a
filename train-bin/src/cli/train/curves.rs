//! Event files for TensorBoard, where they are asked for.

use std::io;

use crate::config::RunConfig;
use crate::run::Event;
use crate::run::metrics::tensorboard::RunEvents;

/// Writes events until one can't be written.
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

    pub(super) fn take(&mut self, event: &Event<'_>) {
        let Some(events) = &mut self.events else { return };
        if let Err(error) = events.take(event) {
            // The run is worth more than its curves, and metrics.jsonl has them too.
            self.failure = Some(error);
            self.events = None;
        }
    }

    /// Says what went wrong, once the screen is free.
    pub(super) fn close(&self) {
        if let Some(error) = &self.failure {
            eprintln!("warning: no more event files for TensorBoard were written: {error}");
        }
    }
}
