//! The order of the examples in an epoch: a pure function of seed and epoch, so that a run can resume at any step.
//!
//! Without shares an epoch has every example once. With shares (a mixture of sources) an epoch has as many draws as
//! there are examples in all, divided among the sources by weight. Each source is drawn from in one shuffled order after
//! another, so no example repeats before all others of its source were drawn, even across epochs.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A source of a mixture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// Number of its examples. Their indices continue from source to source.
    pub examples: usize,
    /// Relative weight of drawing from it; finite and greater than 0.
    pub weight: f64,
}

/// The purpose of a stream of random numbers: each purpose has its own stream.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    /// The order of the examples (of a source).
    Examples = 0,
    /// The order of rows or groups of them.
    Rows = 1,
    /// The source of each draw of a mixture.
    Sources = 2,
}

/// The orders of all epochs.
#[derive(Debug)]
pub(crate) struct Order {
    seed: u64,
    shuffle: bool,
    sources: Vec<Source>,
}

#[derive(Debug)]
struct Source {
    /// Index of its first example.
    first: usize,
    examples: usize,
    /// Draws from it in an epoch.
    draws: usize,
}

impl Order {
    /// Each of `examples` examples once per epoch.
    pub(crate) fn plain(examples: usize, seed: u64, shuffle: bool) -> Self {
        let sources = vec![Source { first: 0, examples, draws: examples }];
        Self { seed, shuffle, sources }
    }

    /// A mixture with `draws` draws per epoch.
    pub(crate) fn mixed(shares: &[Share], draws: usize, seed: u64, shuffle: bool) -> Self {
        let mut first = 0;
        let sources = draws_of(shares, draws).into_iter().zip(shares).map(|(draws, share)| {
            first += share.examples;
            Source { first: first - share.examples, examples: share.examples, draws }
        });
        Self { seed, shuffle, sources: sources.collect() }
    }

    /// Whether every epoch has the same examples.
    pub(crate) fn is_plain(&self) -> bool {
        self.sources.len() == 1
    }

    /// Draws of an epoch from each source.
    pub(crate) fn draws(&self) -> Vec<usize> {
        self.sources.iter().map(|source| source.draws).collect()
    }

    /// The examples of an epoch, in their order.
    pub(crate) fn epoch(&self, epoch: u64) -> Vec<usize> {
        let drawn: Vec<Vec<usize>> =
            (0..self.sources.len()).map(|source| self.drawn(source, epoch)).collect();
        let mut places = interleaved(&self.sources);
        if self.shuffle && places.len() > 1 && self.sources.len() > 1 {
            shuffle(&mut places, self.seed, epoch, Purpose::Sources, 0);
        }
        let mut next = vec![0; self.sources.len()];
        let draw = |source: usize| {
            next[source] += 1;
            drawn[source][next[source] - 1]
        };
        places.into_iter().map(draw).collect()
    }

    /// The examples drawn from a source in an epoch: the next ones of its stream.
    fn drawn(&self, source: usize, epoch: u64) -> Vec<usize> {
        let Source { first, examples, draws } = self.sources[source];
        let mut drawn = Vec::with_capacity(draws);
        if examples == 0 {
            return drawn;
        }
        let place = epoch as u128 * draws as u128;
        let mut round = (place / examples as u128) as u64;
        // Less than the number of examples, which is a usize.
        let mut from = (place % examples as u128) as usize;
        while drawn.len() < draws {
            let to = examples.min(from + draws - drawn.len());
            let mut order: Vec<usize> = (first..first + examples).collect();
            if self.shuffle {
                shuffle(&mut order, self.seed, round, Purpose::Examples, source as u64);
            }
            drawn.extend_from_slice(&order[from..to]);
            round += 1;
            from = 0;
        }
        drawn
    }
}

/// Divides `draws` among the sources by weight, into whole numbers with that sum. Each differs by less than one from its
/// exact share, except that a source which would get none gets one.
pub(crate) fn draws_of(shares: &[Share], draws: usize) -> Vec<usize> {
    let drawable = |share: &Share| if share.examples == 0 { 0.0 } else { share.weight };
    let total: f64 = shares.iter().map(drawable).sum();
    if total <= 0.0 {
        return vec![0; shares.len()];
    }
    let exact: Vec<f64> =
        shares.iter().map(|share| draws as f64 * (drawable(share) / total)).collect();
    let mut counts: Vec<usize> = exact.iter().map(|exact| exact.floor() as usize).collect();
    // With rounding errors, the sum of the floors can also be too large.
    while counts.iter().sum::<usize>() != draws {
        let lacking = |i: &usize| exact[*i] - counts[*i] as f64;
        let by_lack = |a: &usize, b: &usize| lacking(a).total_cmp(&lacking(b)).then(b.cmp(a));
        let able = (0..shares.len()).filter(|&i| shares[i].examples > 0);
        if counts.iter().sum::<usize>() < draws {
            let Some(most) = able.max_by(by_lack) else { break };
            counts[most] += 1;
        } else {
            let Some(least) = able.filter(|&i| counts[i] > 0).min_by(by_lack) else { break };
            counts[least] -= 1;
        }
    }
    // Each source gets at least one draw, if there are enough.
    for i in 0..counts.len() {
        let richest = (0..counts.len()).max_by_key(|&i| counts[i]);
        if let Some(richest) = richest
            && counts[i] == 0
            && shares[i].examples > 0
            && counts[richest] > 1
        {
            counts[richest] -= 1;
            counts[i] += 1;
        }
    }
    counts
}

