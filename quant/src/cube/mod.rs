//! Kernels for CubeCL's backends, one source for CUDA and WGPU, and their registration with `Fusion`.
//!
//! A quantized weight becomes a dense matrix in one launch; the backend's matrix product follows, and the dense matrix
//! is freed. For a few tokens, codes are decoded and multiplied in one kernel.

mod codes;
mod dequantize;
mod few_tokens;

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor};
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use burn_fusion::{Fusion, FusionBackend};

use crate::host::float_type;
use crate::quantized::{Quantized, QuantizedNested, QuantizedScales};
use crate::tensor_file::FloatDtype;
use crate::{PackedBytes, Packing, QuantBackend, QuantFormat, fusion, portable};
use few_tokens::{FEW_TOKENS, few_tokens};
use fusion::{FusedOp, OpInputs};

impl<R: CubeRuntime, F: FloatElement, I: IntElement, BT: BoolElement> QuantBackend
    for CubeBackend<R, F, I, BT>
{
    fn has_float_type(dtype: FloatDtype, device: &Self::Device) -> bool {
        Self::supports_dtype(device, float_type::<Self>(dtype))
    }

    fn dequantize_weight(weight: &Quantized<Self>, dtype: DType) -> Tensor<Self, 2> {
        dequantize::dequantize(weight, dtype).unwrap_or_else(|| portable::dequantize(weight, dtype))
    }

    fn matmul_quantized(x: Tensor<Self, 2>, weight: &Quantized<Self>) -> Tensor<Self, 2> {
        few_tokens(&x, weight).unwrap_or_else(|| {
            let dense = Self::dequantize_weight(weight, x.dtype());
            x.matmul(dense.transpose())
        })
    }
}

impl<B: FusionBackend + QuantBackend> QuantBackend for Fusion<B> {
    const PACKING: Packing = B::PACKING;

    fn has_float_type(dtype: FloatDtype, device: &Self::Device) -> bool {
        B::has_float_type(dtype, device)
    }

    fn activation_type(weights: DType) -> DType {
        B::activation_type(weights)
    }

    fn dequantize_weight(weight: &Quantized<Self>, dtype: DType) -> Tensor<Self, 2> {
        let [d_out, d_in] = weight.dims();
        let outputs = [([d_out, d_in].into(), dtype)];
        let form = Form::of(weight);
        let op = inputs(FusedOp::<B>::new("dequantize"), weight);
        let [dense] = op.register(outputs, move |inputs| {
            [fusion::primitive(B::dequantize_weight(&form.weight(inputs), dtype))]
        });
        fusion::tensor(dense)
    }

    fn matmul_quantized(x: Tensor<Self, 2>, weight: &Quantized<Self>) -> Tensor<Self, 2> {
        let ([tokens, _], [d_out, _]) = (x.dims(), weight.dims());
        // `Fusion` can fuse a matrix product with the operations after it, so a plain product is registered as such.
        if tokens > FEW_TOKENS {
            let dense = Self::dequantize_weight(weight, x.dtype());
            return x.matmul(dense.transpose());
        }
        let outputs = [([tokens, d_out].into(), x.dtype())];
        let form = Form::of(weight);
        let op = inputs(FusedOp::<B>::new("matmul_quantized").float(x), weight);
        let [y] = op.register(outputs, move |inputs| {
            let x = inputs.float();
            [fusion::primitive(B::matmul_quantized(x, &form.weight(inputs)))]
        });
        fusion::tensor(y)
    }
}

/// Whether the kernels support activations of this type.
fn has_kernels(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// A quantized weight's properties without its tensors.
struct Form {
    format: QuantFormat,
    dims: [usize; 2],
    block: usize,
    codes: usize,
    nested: Option<NestedForm>,
}

struct NestedForm {
    codes: usize,
    block: usize,
    offset: f64,
}

/// A weight's tensors as inputs, in the order in which [`Form::weight`] takes them.
fn inputs<B: FusionBackend>(op: FusedOp<B>, weight: &Quantized<Fusion<B>>) -> FusedOp<B> {
    let op = op.int(weight.codes.tensor()).float(weight.table.clone());
    match &weight.scales {
        QuantizedScales::Plain(scales) => op.float(scales.clone()),
        QuantizedScales::Nested(nested) => {
            op.int(nested.codes.tensor()).float(nested.absmax.clone()).float(nested.map.clone())
        }
    }
}

impl Form {
    fn of<B: Backend>(weight: &Quantized<B>) -> Self {
        let nested = match &weight.scales {
            QuantizedScales::Plain(_) => None,
            QuantizedScales::Nested(nested) => Some(NestedForm {
                codes: nested.codes.len(),
                block: nested.block,
                offset: nested.offset,
            }),
        };
        let (format, dims, block) = (weight.format(), weight.dims(), weight.block);
        Self { format, dims, block, codes: weight.codes.len(), nested }
    }

    fn weight<B: FusionBackend>(&self, inputs: &mut OpInputs<'_, B>) -> Quantized<B> {
        let codes = PackedBytes::from_tensor(inputs.int(), self.codes);
        let table = inputs.float();
        let scales = match &self.nested {
            None => QuantizedScales::Plain(inputs.float()),
            Some(nested) => QuantizedScales::Nested(QuantizedNested {
                codes: PackedBytes::from_tensor(inputs.int(), nested.codes),
                absmax: inputs.float(),
                map: inputs.float(),
                block: nested.block,
                offset: nested.offset,
            }),
        };
        Quantized::from_parts(self.format, self.dims, self.block, codes, scales, table)
    }
}
