//! Which examples a step takes: a pure function of seed, epoch and place, so that a run resumes anywhere.

use std::sync::{Arc, Mutex, PoisonError};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// The stream of examples: the epochs end to end, each in an order of its own.
#[derive(Debug)]
pub struct Loader {
    examples: usize,
    seed: u64,
    shuffle: bool,
    /// The order of the epoch asked for last: steps ask for the same one many times.
    recent: Mutex<Option<(u64, Arc<[usize]>)>>,
}

impl Loader {
    /// A stream over `examples` examples; in the order of the file if not shuffled.
    pub fn new(examples: usize, seed: u64, shuffle: bool) -> Self {
        Self { examples, seed, shuffle, recent: Mutex::new(None) }
    }

    /// Indices of `count` examples from place `start` of the stream, across the borders of epochs. Empty if there
    /// are no examples.
    pub fn indices(&self, start: u64, count: usize) -> Vec<usize> {
        let mut indices = Vec::new();
        if self.examples == 0 {
            return indices;
        }
        let length = self.examples as u64;
        let mut epoch = start / length;
        // Less than the number of examples, which is a usize.
        let mut from = (start % length) as usize;
        while indices.len() < count {
            let to = self.examples.min(from + count - indices.len());
            if self.shuffle {
                indices.extend_from_slice(&self.order(epoch)[from..to]);
            } else {
                indices.extend(from..to);
            }
            epoch += 1;
            from = 0;
        }
        indices
    }

    fn order(&self, epoch: u64) -> Arc<[usize]> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        match recent.as_ref() {
            Some((known, order)) if *known == epoch => Arc::clone(order),
            _ => {
                let order: Arc<[usize]> = shuffled(self.examples, self.seed, epoch).into();
                *recent = Some((epoch, Arc::clone(&order)));
                order
            }
        }
    }
}

/// Fisher and Yates over ChaCha8, written out: a crate's shuffle may change with its version, and a run that is
/// resumed must not.
fn shuffled(length: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&epoch.to_le_bytes());
    let mut random = ChaCha8Rng::from_seed(key);
    let mut order: Vec<usize> = (0..length).collect();
    for last in (1..length).rev() {
        let other = below(&mut random, last as u64 + 1) as usize;
        order.swap(last, other);
    }
    order
}

/// A number below `bound`, each as likely as the others: numbers of the last, incomplete round are thrown away.
fn below(random: &mut ChaCha8Rng, bound: u64) -> u64 {
    let complete = u64::MAX - u64::MAX % bound;
    loop {
        let number = random.next_u64();
        if number < complete {
            return number % bound;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_epoch_holds_every_example_once_in_its_own_order() {
        let loader = Loader::new(7, 42, true);
        let epochs: Vec<Vec<usize>> = (0..3).map(|epoch| loader.indices(epoch * 7, 7)).collect();
        for epoch in &epochs {
            let mut sorted = epoch.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..7).collect::<Vec<_>>());
        }
        assert_ne!(epochs[0], epochs[1]);
        assert_ne!(epochs[0], Loader::new(7, 43, true).indices(0, 7));
    }

    #[test]
    fn the_stream_resumes_anywhere_and_crosses_epochs() {
        let whole = Loader::new(5, 1, true).indices(0, 23);
        for start in 0..23 {
            assert_eq!(
                Loader::new(5, 1, true).indices(start, 23 - start as usize),
                whole[start as usize..]
            );
        }
        assert_eq!(Loader::new(3, 9, false).indices(2, 5), [2, 0, 1, 2, 0]);
        assert!(Loader::new(0, 0, true).indices(3, 4).is_empty());
    }

    #[test]
    fn the_order_is_the_same_in_every_version() {
        // Computed apart from this code, from the definitions of ChaCha8 and of Fisher and Yates.
        assert_eq!(shuffled(8, 42, 0), [3, 6, 0, 4, 5, 2, 1, 7]);
        assert_eq!(shuffled(8, 42, 1), [0, 4, 5, 7, 2, 3, 6, 1]);
    }
}
