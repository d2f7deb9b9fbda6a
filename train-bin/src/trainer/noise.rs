//! NEFTune: noise on the embeddings in training (Jain et al., 2023, arXiv:2310.05914).

use emberlm_data::Batch;
use emberlm_lora::random::{fill_counted, generator};
use rand::RngCore;

/// The noise of one step: each element of an embedded example gets a summand that is uniform in
/// `±alpha / √(tokens of the example · width)`.
///
/// It is a function of seed, step, example and position in the example alone: it does not depend on rows and micro-batches,
/// and a recomputation or a resumed run reproduces it. (An example that occurs twice in one step, or two parts of one
/// document, get the same noise.) The length is that of the example, as in the paper; transformers uses that of the padded
/// batch, which makes the noise depend on the batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EmbeddingNoise {
    /// Strength; the paper tries 5, 10 and 15.
    pub alpha: f64,
    /// The run's seed.
    pub seed: u64,
    /// Optimizer step, from 0.
    pub step: u64,
}

impl EmbeddingNoise {
    /// The summands of a batch's embeddings of this width: `[rows, seq, width]`, row-major; 0 in padding.
    pub fn of(&self, batch: &Batch, width: usize) -> Vec<f32> {
        let Self { alpha, seed, step } = *self;
        let mut noise = vec![0.0; batch.rows * batch.seq * width];
        for (tokens, &example) in batch.ranges().zip(&batch.examples) {
            let bound = alpha / ((tokens.len() * width) as f64).sqrt();
            let start = generator(seed, "neftune", &[step, example as u64]).next_u64();
            let numbers = &mut noise[tokens.start * width..tokens.end * width];
            fill_counted(start, bound as f32, numbers);
        }
        noise
    }
}

#[cfg(test)]
mod tests {
    use emberlm_data::{Example, Examples, Piece, Source};

    use super::*;

    const WIDTH: usize = 5;

    fn examples() -> Examples {
        let example = |tokens: usize| Example {
            ids: vec![3; tokens],
            loss_mask: vec![true; tokens],
            weights: Vec::new(),
            source: Source::new("x", 1),
            truncated: false,
            is_document: false,
        };
        vec![example(4), example(16), example(9)].into()
    }

    fn noise(rows: &[&[usize]], noise: EmbeddingNoise) -> (Batch, Vec<f32>) {
        let examples = examples();
        let piece =
            |&example: &usize| Piece { example, start: 0, end: examples.get(example).ids.len() };
        let rows: Vec<Vec<Piece>> =
            rows.iter().map(|row| row.iter().map(piece).collect()).collect();
        let batch = Batch::of_rows(&rows, &examples, 0);
        let found = noise.of(&batch, WIDTH);
        (batch, found)
    }

    const NOISE: EmbeddingNoise = EmbeddingNoise { alpha: 5.0, seed: 7, step: 3 };

    #[test]
    fn the_noise_of_an_example_does_not_depend_on_the_batch() {
        let (_, packed) = noise(&[&[1, 0, 2]], NOISE);
        let (batch, apart) = noise(&[&[0], &[1], &[2]], NOISE);
        let row = |n: usize, tokens: usize| {
            &apart[n * batch.seq * WIDTH..(n * batch.seq + tokens) * WIDTH]
        };
        assert_eq!(packed, [row(1, 16), row(0, 4), row(2, 9)].concat());
        let padding = batch.segments.iter().zip(apart.chunks(WIDTH)).filter(|(s, _)| **s == 0);
        assert!(padding.clone().count() > 0 && padding.into_iter().all(|(_, n)| n == [0.0; WIDTH]));
    }

    #[test]
    fn noise_is_uniform_within_its_bound_and_depends_on_seed_step_and_example() {
        let (_, long) = noise(&[&[1]], NOISE);
        let bound = 5.0 / ((16 * WIDTH) as f32).sqrt();
        assert!(long.iter().all(|n| n.abs() <= bound));
        let greatest = long.iter().fold(0.0_f32, |max, n| max.max(n.abs()));
        let mean = long.iter().sum::<f32>() / long.len() as f32;
        assert!(greatest > 0.9 * bound && mean.abs() < 0.25 * bound, "{greatest} {mean}");
        for other in [EmbeddingNoise { seed: 8, ..NOISE }, EmbeddingNoise { step: 4, ..NOISE }] {
            assert_ne!(noise(&[&[1]], other).1, long);
        }
        assert_ne!(noise(&[&[2]], NOISE).1, long[..9 * WIDTH]);
        let (_, twice) = noise(&[&[1]], EmbeddingNoise { alpha: 10.0, ..NOISE });
        assert!(twice.iter().zip(&long).all(|(two, one)| (two - 2.0 * one).abs() < 1e-6));
    }
}
