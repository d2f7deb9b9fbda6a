//! Rates and decay by parameter, and clipping by tensor, on modules whose paths are those of a model.

use burn::backend::Autodiff;
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use emberlm::{
    AdamW8bitConfig, AdamWConfig, Algorithm, ClipConfig, Clipper, Gradients, Optimizer,
    OptimizerConfig, ParamGroups, SgdConfig, StateError,
};
use emberlm_quant::host::float_tensor;
use emberlm_tests::values;

use crate::support::Flex;

type Ad = Autodiff<Flex>;

#[derive(Module, Debug)]
struct Leaf<B: Backend> {
    weight: Param<Tensor<B, 2>>,
}

#[derive(Module, Debug)]
struct Adapter<B: Backend> {
    lora_a: Param<Tensor<B, 2>>,
    lora_b: Param<Tensor<B, 2>>,
}

/// A model as far as names and ranks matter.
#[derive(Module, Debug)]
struct Model<B: Backend> {
    embed_tokens: Leaf<B>,
    norm: Param<Tensor<B, 1>>,
    q_proj: Adapter<B>,
    lm_head: Adapter<B>,
    o_proj: Leaf<B>,
}

fn matrix(value: f32) -> Tensor<Ad, 2> {
    float_tensor(vec![value; 6], [2, 3], &Default::default())
}

fn param(value: f32) -> Param<Tensor<Ad, 2>> {
    Param::from_tensor(matrix(value).require_grad())
}

impl Model<Ad> {
    fn new() -> Self {
        let adapter = || Adapter { lora_a: param(1.0), lora_b: param(1.0) };
        let norm = float_tensor::<Ad, 1>(vec![1.0; 3], [3], &Default::default());
        Self {
            embed_tokens: Leaf { weight: param(1.0) },
            norm: Param::from_tensor(norm.require_grad()),
            q_proj: adapter(),
            lm_head: adapter(),
            o_proj: Leaf { weight: param(1.0) },
        }
    }

    /// Gradients that are `a` and `b` for the adapters' matrices and 1 for all else.
    fn gradients(&self, a: f32, b: f32) -> Gradients<Flex> {
        let adapter =
            |adapter: &Adapter<Ad>| adapter.lora_a.val().sum() * a + adapter.lora_b.val().sum() * b;
        let loss = self.embed_tokens.weight.val().sum()
            + self.norm.val().sum()
            + self.o_proj.weight.val().sum()
            + adapter(&self.q_proj)
            + adapter(&self.lm_head);
        let mut gradients = Gradients::default();
        gradients.collect("", self, loss.backward());
        gradients
    }

    /// A weight of each: embedding, norm, A and B of a projection and of the head, projection.
    fn weights(&self) -> [f64; 7] {
        let first = |tensor: Tensor<Ad, 2>| values(tensor)[0];
        [
            first(self.embed_tokens.weight.val()),
            values(self.norm.val())[0],
            first(self.q_proj.lora_a.val()),
            first(self.q_proj.lora_b.val()),
            first(self.lm_head.lora_a.val()),
            first(self.lm_head.lora_b.val()),
            first(self.o_proj.weight.val()),
        ]
    }
}

fn sgd(groups: ParamGroups, weight_decay: f64) -> OptimizerConfig {
    let sgd = SgdConfig { momentum: 0.0, nesterov: false, weight_decay };
    OptimizerConfig { algorithm: Algorithm::Sgd(sgd), groups }
}

#[track_caller]
fn assert_moved(model: &Model<Ad>, by: [f64; 7]) {
    for (weight, by) in model.weights().into_iter().zip(by) {
        assert!((1.0 - weight - by).abs() < 1e-6, "{:?}, not moved by {by:?}", model.weights());
    }
}

#[test]
fn b_and_embeddings_have_rates_of_their_own() {
    let groups =
        ParamGroups { lora_plus_ratio: 4.0, embedding_ratio: 0.5, ..ParamGroups::default() };
    let mut optimizer = Optimizer::new(sgd(groups, 0.0));
    let model = Model::new();
    let gradients = model.gradients(1.0, 1.0);
    let model = optimizer.step(model, &gradients, 0.1);
    // An adapter of the head is an adapter.
    assert_moved(&model, [0.05, 0.1, 0.1, 0.4, 0.1, 0.4, 0.1]);
}

#[test]
fn norms_and_biases_decay_only_when_asked_to() {
    for (decay_norms_and_biases, norm) in [(false, 0.0), (true, 0.05)] {
        let groups = ParamGroups { decay_norms_and_biases, ..ParamGroups::default() };
        let adamw = AdamWConfig { weight_decay: 0.5, ..AdamWConfig::default() };
        for algorithm in [Algorithm::AdamW(adamw), Algorithm::AdamW8bit(AdamW8bitConfig(adamw))] {
            let mut optimizer = Optimizer::new(OptimizerConfig { algorithm, groups });
            let model = Model::new();
            let gradients = model.gradients(1.0, 1.0);
            let model = optimizer.step(model, &gradients, 0.1);
            // AdamW's first step is the rate, whatever the gradient.
            assert_moved(&model, [0.15, 0.1 + norm, 0.15, 0.15, 0.15, 0.15, 0.15]);
        }
        let mut optimizer = Optimizer::new(sgd(groups, 0.5));
        let model = Model::new();
        let gradients = model.gradients(1.0, 1.0);
        let model = optimizer.step(model, &gradients, 0.1);
        assert_moved(&model, [0.15, 0.1 + norm, 0.15, 0.15, 0.15, 0.15, 0.15]);
    }
}

