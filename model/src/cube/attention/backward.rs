//! The gradients of attention (Dao, 2023, arXiv:2307.08691): probabilities are recomputed from the logarithms of the
//! softmaxes' denominators. Sums run in the order of queries or keys, and of the heads of a group, without atomics.

use cubecl::prelude::*;

use super::super::soft_cap::{slope, soft_capped};
use super::tile::{
    COLUMNS, COLUMNS_PER_UNIT, LINE, Size, accumulate, product, share, share_rows, sum_of_line,
    write, zeros,
};

/// The gradient by the queries: each cube takes a tile of queries of one head and iterates over their visible keys.
/// Writes `along`, `[batch, heads, seq]`, too: Σ p · dp over a query's keys, which is Σ grad · out over its features.
#[cube(launch_unchecked)]
pub(super) fn by_queries_kernel<F: Float>(
    q: &Tensor<F>,
    k: &Tensor<F>,
    v: &Tensor<F>,
    out: &Tensor<F>,
    log_sum: &Array<f32>,
    grad: &Tensor<F>,
    first_key: &Array<i32>,
    d_q: &mut Tensor<F>,
    along: &mut Array<f32>,
    tiles: usize,
    past: usize,
    scale: f32,
    cap: f32,
    #[comptime] is_capped: bool,
    #[comptime] size: Size,
    #[define(F)] _dtype: StorageType,
) {
    let mut shared = SharedMemory::<f32>::new(comptime![size.shared()]);
    let (batches, heads, seq) = (q.shape(0), q.shape(1), q.shape(2));
    let (tile, head) = (CUBE_POS % tiles, CUBE_POS / tiles % heads);
    let batch = CUBE_POS / tiles / heads;
    if batch >= batches {
        terminate!();
    }
    let rows_per_unit = comptime![size.rows_per_unit];
    let unit = UNIT_POS as usize;
    let (line, place) = (unit / LINE, unit % LINE);
    let first = (tiles - 1 - tile) * comptime![size.rows()];
    let count = min(comptime![size.rows()], seq - first);
    let q_at = batch * q.stride(0) + head * q.stride(1) + first * q.stride(2);
    let grad_at = batch * grad.stride(0) + head * grad.stride(1) + first * grad.stride(2);
    let out_at = batch * out.stride(0) + head * out.stride(1) + first * out.stride(2);
    let kv_head = head / (heads / k.shape(1));
    let k_at = batch * k.stride(0) + kv_head * k.stride(1);
    let v_at = batch * v.stride(0) + kv_head * v.stride(1);
    let query_at = (batch * heads + head) * seq + first;

    let end = past + first + count;
    let mut from = Array::<u32>::new(rows_per_unit);
    let mut log_sums = zeros(rows_per_unit);
    let mut alongs = zeros(rows_per_unit);
    #[unroll]
    for i in 0..rows_per_unit {
        let row = line + i * LINE;
        from[i] = end as u32;
        if row < count {
            from[i] = u32::cast_from(first_key[batch * seq + first + row]);
            log_sums[i] = log_sum[query_at + row];
            #[unroll]
            for f in 0..comptime![size.features_per_unit()] {
                let feature = place + f * LINE;
                if feature < comptime![size.head_dim] {
                    alongs[i] += f32::cast_from(grad[grad_at + row * grad.stride(2) + feature])
                        * f32::cast_from(out[out_at + row * out.stride(2) + feature]);
                }
            }
        }
    }
    share_rows(&alongs, &mut shared, size);
    sync_cube();
    #[unroll]
    for i in 0..rows_per_unit {
        let row = line + i * LINE;
        alongs[i] = sum_of_line(&shared, i);
        if place == 0 && row < count {
            along[query_at + row] = alongs[i];
        }
    }
    sync_cube();

    let mut sum = zeros(comptime![size.outputs()]);
    let mut scores = zeros(comptime![size.scores()]);
    let mut d_shares = zeros(comptime![size.scores()]);
    let mut at = u32::cast_from(first_key[batch * seq + first]) as usize;
    while at < end {
        let keys = min(COLUMNS, end - at);
        let (k_tile, v_tile) = (k_at + at * k.stride(2), v_at + at * v.stride(2));
        product(
            q,
            q_at,
            q.stride(2),
            count,
            k,
            k_tile,
            k.stride(2),
            keys,
            &mut shared,
            &mut scores,
            size,
        );
        product(
            grad,
            grad_at,
            grad.stride(2),
            count,
            v,
            v_tile,
            v.stride(2),
            keys,
            &mut shared,
            &mut d_shares,
            size,
        );
        #[unroll]
        for i in 0..rows_per_unit {
            let last = past + first + line + i * LINE;
            #[unroll]
            for j in 0..COLUMNS_PER_UNIT {
                let key = at + place + j * LINE;
                let n = comptime![i * COLUMNS_PER_UNIT + j];
                let mut d_score = 0.0f32;
                if key <= last && key as u32 >= from[i] {
                    let score = soft_capped(scores[n] * scale, cap, is_capped);
                    let weight = (score - log_sums[i]).exp();
                    let slope_here = slope(score, cap, is_capped);
                    d_score = weight * (d_shares[n] - alongs[i]) * slope_here * scale;
                }
                scores[n] = d_score;
            }
        }
        share(&scores, &mut shared, size);
        sync_cube();
        accumulate(&shared, k, k_tile, k.stride(2), keys, &mut sum, size);
        sync_cube();
        at += COLUMNS;
    }
    #[unroll]
    for i in 0..rows_per_unit {
        alongs[i] = 1.0f32;
    }
    let to = batch * d_q.stride(0) + head * d_q.stride(1) + first * d_q.stride(2);
    let stride = d_q.stride(2);
    write(&sum, &alongs, d_q, to, stride, count, size);
}

