//! The tensors of a quantized weight as slices.

use burn::tensor::Tensor;
use burn_flex::{Flex, FlexTensor};

use super::{bytes, values};
use crate::QuantFormat;
use crate::codec::{CodesView, ScalesView};
use crate::quantized::{Quantized, QuantizedScales};

/// The tensors of a weight, readable as slices.
pub(super) struct Slices {
    format: QuantFormat,
    block: usize,
    codes: FlexTensor,
    scales: ScaleSlices,
}

enum ScaleSlices {
    Plain(FlexTensor),
    Nested(Box<NestedSlices>),
}

struct NestedSlices {
    codes: FlexTensor,
    absmax: FlexTensor,
    map: FlexTensor,
    block: usize,
    offset: f32,
}

impl Slices {
    /// `None` if the tensors' types are not this backend's.
    pub(super) fn of(weight: &Quantized<Flex>) -> Option<Self> {
        let codes = weight.codes.tensor().into_primitive();
        codes.as_slice::<u8>()?;
        let float = |tensor: &Tensor<Flex, 1>| {
            let tensor = tensor.clone().into_primitive().tensor();
            tensor.as_slice::<f32>().is_some().then_some(tensor)
        };
        let scales = match &weight.scales {
            QuantizedScales::Plain(scales) => ScaleSlices::Plain(float(scales)?),
            QuantizedScales::Nested(nested) => ScaleSlices::Nested(Box::new(NestedSlices {
                codes: nested.codes.tensor().into_primitive(),
                absmax: float(&nested.absmax)?,
                map: float(&nested.map)?,
                block: nested.block,
                offset: nested.offset as f32,
            })),
        };
        Some(Self { format: weight.format(), block: weight.block, codes, scales })
    }

    pub(super) fn view(&self) -> CodesView<'_> {
        let scales = match &self.scales {
            ScaleSlices::Plain(scales) => ScalesView::Plain(values(scales)),
            ScaleSlices::Nested(nested) => ScalesView::Nested {
                codes: bytes(&nested.codes),
                absmax: values(&nested.absmax),
                block: nested.block,
                map: values(&nested.map),
                offset: nested.offset,
            },
        };
        CodesView { format: self.format, block: self.block, codes: bytes(&self.codes), scales }
    }
}
