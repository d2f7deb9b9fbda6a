//! Attention by tiles with an online softmax (Dao et al., 2022, arXiv:2205.14135): no `[seq, keys]` matrix is built,
//! and fully masked tiles are skipped.
//!
//! ```text
//!            keys ─►  [ tile ][ tile ][ tile ]
//!   queries  [ tile ]   done    edge    ─         a tile: 64 queries × 256 keys
//!      │     [ tile ]   done    done    edge      edge: some queries see some keys
//!      ▼
//! ```

use burn::tensor::Tensor;
use burn_flex::Flex;
use gemm::Parallelism;
use rayon::prelude::*;

use super::simd::{exp, max, soft_capped, sum, vectorized};
use super::views::{Contiguous, Heads, contiguous, from_values};
use crate::AttentionGradients;
use crate::{AttentionMask, Scoring};

/// [`Scoring`] in f32.
#[derive(Clone, Copy)]
pub(super) struct Scores {
    scale: f32,
    cap: Option<f32>,
}

impl From<Scoring> for Scores {
    fn from(Scoring { scale, soft_cap }: Scoring) -> Self {
        Self { scale: scale as f32, cap: soft_cap.map(|cap| cap as f32) }
    }
}

const QUERIES: usize = 64;
const KEYS: usize = 256;

/// A matrix in memory: starts at `data`, row stride `row`, contiguous columns.
#[derive(Clone, Copy)]
struct Matrix<'a> {
    data: &'a [f32],
    row: usize,
}

impl<'a> Matrix<'a> {
    fn new(data: &'a [f32], row: usize) -> Self {
        Self { data, row }
    }

    /// The matrix from row `first` on.
    fn after_row(self, first: usize) -> Self {
        Self { data: &self.data[first * self.row..], row: self.row }
    }
}

/// The tokens of one head: `[tokens, head_dim]`.
fn of_head(x: &Heads, row: usize, head: usize) -> Matrix<'_> {
    Matrix { data: x.head(row, head), row: x.token_stride() }
}

/// Which of two factors is transposed.
#[derive(Clone, Copy, PartialEq)]
enum Transposed {
    None,
    Left,
    Right,
}

/// `out = (add ? out : 0) + factor · a · b` with `out` `[m, n]`, inner size `k`; one thread.
#[allow(clippy::too_many_arguments, reason = "a matrix product is its sizes and operands")]
fn multiply(
    out: &mut [f32],
    out_row: usize,
    [m, n, k]: [usize; 3],
    a: Matrix<'_>,
    b: Matrix<'_>,
    transposed: Transposed,
    factor: f32,
    add: bool,
) {
    let strides = |matrix: Matrix<'_>, is_transposed| match is_transposed {
        false => (1, matrix.row as isize),
        true => (matrix.row as isize, 1),
    };
    let (a_column, a_row) = strides(a, transposed == Transposed::Left);
    let (b_column, b_row) = strides(b, transposed == Transposed::Right);
    let last = |rows: usize, columns: usize, row: isize, column: isize| {
        (rows as isize - 1) * row + (columns as isize - 1) * column
    };
    assert!(m > 0 && n > 0 && k > 0);
    assert!((m - 1) * out_row + n <= out.len());
    assert!((last(m, k, a_row, a_column) as usize) < a.data.len());
    assert!((last(k, n, b_row, b_column) as usize) < b.data.len());
    // SAFETY: the last element of each operand lies within its slice, and `out` is borrowed exclusively.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            out_row as isize,
            add,
            a.data.as_ptr(),
            a_column,
            a_row,
            b.data.as_ptr(),
            b_column,
            b_row,
            1.0,
            factor,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// A tile of queries and its visible keys.
struct Tile {
    /// First query, and number of queries.
    first: usize,
    count: usize,
    /// The range of keys visible to any of them.
    keys: std::ops::Range<usize>,
}

