//! Causal attention: no matrix of scores in memory, and fully masked tiles are skipped.

mod backward;
mod forward;
mod tile;

use burn::tensor::DType;
use burn_cubecl::CubeRuntime;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::launch::{cubes, empty, units};
use super::views::{with_tokens_outside, with_whole_rows};
use backward::{by_keys_kernel, by_queries_kernel};
use forward::forward_kernel;
use tile::Size;

use crate::Scoring;

/// Buffers bound by the backward kernels, including the one for sizes. WebGPU guarantees 8; most devices have more.
pub(super) const BINDINGS: u32 = 10;

/// Queries, keys and values with their layout and mask.
pub(super) struct Attention<R: CubeRuntime> {
    pub(super) q: CubeTensor<R>,
    pub(super) k: CubeTensor<R>,
    pub(super) v: CubeTensor<R>,
    /// `[batch, seq]`, I32: the first key that each query sees.
    pub(super) first_key: CubeTensor<R>,
    /// Keys before the first query.
    pub(super) past: usize,
    pub(super) scoring: Scoring,
}

impl<R: CubeRuntime> Attention<R> {
    fn prepared(self) -> Self {
        let Self { q, k, v, first_key, past, scoring } = self;
        let [q, k, v] = [q, k, v].map(with_whole_rows);
        Self { q, k, v, first_key: into_contiguous(first_key), past, scoring }
    }
}

/// `[batch, heads, seq, head_dim]`.
fn dims<R: CubeRuntime>(x: &CubeTensor<R>) -> [usize; 4] {
    x.meta.shape().dims()
}

/// Tiles of 64 rows for many queries, of 16 for few, as with one new token after a cache.
fn size(rows: usize, head_dim: usize) -> Size {
    Size { rows_per_unit: if rows > 16 { 4 } else { 1 }, head_dim }
}

/// Output `[batch, heads, seq, head_dim]` and the logarithms of the softmaxes' denominators `[batch, heads, seq]`, f32.
pub(super) fn forward<R: CubeRuntime>(inputs: Attention<R>) -> (CubeTensor<R>, CubeTensor<R>) {
    let Attention { q, k, v, first_key, past, scoring } = inputs.prepared();
    let Scoring { scale, soft_cap } = scoring;
    let [batch, heads, seq, head_dim] = dims(&q);
    let (client, dtype, size) = (q.client.clone(), q.dtype, size(seq, head_dim));
    let out = with_tokens_outside(&q, [batch, heads, seq, head_dim], dtype);
    let log_sum = empty(&q, [batch, heads, seq], DType::F32);
    let tiles = seq.div_ceil(size.rows());
    // SAFETY: a cube past the last tile ends; queries and keys stay within the shapes, as far as `first_key` does.
    unsafe {
        forward_kernel::launch_unchecked(
            &client,
            cubes(&client, batch * heads * tiles),
            units(),
            q.into_tensor_arg(),
            k.into_tensor_arg(),
            v.into_tensor_arg(),
            first_key.into_array_arg(),
            out.clone().into_tensor_arg(),
            log_sum.clone().into_array_arg(),
            tiles,
            past,
            scale as f32,
            soft_cap.unwrap_or(1.0) as f32,
            soft_cap.is_some(),
            size,
            dtype.into(),
        );
    }
    (out, log_sum)
}

/// The gradients by q, k and v. `end_query`, `[batch, keys]`, I32, is the end of the range of queries that see each
/// key.
pub(super) fn backward<R: CubeRuntime>(
    inputs: Attention<R>,
    out: CubeTensor<R>,
    log_sum: CubeTensor<R>,
    grad: CubeTensor<R>,
    end_query: CubeTensor<R>,
) -> [CubeTensor<R>; 3] {
    let Attention { q, k, v, first_key, past, scoring } = inputs.prepared();
    let Scoring { scale, soft_cap } = scoring;
    let ([batch, heads, seq, head_dim], [_, kv_heads, keys, _]) = (dims(&q), dims(&k));
    let (client, dtype) = (q.client.clone(), q.dtype);
    let (out, grad) = (with_whole_rows(out), with_whole_rows(grad));
    let (log_sum, end_query) = (into_contiguous(log_sum), into_contiguous(end_query));
    let d_q = with_tokens_outside(&q, [batch, heads, seq, head_dim], dtype);
    let along = empty(&q, [batch, heads, seq], DType::F32);
    let by_queries = size(seq, head_dim);
    let tiles = seq.div_ceil(by_queries.rows());
    // SAFETY: a cube past the last tile ends; queries and keys stay within the shapes, as far as `first_key` does.
    unsafe {
        by_queries_kernel::launch_unchecked(
            &client,
            cubes(&client, batch * heads * tiles),
            units(),
            q.clone().into_tensor_arg(),
            k.clone().into_tensor_arg(),
            v.clone().into_tensor_arg(),
            out.into_tensor_arg(),
            log_sum.clone().into_array_arg(),
            grad.clone().into_tensor_arg(),
            first_key.into_array_arg(),
            d_q.clone().into_tensor_arg(),
            along.clone().into_array_arg(),
            tiles,
            past,
            scale as f32,
            soft_cap.unwrap_or(1.0) as f32,
            soft_cap.is_some(),
            by_queries,
            dtype.into(),
        );
    }
    let kv_dims = [batch, kv_heads, keys, head_dim];
    let (d_k, d_v) =
        (with_tokens_outside(&q, kv_dims, dtype), with_tokens_outside(&q, kv_dims, dtype));
    let by_keys = size(keys, head_dim);
    let tiles = keys.div_ceil(by_keys.rows());
    // SAFETY: as above, with `end_query` for `first_key`.
    unsafe {
        by_keys_kernel::launch_unchecked(
            &client,
            cubes(&client, batch * kv_heads * tiles),
            units(),
            q.into_tensor_arg(),
            k.into_tensor_arg(),
            v.into_tensor_arg(),
            log_sum.into_array_arg(),
            grad.into_tensor_arg(),
            along.into_array_arg(),
            end_query.into_array_arg(),
            d_k.clone().into_tensor_arg(),
            d_v.clone().into_tensor_arg(),
            tiles,
            past,
            scale as f32,
            soft_cap.unwrap_or(1.0) as f32,
            soft_cap.is_some(),
            by_keys,
            dtype.into(),
        );
    }
    [d_q, d_k, d_v]
}
