//! An optimizer's state goes out and in without a bit lost, and what isn't its state is refused.

use burn::backend::Autodiff;
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use emberlm::trainer::optimizer::{OptimizerState, StateDtype, StateError, StateTensor};
use emberlm::{
    AdafactorConfig, AdamW8bitConfig, AdamWConfig, Algorithm, Gradients, LionConfig, MuonConfig,
    MuonScale, Optimizer, OptimizerBackend, SgdConfig,
};
use emberlm_quant::host::float_tensor;

use crate::support::{Flex, NdArray};

const MATRIX: [usize; 2] = [67, 64];

/// A matrix that is large enough for 8 bits, with a short last block, and a vector that isn't.
#[derive(Module, Debug)]
struct Two<B: Backend> {
    matrix: Param<Tensor<B, 2>>,
    vector: Param<Tensor<B, 1>>,
}

/// Numbers without pattern, from -1 to 1.
fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn tensor<B: Backend, const D: usize>(shape: [usize; D], seed: u32) -> Tensor<B, D> {
    float_tensor(numbers(shape.iter().product(), seed), shape, &Default::default())
}

impl<B: Backend> Two<B> {
    fn new() -> Self {
        let matrix = Param::from_tensor(tensor(MATRIX, 1).require_grad());
        Self { matrix, vector: Param::from_tensor(tensor([50], 2).require_grad()) }
    }

    fn bits(&self) -> Vec<u64> {
        let matrix = self.matrix.val().into_data();
        let vector = self.vector.val().into_data();
        matrix.iter::<f64>().chain(vector.iter::<f64>()).map(f64::to_bits).collect()
    }
}

/// Steps number `steps`, each with gradients of its own.
fn walk<B: OptimizerBackend>(
    mut two: Two<Autodiff<B>>,
    optimizer: &mut Optimizer<B>,
    steps: std::ops::Range<u32>,
) -> Two<Autodiff<B>> {
    for step in steps {
        let loss = (two.matrix.val() * tensor(MATRIX, 10 + step)).sum()
            + (two.vector.val() * tensor([50], 100 + step)).sum();
        let mut gradients = Gradients::default();
        gradients.collect("", &two, loss.backward());
        two = optimizer.step(two, &gradients, 1e-2 / f64::from(step + 1));
    }
    two
}

/// Every optimizer; AdamW, in 32 and in 8 bits, first.
fn configs() -> Vec<Algorithm> {
    let weight_decay = 0.1;
    let adamw = AdamWConfig { weight_decay, ..AdamWConfig::default() };
    let (momentum, nesterov) = (0.9, true);
    vec![
        Algorithm::AdamW(adamw),
        Algorithm::AdamW8bit(AdamW8bitConfig(adamw)),
        Algorithm::Lion(LionConfig { weight_decay, ..LionConfig::default() }),
        Algorithm::Adafactor(AdafactorConfig { weight_decay, ..AdafactorConfig::default() }),
        Algorithm::Sgd(SgdConfig { momentum, nesterov, weight_decay }),
        Algorithm::Sgd(SgdConfig { momentum: 0.0, nesterov: false, weight_decay }),
        Algorithm::Muon(MuonConfig { momentum, nesterov, scale: MuonScale::MatchRmsAdamw, adamw }),
    ]
}

fn state_of<B: OptimizerBackend>(config: Algorithm) -> OptimizerState {
    let mut optimizer = Optimizer::<B>::new(config);
    walk(Two::new(), &mut optimizer, 0..3);
    optimizer.state()
}

fn restored_goes_on_as_if_never_stopped<B: OptimizerBackend>() {
    let device = Default::default();
    for config in configs() {
        let mut whole = Optimizer::<B>::new(config);
        let at_end = walk(Two::new(), &mut whole, 0..7);
        for stop in [0, 3] {
            let mut first = Optimizer::<B>::new(config);
            let two = walk(Two::new(), &mut first, 0..stop);
            let state = first.state();
            assert_eq!(state.steps, u64::from(stop));
            let mut second = Optimizer::<B>::restore(config, &state, &device).unwrap();
            assert_eq!(second.state(), state, "out, in and out again");
            assert_eq!(second.state_bytes(), first.state_bytes());
            second.fits(&two).unwrap();
            let two = walk(two, &mut second, stop..7);
            assert_eq!(two.bits(), at_end.bits(), "{config:?} stopped after {stop}");
            assert_eq!(second.state(), whole.state());
        }
    }
}

#[test]
fn on_flex() {
    restored_goes_on_as_if_never_stopped::<Flex>();
}

#[test]
fn on_ndarray() {
    restored_goes_on_as_if_never_stopped::<NdArray>();
}

#[test]
fn on_ndarray_in_64_bits() {
    let config = configs()[0];
    let state = state_of::<burn_ndarray::NdArray<f64>>(config);
    assert!(state.tensors.values().all(|tensor| tensor.dtype == StateDtype::F64));
    let again =
        Optimizer::<burn_ndarray::NdArray<f64>>::restore(config, &state, &Default::default());
    assert_eq!(again.unwrap().state(), state);
}

