//! Optimizers: what moves the weights, and the walk through a model that all of them share.
//!
//! An optimizer is a formula for one parameter and what it remembers of each (`rule.rs`), one file each. [`ParamGroups`] says how
//! rate and decay depend on the parameter; [`OptimizerState`] is all that a checkpoint needs.

pub mod adafactor;
pub mod adamw;
pub mod adamw8bit;
pub mod backend;
#[cfg(feature = "cpu")]
mod flex;
pub mod groups;
pub mod lion;
pub mod muon;
mod rule;
pub mod sgd;
pub mod state;

use std::collections::BTreeMap;

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use emberlm_lora::walk::{ParamMapper, ParamVisitor, for_each_param, map_params};
use emberlm_quant::codec::blockwise::BLOCK;

use crate::trainer::grads::Gradients;

pub use adafactor::AdafactorConfig;
pub use adamw::AdamWConfig;
pub use backend::OptimizerBackend;
pub use groups::{AbFactors, ParamGroups};
pub use lion::LionConfig;
pub use muon::{MuonConfig, MuonScale};
pub use sgd::SgdConfig;
pub use state::{OptimizerState, StateDtype, StateError, StateTensor};

use adamw8bit::{EightBit, MIN_8BIT_SIZE};
use groups::{Calibration, factors};
use rule::{DynOptimizer, ParamUpdate, PerParam, UpdateRule};
use state::StateReader;

/// An optimizer's formula and its constants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Algorithm {
    /// AdamW with moments in 32 bits.
    AdamW(AdamWConfig),
    /// AdamW with moments in 8 bits.
    AdamW8bit(AdamWConfig),
    /// Lion.
    Lion(LionConfig),
    /// Adafactor.
    Adafactor(AdafactorConfig),
    /// Gradient descent, with or without momentum.
    Sgd(SgdConfig),
    /// Muon for matrices, AdamW for the rest.
    Muon(MuonConfig),
}

/// Everything that is fixed about an optimizer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimizerConfig {
    /// The formula.
    pub algorithm: Algorithm,
    /// How rate and decay depend on the parameter.
    pub groups: ParamGroups,
}

impl From<Algorithm> for OptimizerConfig {
    fn from(algorithm: Algorithm) -> Self {
        Self { algorithm, groups: ParamGroups::default() }
    }
}

impl Algorithm {
    /// Its name, as `train.optimizer` has it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::AdamW(_) => "adamw",
            Self::AdamW8bit(_) => "adamw8bit",
            Self::Lion(_) => "lion",
            Self::Adafactor(_) => "adafactor",
            Self::Sgd(_) => "sgd",
            Self::Muon(_) => "muon",
        }
    }

    /// Bytes of state for a parameter, in f32.
    pub fn state_bytes(&self, path: &str, shape: &[usize]) -> u64 {
        let elements = shape.iter().product::<usize>() as u64;
        match (self, shape) {
            (Self::AdamW8bit(_), _) if elements >= MIN_8BIT_SIZE as u64 => {
                2 * (elements + 4 * elements.div_ceil(BLOCK as u64))
            }
            (Self::AdamW(_) | Self::AdamW8bit(_), _) => 8 * elements,
            (Self::Lion(_), _) => 4 * elements,
            (Self::Sgd(sgd), _) if sgd.momentum == 0.0 => 0,
            (Self::Sgd(_), _) => 4 * elements,
            (Self::Adafactor(_), &[rows, columns]) => 4 * (rows + columns) as u64,
            (Self::Adafactor(_), _) => 4 * elements,
            (Self::Muon(_), _) if MuonConfig::takes(path, shape) => 4 * elements,
            (Self::Muon(_), _) => 8 * elements,
        }
    }
}

/// An optimizer and its state.
#[derive(Debug)]
pub struct Optimizer<B: OptimizerBackend> {
    config: OptimizerConfig,
    steps: u64,
    rule: Box<dyn DynOptimizer<B>>,
    calibration: Option<Calibration>,
}

impl<B: OptimizerBackend> Optimizer<B> {
    /// One that has made no step.
    pub fn new(config: impl Into<OptimizerConfig>) -> Self {
        let config = config.into();
        let rule: Box<dyn DynOptimizer<B>> = match config.algorithm {
            Algorithm::AdamW(formula) => fresh(formula),
            Algorithm::AdamW8bit(formula) => fresh(EightBit(formula)),
            Algorithm::Lion(formula) => fresh(formula),
            Algorithm::Adafactor(formula) => fresh(formula),
            Algorithm::Sgd(formula) => fresh(formula),
            Algorithm::Muon(formula) => fresh(formula),
        };
        let calibration = Calibration::new(config.groups.calibrate_ab);
        Self { config, steps: 0, rule, calibration }
    }

    /// One step: the model with every parameter moved that has a gradient.
    pub fn step<A, M>(&mut self, model: M, gradients: &Gradients<B>, learning_rate: f64) -> M
    where
        A: AutodiffBackend<InnerBackend = B>,
        M: Module<A>,
    {
        self.steps += 1;
        if let Some(calibration) = &mut self.calibration {
            calibration.observe(self.steps, gradients);
        }
        let measured = factors(self.calibration.as_ref(), self.steps);
        let (groups, step) = (self.config.groups, self.steps);
        map_params::<A, M>(
            model,
            &mut Walk { rule: &mut *self.rule, gradients, groups, measured, step, learning_rate },
        )
    }