/// The gradients by keys and values: each cube takes a tile of keys of one key head and iterates over the queries that
/// see them, head after head of the group. Rows of the tiles are keys, columns queries.
#[cube(launch_unchecked)]
pub(super) fn by_keys_kernel<F: Float>(
    q: &Tensor<F>,
    k: &Tensor<F>,
    v: &Tensor<F>,
    log_sum: &Array<f32>,
    grad: &Tensor<F>,
    along: &Array<f32>,
    end_query: &Array<i32>,
    d_k: &mut Tensor<F>,
    d_v: &mut Tensor<F>,
    tiles: usize,
    past: usize,
    scale: f32,
    cap: f32,
    #[comptime] is_capped: bool,
    #[comptime] size: Size,
    #[define(F)] _dtype: StorageType,
) {
    let mut shared = SharedMemory::<f32>::new(comptime![size.shared()]);
    let (batches, heads, seq) = (q.shape(0), q.shape(1), q.shape(2));
    let (kv_heads, all_keys) = (k.shape(1), k.shape(2));
    let (tile, kv_head) = (CUBE_POS % tiles, CUBE_POS / tiles % kv_heads);
    let batch = CUBE_POS / tiles / kv_heads;
    if batch >= batches {
        terminate!();
    }
    let rows_per_unit = comptime![size.rows_per_unit];
    let unit = UNIT_POS as usize;
    let (line, place) = (unit / LINE, unit % LINE);
    let first = tile * comptime![size.rows()];
    let count = min(comptime![size.rows()], all_keys - first);
    let k_at = batch * k.stride(0) + kv_head * k.stride(1) + first * k.stride(2);
    let v_at = batch * v.stride(0) + kv_head * v.stride(1) + first * v.stride(2);

    // Padding rows are seen by no query.
    let mut until = Array::<u32>::new(rows_per_unit);
    #[unroll]
    for i in 0..rows_per_unit {
        let row = line + i * LINE;
        until[i] = 0u32;
        if row < count {
            until[i] = u32::cast_from(end_query[batch * all_keys + first + row]);
        }
    }
    // The first query that sees the first key, and the end of those that see the last.
    let start = max(first, past) - past;
    let end = u32::cast_from(end_query[batch * all_keys + first + count - 1]) as usize;

    let mut sum_k = zeros(comptime![size.outputs()]);
    let mut sum_v = zeros(comptime![size.outputs()]);
    let mut scores = zeros(comptime![size.scores()]);
    let mut d_shares = zeros(comptime![size.scores()]);
    let group = heads / kv_heads;
    for member in 0..group {
        let head = kv_head * group + member;
        let query_at = (batch * heads + head) * seq;
        let q_at = batch * q.stride(0) + head * q.stride(1);
        let grad_at = batch * grad.stride(0) + head * grad.stride(1);
        let mut at = start;
        while at < end {
            let queries = min(COLUMNS, end - at);
            let (q_tile, grad_tile) = (q_at + at * q.stride(2), grad_at + at * grad.stride(2));
            product(
                k,
                k_at,
                k.stride(2),
                count,
                q,
                q_tile,
                q.stride(2),
                queries,
                &mut shared,
                &mut scores,
                size,
            );
            product(
                v,
                v_at,
                v.stride(2),
                count,
                grad,
                grad_tile,
                grad.stride(2),
                queries,
                &mut shared,
                &mut d_shares,
                size,
            );
            #[unroll]
            for j in 0..COLUMNS_PER_UNIT {
                let query = at + place + j * LINE;
                let mut log_sum_here = 0.0f32;
                let mut along_here = 0.0f32;
                if query < end {
                    log_sum_here = log_sum[query_at + query];
                    along_here = along[query_at + query];
                }
                #[unroll]
                for i in 0..rows_per_unit {
                    let key = first + line + i * LINE;
                    let n = comptime![i * COLUMNS_PER_UNIT + j];
                    let mut weight = 0.0f32;
                    let mut slope_here = 0.0f32;
                    if key <= past + query && (query as u32) < until[i] {
                        let score = soft_capped(scores[n] * scale, cap, is_capped);
                        weight = (score - log_sum_here).exp();
                        slope_here = slope(score, cap, is_capped);
                    }
                    scores[n] = weight;
                    d_shares[n] = weight * (d_shares[n] - along_here) * slope_here * scale;
                }
            }
            share(&scores, &mut shared, size);
            sync_cube();
            accumulate(&shared, grad, grad_tile, grad.stride(2), queries, &mut sum_v, size);
            sync_cube();
            share(&d_shares, &mut shared, size);
            sync_cube();
            accumulate(&shared, q, q_tile, q.stride(2), queries, &mut sum_k, size);
            sync_cube();
            at += COLUMNS;
        }
    }
    let mut ones = Array::<f32>::new(rows_per_unit);
    #[unroll]
    for i in 0..rows_per_unit {
        ones[i] = 1.0f32;
    }
    let k_to = batch * d_k.stride(0) + kv_head * d_k.stride(1) + first * d_k.stride(2);
    let v_to = batch * d_v.stride(0) + kv_head * d_v.stride(1) + first * d_v.stride(2);
    let (k_stride, v_stride) = (d_k.stride(2), d_v.stride(2));
    write(&sum_k, &ones, d_k, k_to, k_stride, count, size);
    write(&sum_v, &ones, d_v, v_to, v_stride, count, size);
}
