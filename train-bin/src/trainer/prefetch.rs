//! The micro-batches of the next step, made while this one runs.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};

use emberlm_data::{Batch, Dataset, Loader};

use crate::trainer::train::{DataPosition, Plan};

/// The steps of a plan, in order: each with its micro-batches, and where in the stream of rows the next one begins.
///
/// A thread makes them, one step ahead and one in the making: it is there that the order of an epoch is made, and that
/// pages of a token file are read. What is made doesn't depend on it.
pub(crate) struct Prefetch {
    made: Receiver<(Vec<Batch>, DataPosition)>,
    maker: Option<JoinHandle<()>>,
}

impl Prefetch {
    /// The steps from `first` on, whose rows begin at `place`.
    pub(crate) fn new(
        loader: Arc<Loader>,
        data: &Dataset,
        pad_id: u32,
        plan: &Plan,
        first: u64,
        mut place: DataPosition,
    ) -> Self {
        let (send, made) = sync_channel(1);
        // Examples are shared, not copied.
        let (data, plan) = (data.clone(), plan.clone());
        let maker = thread::spawn(move || {
            for _ in first..plan.steps {
                let batches;
                (batches, place) = micro_batches(&loader, &data, pad_id, &plan, place);
                if send.send((batches, place)).is_err() {
                    // Nobody waits any more.
                    return;
                }
            }
        });
        Self { made, maker: Some(maker) }
    }
}

impl Iterator for Prefetch {
    type Item = (Vec<Batch>, DataPosition);

    fn next(&mut self) -> Option<Self::Item> {
        if let Ok(made) = self.made.recv() {
            return Some(made);
        }
        // The last step was made, or making one failed: that must not look like the end.
        if let Some(Err(panic)) = self.maker.take().map(JoinHandle::join) {
            resume_unwind(panic);
        }
        None
    }
}

/// The micro-batches of the step that begins at `place`, and where the next one does.
fn micro_batches(
    loader: &Loader,
    data: &Dataset,
    pad_id: u32,
    plan: &Plan,
    place: DataPosition,
) -> (Vec<Batch>, DataPosition) {
    let count = plan.rows_per_step().min(plan.rows.saturating_sub(place.rows));
    let (rows, cursor) = loader.take(place.cursor, count as usize);
    let after = DataPosition { rows: place.rows + count, cursor };
    let collate = |rows: &[_]| Batch::of_rows(rows, &data.examples, pad_id);
    (rows.chunks(plan.micro_batch_size).map(collate).collect(), after)
}

#[cfg(test)]
mod tests {
    use emberlm_data::ExampleOptions;

    use super::*;
    use crate::base::builtin;

    #[test]
    fn what_is_made_ahead_is_what_each_step_takes_from_anywhere_on() {
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
        let mut place = DataPosition::default();
        for made in &all {
            let expected = micro_batches(&loader, &data, 0, &plan, place);
            assert_eq!(*made, expected);
            place = expected.1;
        }
        assert_eq!(all.last().unwrap().0.iter().map(|batch| batch.rows).sum::<usize>(), 5);
        let later = Prefetch::new(loader.clone(), &data, 0, &plan, 4, all[3].1);
        assert!(later.eq(all[4..].iter().cloned()));
        // Left before its end, it ends.
        let mut left = Prefetch::new(loader, &data, 0, &plan, 0, DataPosition::default());
        left.next();
        let maker = left.maker.take().unwrap();
        drop(left);
        maker.join().unwrap();
    }
}