/// The source of each draw, with the draws of each source evenly spaced.
fn interleaved(sources: &[Source]) -> Vec<usize> {
    let mut places: Vec<(usize, usize)> = Vec::new();
    for (source, &Source { draws, .. }) in sources.iter().enumerate() {
        places.extend((0..draws).map(|draw| (source, draw)));
    }
    // Draw k of n is at (k + 1/2) / n of the epoch.
    let at =
        |&(source, draw): &(usize, usize)| (2 * draw as u128 + 1, sources[source].draws as u128);
    places.sort_by(|a, b| {
        let ((a_over, a_under), (b_over, b_under)) = (at(a), at(b));
        (a_over * b_under).cmp(&(b_over * a_under)).then(a.0.cmp(&b.0))
    });
    places.into_iter().map(|(source, _)| source).collect()
}

/// Fisher-Yates with ChaCha8. Implemented here because a crate's shuffle may change between versions, which would change
/// the order of a resumed run.
pub(crate) fn shuffle<T>(items: &mut [T], seed: u64, epoch: u64, purpose: Purpose, source: u64) {
    let mut key = [0; 32];
    for (slot, number) in key.chunks_mut(8).zip([seed, epoch, purpose as u64, source]) {
        slot.copy_from_slice(&number.to_le_bytes());
    }
    let mut random = ChaCha8Rng::from_seed(key);
    for last in (1..items.len()).rev() {
        let other = below(&mut random, last as u64 + 1) as usize;
        items.swap(last, other);
    }
}

/// A uniform random number below `bound`, by rejecting numbers of the last, incomplete range.
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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_order_is_the_same_in_every_version() {
        // Computed independently, from the definitions of ChaCha8 and Fisher-Yates.
        let order = Order::plain(8, 42, true);
        assert_eq!(order.epoch(0), [3, 6, 0, 4, 5, 2, 1, 7]);
        assert_eq!(order.epoch(1), [0, 4, 5, 7, 2, 3, 6, 1]);
    }

    fn shares(list: &[(usize, f64)]) -> Vec<Share> {
        list.iter().map(|&(examples, weight)| Share { examples, weight }).collect()
    }

    #[test]
    fn draws_follow_the_weights_to_within_one() {
        assert_eq!(draws_of(&shares(&[(100, 1.0), (100, 1.0), (100, 1.0)]), 10), [4, 3, 3]);
        assert_eq!(draws_of(&shares(&[(5, 3.0), (95, 1.0)]), 100), [75, 25]);
        // A rare source is drawn from; an empty one is not.
        assert_eq!(draws_of(&shares(&[(5, 1e-9), (0, 1.0), (95, 1.0)]), 100), [1, 0, 99]);
    }

    #[test]
    fn a_mixture_without_shuffling_is_evenly_spaced() {
        let order = Order::mixed(&shares(&[(4, 1.0), (4, 3.0)]), 8, 0, false);
        assert_eq!(order.epoch(0), [4, 0, 5, 6, 7, 1, 4, 5]);
        // Each source continues where the last epoch ended.
        assert_eq!(order.epoch(1), [6, 2, 7, 4, 5, 3, 6, 7]);
    }

    proptest! {
        #[test]
        fn an_epoch_has_each_example_once(examples in 0usize..200, seed: u64, epoch: u64) {
            let mut order = Order::plain(examples, seed, true).epoch(epoch);
            order.sort_unstable();
            prop_assert_eq!(order, (0..examples).collect::<Vec<_>>());
        }

        #[test]
        fn no_example_repeats_before_its_source_is_exhausted(
            list in prop::collection::vec((1usize..20, 0.01f64..10.0), 2..5),
            seed: u64,
        ) {
            let shares = shares(&list);
            let draws: usize = list.iter().map(|(examples, _)| examples).sum();
            let counts = draws_of(&shares, draws);
            prop_assert_eq!(counts.iter().sum::<usize>(), draws);
            let order = Order::mixed(&shares, draws, seed, true);
            let stream: Vec<usize> = (0..5).flat_map(|epoch| order.epoch(epoch)).collect();
            let mut first = 0;
            for (&(examples, _), count) in list.iter().zip(counts) {
                let drawn: Vec<usize> = stream
                    .iter()
                    .copied()
                    .filter(|index| (first..first + examples).contains(index))
                    .collect();
                prop_assert_eq!(drawn.len(), 5 * count);
                // Within an epoch the draws of a source are in the order of its stream.
                for round in drawn.chunks(examples) {
                    let mut sorted = round.to_vec();
                    sorted.sort_unstable();
                    sorted.dedup();
                    prop_assert_eq!(sorted.len(), round.len(), "no repetition within a round");
                }
                first += examples;
            }
        }
    }
}
