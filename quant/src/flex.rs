//! CPU kernels for the backend Flex, in f32. Anything else takes the portable way.
//!
//! A weight is dequantized panel by panel into one buffer, which stays with its thread, and multiplied by `gemm` from
//! there; for a token or few, row by row into the cache. Sums run in an order that depends on sizes alone.

use std::cell::RefCell;
use std::sync::OnceLock;

use burn::tensor::{DType, Tensor, TensorData, TensorPrimitive};
use burn_flex::{Flex, FlexTensor};
use gemm::Parallelism;
use rayon::prelude::*;

use crate::codec::blockwise::{self as host, DynamicMap};
use crate::codec::{CodesView, ScalesView};
use crate::quantized::{Quantized, QuantizedScales};
use crate::{Blockwise, PackedBytes, Packing, QuantBackend, QuantFormat, blockwise, portable};

/// Elements of a panel: 16 MiB, large enough that cutting a weight up costs `gemm` nothing.
const PANEL: usize = 1 << 22;

/// Up to so many tokens, a product is bound by reading the weight, and rows are used where they are decoded.
const FEW_TOKENS: usize = 4;

/// Rows that one thread takes at a time.
const ROWS: usize = 16;

impl QuantBackend for Flex {
    const PACKING: Packing = Packing::Bytes;

    fn dequantize_weight(weight: &Quantized<Self>) -> Tensor<Self, 2> {
        let [d_out, d_in] = weight.dims();
        let Some(slices) = Slices::of(weight) else { return portable::dequantize(weight) };
        let mut values = vec![0.0; d_out * d_in];
        slices.view().decode_rows(0, d_in, &mut values);
        from_values(values, [d_out, d_in])
    }

    fn matmul_quantized(x: Tensor<Self, 2>, weight: &Quantized<Self>) -> Tensor<Self, 2> {
        let ([tokens, d_in], [d_out, _]) = (x.dims(), weight.dims());
        let slices = match Slices::of(weight) {
            Some(slices) if x.dtype() == DType::F32 => slices,
            _ => return x.matmul(portable::dequantize(weight).transpose()),
        };
        let x = contiguous(x);
        let (x, view) = (values(&x), slices.view());
        if tokens <= FEW_TOKENS {
            return few_tokens(x, view, tokens, d_out, d_in);
        }
        let mut y = vec![0.0; tokens * d_out];
        for_each_panel(view, d_out, d_in, |first, panel| {
            let rows = panel.len() / d_in;
            let size = Size { m: tokens, n: rows, k: d_in };
            multiply(size, &mut y[first..], d_out, (x, d_in), (panel, 1, d_in), false);
        });
        from_values(y, [tokens, d_out])
    }

    fn matmul_quantized_backward(
        grad: Tensor<Self, 2>,
        weight: &Quantized<Self>,
    ) -> Tensor<Self, 2> {
        let ([tokens, d_out], [_, d_in]) = (grad.dims(), weight.dims());
        let slices = match Slices::of(weight) {
            Some(slices) if grad.dtype() == DType::F32 => slices,
            _ => return grad.matmul(portable::dequantize(weight)),
        };
        let grad = contiguous(grad);
        let grad = values(&grad);
        let mut d_x = vec![0.0; tokens * d_in];
        for_each_panel(slices.view(), d_out, d_in, |first, panel| {
            let size = Size { m: tokens, n: d_in, k: panel.len() / d_in };
            let is_later = first > 0;
            multiply(size, &mut d_x, d_in, (&grad[first..], d_out), (panel, d_in, 1), is_later);
        });
        from_values(d_x, [tokens, d_in])
    }

