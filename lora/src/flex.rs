//! The delta on the CPU backend Flex: accumulated into the base's output by the matrix product.

use burn::tensor::{DType, Tensor, TensorPrimitive};
use burn_flex::{Flex, FlexTensor};
use gemm::Parallelism;

use emberlm_quant::portable::in_type;

use crate::LoraBackend;

impl LoraBackend for Flex {
    fn add_delta_forward(
        base: Tensor<Self, 2>,
        x: Tensor<Self, 2>,
        lora_a: Tensor<Self, 2>,
        lora_b: Tensor<Self, 2>,
        scaling: f64,
    ) -> (Tensor<Self, 2>, Tensor<Self, 2>) {
        let lora_a = in_type(lora_a, x.dtype());
        let narrow = x.matmul(lora_a.transpose());
        if base.dtype() != DType::F32 || lora_b.dtype() != DType::F32 {
            let lora_b = in_type(lora_b, narrow.dtype());
            let delta = (narrow.clone() * scaling).matmul(lora_b.transpose());
            return (base + delta, narrow);
        }
        let sizes = [base.dims()[0], base.dims()[1], narrow.dims()[1]];
        let mut y = primitive(base).to_contiguous();
        add_product(
            // In place, unless the base's output is shared.
            y.storage_mut(),
            &primitive(narrow.clone()).to_contiguous(),
            &primitive(lora_b).to_contiguous(),
            sizes,
            scaling as f32,
        );
        (Tensor::from_primitive(TensorPrimitive::Float(y)), narrow)
    }
}

fn primitive(tensor: Tensor<Flex, 2>) -> FlexTensor {
    tensor.into_primitive().tensor()
}

/// `out += factor · a · bᵀ` with `out` `[m, n]`, `a` `[m, k]`, `b` `[n, k]`, all contiguous.
fn add_product(
    out: &mut [f32],
    a: &FlexTensor,
    b: &FlexTensor,
    [m, n, k]: [usize; 3],
    factor: f32,
) {
    let (a, b): (&[f32], &[f32]) = (a.storage(), b.storage());
    assert!(out.len() >= m * n && a.len() >= m * k && b.len() >= n * k);
    // SAFETY: each operand has the elements that its sizes require (asserted above), and `out` is borrowed exclusively.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            true,
            a.as_ptr(),
            1,
            k as isize,
            b.as_ptr(),
            k as isize,
            1,
            1.0,
            factor,
            false,
            false,
            false,
            Parallelism::Rayon(0),
        );
    }
}
