//! Dequantizing by Burn's own operations, on any backend. Kernels are tested against it.

use burn::tensor::{Element, FloatDType, Tensor, backend::Backend};

use crate::quantized::{Quantized, QuantizedScales};

/// The dense matrix `[d_out, d_in]`: `value(code) · scale · unit`, in f32, then in the backend's float type.
pub fn dequantize<B: Backend>(weight: &Quantized<B>) -> Tensor<B, 2> {
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
    scaled
        .reshape([blocks * weight.block])
        .narrow(0, 0, d_out * d_in)
        .reshape([d_out, d_in])
        .cast(FloatDType::from(B::FloatElem::dtype()))
}

/// One scale a block: `[blocks]`.
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
