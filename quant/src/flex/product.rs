//! Products with a quantized or 16-bit weight: its rows are decoded panel by panel into a thread-local buffer and
//! multiplied by `gemm`; for a few tokens, row by row in cache. The order of sums depends only on sizes.

use std::cell::RefCell;
use std::sync::OnceLock;

use burn::tensor::Tensor;
use burn_flex::Flex;
use gemm::Parallelism;
use rayon::prelude::*;

use super::from_values;
use crate::PANEL;
use crate::codec::Rows;

/// Up to this number of tokens, a product is bound by reading the weight, and each row is multiplied right after
/// decoding.
const FEW_TOKENS: usize = 4;

/// Rows per task.
const ROWS: usize = 16;

/// `x · Wᵀ`: `[tokens, d_in] -> [tokens, d_out]`.
pub(super) fn forward(
    x: &[f32],
    weight: impl Rows,
    tokens: usize,
    [d_out, d_in]: [usize; 2],
) -> Tensor<Flex, 2> {
    if tokens <= FEW_TOKENS {
        return few_tokens(x, weight, tokens, [d_out, d_in]);
    }
    let mut y = vec![0.0; tokens * d_out];
    for_each_panel(weight, [d_out, d_in], |first, panel| {
        let size = Size { m: tokens, n: panel.len() / d_in, k: d_in };
        multiply(size, &mut y[first..], d_out, (x, d_in), (panel, 1, d_in), false);
    });
    from_values(y, [tokens, d_out])
}

/// As [`forward`], with an f32 matrix.
pub(super) fn forward_dense(
    x: &[f32],
    weight: &[f32],
    tokens: usize,
    [d_out, d_in]: [usize; 2],
) -> Tensor<Flex, 2> {
    let mut y = vec![0.0; tokens * d_out];
    let size = Size { m: tokens, n: d_out, k: d_in };
    multiply(size, &mut y, d_out, (x, d_in), (weight, 1, d_in), false);
    from_values(y, [tokens, d_out])
}

/// As [`backward`], with an f32 matrix.
pub(super) fn backward_dense(
    grad: &[f32],
    weight: &[f32],
    tokens: usize,
    [d_out, d_in]: [usize; 2],
) -> Tensor<Flex, 2> {
    let mut d_x = vec![0.0; tokens * d_in];
    let size = Size { m: tokens, n: d_in, k: d_out };
    multiply(size, &mut d_x, d_in, (grad, d_out), (weight, d_in, 1), false);
    from_values(d_x, [tokens, d_in])
}

/// `grad · W`: `[tokens, d_out] -> [tokens, d_in]`.
pub(super) fn backward(
    grad: &[f32],
    weight: impl Rows,
    tokens: usize,
    [d_out, d_in]: [usize; 2],
) -> Tensor<Flex, 2> {
    let mut d_x = vec![0.0; tokens * d_in];
    for_each_panel(weight, [d_out, d_in], |first, panel| {
        let size = Size { m: tokens, n: d_in, k: panel.len() / d_in };
        let is_later = first > 0;
        multiply(size, &mut d_x, d_in, (&grad[first..], d_out), (panel, d_in, 1), is_later);
    });
    from_values(d_x, [tokens, d_in])
}

/// Calls `f` with the first row of each panel and the panel's values, in order.
fn for_each_panel(weight: impl Rows, [d_out, d_in]: [usize; 2], mut f: impl FnMut(usize, &[f32])) {
    thread_local! {
        static BUFFER: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    }
    // Taken, not borrowed: while `gemm` waits for its threads, this thread may run another product.
    let mut buffer = BUFFER.take();
    let rows = (PANEL / d_in.max(1)).clamp(1, d_out.max(1));
    if buffer.len() < rows * d_in {
        buffer.resize(rows * d_in, 0.0);
    }
    for first in (0..d_out).step_by(rows) {
        let panel = &mut buffer[..rows.min(d_out - first) * d_in];
        weight.decode_rows(first, d_in, panel);
        f(first, panel);
    }
    BUFFER.set(buffer);
}

struct Size {
    m: usize,
    n: usize,
    k: usize,
}

/// `out = a · b`, or `out += a · b`. `out` and `a` are row-major with the given row strides; `b` has a stride for its
/// rows (along k) and one for its columns.
fn multiply(
    size: Size,
    out: &mut [f32],
    out_row: usize,
    (a, a_row): (&[f32], usize),
    (b, b_row, b_column): (&[f32], usize, usize),
    add: bool,
) {
    let Size { m, n, k } = size;
    if m == 0 || n == 0 || k == 0 {
        return;
    }
    assert!((m - 1) * out_row + n <= out.len());
    assert!((m - 1) * a_row + k <= a.len());
    assert!((k - 1) * b_row + (n - 1) * b_column < b.len());
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
            a.as_ptr(),
            1,
            a_row as isize,
            b.as_ptr(),
            b_column as isize,
            b_row as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::Rayon(0),
        );
    }
}

fn few_tokens(
    x: &[f32],
    weight: impl Rows,
    tokens: usize,
    [d_out, d_in]: [usize; 2],
) -> Tensor<Flex, 2> {
    // Each task's rows adjacent, [d_out, tokens].
    let mut columns = vec![0.0; d_out * tokens];
    columns.par_chunks_mut((ROWS * tokens).max(1)).enumerate().for_each_init(
        || vec![0.0; d_in],
        |row, (chunk, columns)| {
            for (i, outputs) in columns.chunks_exact_mut(tokens).enumerate() {
                weight.decode((chunk * ROWS + i) * d_in, row);
                for (output, x) in outputs.iter_mut().zip(x.chunks_exact(d_in)) {
                    *output = dot(row, x);
                }
            }
        },
    );
    if tokens == 1 {
        return from_values(columns, [1, d_out]);
    }
    let row_major = (0..tokens * d_out).map(|i| columns[i % d_out * tokens + i / d_out]).collect();
    from_values(row_major, [tokens, d_out])
}

/// The dot product, in an order that depends only on the length, compiled for the widest available vectors.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 32;
    static ARCH: OnceLock<pulp::Arch> = OnceLock::new();
    ARCH.get_or_init(pulp::Arch::new).dispatch(
        #[inline(always)]
        || {
            let mut lanes = [0.0f32; LANES];
            let ((a, a_tail), (b, b_tail)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
            for (a, b) in a.iter().zip(b) {
                for lane in 0..LANES {
                    lanes[lane] += a[lane] * b[lane];
                }
            }
            let tail: f32 = a_tail.iter().zip(b_tail).map(|(a, b)| a * b).sum();
            lanes.iter().sum::<f32>() + tail
        },
    )
}
