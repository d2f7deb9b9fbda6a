//! Attention with an online softmax (Milakov and Gimelshein, 2018, arXiv:1805.02867; Dao et al., 2022,
//! arXiv:2205.14135): each cube takes a tile of queries of one head and iterates over their visible keys.

use cubecl::prelude::*;

use super::super::soft_cap::soft_capped;
use super::tile::{
    COLUMNS, COLUMNS_PER_UNIT, LINE, Size, accumulate, greatest_of_line, product, share,
    share_rows, sum_of_line, write, zeros,
};

/// The score of masked keys, far below any real score.
const HIDDEN: f32 = -1e30;

#[cube(launch_unchecked)]
pub(super) fn forward_kernel<F: Float>(
    q: &Tensor<F>,
    k: &Tensor<F>,
    v: &Tensor<F>,
    first_key: &Array<i32>,
    out: &mut Tensor<F>,
    log_sum: &mut Array<f32>,
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
    // The last queries see most keys: they start first.
    let first = (tiles - 1 - tile) * comptime![size.rows()];
    let count = min(comptime![size.rows()], seq - first);
    let q_at = batch * q.stride(0) + head * q.stride(1) + first * q.stride(2);
    let kv_head = head / (heads / k.shape(1));
    let k_at = batch * k.stride(0) + kv_head * k.stride(1);
    let v_at = batch * v.stride(0) + kv_head * v.stride(1);

    // Padding rows see nothing.
    let end = past + first + count;
    let mut from = Array::<u32>::new(rows_per_unit);
    #[unroll]
    for i in 0..rows_per_unit {
        let row = line + i * LINE;
        from[i] = end as u32;
        if row < count {
            from[i] = u32::cast_from(first_key[batch * seq + first + row]);
        }
    }
    let mut greatest = Array::<f32>::new(rows_per_unit);
    #[unroll]
    for i in 0..rows_per_unit {
        greatest[i] = HIDDEN;
    }
    let mut sums = zeros(rows_per_unit);
    let mut sum_out = zeros(comptime![size.outputs()]);
    let mut scores = zeros(comptime![size.scores()]);
    let mut of_rows = zeros(rows_per_unit);

    // Later queries never see earlier keys than the first one does.
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
        #[unroll]
        for i in 0..rows_per_unit {
            let last = past + first + line + i * LINE;
            of_rows[i] = HIDDEN;
            #[unroll]
            for j in 0..COLUMNS_PER_UNIT {
                let key = at + place + j * LINE;
                let mut score = HIDDEN.runtime();
                if key <= last && key as u32 >= from[i] {
                    let scaled = scores[i * COLUMNS_PER_UNIT + j] * scale;
                    score = soft_capped(scaled, cap, is_capped);
                }
                scores[i * COLUMNS_PER_UNIT + j] = score;
                of_rows[i] = max(of_rows[i], score);
            }
        }
        share_rows(&of_rows, &mut shared, size);
        sync_cube();
        #[unroll]
        for i in 0..rows_per_unit {
            let new = max(greatest[i], greatest_of_line(&shared, i));
            let shrink = (greatest[i] - new).exp();
            greatest[i] = new;
            sums[i] *= shrink;
            #[unroll]
            for f in 0..comptime![size.features_per_unit()] {
                sum_out[i * size.features_per_unit() + f] *= shrink;
            }
            #[unroll]
            for j in 0..COLUMNS_PER_UNIT {
                let score = scores[i * COLUMNS_PER_UNIT + j];
                let mut weight = 0.0f32;
                if score > HIDDEN {
                    weight = (score - new).exp();
                }
                scores[i * COLUMNS_PER_UNIT + j] = weight;
                sums[i] += weight;
            }
        }
        sync_cube();
        share(&scores, &mut shared, size);
        sync_cube();
        accumulate(&shared, v, v_tile, v.stride(2), keys, &mut sum_out, size);
        sync_cube();
        at += COLUMNS;
    }

    // Each unit has summed its own columns; now sum over the line.
    share_rows(&sums, &mut shared, size);
    sync_cube();
    #[unroll]
    for i in 0..rows_per_unit {
        let sum = sum_of_line(&shared, i);
        let row = line + i * LINE;
        of_rows[i] = 1.0f32 / sum;
        if place == 0 && row < count {
            log_sum[(batch * heads + head) * seq + first + row] = greatest[i] + sum.ln();
        }
    }
    let to = batch * out.stride(0) + head * out.stride(1) + first * out.stride(2);
    let stride = out.stride(2);
    write(&sum_out, &of_rows, out, to, stride, count, size);
}
