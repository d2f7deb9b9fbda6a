//! Tensors from host values.

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Element, Int, Tensor, TensorData};

use crate::tensor_file::FloatDtype;

/// A float tensor in the backend's float type.
///
/// `Tensor::from_data(data, device)` takes the *device's* default type instead, which is f32 for every CPU backend,
/// also for `NdArray<f64>`; `TensorData`'s type is ignored.
pub fn float_tensor<B: Backend, const D: usize>(
    values: Vec<f32>,
    shape: [usize; D],
    device: &B::Device,
) -> Tensor<B, D> {
    float_tensor_in(values, shape, B::FloatElem::dtype(), device)
}

/// A float tensor in a given float type.
pub fn float_tensor_in<B: Backend, const D: usize>(
    values: Vec<f32>,
    shape: [usize; D],
    dtype: DType,
    device: &B::Device,
) -> Tensor<B, D> {
    Tensor::from_data(TensorData::new(values, shape), (device, dtype))
}

/// The backend's type for tensors of this type: f32 maps to its float type, which may be wider.
pub fn float_type<B: Backend>(dtype: FloatDtype) -> DType {
    match dtype {
        FloatDtype::F32 => B::FloatElem::dtype(),
        FloatDtype::F16 => DType::F16,
        FloatDtype::Bf16 => DType::BF16,
    }
}

/// A tensor of token ids or positions, in the backend's int type.
pub fn index_tensor<B: Backend, const D: usize>(
    values: impl IntoIterator<Item = usize>,
    shape: [usize; D],
    device: &B::Device,
) -> Tensor<B, D, Int> {
    let values: Vec<i64> = values.into_iter().map(|value| value as i64).collect();
    Tensor::from_data(TensorData::new(values, shape), (device, B::IntElem::dtype()))
}
