//! Quantized matrices on the host: quantizing and dequantizing, byte for byte as bitsandbytes.

pub mod blockwise;
mod decode;
pub mod dynamic;
mod eight_bit;
mod four_bit;

pub(crate) use decode::{CodesView, Rows, ScalesView};

use crate::{QuantFormat, Quantization};

/// A quantized matrix `[d_out, d_in]` on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedMatrix {
    /// The format of the codes.
    pub format: QuantFormat,
    /// `[d_out, d_in]`.
    pub shape: [usize; 2],
    /// Elements that share one scale, of the matrix as one row-major vector. The last block may be short.
    pub block: usize,
    /// Row-major; a 4-bit format has two codes a byte, the first in the high half.
    pub codes: Vec<u8>,
    /// The scale of each block.
    pub scales: Scales,
}

/// The scales of a quantized matrix.
#[derive(Debug, Clone, PartialEq)]
pub enum Scales {
    /// One f32 per block.
    Plain(Vec<f32>),
    /// Double quantization, 8 bits per scale: scale i is `map[codes[i]] · absmax[i / block] + offset`.
    Nested(NestedScales),
}

/// Quantized scales ("double quantization").
#[derive(Debug, Clone, PartialEq)]
pub struct NestedScales {
    /// One code per scale.
    pub codes: Vec<u8>,
    /// The largest magnitude of each block of scales.
    pub absmax: Vec<f32>,
    /// Scales that share one `absmax`.
    pub block: usize,
    /// The value of each code, 256 of them.
    pub map: Vec<f32>,
    /// The mean of all scales, subtracted before quantizing.
    pub offset: f32,
}

impl Scales {
    /// Number of scales.
    pub fn len(&self) -> usize {
        match self {
            Self::Plain(scales) => scales.len(),
            Self::Nested(nested) => nested.codes.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The scales as f32, one per block.
    pub fn to_vec(&self) -> Vec<f32> {
        let view = self.view();
        (0..self.len()).map(|i| view.at(i)).collect()
    }

    fn view(&self) -> ScalesView<'_> {
        match self {
            Self::Plain(scales) => ScalesView::Plain(scales),
            Self::Nested(NestedScales { codes, absmax, block, map, offset }) => {
                ScalesView::Nested { codes, absmax, block: *block, map, offset: *offset }
            }
        }
    }
}

impl QuantizedMatrix {
    /// Quantizes a dense matrix, given row-major. `quantization.skip_modules` is ignored.
    ///
    /// # Panics
    /// If the number of values is not `d_out · d_in`.
    pub fn quantize(values: &[f32], shape: [usize; 2], quantization: &Quantization) -> Self {
        let [d_out, d_in] = shape;
        assert_eq!(values.len(), d_out * d_in, "the number of values must match the shape");
        let format = quantization.format;
        if format == QuantFormat::Int8 {
            let (codes, scales) = eight_bit::quantize(values, d_in);
            return Self { format, shape, block: d_in, codes, scales: Scales::Plain(scales) };
        }
        let (codes, scales) = four_bit::quantize(values, format);
        let scales = if quantization.double_quant { nest(&scales) } else { Scales::Plain(scales) };
        Self { format, shape, block: four_bit::BLOCK, codes, scales }
    }

    /// The dequantized matrix, row-major: `value(code) · scale` in f32.
    pub fn dequantize(&self) -> Vec<f32> {
        let [d_out, d_in] = self.shape;
        let mut values = vec![0.0; d_out * d_in];
        self.view().decode_rows(0, d_in, &mut values);
        values
    }

    /// Bytes that codes and scales take.
    pub fn bytes(&self) -> usize {
        let scales = match &self.scales {
            Scales::Plain(scales) => 4 * scales.len(),
            Scales::Nested(nested) => {
                nested.codes.len() + 4 * (nested.absmax.len() + nested.map.len() + 1)
            }
        };
        self.codes.len() + scales
    }

    fn view(&self) -> CodesView<'_> {
        CodesView {
            format: self.format,
            block: self.block,
            codes: &self.codes,
            scales: self.scales.view(),
        }
    }
}

fn nest(scales: &[f32]) -> Scales {
    let offset = dynamic::mean(scales);
    let centred: Vec<f32> = scales.iter().map(|scale| scale - offset).collect();
    let (codes, absmax) = dynamic::quantize(&centred);
    let map = dynamic::map().to_vec();
    Scales::Nested(NestedScales { codes, absmax, block: dynamic::BLOCK, map, offset })
}