impl Tile {
    fn all(mask: &AttentionMask, row: usize) -> impl Iterator<Item = Self> + '_ {
        (0..mask.seq).step_by(QUERIES).map(move |first| {
            let count = QUERIES.min(mask.seq - first);
            let ranges = (first..first + count).map(|query| mask.keys(row, query));
            let start = ranges.map(|range| range.start).min().unwrap_or(0);
            let end = mask.keys(row, first + count - 1).end;
            Self { first, count, keys: start..end }
        })
    }

    /// Its keys in chunks of at most [`KEYS`].
    fn pieces(&self) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let end = self.keys.end;
        self.keys.clone().step_by(KEYS).map(move |start| start..end.min(start + KEYS))
    }

    /// The keys of `piece` visible to query `i` of the tile, relative to the piece's start.
    fn seen(
        &self,
        mask: &AttentionMask,
        row: usize,
        i: usize,
        piece: &std::ops::Range<usize>,
    ) -> std::ops::Range<usize> {
        let keys = mask.keys(row, self.first + i);
        let start = keys.start.clamp(piece.start, piece.end);
        let end = keys.end.clamp(start, piece.end);
        start - piece.start..end - piece.start
    }
}

pub(super) fn forward(
    q: Tensor<Flex, 4>,
    k: Tensor<Flex, 4>,
    v: Tensor<Flex, 4>,
    mask: &AttentionMask,
    scoring: Scores,
) -> (Tensor<Flex, 4>, Tensor<Flex, 3>) {
    let [batch, heads, seq, head_dim] = q.dims();
    let [_, kv_heads, _, _] = k.dims();
    let group = heads / kv_heads;
    let (q, k, v) = (Heads::new(q), Heads::new(k), Heads::new(v));
    let mut log_sum = vec![0.0; batch * heads * seq];
    // Tokens outside, heads inside, the layout of the next layer; every head writes its own columns.
    let mut out = vec![0.0; batch * seq * heads * head_dim];
    let computed: Vec<Vec<f32>> = log_sum
        .par_chunks_mut(seq)
        .enumerate()
        .map(|(i, log_sum)| {
            let (row, head) = (i / heads, i % heads);
            let (q, k, v) = (
                of_head(&q, row, head),
                of_head(&k, row, head / group),
                of_head(&v, row, head / group),
            );
            forward_head(q, k, v, head_dim, mask, row, scoring, log_sum)
        })
        .collect();
    let width = heads * head_dim;
    out.par_chunks_mut(width).enumerate().for_each(|(token, out)| {
        let (row, token) = (token / seq, token % seq);
        for (head, out) in out.chunks_exact_mut(head_dim).enumerate() {
            out.copy_from_slice(&computed[row * heads + head][token * head_dim..][..head_dim]);
        }
    });
    let out = from_values(out, [batch, seq, heads, head_dim]).swap_dims(1, 2);
    (out, from_values(log_sum, [batch, heads, seq]))
}

