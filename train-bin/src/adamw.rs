//! AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101), as PyTorch computes it.

use std::collections::BTreeMap;

use burn::module::{Module, Param};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Tensor, backend::Backend};
use emberlm_lora::walk::{MapParam, map_params};

use crate::grads::Gradients;

/// The constants of AdamW.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWConfig {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Share of a weight that a step of rate 1 takes away, apart from the gradient.
    pub weight_decay: f64,
}

impl Default for AdamWConfig {
    /// PyTorch's, without decay.
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }
    }
}

/// The optimizer and its state: two moments a trainable element.
#[derive(Debug, Clone)]
pub struct AdamW<B: Backend> {
    config: AdamWConfig,
    steps: i32,
    moments: BTreeMap<String, Moments<B>>,
}

#[derive(Debug, Clone)]
struct Moments<B: Backend> {
    first: Tensor<B, 1>,
    second: Tensor<B, 1>,
}

impl<B: Backend> AdamW<B> {
    /// An optimizer that has made no step.
    pub fn new(config: AdamWConfig) -> Self {
        Self { config, steps: 0, moments: BTreeMap::new() }
    }

    /// One step: the model with every parameter moved that has a gradient.
    pub fn step<A, M>(&mut self, model: M, gradients: &Gradients<B>, learning_rate: f64) -> M
    where
        A: AutodiffBackend<InnerBackend = B>,
        M: Module<A>,
    {
        self.steps += 1;
        let mut update = Update { optimizer: self, gradients, learning_rate };
        map_params::<A, M>(model, &mut update)
    }

    fn update(
        &mut self,
        name: &str,
        weight: Tensor<B, 1>,
        gradient: Tensor<B, 1>,
        rate: f64,
    ) -> Tensor<B, 1> {
        let AdamWConfig { beta1, beta2, eps, weight_decay } = self.config;
        let moments = match self.moments.remove(name) {
            None => Moments {
                first: gradient.clone() * (1.0 - beta1),
                second: gradient.powi_scalar(2) * (1.0 - beta2),
            },
            Some(old) => Moments {
                first: old.first * beta1 + gradient.clone() * (1.0 - beta1),
                second: old.second * beta2 + gradient.powi_scalar(2) * (1.0 - beta2),
            },
        };
        let bias1 = 1.0 - beta1.powi(self.steps);
        let bias2 = 1.0 - beta2.powi(self.steps);
        let root = moments.second.clone().sqrt() / bias2.sqrt() + eps;
        let change = moments.first.clone() / root * (rate / bias1);
        self.moments.insert(name.to_string(), moments);
        weight * (1.0 - rate * weight_decay) - change
    }
}

struct Update<'a, B: Backend> {
    optimizer: &'a mut AdamW<B>,
    gradients: &'a Gradients<B>,
    learning_rate: f64,
}

impl<A: AutodiffBackend> MapParam<A> for Update<'_, A::InnerBackend> {
    fn map<const D: usize>(
        &mut self,
        name: &str,
        param: Param<Tensor<A, D>>,
    ) -> Param<Tensor<A, D>> {
        let Some(gradient) = self.gradients.get(name) else { return param };
        let dims = param.dims();
        param.map(|weight| {
            let elements: usize = dims.iter().product();
            let weight = weight.inner().reshape([elements]);
            let new =
                self.optimizer.update(name, weight, gradient.value.clone(), self.learning_rate);
            Tensor::from_inner(new.reshape(dims)).require_grad()
        })
    }
}
