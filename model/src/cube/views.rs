//! `[batch, heads, seq, head_dim]` in the layout of the linear layers: tokens outside, heads inside.

use burn::tensor::{DType, Shape};
use burn_cubecl::CubeRuntime;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::launch::empty;

/// The tensor itself if a head's features are contiguous, with any other strides; else a copy.
pub(super) fn with_whole_rows<R: CubeRuntime>(x: CubeTensor<R>) -> CubeTensor<R> {
    match x.meta.strides().last() {
        Some(1) => x,
        _ => into_contiguous(x),
    }
}

/// An uninitialized tensor of this shape with the memory layout `[batch, seq, heads, head_dim]`, so that flattening
/// heads into features needs no copy.
pub(super) fn with_tokens_outside<R: CubeRuntime>(
    like: &CubeTensor<R>,
    [batch, heads, seq, head_dim]: [usize; 4],
    dtype: DType,
) -> CubeTensor<R> {
    let mut tensor = empty(like, Shape::from([batch, seq, heads, head_dim]), dtype);
    tensor.meta.swap(1, 2);
    tensor
}