#[allow(clippy::too_many_arguments, reason = "one head of a batch row")]
fn forward_head(
    q: Matrix<'_>,
    k: Matrix<'_>,
    v: Matrix<'_>,
    head_dim: usize,
    mask: &AttentionMask,
    row: usize,
    scoring: Scores,
    log_sum: &mut [f32],
) -> Vec<f32> {
    let mut out = vec![0.0; mask.seq * head_dim];
    let mut scores = vec![0.0; QUERIES * KEYS];
    for tile in Tile::all(mask, row) {
        let out = &mut out[tile.first * head_dim..][..tile.count * head_dim];
        let mut greatest = [f32::NEG_INFINITY; QUERIES];
        let mut sums = [0.0f32; QUERIES];
        for piece in tile.pieces() {
            let sizes = [tile.count, piece.len(), head_dim];
            let (q, k) = (q.after_row(tile.first), k.after_row(piece.start));
            multiply(&mut scores, KEYS, sizes, q, k, Transposed::Right, scoring.scale, false);
            for i in 0..tile.count {
                let seen = tile.seen(mask, row, i, &piece);
                let scores = &mut scores[i * KEYS..][..piece.len()];
                let out = &mut out[i * head_dim..][..head_dim];
                vectorized(|| {
                    scores[..seen.start].fill(0.0);
                    scores[seen.end..].fill(0.0);
                    let scores = &mut scores[seen];
                    if scores.is_empty() {
                        return;
                    }
                    if let Some(cap) = scoring.cap {
                        scores.iter_mut().for_each(|score| *score = soft_capped(*score, cap));
                    }
                    let new = max(scores).max(greatest[i]);
                    let shrink = exp(greatest[i] - new);
                    for score in scores.iter_mut() {
                        *score = exp(*score - new);
                    }
                    sums[i] = sums[i] * shrink + sum(scores.len(), |j| scores[j]);
                    greatest[i] = new;
                    if shrink != 1.0 {
                        out.iter_mut().for_each(|value| *value *= shrink);
                    }
                });
            }
            let sizes = [tile.count, head_dim, piece.len()];
            let (shares, v) = (Matrix::new(&scores, KEYS), v.after_row(piece.start));
            multiply(out, head_dim, sizes, shares, v, Transposed::None, 1.0, true);
        }
        for i in 0..tile.count {
            let inverse = 1.0 / sums[i];
            out[i * head_dim..][..head_dim].iter_mut().for_each(|value| *value *= inverse);
            log_sum[tile.first + i] = greatest[i] + sums[i].ln();
        }
    }
    out
}

#[allow(clippy::too_many_arguments, reason = "inputs, outputs of the forward, and the gradient")]
pub(super) fn backward(
    q: Tensor<Flex, 4>,
    k: Tensor<Flex, 4>,
    v: Tensor<Flex, 4>,
    out: Tensor<Flex, 4>,
    log_sum: Tensor<Flex, 3>,
    grad: Tensor<Flex, 4>,
    mask: &AttentionMask,
    scoring: Scores,
) -> AttentionGradients<Flex> {
    let [batch, heads, seq, head_dim] = q.dims();
    let [_, kv_heads, keys, _] = k.dims();
    let group = heads / kv_heads;
    let (q, k, v) = (Heads::new(q), Heads::new(k), Heads::new(v));
    let (out, grad) = (Heads::new(out), Heads::new(grad));
    let log_sum = contiguous(log_sum);
    let mut d_q = vec![0.0; batch * heads * seq * head_dim];
    let mut d_k = vec![0.0; batch * kv_heads * keys * head_dim];
    let mut d_v = vec![0.0; batch * kv_heads * keys * head_dim];
    // Query heads with the same key head add to one gradient: one task, in the order of the heads.
    d_q.par_chunks_mut(group * seq * head_dim)
        .zip(d_k.par_chunks_mut(keys * head_dim))
        .zip(d_v.par_chunks_mut(keys * head_dim))
        .enumerate()
        .for_each(|(i, ((d_q, d_k), d_v))| {
            let (row, kv_head) = (i / kv_heads, i % kv_heads);
            for (j, d_q) in d_q.chunks_exact_mut(seq * head_dim).enumerate() {
                let head = kv_head * group + j;
                let head = Head {
                    q: of_head(&q, row, head),
                    k: of_head(&k, row, kv_head),
                    v: of_head(&v, row, kv_head),
                    out: of_head(&out, row, head),
                    grad: of_head(&grad, row, head),
                    log_sum: log_sums(&log_sum, row * heads + head, seq),
                    head_dim,
                    row,
                };
                backward_head(&head, mask, scoring, d_q, d_k, d_v);
            }
        });
    AttentionGradients {
        d_q: from_values(d_q, [batch, heads, seq, head_dim]),
        d_k: from_values(d_k, [batch, kv_heads, keys, head_dim]),
        d_v: from_values(d_v, [batch, kv_heads, keys, head_dim]),
    }
}

