//! Tensors from numbers of the host.

use burn::tensor::backend::Backend;
use burn::tensor::{Element, Int, Tensor, TensorData};

/// A float tensor in the backend's own float type.
///
/// `Tensor::from_data(data, device)` takes the *device's* default type instead, which is f32 for every CPU backend, also
/// for `NdArray<f64>`; `TensorData`'s own type has no say.
pub fn float_tensor<B: Backend, const D: usize>(
    values: Vec<f32>,
    shape: [usize; D],
    device: &B::Device,
) -> Tensor<B, D> {
    Tensor::from_data(TensorData::new(values, shape), (device, B::FloatElem::dtype()))
}

/// A tensor of token ids or positions, in the backend's own int type.
pub fn index_tensor<B: Backend, const D: usize>(
    values: impl IntoIterator<Item = usize>,
    shape: [usize; D],
    device: &B::Device,
) -> Tensor<B, D, Int> {
    let values: Vec<i64> = values.into_iter().map(|value| value as i64).collect();
    Tensor::from_data(TensorData::new(values, shape), (device, B::IntElem::dtype()))
}
