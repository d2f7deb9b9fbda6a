//! CPU kernels for the backend Flex, in f32. Other types use the portable operations.

mod half;
mod product;
mod slices;

use burn::tensor::{DType, Tensor, TensorData, TensorPrimitive};
use burn_flex::{Flex, FlexTensor};

use self::half::{Half, is_half};
use crate::codec::Rows;
use crate::codec::blockwise::{self as host, DynamicMap};
use crate::quantized::Quantized;
use crate::tensor_file::FloatDtype;
use crate::{Blockwise, PackedBytes, Packing, QuantBackend, blockwise, portable};
use slices::Slices;

impl QuantBackend for Flex {
    const PACKING: Packing = Packing::Bytes;

    fn has_float_type(_: FloatDtype, _: &Self::Device) -> bool {
        true
    }

    /// A CPU is not faster in 16 bits than in 32, and less exact: 16-bit weights are widened when used.
    fn activation_type(weights: DType) -> DType {
        if is_half(weights) { DType::F32 } else { weights }
    }

    fn matmul_dense(x: Tensor<Self, 2>, weight: Tensor<Self, 2>) -> Tensor<Self, 2> {
        let dims = weight.dims();
        let [tokens, _] = x.dims();
        let weight = contiguous(weight);
        match (Half::of(&weight), weight.as_slice::<f32>()) {
            (Some(half), _) if x.dtype() == DType::F32 => {
                product::forward(values(&contiguous(x)), half, tokens, dims)
            }
            (_, Some(weight)) if x.dtype() == DType::F32 => {
                product::forward_dense(values(&contiguous(x)), weight, tokens, dims)
            }
            _ => portable::matmul_dense(x, from_primitive(weight)),
        }
    }

    fn matmul_dense_backward(grad: Tensor<Self, 2>, weight: Tensor<Self, 2>) -> Tensor<Self, 2> {
        let dims = weight.dims();
        let [tokens, _] = grad.dims();
        let weight = contiguous(weight);
        match (Half::of(&weight), weight.as_slice::<f32>()) {
            (Some(half), _) if grad.dtype() == DType::F32 => {
                product::backward(values(&contiguous(grad)), half, tokens, dims)
            }
            (_, Some(weight)) if grad.dtype() == DType::F32 => {
                product::backward_dense(values(&contiguous(grad)), weight, tokens, dims)
            }
            _ => portable::matmul_dense_backward(grad, from_primitive(weight)),
        }
    }

    fn dequantize_weight(weight: &Quantized<Self>, dtype: DType) -> Tensor<Self, 2> {
        let [d_out, d_in] = weight.dims();
        let slices = match Slices::of(weight) {
            Some(slices) if dtype == DType::F32 => slices,
            _ => return portable::dequantize(weight, dtype),
        };
        let mut values = vec![0.0; d_out * d_in];
        slices.view().decode_rows(0, d_in, &mut values);
        from_values(values, [d_out, d_in])
    }

    fn matmul_quantized(x: Tensor<Self, 2>, weight: &Quantized<Self>) -> Tensor<Self, 2> {
        let [tokens, _] = x.dims();
        match Slices::of(weight) {
            Some(slices) if x.dtype() == DType::F32 => {
                product::forward(values(&contiguous(x)), slices.view(), tokens, weight.dims())
            }
            _ => {
                let dense = portable::dequantize(weight, x.dtype());
                x.matmul(dense.transpose())
            }
        }
    }

    fn matmul_quantized_backward(
        grad: Tensor<Self, 2>,
        weight: &Quantized<Self>,
    ) -> Tensor<Self, 2> {
        let [tokens, _] = grad.dims();
        match Slices::of(weight) {
            Some(slices) if grad.dtype() == DType::F32 => {
                product::backward(values(&contiguous(grad)), slices.view(), tokens, weight.dims())
            }
            _ => {
                let dense = portable::dequantize(weight, grad.dtype());
                grad.matmul(dense)
            }
        }
    }

    fn quantize_blockwise(values: Tensor<Self, 1>, map: DynamicMap) -> Blockwise<Self> {
        let device = values.device();
        let tensor = contiguous(values);
        let Some(values) = tensor.as_slice::<f32>() else {
            return blockwise::quantize(from_primitive(tensor), map);
        };
        let (codes, absmax) = host::quantize(values, map);
        let blocks = absmax.len();
        let codes = PackedBytes::new(codes, &device);
        Blockwise { codes, absmax: from_values(absmax, [blocks]), map }
    }

    fn dequantize_blockwise(vector: &Blockwise<Self>) -> Tensor<Self, 1> {
        let codes = vector.codes.tensor().into_primitive();
        let absmax = contiguous(vector.absmax.clone());
        match (codes.as_slice::<u8>(), absmax.as_slice::<f32>()) {
            (Some(codes), Some(absmax)) => {
                from_values(host::dequantize(codes, absmax, vector.map), [codes.len()])
            }
            _ => blockwise::dequantize(vector),
        }
    }
}

fn contiguous<const D: usize>(tensor: Tensor<Flex, D>) -> FlexTensor {
    tensor.into_primitive().tensor().to_contiguous()
}

fn values(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().expect("the caller checks that it is contiguous and f32")
}

fn bytes(tensor: &FlexTensor) -> &[u8] {
    tensor.as_slice().expect("the caller checks that it is contiguous and U8")
}

fn from_values<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> Tensor<Flex, D> {
    from_primitive(FlexTensor::from_data(TensorData::new(values, shape)))
}

fn from_primitive<const D: usize>(tensor: FlexTensor) -> Tensor<Flex, D> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}
