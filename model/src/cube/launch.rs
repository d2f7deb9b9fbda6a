//! Launch parameters: tensors as buffers, and numbers of cubes.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Shape, Tensor, TensorPrimitive};
use burn_cubecl::CubeRuntime;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

/// Units of a cube; every WebGPU device supports this number.
pub(super) const UNITS: usize = 256;

/// Whether the kernels support these types and sizes; the portable operations handle the rest.
pub(super) fn fits<B: Backend, const D: usize>(tensors: &[&Tensor<B, D>]) -> bool {
    tensors.iter().all(|tensor| {
        let elements = tensor.dims().iter().product::<usize>();
        has_kernels(tensor.dtype()) && elements > 0 && u32::try_from(elements).is_ok()
    })
}

/// Whether these tensors have the same shape and type.
pub(super) fn alike<B: Backend, const D: usize>(tensors: &[&Tensor<B, D>]) -> bool {
    tensors.windows(2).all(|two| two[0].dims() == two[1].dims() && two[0].dtype() == two[1].dtype())
}

/// Whether the kernels support this type.
pub(super) fn has_kernels(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// The type of sums and statistics over values of this type.
pub(super) fn sum_type(dtype: DType) -> DType {
    if has_kernels(dtype) { DType::F32 } else { dtype }
}

/// At least this number of cubes; kernels check bounds.
pub(super) fn cubes<R: CubeRuntime>(client: &ComputeClient<R>, count: usize) -> CubeCount {
    calculate_cube_count_elemwise(client, count, CubeDim::new_single())
}

/// A cube of [`UNITS`].
pub(super) fn units() -> CubeDim {
    CubeDim::new_1d(UNITS as u32)
}

/// An uninitialized contiguous tensor on the device of another.
pub(super) fn empty<R: CubeRuntime>(
    like: &CubeTensor<R>,
    shape: impl Into<Shape>,
    dtype: DType,
) -> CubeTensor<R> {
    let (client, device) = (like.client.clone(), like.device.clone());
    empty_device_contiguous_dtype(client, device, shape.into(), dtype)
}

pub(super) fn primitive<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}

pub(super) fn tensor<B: Backend, const D: usize>(primitive: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(primitive))
}
