//! A quantized matrix on a device.

use burn::module::Module;
use burn::tensor::{DType, Element, Tensor, TensorData, backend::Backend};

use crate::codec::{NestedScales, QuantizedMatrix, Scales};
use crate::{PackedBytes, QuantBackend, QuantFormat};

/// A quantized matrix `[d_out, d_in]` on a device: packed codes and their scales.
///
/// It has no parameters, so it is always frozen.
#[derive(Module, Debug)]
pub struct Quantized<B: Backend> {
    /// Codes, row-major, zero-padded to full blocks; 4-bit formats two per byte, the first in the high half.
    pub codes: PackedBytes<B>,
    /// Scales, one per block.
    pub scales: QuantizedScales<B>,
    /// The value of each code before scaling, `[16]` or `[256]`.
    pub table: Tensor<B, 1>,
    /// Elements per block of the matrix as one row-major vector.
    pub block: usize,
    d_out: usize,
    d_in: usize,
    #[module(skip)]
    format: QuantFormat,
}

/// The scales of a quantized matrix, one per block.
#[derive(Module, Debug)]
pub enum QuantizedScales<B: Backend> {
    /// `[blocks]`.
    Plain(Tensor<B, 1>),
    /// Double quantization.
    Nested(QuantizedNested<B>),
}

/// Quantized scales (double quantization): scale i is `map[codes[i]] · absmax[i / block] + offset`.
#[derive(Module, Debug)]
pub struct QuantizedNested<B: Backend> {
    /// One code per scale.
    pub codes: PackedBytes<B>,
    /// The largest magnitude of each block of scales.
    pub absmax: Tensor<B, 1>,
    /// The value of each code, `[256]`.
    pub map: Tensor<B, 1>,
    /// Scales that share one `absmax`.
    pub block: usize,
    /// Added to every scale.
    pub offset: f64,
}

/// Scales are f32, or the backend's float type if that is wider.
fn scale_tensor<B: Backend>(values: Vec<f32>, device: &B::Device) -> Tensor<B, 1> {
    let dtype = if B::FloatElem::dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let n = values.len();
    Tensor::from_data(TensorData::new(values, [n]), (device, dtype))
}

fn to_f32<B: Backend>(tensor: &Tensor<B, 1>) -> Vec<f32> {
    tensor.to_data().iter::<f32>().collect()
}

impl<B: QuantBackend> Quantized<B> {
    /// Moves a quantized matrix to a device.
    pub fn new(matrix: QuantizedMatrix, device: &B::Device) -> Self {
        let QuantizedMatrix { format, shape: [d_out, d_in], block, mut codes, scales } = matrix;
        codes.resize(scales.len() * block * format.bits() / 8, 0);
        let scales = match scales {
            Scales::Plain(scales) => QuantizedScales::Plain(scale_tensor(scales, device)),
            Scales::Nested(NestedScales { codes, absmax, block, map, offset }) => {
                QuantizedScales::Nested(QuantizedNested {
                    codes: PackedBytes::new(codes, device),
                    absmax: scale_tensor(absmax, device),
                    map: scale_tensor(map, device),
                    block,
                    offset: f64::from(offset),
                })
            }
        };
        let table = scale_tensor(format.values(), device);
        let codes = PackedBytes::new(codes, device);
        Self { codes, scales, table, block, d_out, d_in, format }
    }
}

impl<B: Backend> Quantized<B> {
    /// A matrix from parts on the device.
    #[cfg(feature = "cube")]
    pub(crate) fn from_parts(
        format: QuantFormat,
        [d_out, d_in]: [usize; 2],
        block: usize,
        codes: PackedBytes<B>,
        scales: QuantizedScales<B>,
        table: Tensor<B, 1>,
    ) -> Self {
        Self { codes, scales, table, block, d_out, d_in, format }
    }

    /// `[d_out, d_in]`.
    pub fn dims(&self) -> [usize; 2] {
        [self.d_out, self.d_in]
    }

    /// The format of the codes.
    pub fn format(&self) -> QuantFormat {
        self.format
    }

    /// The same matrix on the host.
    pub fn to_host(&self) -> QuantizedMatrix {
        let mut codes = self.codes.to_host();
        codes.truncate((self.d_out * self.d_in * self.format.bits()).div_ceil(8));
        let scales = match &self.scales {
            QuantizedScales::Plain(scales) => Scales::Plain(to_f32(scales)),
            QuantizedScales::Nested(nested) => Scales::Nested(NestedScales {
                codes: nested.codes.to_host(),
                absmax: to_f32(&nested.absmax),
                block: nested.block,
                map: to_f32(&nested.map),
                offset: nested.offset as f32,
            }),
        };
        let shape = self.dims();
        QuantizedMatrix { format: self.format, shape, block: self.block, codes, scales }
    }

    /// Bytes of memory for codes, scales and tables.
    pub fn memory(&self) -> usize {
        let floats = |tensor: &Tensor<B, 1>| tensor.dims()[0] * tensor.dtype().size();
        let scales = match &self.scales {
            QuantizedScales::Plain(scales) => floats(scales),
            QuantizedScales::Nested(nested) => {
                nested.codes.memory() + floats(&nested.absmax) + floats(&nested.map)
            }
        };
        self.codes.memory() + scales + floats(&self.table)
    }
}