#[test]
fn names_are_role_and_path() {
    let state = state_of::<Flex>(configs()[1]);
    let names: Vec<_> = state
        .tensors
        .iter()
        .map(|(name, StateTensor { dtype, shape, .. })| format!("{name} {dtype} {shape:?}"))
        .collect();
    let expected = [
        "exp_avg.matrix U8 [4288]",
        "exp_avg.vector F32 [50]",
        "exp_avg_absmax.matrix F32 [17]",
        "exp_avg_sq.matrix U8 [4288]",
        "exp_avg_sq.vector F32 [50]",
        "exp_avg_sq_absmax.matrix F32 [17]",
    ];
    assert_eq!(names, expected);
    assert_eq!((state.kind.as_str(), state.steps), ("adamw8bit", 3));
}

/// What `restore` says of a state that was tampered with, or, if it takes it, `fits`.
fn refusal(config: Algorithm, change: impl FnOnce(&mut OptimizerState)) -> StateError {
    let mut state = state_of::<Flex>(config);
    change(&mut state);
    let restored = Optimizer::<Flex>::restore(config, &state, &Default::default());
    let model = Two::<Autodiff<Flex>>::new();
    restored.and_then(|optimizer| optimizer.fits(&model)).unwrap_err()
}

#[test]
fn another_kind_is_refused() {
    let configs = configs();
    for (config, kind) in [(configs[0], "adamw8bit"), (configs[1], "adamw"), (configs[0], "")] {
        let found = refusal(config, |state| state.kind = kind.to_owned());
        assert!(matches!(found, StateError::Kind { found, .. } if found == kind));
    }
}

/// Whichever tensor is absent, cut, reshaped or of other numbers, the message names it or its partner.
#[test]
fn any_damaged_tensor_is_refused() {
    for config in configs() {
        for name in state_of::<Flex>(config).tensors.into_keys() {
            let path = name.split_once('.').unwrap().1.to_owned();
            type Damage = fn(&mut OptimizerState, &str);
            let damages: [(&str, Damage); 6] = [
                ("absent", |state, name| drop(state.tensors.remove(name))),
                ("cut", |state, name| {
                    state.tensors.get_mut(name).unwrap().bytes.pop();
                }),
                ("reshaped", |state, name| state.tensors.get_mut(name).unwrap().shape.push(1)),
                ("shorter", |state, name| {
                    let tensor = state.tensors.get_mut(name).unwrap();
                    let size = tensor.dtype.size();
                    tensor.shape[0] -= 1;
                    tensor.bytes.truncate(tensor.shape[0] * size);
                }),
                ("endless", |state, name| {
                    state.tensors.get_mut(name).unwrap().shape = vec![usize::MAX, 2];
                }),
                ("of other numbers", |state, name| {
                    let tensor = state.tensors.get_mut(name).unwrap();
                    tensor.dtype = match tensor.dtype {
                        StateDtype::U8 => StateDtype::F32,
                        StateDtype::F32 | StateDtype::F64 => StateDtype::U8,
                    };
                    let size = tensor.dtype.size();
                    tensor.bytes.resize(tensor.shape.iter().product::<usize>() * size, 0);
                }),
            ];
            for (what, damage) in damages {
                let error = refusal(config, |state| damage(state, &name)).to_string();
                assert!(error.contains(&path), "{name} {what}: {error}");
            }
        }
    }
}

#[test]
fn a_tensor_too_many_is_refused() {
    for config in configs() {
        let stray = StateTensor { dtype: StateDtype::F32, shape: vec![1], bytes: vec![0; 4] };
        let found = refusal(config, |state| {
            state.tensors.insert("exp_inf.matrix".to_owned(), stray);
        });
        assert!(matches!(found, StateError::Unknown { tensor, .. } if tensor == "exp_inf.matrix"));
    }
}

#[test]
fn state_of_another_model_does_not_fit() {
    // Without momentum, gradient descent fits everything.
    let remembering = |config: &Algorithm| !state_of::<Flex>(*config).tensors.is_empty();
    for config in configs().into_iter().filter(remembering) {
        let state = state_of::<Flex>(config);
        let optimizer = Optimizer::<Flex>::restore(config, &state, &Default::default()).unwrap();
        let mut two = Two::<Autodiff<Flex>>::new();
        optimizer.fits(&two).unwrap();
        two.vector = Param::from_tensor(tensor([51], 2).require_grad());
        let found = optimizer.fits(&two).unwrap_err();
        assert!(matches!(found, StateError::Parameter { parameter, .. } if parameter == "vector"));
        two.vector = Param::from_tensor(tensor([50], 2)).set_require_grad(false);
        let found = optimizer.fits(&two).unwrap_err();
        assert!(matches!(found, StateError::NoParameter { parameter } if parameter == "vector"));
    }
}
