//! What optimizers have in common: an update rule for one parameter, and its state per parameter.

use std::collections::BTreeMap;
use std::fmt::Debug;

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::trainer::optimizer::state::{OptimizerState, StateError, StateReader};

/// The update of one parameter at one step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ParamUpdate<'a> {
    /// The parameter's path.
    pub(crate) path: &'a str,
    /// The parameter's shape.
    pub(crate) shape: &'a [usize],
    /// The step, from 1.
    pub(crate) step: u64,
    /// The learning rate of this parameter.
    pub(crate) rate: f64,
    /// Whether this parameter has weight decay.
    pub(crate) decays: bool,
}

impl ParamUpdate<'_> {
    /// The weight decay of this parameter.
    pub(crate) fn decay(&self, weight_decay: f64) -> f64 {
        if self.decays { weight_decay } else { 0.0 }
    }
}

/// The state of an optimizer for one parameter.
pub(crate) trait ParamState<B: Backend>: Debug + Send + Sized {
    /// Roles of its tensors in a state.
    const ROLES: &'static [&'static str];

    /// Its size in bytes.
    fn bytes(&self) -> usize;

    /// The parameter's shape, or `[elements]` if the shape is unknown.
    fn shape(&self) -> Vec<usize>;

    /// Adds its tensors to a state.
    fn put(&self, path: &str, state: &mut OptimizerState);

    /// Removes its tensors from a state.
    fn take(
        path: &str,
        state: &mut StateReader<'_>,
        device: &B::Device,
    ) -> Result<Self, StateError>;
}

/// The update rule of an optimizer, with its constants.
pub(crate) trait UpdateRule<B: Backend>: Debug + Send {
    /// Its state for one parameter.
    type State: ParamState<B>;

    /// The weight and the state after the step. All tensors are `[elements]`, row-major.
    fn update(
        &self,
        at: &ParamUpdate<'_>,
        old: Option<Self::State>,
        weight: Tensor<B, 1>,
        gradient: Tensor<B, 1>,
    ) -> (Tensor<B, 1>, Option<Self::State>);
}

/// An update rule of any kind with its state.
pub(crate) trait DynOptimizer<B: Backend>: Debug + Send {
    /// The weight after the step. All are `[elements]`, row-major.
    fn update(
        &mut self,
        at: &ParamUpdate<'_>,
        weight: Tensor<B, 1>,
        gradient: Tensor<B, 1>,
    ) -> Tensor<B, 1>;

    /// The parameters with a state, each with its shape, or `[elements]`.
    fn shapes(&self) -> Vec<(&str, Vec<usize>)>;

    /// The size of its state in bytes.
    fn bytes(&self) -> usize;

    /// Adds its tensors to a state.
    fn put(&self, state: &mut OptimizerState);
}

/// An update rule, with its state by the path of the parameter.
#[derive(Debug)]
pub(crate) struct PerParam<F, S> {
    formula: F,
    params: BTreeMap<String, S>,
}

impl<F, S> PerParam<F, S> {
    /// Without any state.
    pub(crate) fn new(formula: F) -> Self {
        Self { formula, params: BTreeMap::new() }
    }

    /// From a saved state.
    pub(crate) fn take<B: Backend>(
        formula: F,
        state: &mut StateReader<'_>,
        device: &B::Device,
    ) -> Result<Self, StateError>
    where
        S: ParamState<B>,
    {
        let mut params = BTreeMap::new();
        for path in state.paths(S::ROLES) {
            params.insert(path.to_owned(), S::take(path, state, device)?);
        }
        Ok(Self { formula, params })
    }
}

impl<B: Backend, F: UpdateRule<B>> DynOptimizer<B> for PerParam<F, F::State> {
    fn update(
        &mut self,
        at: &ParamUpdate<'_>,
        weight: Tensor<B, 1>,
        gradient: Tensor<B, 1>,
    ) -> Tensor<B, 1> {
        let old = self.params.remove(at.path);
        let (weight, new) = self.formula.update(at, old, weight, gradient);
        if let Some(new) = new {
            self.params.insert(at.path.to_owned(), new);
        }
        weight
    }

    fn shapes(&self) -> Vec<(&str, Vec<usize>)> {
        self.params.iter().map(|(path, state)| (path.as_str(), state.shape())).collect()
    }

    fn bytes(&self) -> usize {
        self.params.values().map(|param| param.bytes()).sum()
    }

    fn put(&self, state: &mut OptimizerState) {
        self.params.iter().for_each(|(path, param)| param.put(path, state));
    }
}

/// Bytes of a tensor.
pub(crate) fn tensor_bytes<B: Backend, const D: usize>(tensor: &Tensor<B, D>) -> usize {
    tensor.dims().iter().product::<usize>() * tensor.dtype().size()
}

/// A running mean or sum of the gradients: `[elements]`.
#[derive(Debug, Clone)]
pub(crate) struct Momentum<B: Backend>(pub(crate) Tensor<B, 1>);

/// The name of a [`Momentum`] in a state.
pub(crate) const MOMENTUM: &str = "momentum_buffer";

impl<B: Backend> ParamState<B> for Momentum<B> {
    const ROLES: &'static [&'static str] = &[MOMENTUM];

    fn bytes(&self) -> usize {
        tensor_bytes(&self.0)
    }

    fn shape(&self) -> Vec<usize> {
        self.0.dims().to_vec()
    }

    fn put(&self, path: &str, state: &mut OptimizerState) {
        state.put(MOMENTUM, path, &self.0);
    }

    fn take(
        path: &str,
        state: &mut StateReader<'_>,
        device: &B::Device,
    ) -> Result<Self, StateError> {
        Ok(Self(state.floats(MOMENTUM, path, None, device)?))
    }
}
