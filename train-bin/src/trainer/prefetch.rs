//! Preparing the micro-batches of the next step during the present one.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};

use emberlm_data::{Batch, Dataset, Loader};

use crate::trainer::plan::{DataPosition, Plan};

/// The steps of a plan in order: each with its micro-batches and the data position after it.
///
/// A thread prepares them, up to two steps ahead: shuffling an epoch and reading pages of a token file happen there. The
/// result doesn't depend on timing.
pub(crate) struct Prefetch {
    steps: Receiver<(Vec<Batch>, DataPosition)>,
    worker: Option<JoinHandle<()>>,
}

impl Prefetch {
    /// The steps from `first` on, with rows from `position` on.
    pub(crate) fn new(
        loader: Arc<Loader>,
        data: &Dataset,
        pad_id: u32,
        plan: &Plan,
        first: u64,
        mut position: DataPosition,
    ) -> Self {
        let (send, steps) = sync_channel(1);
        // Examples are shared, not copied.
        let (data, plan) = (data.clone(), plan.clone());
        let worker = thread::spawn(move || {
            for _ in first..plan.steps {
                let batches;
                (batches, position) = micro_batches(&loader, &data, pad_id, &plan, position);
                if send.send((batches, position)).is_err() {
                    // The receiver was dropped.
                    return;
                }
            }
        });
        Self { steps, worker: Some(worker) }
    }
}

impl Iterator for Prefetch {
    type Item = (Vec<Batch>, DataPosition);

    fn next(&mut self) -> Option<Self::Item> {
        if let Ok(step) = self.steps.recv() {
            return Some(step);
        }
        // Either the last step was prepared, or the thread panicked, which must not look like the end.
        if let Some(Err(panic)) = self.worker.take().map(JoinHandle::join) {
            resume_unwind(panic);
        }
        None
    }
}

/// The micro-batches of the step at `position`, and the position after it.
fn micro_batches(
    loader: &Loader,
    data: &Dataset,
    pad_id: u32,
    plan: &Plan,
    position: DataPosition,
) -> (Vec<Batch>, DataPosition) {
    let count = plan.rows_per_step().min(plan.rows.saturating_sub(position.rows));
    let (rows, cursor) = loader.take(position.cursor, count as usize);
    let after = DataPosition { rows: position.rows + count, cursor };
    let collate = |rows: &[_]| Batch::of_rows(rows, &data.examples, pad_id);
    (rows.chunks(plan.micro_batch_size).map(collate).collect(), after)
}

#[cfg(test)]
mod tests {
    use emberlm_data::ExampleOptions;

    use super::*;
    use crate::base::builtin;

    #[test]
    fn prefetched_steps_equal_those_prepared_on_demand_from_any_position() {
        let base = builtin::base().unwrap();
        let rows = builtin::train_rows().unwrap();
        let data = Dataset::build(rows, &base.tokenizer, &ExampleOptions::default()).unwrap();
        // More than an epoch, and a last step that is shorter.
        let steps = data.examples.len() as u64 / 6 + 3;
        let plan = Plan { grad_accumulation: 3, rows: steps * 6 - 1, ..Plan::new(steps, 2, 1e-3) };
        let loader = Arc::new(plan.loader(&data));
        let ahead = Prefetch::new(loader.clone(), &data, 0, &plan, 0, DataPosition::default());
        let all: Vec<_> = ahead.collect();
        assert_eq!(all.len() as u64, steps);
        let mut position = DataPosition::default();
        for made in &all {
            let expected = micro_batches(&loader, &data, 0, &plan, position);
            assert_eq!(*made, expected);
            position = expected.1;
        }
        assert_eq!(all.last().unwrap().0.iter().map(|batch| batch.rows).sum::<usize>(), 5);
        let later = Prefetch::new(loader.clone(), &data, 0, &plan, 4, all[3].1);
        assert!(later.eq(all[4..].iter().cloned()));
        // Dropped early, it ends its thread.
        let mut left = Prefetch::new(loader, &data, 0, &plan, 0, DataPosition::default());
        left.next();
        let worker = left.worker.take().unwrap();
        drop(left);
        worker.join().unwrap();
    }
}
