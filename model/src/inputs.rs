//! The inputs of a forward pass: tokens, positions and attention masks.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{DType, Int, Tensor, TensorData, backend::Backend};
use emberlm_quant::host::{float_tensor, index_tensor};

use crate::{ModelConfig, RotaryTable};

/// A batch of token sequences on the host. All slices are `[rows, seq]`, row-major.
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
    /// The sequence within its row that each token belongs to; tokens attend only to their own sequence. 0 is padding.
    pub segments: &'a [u32],
}

/// What a forward pass under autodiff keeps for backward. The gradients have the same bits either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Keep {
    /// Every input of an operation that has a gradient.
    #[default]
    All,
    /// Only what is expensive to recompute: backward recomputes the outputs of norms and of the gated product, but no
    /// matrix product. Requires `Autodiff<B, BalancedCheckpointing>`; elsewhere it equals [`All`](Self::All).
    Costly,
}

/// A [`SequenceBatch`] on a device, with everything that all blocks share; built once per forward pass.
#[derive(Debug, Clone)]
pub struct Inputs<B: Backend> {
    /// `[rows, seq]`.
    pub ids: Tensor<B, 2, Int>,
    /// `[rows, 1, seq, head_dim / 2]`.
    pub cos: Tensor<B, 4>,
    /// `[rows, 1, seq, head_dim / 2]`.
    pub sin: Tensor<B, 4>,
    /// What is kept for backward.
    pub keep: Keep,
    /// Noise added to the token embeddings in training: `[rows, seq, hidden]`.
    pub noise: Option<Tensor<B, 3>>,
    /// One mask for each window size among the model's blocks.
    masks: Vec<Arc<AttentionMask>>,
}

impl<B: Backend> Inputs<B> {
    /// Moves a batch to a device.
    ///
    /// # Panics
    /// If a slice's length isn't `rows * seq`.
    pub fn new(config: &ModelConfig, batch: SequenceBatch<'_>, device: &B::Device) -> Self {
        Self::with_past(config, batch, 0, device)
    }

    /// As [`new`](Self::new), where each row is one sequence and continues after `past` cached tokens.
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
            assert_eq!(slice.len(), rows * seq, "length of {name} in a batch of {rows} × {seq}");
        }
        // Equal segment numbers in different rows are different sequences.
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
            .map(|window| Arc::new(AttentionMask::new(rows, seq, past, segments, window)))
            .collect();
        Self {
            ids: index_tensor(ids.iter().map(|&id| id as usize), [rows, seq], device),
            cos: float_tensor(table.cos, shape, device),
            sin: float_tensor(table.sin, shape, device),
            keep: Keep::default(),
            noise: None,
            masks,
        }
    }

    /// Sets what is kept for backward.
    pub fn keeping(self, keep: Keep) -> Self {
        Self { keep, ..self }
    }

    /// Adds `noise: [rows, seq, hidden]` to the token embeddings.
    pub fn with_noise(self, noise: Option<Tensor<B, 3>>) -> Self {
        Self { noise, ..self }
    }

    /// The mask of blocks with this window.
    ///
    /// # Panics
    /// If no block of the inputs' model has this window.
    pub fn mask(&self, window: Option<usize>) -> &Arc<AttentionMask> {
        let mask = self.masks.iter().find(|mask| mask.window == window);
        mask.expect("inputs have a mask for each window of their model")
    }
}

/// An [`AttentionMask`] as ranges on a device.
#[derive(Debug, Clone)]
pub struct MaskRanges<B: Backend> {
    /// `[rows, seq]`: the first key that each query attends to; the last one is its own position.
    pub first_key: Tensor<B, 2, Int>,
    /// `[rows, keys]`: the end of the range of queries that attend to each key; it starts at the key's position, or at
    /// query 0 for cached keys.
    pub end_query: Tensor<B, 2, Int>,
}

