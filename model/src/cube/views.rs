//! `[batch, heads, seq, head_dim]` as the layers around lay it: tokens outside, heads inside.

use burn::tensor::{DType, Shape};
use burn_cubecl::CubeRuntime;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::launch::empty;

/// The tensor itself if the features of a head lie side by side, whatever its other strides; else a copy.
pub(super) fn with_whole_rows<R: CubeRuntime>(x: CubeTensor<R>) -> CubeTensor<R> {
    match x.meta.strides().last() {
        Some(1) => x,
        _ => into_contiguous(x),
    }
}

/// A tensor of this shape, not yet written, that lies in memory as `[batch, seq, heads, head_dim]`: to flatten its heads
/// into features costs no copy.
pub(super) fn with_tokens_outside<R: CubeRuntime>(
    beside: &CubeTensor<R>,
    [batch, heads, seq, head_dim]: [usize; 4],
    dtype: DType,
) -> CubeTensor<R> {
    let mut tensor = empty(beside, Shape::from([batch, seq, heads, head_dim]), dtype);
    tensor.meta.swap(1, 2);
    tensor
}