    /// Bytes that its state takes.
    pub fn state_bytes(&self) -> usize {
        self.rule.bytes()
    }

    /// What the rates of A and B were multiplied by at the last step, if they are calibrated.
    pub fn ab_factors(&self) -> Option<AbFactors> {
        self.calibration.as_ref().map(|calibration| calibration.factors(self.steps))
    }

    /// All that it knows beside its constants: what a checkpoint keeps.
    pub fn state(&self) -> OptimizerState {
        let mut state = OptimizerState::new(self.config.algorithm.name(), self.steps);
        self.rule.put(&mut state);
        if let Some(calibration) = &self.calibration {
            calibration.put(&mut state);
        }
        state
    }

    /// One that goes on where another left off, to the bit. [`fits`](Self::fits) says whether for this model.
    ///
    /// # Errors
    /// [`StateError`] if `state` is another optimizer's, or incomplete.
    pub fn restore(
        config: impl Into<OptimizerConfig>,
        state: &OptimizerState,
        device: &B::Device,
    ) -> Result<Self, StateError> {
        let config = config.into();
        let mut reader = StateReader::new(config.algorithm.name(), state)?;
        let from = &mut reader;
        let calibration = Calibration::take(config.groups.calibrate_ab, from)?;
        let rule: Box<dyn DynOptimizer<B>> = match config.algorithm {
            Algorithm::AdamW(formula) => restored(formula, from, device)?,
            Algorithm::AdamW8bit(formula) => restored(EightBit(formula), from, device)?,
            Algorithm::Lion(formula) => restored(formula, from, device)?,
            Algorithm::Adafactor(formula) => restored(formula, from, device)?,
            Algorithm::Sgd(formula) => restored(formula, from, device)?,
            Algorithm::Muon(formula) => restored(formula, from, device)?,
        };
        reader.finish()?;
        Ok(Self { config, steps: state.steps, rule, calibration })
    }

    /// Whether all its state is of parameters that `model` trains, and none of them lacks its own. A restored optimizer is asked
    /// before its first step.
    ///
    /// # Errors
    /// [`StateError`] of the first parameter, by path, that isn't there or has another shape.
    pub fn fits<A, M>(&self, model: &M) -> Result<(), StateError>
    where
        A: AutodiffBackend<InnerBackend = B>,
        M: Module<A>,
    {
        let mut trained = trained_shapes::<A, M>(model);
        for (parameter, found) in self.rule.shapes() {
            let parameter = parameter.to_owned();
            let Some(expected) = trained.remove(&parameter) else {
                return Err(StateError::NoParameter { parameter });
            };
            let is_flat = found.len() == 1 && found[0] == expected.iter().product::<usize>();
            if !is_flat && found != expected {
                return Err(StateError::Parameter { parameter, expected, found });
            }
        }
        let remembered = |(path, shape): &(&String, &Vec<usize>)| {
            self.config.algorithm.state_bytes(path, shape) > 0
        };
        match trained.iter().find(remembered) {
            Some((path, _)) if self.steps > 0 => Err(StateError::Missing { tensor: path.clone() }),
            _ => Ok(()),
        }
    }
}

fn fresh<B: Backend, F: UpdateRule<B, State: 'static> + 'static>(
    formula: F,
) -> Box<dyn DynOptimizer<B>> {
    Box::new(PerParam::<F, F::State>::new(formula))
}

fn restored<B: Backend, F: UpdateRule<B, State: 'static> + 'static>(
    formula: F,
    state: &mut StateReader<'_>,
    device: &B::Device,
) -> Result<Box<dyn DynOptimizer<B>>, StateError> {
    Ok(Box::new(PerParam::<F, F::State>::take(formula, state, device)?))
}

/// Moves every parameter that has a gradient.
struct Walk<'a, B: Backend> {
    rule: &'a mut dyn DynOptimizer<B>,
    gradients: &'a Gradients<B>,
    groups: ParamGroups,
    measured: AbFactors,
    step: u64,
    learning_rate: f64,
}

impl<A: AutodiffBackend> ParamMapper<A> for Walk<'_, A::InnerBackend> {
    fn map<const D: usize>(
        &mut self,
        name: &str,
        param: Param<Tensor<A, D>>,
    ) -> Param<Tensor<A, D>> {
        let Some(gradient) = self.gradients.get(name) else { return param };
        let dims = param.dims();
        let at = ParamUpdate {
            path: name,
            shape: &dims,
            step: self.step,
            rate: self.learning_rate * self.groups.rate(name, self.measured),
            decays: self.groups.decays(&dims),
        };
        param.map(|weight| {
            let elements: usize = dims.iter().product();
            let weight = weight.inner().reshape([elements]);
            let new = self.rule.update(&at, weight, gradient.value.clone());
            Tensor::from_inner(new.reshape(dims)).require_grad()
        })
    }
}

/// Paths and shapes of the parameters that are trained.
fn trained_shapes<A: AutodiffBackend, M: Module<A>>(model: &M) -> BTreeMap<String, Vec<usize>> {
    struct Shapes(BTreeMap<String, Vec<usize>>);
    impl<A: AutodiffBackend> ParamVisitor<A> for Shapes {
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
