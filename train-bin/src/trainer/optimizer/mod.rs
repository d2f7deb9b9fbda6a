//! Optimizers, and the walk through a model that all of them share.
//!
//! An optimizer is an update rule for one parameter with a state per parameter (`rule.rs`), one file each. [`ParamGroups`]
//! has learning rate and decay by kind of parameter; [`OptimizerState`] is the state in a checkpoint.

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
use clap::ValueEnum;
use clap::builder::PossibleValue;
use emberlm_lora::walk::{ParamMapper, ParamVisitor, for_each_param, map_params};
use serde::Serialize;

use crate::settings::Reader;
use crate::trainer::grads::Gradients;

pub use adafactor::AdafactorConfig;
pub use adamw::AdamWConfig;
pub use adamw8bit::AdamW8bitConfig;
pub use backend::OptimizerBackend;
pub use groups::{AbFactors, ParamGroups};
pub use lion::LionConfig;
pub use muon::{MuonConfig, MuonScale};
pub use sgd::SgdConfig;
pub use state::{OptimizerState, StateDtype, StateError, StateTensor};

use groups::{Calibration, factors};
use rule::{DynOptimizer, ParamUpdate, PerParam, UpdateRule};
use state::StateReader;

/// From a list of optimizers: the enum, its names, and the dispatch to what each optimizer's own file has (defaults, settings,
/// size of the state, update rule).
macro_rules! optimizers {
    ($($variant:ident($config:ty): $name:literal, $help:literal;)+) => {
        /// An optimizer with its constants: `train.optimizer`.
        #[derive(Debug, Clone, Copy, PartialEq, Serialize)]
        #[serde(tag = "optimizer")]
        pub enum Algorithm {
            $(#[doc = $help] #[serde(rename = $name)] $variant($config),)+
        }

        impl Algorithm {
            /// Every optimizer, with its default constants.
            const ALL: &[Self] = &[$(Self::$variant(<$config>::DEFAULT)),+];

            /// Its name, as `train.optimizer` has it.
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$variant(_) => $name),+ }
            }

            const fn help(&self) -> &'static str {
                match self { $(Self::$variant(_) => $help),+ }
            }

            fn read_constants(self, s: &mut Reader) -> Self {
                match self { $(Self::$variant(config) => Self::$variant(config.read(s))),+ }
            }

            /// Bytes of state for a parameter, in f32.
            pub fn state_bytes(&self, path: &str, shape: &[usize]) -> u64 {
                match self { $(Self::$variant(config) => config.state_bytes(path, shape)),+ }
            }

            /// The update rule with its state: a fresh one, or that of a checkpoint.
            fn start<B: OptimizerBackend>(
                self,
                from: Option<(&mut StateReader<'_>, &B::Device)>,
            ) -> Result<Box<dyn DynOptimizer<B>>, StateError> {
                match self { $(Self::$variant(rule) => boxed(rule, from)),+ }
            }
        }
    };
}

optimizers! {
    AdamW(AdamWConfig): "adamw", "AdamW";
    AdamW8bit(AdamW8bitConfig): "adamw8bit", "AdamW with 8-bit moments: a quarter of the state";
    Lion(LionConfig): "lion", "The sign of a running mean of gradients: half of AdamW's state";
    Adafactor(AdafactorConfig): "adafactor", "Mean squares per row and column: hardly any state";
    Sgd(SgdConfig): "sgd", "Gradient descent with momentum";
    Muon(MuonConfig): "muon", "Orthogonalized momentum for matrices, AdamW for the rest";
}

/// The configuration of an optimizer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimizerConfig {
    /// The algorithm with its constants.
    pub algorithm: Algorithm,
    /// Learning rate and decay by kind of parameter.
    pub groups: ParamGroups,
}

impl From<Algorithm> for OptimizerConfig {
    fn from(algorithm: Algorithm) -> Self {
        Self { algorithm, groups: ParamGroups::default() }
    }
}

impl Algorithm {
    /// Reads `train.optimizer` and the settings of the optimizer that is chosen.
    pub(crate) fn read(s: &mut Reader) -> Self {
        let chosen =
            s.choice::<Self>("optimizer", "Optimizer").also_called(&["optim"]).or(Self::ALL[0]);
        s.choice_with_settings("optimizer", chosen, Self::read_constants)
    }
}

impl ValueEnum for Algorithm {
    fn value_variants<'a>() -> &'a [Self] {
        Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()).help(self.help()))
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
    /// Before the first step.
    pub fn new(config: impl Into<OptimizerConfig>) -> Self {
        let config = config.into();
        let rule = config.algorithm.start(None);
        let rule = rule.expect("only a state can be unusable, and there is none");
        let calibration = Calibration::new(config.groups.calibrate_ab);
        Self { config, steps: 0, rule, calibration }
    }

    /// One step: updates every parameter that has a gradient.
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

    /// Size of its state in bytes.
    pub fn state_bytes(&self) -> usize {
        self.rule.bytes()
    }

    /// Factors of the rates of A and B at the last step, if they are calibrated.
    pub fn ab_factors(&self) -> Option<AbFactors> {
        self.calibration.as_ref().map(|calibration| calibration.factors(self.steps))
    }

    /// Its state, for a checkpoint.
    pub fn state(&self) -> OptimizerState {
        let mut state = OptimizerState::new(self.config.algorithm.name(), self.steps);
        self.rule.put(&mut state);
        if let Some(calibration) = &self.calibration {
            calibration.put(&mut state);
        }
        state
    }

    /// Restores a saved state exactly. Check it with [`fits`](Self::fits) before the first step.
    ///
    /// # Errors
    /// [`StateError`] if `state` belongs to another optimizer, or is incomplete.
    pub fn restore(
        config: impl Into<OptimizerConfig>,
        state: &OptimizerState,
        device: &B::Device,
    ) -> Result<Self, StateError> {
        let config = config.into();
        let mut reader = StateReader::new(config.algorithm.name(), state)?;
        let from = &mut reader;
        let calibration = Calibration::take(config.groups.calibrate_ab, from)?;
        let rule = config.algorithm.start(Some((from, device)))?;
        reader.finish()?;
        Ok(Self { config, steps: state.steps, rule, calibration })
    }

    /// Checks that a restored state fits the trainable parameters of `model`.
    ///
    /// # Errors
    /// [`StateError`] of the first parameter, by path, that is missing or has another shape.
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

fn boxed<B: Backend, F: UpdateRule<B, State: 'static> + 'static>(
    rule: F,
    from: Option<(&mut StateReader<'_>, &B::Device)>,
) -> Result<Box<dyn DynOptimizer<B>>, StateError> {
    Ok(Box::new(match from {
        None => PerParam::<F, F::State>::new(rule),
        Some((state, device)) => PerParam::<F, F::State>::take(rule, state, device)?,
    }))
}

/// Updates every parameter that has a gradient.
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

/// Paths and shapes of the trainable parameters.
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