/// A has gradients of 0, then of 2, B of 4, then of 12: 1 and 8 on average.
#[test]
fn calibration_balances_a_and_b() {
    let groups = ParamGroups { calibrate_ab: 2, ..ParamGroups::default() };
    let config = sgd(groups, 0.0);
    let mut optimizer = Optimizer::<Flex>::new(config);
    let mut model = Model::new();
    for (a, b) in [(0.0, 4.0), (2.0, 12.0)] {
        let gradients = model.gradients(a, b);
        model = optimizer.step(model, &gradients, 1e-3);
    }
    let measuring = optimizer.ab_factors().unwrap();
    assert_eq!((measuring.a, measuring.b), (1.0, 1.0), "as long as it measures");
    assert_moved(&model, [2e-3, 2e-3, 2e-3, 16e-3, 2e-3, 16e-3, 2e-3]);

    // Out and in again, in the middle of it.
    let state = optimizer.state();
    let mut optimizer = Optimizer::<Flex>::restore(config, &state, &Default::default()).unwrap();
    let model = Model::new();
    let gradients = model.gradients(1.0, 8.0);
    let model = optimizer.step(model, &gradients, 1e-3);
    let factors = optimizer.ab_factors().unwrap();
    assert!((factors.a - 8f64.sqrt()).abs() < 1e-6 && (factors.a * factors.b - 1.0).abs() < 1e-12);
    let both = 8f64.sqrt() * 1e-3;
    assert_moved(&model, [1e-3, 1e-3, both, both, both, both, 1e-3]);
    assert_eq!(optimizer.state().tensors, state.tensors, "nothing is measured any more");

    let mut lacking = state;
    lacking.tensors.clear();
    let error = Optimizer::<Flex>::restore(config, &lacking, &Default::default()).unwrap_err();
    assert!(matches!(error, StateError::Missing { .. }), "{error}");
}

#[test]
fn calibration_without_gradients_changes_nothing() {
    let groups = ParamGroups { calibrate_ab: 1, ..ParamGroups::default() };
    let mut optimizer = Optimizer::<Flex>::new(sgd(groups, 0.0));
    let mut model = Model::new();
    for _ in 0..2 {
        let gradients = model.gradients(0.0, 1.0);
        model = optimizer.step(model, &gradients, 0.1);
    }
    assert_moved(&model, [0.2, 0.2, 0.0, 0.2, 0.0, 0.2, 0.2]);
}

/// Norms of the gradients of a projection's A and B.
fn norms(gradients: &Gradients<Flex>) -> [f64; 2] {
    let norm = |path: &str| {
        let gradient = gradients.get(path).unwrap().value.clone();
        values(gradient).iter().map(|v| v * v).sum::<f64>().sqrt()
    };
    [norm("q_proj.lora_a"), norm("q_proj.lora_b")]
}

#[test]
fn one_tensors_outlier_is_clipped_and_no_other() {
    let config = ClipConfig::PerTensor { factor: 2.0, decay: 0.5 };
    let mut clipper = Clipper::new(config);
    let model = Model::new();
    let root = 6f64.sqrt();
    let clipped = |clipper: &mut Clipper, a: f32, b: f32| {
        let mut gradients = model.gradients(a, b);
        let norm = gradients.norm();
        clipper.clip(&mut gradients, norm);
        norms(&gradients).map(|norm| norm / root)
    };
    let close = |found: [f64; 2], expected: [f64; 2]| {
        let near = |(found, expected): (f64, f64)| (found - expected).abs() < 1e-5;
        assert!(found.into_iter().zip(expected).all(near), "{found:?}, not {expected:?}");
    };
    close(clipped(&mut clipper, 0.0, 1.0), [0.0, 1.0]);
    // A's first gradient is never clipped, B's is at twice its mean.
    close(clipped(&mut clipper, 100.0, 50.0), [100.0, 2.0]);
    let mut again = Clipper::restore(config, &clipper.state()).unwrap();
    assert_eq!(again, clipper);
    for clipper in [&mut clipper, &mut again] {
        close(clipped(clipper, 10.0, 3.5), [10.0, 3.0]);
    }
    assert_eq!(again.state(), clipper.state());

    let error = Clipper::restore(ClipConfig::norm(1.0), &clipper.state()).unwrap_err();
    assert!(matches!(error, StateError::Kind { .. }), "{error}");
    let mut cut = clipper.state();
    cut.tensors.get_mut("grad_norm.norm").unwrap().bytes.pop();
    let error = Clipper::restore(config, &cut).unwrap_err();
    assert!(matches!(error, StateError::Bytes { .. }), "{error}");
}

#[test]
fn the_norm_of_all_is_clipped_to_one() {
    for (config, expected) in [(ClipConfig::norm(1.0), 1.0), (ClipConfig::Off, 39f64.sqrt())] {
        let mut gradients = Model::new().gradients(1.0, 1.0);
        let norm = gradients.norm();
        let mut clipper = Clipper::new(config);
        clipper.clip(&mut gradients, norm);
        assert!((gradients.norm() - expected).abs() < 1e-4, "{config:?}: {}", gradients.norm());
        assert_eq!(Clipper::restore(config, &clipper.state()).unwrap(), clipper);
    }
}
