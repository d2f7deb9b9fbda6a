//! The choice of an optimizer, and what all of them share: a rule that moves one parameter, taken through a model.

pub mod adamw;
pub mod adamw8bit;
pub mod state;

use std::collections::BTreeMap;

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use emberlm_lora::walk::{MapParam, OnParam, for_each_param, map_params};
use emberlm_quant::QuantBackend;
use emberlm_quant::codec::blockwise::BLOCK;

use crate::grads::Gradients;

pub use adamw::{AdamW, AdamWConfig};
pub use adamw8bit::AdamW8bit;
pub use state::{OptimizerState, StateDtype, StateError, StateTensor};

use adamw8bit::MIN_8BIT_SIZE;

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

    /// All that it knows beside its constants: what a checkpoint keeps.
    pub fn state(&self) -> OptimizerState {
        match self {
            Self::AdamW(adamw) => adamw.state(),
            Self::AdamW8bit(adamw) => adamw.state(),
        }
    }

    /// One that goes on where another left off, to the bit. [`fits`](Self::fits) says whether for this model.
    ///
    /// # Errors
    /// [`StateError`] if `state` is another optimizer's, or incomplete.
    pub fn restore(
        config: OptimizerConfig,
        state: &OptimizerState,
        device: &B::Device,
    ) -> Result<Self, StateError> {
        Ok(match config {
            OptimizerConfig::AdamW(config) => Self::AdamW(AdamW::restore(config, state, device)?),
            OptimizerConfig::AdamW8bit(config) => {
                Self::AdamW8bit(AdamW8bit::restore(config, state, device)?)
            }
        })
    }

    /// Whether all its state is of parameters that `model` trains. A restored optimizer is asked before its first step.
    ///
    /// # Errors
    /// [`StateError`] of the first parameter, by path, that isn't there or has another shape.
    pub fn fits<A, M>(&self, model: &M) -> Result<(), StateError>
    where
        A: AutodiffBackend<InnerBackend = B>,
        M: Module<A>,
    {
        let shapes = match self {
            Self::AdamW(adamw) => adamw.shapes(),
            Self::AdamW8bit(adamw) => adamw.shapes(),
        };
        let trained = trained_shapes::<A, M>(model);
        for (parameter, found) in shapes {
            let parameter = parameter.to_owned();
            let Some(expected) = trained.get(&parameter).cloned() else {
                return Err(StateError::NoParameter { parameter });
            };
            let is_flat = found.len() == 1 && found[0] == expected.iter().product::<usize>();
            if !is_flat && found != expected {
                return Err(StateError::Parameter { parameter, expected, found });
            }
        }
        Ok(())
    }
}

/// Paths and shapes of the parameters that are trained.
fn trained_shapes<A: AutodiffBackend, M: Module<A>>(model: &M) -> BTreeMap<String, Vec<usize>> {
    struct Shapes(BTreeMap<String, Vec<usize>>);
    impl<A: AutodiffBackend> OnParam<A> for Shapes {
        fn param<const D: usize>(&mut self, name: &str, param: &Param<Tensor<A, D>>) {
            if param.is_require_grad() {
                self.0.insert(name.to_owned(), param.dims().to_vec());
            }
        }
    }
    let mut shapes = Shapes(BTreeMap::new());
    for_each_param::<A, M>(model, &mut shapes);
    shapes.0
}

/// How an optimizer moves one parameter, whatever its rank.
pub(crate) trait Rule<B: Backend> {
    /// Its name, as `train.optimizer` has it.
    const KIND: &'static str;

    /// The parameters that there is state of, each with its shape, or `[elements]` where that is all that is known.
    fn shapes(&self) -> Vec<(&str, Vec<usize>)>;

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
