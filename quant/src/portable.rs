//! Matrix products and dequantizing with Burn's operations, on any backend. Kernels are tested against them.

use burn::tensor::{DType, FloatDType, Tensor, backend::Backend};

use crate::quantized::{Quantized, QuantizedScales};

/// `x · Wᵀ`, in the type of `x`: `[tokens, d_in]`, `[d_out, d_in] -> [tokens, d_out]`.
pub fn matmul_dense<B: Backend>(x: Tensor<B, 2>, weight: Tensor<B, 2>) -> Tensor<B, 2> {
    let weight = in_type(weight, x.dtype());
    x.matmul(weight.transpose())
}

/// `grad · W`, in the type of `grad`: `[tokens, d_out]`, `[d_out, d_in] -> [tokens, d_in]`.
pub fn matmul_dense_backward<B: Backend>(grad: Tensor<B, 2>, weight: Tensor<B, 2>) -> Tensor<B, 2> {
    let weight = in_type(weight, grad.dtype());
    grad.matmul(weight)
}

/// The tensor converted to this type, if it has another.
pub fn in_type<B: Backend, const D: usize>(tensor: Tensor<B, D>, dtype: DType) -> Tensor<B, D> {
    if tensor.dtype() == dtype { tensor } else { tensor.cast(FloatDType::from(dtype)) }
}

/// The dense matrix `[d_out, d_in]`: `value(code) · scale · unit`, in f32, then in `dtype`.
pub fn dequantize<B: Backend>(weight: &Quantized<B>, dtype: DType) -> Tensor<B, 2> {
    let [d_out, d_in] = weight.dims();
    let codes = match weight.format().bits() {
        4 => weight.codes.unpack_nibbles(),
        _ => weight.codes.unpack(),
    };
    let scales = scales(&weight.scales);
    let [blocks] = scales.dims();
    let values = weight.table.clone().select(0, codes).reshape([blocks, weight.block]);
    let scaled = values * scales.reshape([blocks, 1]);
    let scaled = match weight.format().unit() {
        1.0 => scaled,
        unit => scaled * f64::from(unit),
    };
    let matrix = scaled.reshape([blocks * weight.block]).narrow(0, 0, d_out * d_in);
    in_type(matrix.reshape([d_out, d_in]), dtype)
}

/// One scale per block: `[blocks]`.
fn scales<B: Backend>(scales: &QuantizedScales<B>) -> Tensor<B, 1> {
    match scales {
        QuantizedScales::Plain(scales) => scales.clone(),
        QuantizedScales::Nested(nested) => {
            let codes = nested.codes.unpack();
            let ([n], [blocks]) = (codes.dims(), nested.absmax.dims());
            let absmax = nested.absmax.clone().reshape([blocks, 1]).repeat_dim(1, nested.block);
            let absmax = absmax.reshape([blocks * nested.block]).narrow(0, 0, n);
            nested.map.clone().select(0, codes) * absmax + nested.offset
        }
    }
}
