//! The fingerprint of a data set: equal fingerprints mean equal batches.

use rayon::prelude::*;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::dataset::Dataset;

/// Examples that one thread hashes at a time.
const PART: usize = 4096;

impl Dataset {
    /// A hash (XXH3, 128 bits) of everything that order and content of batches depend on: tokens, loss masks, lengths,
    /// and the weights of a mixture. Files and lines of the rows don't matter.
    pub fn fingerprint(&self) -> u128 {
        let examples = self.examples.len();
        let parts: Vec<u128> = (0..examples.div_ceil(PART))
            .into_par_iter()
            .map(|part| {
                let mut hasher = Xxh3::new();
                for index in part * PART..examples.min((part + 1) * PART) {
                    self.hash_example(index, &mut hasher);
                }
                hasher.digest128()
            })
            .collect();
        let mut all: Vec<u8> = parts.iter().flat_map(|part| part.to_le_bytes()).collect();
        let mut number = |n: u64| all.extend(n.to_le_bytes());
        number(self.max_length.map_or(0, |max| max.get() as u64));
        for share in &self.shares {
            number(share.examples as u64);
            number(share.weight.to_bits());
        }
        xxh3_128(&all)
    }

    fn hash_example(&self, index: usize, hasher: &mut Xxh3) {
        let view = self.examples.view(index);
        let mut number = |n: u64| hasher.update(&n.to_le_bytes());
        number(view.ids.len() as u64);
        number(u64::from(view.is_document));
        for id in view.ids {
            hasher.update(&id.to_le_bytes());
        }
        // Ranges rather than flags, so that the hash is the same for examples in memory and in token files.
        let mut last = None;
        for (token, weight) in view.supervised_in(0..view.ids.len()) {
            if last != Some((token, weight)) {
                for number in [token as u64, u64::from(weight.to_bits())] {
                    hasher.update(&number.to_le_bytes());
                }
                let end = last.map_or(0, |(end, _)| end as u64);
                hasher.update(&end.to_le_bytes());
            }
            last = Some((token + 1, weight));
        }
        hasher.update(&last.map_or(0, |(end, _)| end as u64).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::example::Example;
    use crate::examples::Examples;
    use crate::location::Source;
    use crate::order::Share;
    use crate::summary::Summary;

    fn example(ids: &[u32], loss_mask: &[bool]) -> Example {
        Example {
            ids: ids.to_vec(),
            loss_mask: loss_mask.to_vec(),
            weights: Vec::new(),
            source: Source::new("x", 1),
            truncated: false,
            is_document: false,
        }
    }

    fn of(examples: Vec<Example>) -> Dataset {
        let examples = Examples::from(examples);
        let (summary, max_length) = (Summary::default(), NonZeroUsize::new(8));
        Dataset { examples, summary, max_length, shares: Vec::new() }
    }

    #[test]
    fn whatever_changes_a_batch_changes_the_fingerprint() {
        let (a, b) = (example(&[1, 2, 3], &[false, true, true]), example(&[4, 5], &[false, true]));
        let base = of(vec![a.clone(), b.clone()]);
        let mut elsewhere = a.clone();
        elsewhere.source = Source::new("y", 7);
        assert_eq!(base.fingerprint(), of(vec![elsewhere, b.clone()]).fingerprint());

        let mut document = a.clone();
        document.is_document = true;
        let mut weighted = a.clone();
        weighted.weights = vec![0.0, 0.5, 1.0];
        let others = [
            of(vec![b.clone(), a.clone()]),
            of(vec![a.clone()]),
            of(vec![document, b.clone()]),
            of(vec![weighted, b.clone()]),
            of(vec![example(&[1, 2, 4], &[false, true, true]), b.clone()]),
            of(vec![example(&[1, 2, 3], &[false, false, true]), b.clone()]),
            of(vec![example(&[1, 2, 3], &[true, false, true]), b.clone()]),
            // The same tokens, split between the examples elsewhere.
            of(vec![example(&[1, 2], &[false, true]), example(&[3, 4, 5], &[true, false, true])]),
            Dataset { max_length: NonZeroUsize::new(9), ..base.clone() },
            Dataset { shares: vec![Share { examples: 2, weight: 0.5 }], ..base.clone() },
        ];
        let mut prints: Vec<u128> = others.iter().map(Dataset::fingerprint).collect();
        prints.push(base.fingerprint());
        prints.sort_unstable();
        prints.dedup();
        assert_eq!(prints.len(), others.len() + 1);
    }
}