    fn quantize_blockwise(values: Tensor<Self, 1>, map: DynamicMap) -> Blockwise<Self> {
        let device = values.device();
        let tensor = contiguous(values);
        let Some(values) = tensor.as_slice::<f32>() else {
            return blockwise::quantize(
                Tensor::from_primitive(TensorPrimitive::Float(tensor)),
                map,
            );
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

/// The tensors of a weight, to be read as slices.
struct Slices {
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
    /// `None` where the tensors are not of the types that this backend makes them in.
    fn of(weight: &Quantized<Flex>) -> Option<Self> {
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

    fn view(&self) -> CodesView<'_> {
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

/// Calls `f` with the first row of each panel and the panel's values, in order.
fn for_each_panel(
    view: CodesView<'_>,
    d_out: usize,
    d_in: usize,
    mut f: impl FnMut(usize, &[f32]),
) {
    thread_local! {
        static BUFFER: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    }
    // Taken, not borrowed: while `gemm` waits for its threads, this one may be given another product to do.
    let mut buffer = BUFFER.take();
    let rows = (PANEL / d_in.max(1)).clamp(1, d_out.max(1));
    if buffer.len() < rows * d_in {
        buffer.resize(rows * d_in, 0.0);
    }
    for first in (0..d_out).step_by(rows) {
        let panel = &mut buffer[..rows.min(d_out - first) * d_in];
        view.decode_rows(first, d_in, panel);
        f(first, panel);
    }
    BUFFER.set(buffer);
}

struct Size {
    m: usize,
    n: usize,
    k: usize,
}

/// `out = a · b`, or `out += a · b`. `out` and `a` are row-major with the given row strides; `b` has a stride for its
/// rows (along k) and one for its columns.
fn multiply(
    size: Size,
    out: &mut [f32],
    out_row: usize,
    (a, a_row): (&[f32], usize),
    (b, b_row, b_column): (&[f32], usize, usize),
    add: bool,
) {
    let Size { m, n, k } = size;
    if m == 0 || n == 0 || k == 0 {
        return;
    }
    assert!((m - 1) * out_row + n <= out.len());
    assert!((m - 1) * a_row + k <= a.len());
    assert!((k - 1) * b_row + (n - 1) * b_column < b.len());
    // SAFETY: the last element of each operand lies within its slice, and `out` is borrowed exclusively.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            out_row as isize,
            add,
            a.as_ptr(),
            1,
            a_row as isize,
            b.as_ptr(),
            b_column as isize,
            b_row as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::Rayon(0),
        );
    }
}

fn few_tokens(
    x: &[f32],
    view: CodesView<'_>,
    tokens: usize,
    d_out: usize,
    d_in: usize,
) -> Tensor<Flex, 2> {
    // A thread's rows side by side, [d_out, tokens].
    let mut columns = vec![0.0; d_out * tokens];
    columns.par_chunks_mut((ROWS * tokens).max(1)).enumerate().for_each_init(
        || vec![0.0; d_in],
        |row, (chunk, columns)| {
            for (i, outputs) in columns.chunks_exact_mut(tokens).enumerate() {
                view.decode((chunk * ROWS + i) * d_in, row);
                for (output, x) in outputs.iter_mut().zip(x.chunks_exact(d_in)) {
                    *output = dot(row, x);
                }
            }
        },
    );
    if tokens == 1 {
        return from_values(columns, [1, d_out]);
    }
    let row_major = (0..tokens * d_out).map(|i| columns[i % d_out * tokens + i / d_out]).collect();
    from_values(row_major, [tokens, d_out])
}

/// The scalar product, in an order that depends on the length alone, compiled for the widest vectors there are.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 32;
    static ARCH: OnceLock<pulp::Arch> = OnceLock::new();
    ARCH.get_or_init(pulp::Arch::new).dispatch(
        #[inline(always)]
        || {
            let mut lanes = [0.0f32; LANES];
            let ((a, a_tail), (b, b_tail)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
            for (a, b) in a.iter().zip(b) {
                for lane in 0..LANES {
                    lanes[lane] += a[lane] * b[lane];
                }
            }
            let tail: f32 = a_tail.iter().zip(b_tail).map(|(a, b)| a * b).sum();
            lanes.iter().sum::<f32>() + tail
        },
    )
}

fn contiguous<const D: usize>(tensor: Tensor<Flex, D>) -> FlexTensor {
    tensor.into_primitive().tensor().to_contiguous()
}

fn values(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().expect("contiguous and f32, by the caller's check")
}

fn bytes(tensor: &FlexTensor) -> &[u8] {
    tensor.as_slice().expect("contiguous and U8, by the caller's check")
}

fn from_values<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> Tensor<Flex, D> {
    let tensor = FlexTensor::from_data(TensorData::new(values, shape));
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}
