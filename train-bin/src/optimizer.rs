//! The choice of an optimizer, and what all of them share: a rule that moves one parameter, taken through a model.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use emberlm_lora::walk::{MapParam, map_params};
use emberlm_quant::QuantBackend;
use emberlm_quant::codec::blockwise::BLOCK;

use crate::adamw::{AdamW, AdamWConfig};
use crate::adamw8bit::{AdamW8bit, MIN_8BIT_SIZE};
use crate::grads::Gradients;

/// An optimizer and its constants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OptimizerConfig {
    /// AdamW with moments in 32 bits.
    AdamW(AdamWConfig),
    /// AdamW with moments in 8 bits.
    AdamW8bit(AdamWConfig),
}

impl OptimizerConfig {
    /// Bytes of state for a tensor of so many elements.
    pub fn state_bytes(&self, elements: u64) -> u64 {
        match self {
            Self::AdamW8bit(_) if elements >= MIN_8BIT_SIZE as u64 => {
                2 * (elements + 4 * elements.div_ceil(BLOCK as u64))
            }
            Self::AdamW(_) | Self::AdamW8bit(_) => 8 * elements,
        }
    }
}

/// An optimizer and its state.
#[derive(Debug, Clone)]
pub enum Optimizer<B: Backend> {
    /// AdamW with moments in 32 bits.
    AdamW(AdamW<B>),
    /// AdamW with moments in 8 bits.
    AdamW8bit(AdamW8bit<B>),
}

impl<B: QuantBackend> Optimizer<B> {
    /// One that has made no step.
    pub fn new(config: OptimizerConfig) -> Self {
        match config {
            OptimizerConfig::AdamW(config) => Self::AdamW(AdamW::new(config)),
            OptimizerConfig::AdamW8bit(config) => Self::AdamW8bit(AdamW8bit::new(config)),
        }
    }

    /// One step: the model with every parameter moved that has a gradient.
    pub fn step<A, M>(&mut self, model: M, gradients: &Gradients<B>, learning_rate: f64) -> M
    where
        A: AutodiffBackend<InnerBackend = B>,
        M: Module<A>,
    {
        match self {
            Self::AdamW(adamw) => adamw.step::<A, M>(model, gradients, learning_rate),
            Self::AdamW8bit(adamw) => adamw.step::<A, M>(model, gradients, learning_rate),
        }
    }

    /// Bytes that its state takes.
    pub fn state_bytes(&self) -> usize {
        match self {
            Self::AdamW(adamw) => adamw.state_bytes(),
            Self::AdamW8bit(adamw) => adamw.state_bytes(),
        }
    }
}

/// How an optimizer moves one parameter, whatever its rank.
pub(crate) trait Rule<B: Backend> {
    /// The weight after the step at this rate. All are `[elements]`, row-major; `name` is the parameter's path.
    fn update(
        &mut self,
        name: &str,
        weight: Tensor<B, 1>,
        gradient: Tensor<B, 1>,
        rate: f64,
    ) -> Tensor<B, 1>;
}

/// Applies a rule to every parameter that has a gradient.
pub(crate) fn step_with<A, M, R>(
    rule: &mut R,
    model: M,
    gradients: &Gradients<A::InnerBackend>,
    rate: f64,
) -> M
where
    A: AutodiffBackend,
    M: Module<A>,
    R: Rule<A::InnerBackend>,
{
    struct Walk<'a, B: Backend, R> {
        rule: &'a mut R,
        gradients: &'a Gradients<B>,
        rate: f64,
    }
    impl<A: AutodiffBackend, R: Rule<A::InnerBackend>> MapParam<A> for Walk<'_, A::InnerBackend, R> {
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
                let new = self.rule.update(name, weight, gradient.value.clone(), self.rate);
                Tensor::from_inner(new.reshape(dims)).require_grad()
            })
        }
    }
    map_params::<A, M>(model, &mut Walk { rule, gradients, rate })
}
