//! Flex tensors as slices, and back.

use burn::tensor::{Tensor, TensorData, TensorPrimitive};
use burn_flex::{Flex, FlexTensor};

/// A contiguous f32 tensor.
pub(super) struct Contiguous(FlexTensor);

impl Contiguous {
    /// Its values, row-major.
    pub(super) fn values(&self) -> &[f32] {
        self.0.as_slice().expect("made contiguous, and the caller checks that it is f32")
    }
}

/// The tensor itself if it is contiguous, else a contiguous copy.
pub(super) fn contiguous<const D: usize>(tensor: Tensor<Flex, D>) -> Contiguous {
    Contiguous(primitive(tensor).to_contiguous())
}

pub(super) fn primitive<const D: usize>(tensor: Tensor<Flex, D>) -> FlexTensor {
    tensor.into_primitive().tensor()
}

pub(super) fn from_primitive<const D: usize>(primitive: FlexTensor) -> Tensor<Flex, D> {
    Tensor::from_primitive(TensorPrimitive::Float(primitive))
}

/// A tensor that owns a vector.
pub(super) fn from_values<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> Tensor<Flex, D> {
    from_primitive(FlexTensor::from_data(TensorData::new(values, shape)))
}

/// `[batch, heads, tokens, head_dim]` in any layout with contiguous features per head.
pub(super) struct Heads {
    tensor: FlexTensor,
    batch_stride: usize,
    head_stride: usize,
    token_stride: usize,
}

impl Heads {
    /// A view if features are contiguous, else of a contiguous copy.
    pub(super) fn new(tensor: Tensor<Flex, 4>) -> Self {
        let mut tensor = primitive(tensor);
        let is_direct = tensor.layout().strides()[3] == 1
            && tensor.layout().strides().iter().all(|&stride| stride > 0);
        if !is_direct {
            tensor = tensor.to_contiguous();
        }
        let stride = |axis: usize| tensor.layout().strides()[axis].unsigned_abs();
        let (batch_stride, head_stride, token_stride) = (stride(0), stride(1), stride(2));
        Self { tensor, batch_stride, head_stride, token_stride }
    }

    /// Stride from token to token.
    pub(super) fn token_stride(&self) -> usize {
        self.token_stride
    }

    /// The memory starting at the first feature of a head's first token.
    pub(super) fn head(&self, batch: usize, head: usize) -> &[f32] {
        let start = self.tensor.layout().start_offset()
            + batch * self.batch_stride
            + head * self.head_stride;
        &self.tensor.storage::<f32>()[start..]
    }
}
