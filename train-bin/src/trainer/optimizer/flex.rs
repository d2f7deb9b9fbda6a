//! AdamW's step on the CPU in f32: one pass over memory, in place if the tensors are not shared.

use burn::tensor::{DType, Tensor, TensorData, TensorPrimitive};
use burn_flex::{Flex, FlexTensor};
use rayon::prelude::*;

use crate::trainer::optimizer::adamw::{AdamWStep, Moments};
use crate::trainer::optimizer::backend::{OptimizerBackend, portable_adamw};

/// Elements of a thread's piece of work.
const BLOCK: usize = 1 << 14;

impl OptimizerBackend for Flex {
    fn adamw(
        step: AdamWStep,
        weight: Tensor<Self, 1>,
        gradient: Tensor<Self, 1>,
        old: Option<Moments<Self>>,
    ) -> (Tensor<Self, 1>, Moments<Self>) {
        let moments = old.iter().flat_map(|old| [old.first.dtype(), old.second.dtype()]);
        let mut dtypes = [weight.dtype(), gradient.dtype()].into_iter().chain(moments);
        if !dtypes.all(|dtype| dtype == DType::F32) {
            return portable_adamw(step, weight, gradient, old);
        }
        let (mut first, mut second) = match old {
            Some(old) => (contiguous(old.first), contiguous(old.second)),
            None => (zeros(weight.dims()), zeros(weight.dims())),
        };
        let (mut weight, gradient) = (contiguous(weight), contiguous(gradient));
        let numbers = Numbers::from(step);
        // Elements are independent, so threads do not influence the result.
        weight
            .storage_mut::<f32>()
            .par_chunks_mut(BLOCK)
            .zip(first.storage_mut::<f32>().par_chunks_mut(BLOCK))
            .zip(second.storage_mut::<f32>().par_chunks_mut(BLOCK))
            .zip(gradient.storage::<f32>().par_chunks(BLOCK))
            .for_each(|(((weight, first), second), gradient)| {
                pulp::Arch::new().dispatch(|| numbers.update(weight, first, second, gradient));
            });
        (tensor(weight), Moments { first: tensor(first), second: tensor(second) })
    }
}

/// An [`AdamWStep`] in f32.
struct Numbers {
    beta1: f32,
    rest1: f32,
    beta2: f32,
    rest2: f32,
    eps: f32,
    root_bias2: f32,
    change: f32,
    keep: f32,
}

impl From<AdamWStep> for Numbers {
    fn from(step: AdamWStep) -> Self {
        let AdamWStep { beta1, beta2, eps, root_bias2, change, keep } = step;
        Self {
            beta1: beta1 as f32,
            rest1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            rest2: (1.0 - beta2) as f32,
            eps: eps as f32,
            root_bias2: root_bias2 as f32,
            change: change as f32,
            keep: keep as f32,
        }
    }
}

impl Numbers {
    #[inline(always)]
    fn update(&self, weight: &mut [f32], first: &mut [f32], second: &mut [f32], gradient: &[f32]) {
        let moments = first.iter_mut().zip(second.iter_mut());
        for ((weight, (first, second)), &gradient) in weight.iter_mut().zip(moments).zip(gradient) {
            *first = *first * self.beta1 + gradient * self.rest1;
            *second = *second * self.beta2 + gradient * gradient * self.rest2;
            let root = second.sqrt() / self.root_bias2 + self.eps;
            *weight = *weight * self.keep - *first / root * self.change;
        }
    }
}

/// The tensor itself if it fills its own contiguous buffer; else such a copy.
fn contiguous(tensor: Tensor<Flex, 1>) -> FlexTensor {
    tensor.into_primitive().tensor().to_contiguous()
}

fn zeros([elements]: [usize; 1]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(vec![0f32; elements], [elements]))
}

fn tensor(primitive: FlexTensor) -> Tensor<Flex, 1> {
    Tensor::from_primitive(TensorPrimitive::Float(primitive))
}