/// The causal mask: a query attends to the keys of its own sequence, up to its position and within its window.
///
/// A sequence is a run of tokens with the same segment number, so each query attends to one range of keys.
pub struct AttentionMask {
    /// Rows.
    pub rows: usize,
    /// Queries a row.
    pub seq: usize,
    /// Keys before the first query (in a cache).
    pub past: usize,
    /// Sliding window: number of keys a query attends to, its own included.
    pub window: Option<usize>,
    /// `[rows, seq]`: the first key that each query attends to, counted from the start of the cache.
    first_key: Vec<usize>,
    /// Backend-specific forms of the mask, built on first use.
    cache: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl std::fmt::Debug for AttentionMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rows, seq, past, window, .. } = self;
        write!(f, "AttentionMask({rows} × {seq} after {past}, window {window:?})")
    }
}

impl AttentionMask {
    /// The mask of a batch whose tokens belong to `segments`, `[rows, seq]`; with a cache, each row is one sequence.
    pub fn new(
        rows: usize,
        seq: usize,
        past: usize,
        segments: &[u32],
        window: Option<usize>,
    ) -> Self {
        let mut first_key = Vec::with_capacity(rows * seq);
        for row in segments.chunks(seq.max(1)) {
            let mut start = 0;
            for (query, &segment) in row.iter().enumerate() {
                if query > 0 && segment != row[query - 1] {
                    start = past + query;
                }
                let in_window =
                    window.map_or(0, |window| (past + query + 1).saturating_sub(window));
                first_key.push(start.max(in_window));
            }
        }
        Self { rows, seq, past, window, first_key, cache: Mutex::default() }
    }

    /// The keys that query `query` of row `row` attends to, counted from the start of the cache. Never empty.
    pub fn keys(&self, row: usize, query: usize) -> std::ops::Range<usize> {
        self.first_key[row * self.seq + query]..self.past + query + 1
    }

    /// The additive mask, `[rows, 1, seq, keys]`: 0 for visible keys, very negative for masked ones; `None` if nothing
    /// is masked. Built on first use: kernels that skip masked keys don't need it.
    pub fn additive<B: Backend>(&self, device: &B::Device) -> Option<Tensor<B, 4>> {
        self.cached(|| self.make_additive(device))
    }

    /// The mask as ranges on a device, for kernels that skip masked keys.
    pub fn ranges<B: Backend>(&self, device: &B::Device) -> MaskRanges<B> {
        self.cached(|| {
            let keys = self.past + self.seq;
            let tensor = |values: Vec<i32>, n| {
                Tensor::from_data(TensorData::new(values, [self.rows, n]), (device, DType::I32))
            };
            let first_key = self.first_key.iter().map(|&key| key as i32).collect();
            // Within a row, first keys never decrease from query to query.
            let end_query = |key: usize, row: &[usize]| row.partition_point(|&first| first <= key);
            let rows = self.first_key.chunks(self.seq.max(1));
            let end_query =
                rows.flat_map(|row| (0..keys).map(move |key| end_query(key, row) as i32)).collect();
            MaskRanges {
                first_key: tensor(first_key, self.seq),
                end_query: tensor(end_query, keys),
            }
        })
    }

    /// The cached value of type `T`; `make` builds it on first use.
    fn cached<T: Clone + Send + 'static>(&self, make: impl FnOnce() -> T) -> T {
        // A panic elsewhere can't leave the list inconsistent.
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(form) = cache.iter().find_map(|any| any.downcast_ref::<T>()) {
            return form.clone();
        }
        let form = make();
        cache.push(Box::new(form.clone()));
        form
    }

    fn make_additive<B: Backend>(&self, device: &B::Device) -> Option<Tensor<B, 4>> {
        /// Far below any score, and far enough from f32's minimum that adding a score is safe.
        const HIDDEN: f32 = -1e30;
        let keys = self.past + self.seq;
        let mut values = vec![HIDDEN; self.rows * self.seq * keys];
        for (i, row) in values.chunks_mut(keys.max(1)).enumerate() {
            row[self.keys(i / self.seq, i % self.seq)].fill(0.0);
        }
        let shape = [self.rows, 1, self.seq, keys];
        values.contains(&HIDDEN).then(|| float_tensor(values, shape, device))
    }
}