fn log_sums(all: &Contiguous, index: usize, seq: usize) -> &[f32] {
    &all.values()[index * seq..][..seq]
}

/// One query head and the inputs of its gradient.
struct Head<'a> {
    q: Matrix<'a>,
    k: Matrix<'a>,
    v: Matrix<'a>,
    out: Matrix<'a>,
    grad: Matrix<'a>,
    log_sum: &'a [f32],
    head_dim: usize,
    row: usize,
}

fn backward_head(
    head: &Head<'_>,
    mask: &AttentionMask,
    scoring: Scores,
    d_q: &mut [f32],
    d_k: &mut [f32],
    d_v: &mut [f32],
) {
    let &Head { q, k, v, out, grad, log_sum, head_dim, row } = head;
    let mut shares = vec![0.0; QUERIES * KEYS];
    let mut d_scores = vec![0.0; QUERIES * KEYS];
    for tile in Tile::all(mask, row) {
        let d_q = &mut d_q[tile.first * head_dim..][..tile.count * head_dim];
        let (q, grad, out) =
            (q.after_row(tile.first), grad.after_row(tile.first), out.after_row(tile.first));
        // Σ p · dp over the keys is Σ grad · out over the features.
        let mut along = [0.0f32; QUERIES];
        for (i, along) in along.iter_mut().enumerate().take(tile.count) {
            let (g, o) = (&grad.data[i * grad.row..], &out.data[i * out.row..]);
            *along = vectorized(|| sum(head_dim, |c| g[c] * o[c]));
        }
        for piece in tile.pieces() {
            let (count, n) = (tile.count, piece.len());
            let (k, v) = (k.after_row(piece.start), v.after_row(piece.start));
            let keys = piece.start * head_dim..piece.end * head_dim;
            multiply(
                &mut shares,
                KEYS,
                [count, n, head_dim],
                q,
                k,
                Transposed::Right,
                scoring.scale,
                false,
            );
            multiply(
                &mut d_scores,
                KEYS,
                [count, n, head_dim],
                grad,
                v,
                Transposed::Right,
                1.0,
                false,
            );
            for i in 0..count {
                let seen = tile.seen(mask, row, i, &piece);
                let log_sum = log_sum[tile.first + i];
                let shares = &mut shares[i * KEYS..][..n];
                let d_scores = &mut d_scores[i * KEYS..][..n];
                vectorized(|| {
                    for values in [&mut *shares, &mut *d_scores] {
                        values[..seen.start].fill(0.0);
                        values[seen.end..].fill(0.0);
                    }
                    let (shares, d_scores) = (&mut shares[seen.clone()], &mut d_scores[seen]);
                    if let Some(cap) = scoring.cap {
                        for (share, d_score) in shares.iter_mut().zip(d_scores) {
                            let score = soft_capped(*share, cap);
                            *share = exp(score - log_sum);
                            let slope = 1.0 - (score / cap) * (score / cap);
                            *d_score = *share * (*d_score - along[i]) * slope * scoring.scale;
                        }
                    } else {
                        for (share, d_score) in shares.iter_mut().zip(d_scores) {
                            *share = exp(*share - log_sum);
                            *d_score = *share * (*d_score - along[i]) * scoring.scale;
                        }
                    }
                });
            }
            let (shares, d_scores) = (Matrix::new(&shares, KEYS), Matrix::new(&d_scores, KEYS));
            let by_keys = [n, head_dim, count];
            multiply(
                &mut d_v[keys.clone()],
                head_dim,
                by_keys,
                shares,
                grad,
                Transposed::Left,
                1.0,
                true,
            );
            multiply(&mut d_k[keys], head_dim, by_keys, d_scores, q, Transposed::Left, 1.0, true);
            multiply(d_q, head_dim, [count, head_dim, n], d_scores, k, Transposed::None, 1.0, true);
        }
    }
}
