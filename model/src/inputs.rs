//! What a forward pass is given: tokens, positions, and who may see whom.

use std::sync::OnceLock;

use burn::tensor::{Int, Tensor, backend::Backend};
use emberlm_quant::host::{float_tensor, index_tensor};

use crate::{ModelConfig, RotaryTable};

/// A batch of token sequences, as host numbers. All slices are `[rows, seq]`, row-major.
#[derive(Debug, Clone, Copy)]
pub struct SequenceBatch<'a> {
    /// Rows.
    pub rows: usize,
    /// Tokens a row.
    pub seq: usize,
    /// Token ids.
    pub ids: &'a [u32],
    /// The position of each token within its own sequence.
    pub positions: &'a [u32],
    /// Which sequence of its row each token belongs to; tokens see only their own. 0 is padding.
    pub segments: &'a [u32],
}

/// A [`SequenceBatch`] on a device, with all that depends on it and not on the block: made once a forward pass.
#[derive(Debug, Clone)]
pub struct Inputs<B: Backend> {
    /// `[rows, seq]`.
    pub ids: Tensor<B, 2, Int>,
    /// `[rows, 1, seq, head_dim / 2]`.
    pub cos: Tensor<B, 4>,
    /// `[rows, 1, seq, head_dim / 2]`.
    pub sin: Tensor<B, 4>,
    /// One mask for each window that blocks of the model use.
    masks: Vec<AttentionMask<B>>,
}

impl<B: Backend> Inputs<B> {
    /// Brings a batch to a device.
    ///
    /// # Panics
    /// If a slice's length isn't `rows * seq`.
    pub fn new(config: &ModelConfig, batch: SequenceBatch<'_>, device: &B::Device) -> Self {
        Self::with_past(config, batch, 0, device)
    }

    /// As [`new`](Self::new), where each row goes on after `past` tokens of its (only) sequence that lie in a cache.
    ///
    /// # Panics
    /// If a slice's length isn't `rows * seq`.
    pub fn with_past(
        config: &ModelConfig,
        batch: SequenceBatch<'_>,
        past: usize,
        device: &B::Device,
    ) -> Self {
        let SequenceBatch { rows, seq, ids, positions, segments } = batch;
        for (name, slice) in [("ids", ids), ("positions", positions), ("segments", segments)] {
            assert_eq!(slice.len(), rows * seq, "{name} of a batch of {rows} × {seq}");
        }
        // Rows never share a sequence, whatever they number theirs.
        let sequences: Vec<u64> = segments
            .iter()
            .enumerate()
            .map(|(i, &segment)| ((i / seq) as u64) << 32 | u64::from(segment))
            .collect();
        let table = RotaryTable::new(&config.rope, config.head_dim, positions, &sequences);
        let shape = [rows, 1, seq, config.head_dim / 2];
        let mut windows = config.sliding_windows.clone();
        windows.sort_unstable();
        windows.dedup();
        let masks = windows
            .into_iter()
            .map(|window| AttentionMask::new(rows, seq, past, segments, window, device))
            .collect();
        Self {
            ids: index_tensor(ids.iter().map(|&id| id as usize), [rows, seq], device),
            cos: float_tensor(table.cos, shape, device),
            sin: float_tensor(table.sin, shape, device),
            masks,
        }
    }

    /// The mask for blocks with this window.
    ///
    /// # Panics
    /// If no block of the model that these inputs were made for has it.
    pub fn mask(&self, window: Option<usize>) -> &AttentionMask<B> {
        let mask = self.masks.iter().find(|mask| mask.window == window);
        mask.expect("inputs are made with a mask for each window of their model")
    }
}

/// Who may see whom: a query sees the keys of its own sequence up to itself, and within its window.
#[derive(Debug, Clone)]
pub struct AttentionMask<B: Backend> {
    /// Rows.
    pub rows: usize,
    /// Queries a row.
    pub seq: usize,
    /// Keys before the first query (in a cache).
    pub past: usize,
    /// `[rows, seq]`: the sequence of each query, and of the key at the same place.
    pub segments: Vec<u32>,
    /// How many keys back a query sees, itself included.
    pub window: Option<usize>,
    device: B::Device,
    additive: OnceLock<Option<Tensor<B, 4>>>,
}

impl<B: Backend> AttentionMask<B> {
    fn new(
        rows: usize,
        seq: usize,
        past: usize,
        segments: &[u32],
        window: Option<usize>,
        device: &B::Device,
    ) -> Self {
        let (segments, device) = (segments.to_vec(), device.clone());
        Self { rows, seq, past, segments, window, device, additive: OnceLock::new() }
    }

    /// Whether query `query` of a row sees key `key` (counted from the start of the cache).
    pub fn sees(&self, row: usize, query: usize, key: usize) -> bool {
        let at = self.past + query;
        let same_sequence = key < self.past
            || self.segments[row * self.seq + query]
                == self.segments[row * self.seq + key - self.past];
        key <= at && same_sequence && self.window.is_none_or(|window| at - key < window)
    }

    /// The mask as a summand for scores, `[rows, 1, seq, keys]`: 0 where a query sees, very negative where not;
    /// `None` where every query sees every key. Made on first use: kernels that skip what is masked never ask.
    pub fn additive(&self) -> Option<Tensor<B, 4>> {
        /// Far below any score, and far enough from the least f32 that a score can be added.
        const HIDDEN: f32 = -1e30;
        let make = || {
            let keys = self.past + self.seq;
            let mut values = Vec::with_capacity(self.rows * self.seq * keys);
            for row in 0..self.rows {
                for query in 0..self.seq {
                    values.extend(
                        (0..keys).map(|key| if self.sees(row, query, key) { 0.0 } else { HIDDEN }),
                    );
                }
            }
            let shape = [self.rows, 1, self.seq, keys];
            values.contains(&HIDDEN).then(|| float_tensor(values, shape, &self.device))
        };
        self.additive.get_or_init(make).clone()
    }
}
