//! Every optimizer follows PyTorch's, transformers' or its paper's for ten steps, on matrices and vectors, from two seeds.

use burn::backend::Autodiff;
use burn::module::{Module, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};
use emberlm::trainer::optimizer::adamw::Moments;
use emberlm::trainer::optimizer::backend::portable_adamw;
use emberlm::{
    AdafactorConfig, AdamWConfig, Algorithm, Gradients, LionConfig, MuonConfig, MuonScale,
    Optimizer, OptimizerBackend, OptimizerConfig, ParamGroups, SgdConfig,
};
use emberlm_quant::TensorFile;
use emberlm_quant::host::float_tensor;
use emberlm_tests::{assert_close, golden_json, golden_tensors, values};
use serde_json::Value;

use crate::support::{Flex, NdArray};

/// The golden's parameters.
#[derive(Module, Debug)]
struct Params<B: Backend> {
    wide: Param<Tensor<B, 2>>,
    tall: Param<Tensor<B, 2>>,
    vector: Param<Tensor<B, 1>>,
}

struct Golden {
    file: TensorFile,
    facts: Value,
    seed: u64,
}

impl Golden {
    /// Number `n` of a stack of tensors, or the whole.
    fn tensor<B: Backend, const D: usize>(&self, key: &str, n: Option<usize>) -> Tensor<B, D> {
        let key = format!("{}.{key}", self.seed);
        let shape = &self.file.entries()[&key].shape;
        let shape: [usize; D] = shape[shape.len() - D..].try_into().unwrap();
        let size: usize = shape.iter().product();
        let values = self.file.read_f32(&key).unwrap();
        let start = n.unwrap_or(0) * size;
        float_tensor(values[start..start + size].to_vec(), shape, &Default::default())
    }

    fn param<B: Backend, const D: usize>(&self, key: &str) -> Param<Tensor<B, D>> {
        Param::from_tensor(self.tensor(&format!("start.{key}"), None).require_grad())
    }

    /// Runs all steps and compares the parameters after those that the golden keeps.
    fn follow<B: OptimizerBackend>(&self, name: &str, config: OptimizerConfig) {
        let mut params: Params<Autodiff<B>> = Params {
            wide: self.param("wide"),
            tall: self.param("tall"),
            vector: self.param("vector"),
        };
        let mut optimizer = Optimizer::<B>::new(config);
        let kept = self.facts["kept"].as_array().unwrap();
        let mut compared = 0;
        for (step, rate) in self.facts["lr"].as_array().unwrap().iter().enumerate() {
            // The gradient of Σ p · g is g.
            let loss = (params.wide.val() * self.tensor("grad.wide", Some(step))).sum()
                + (params.tall.val() * self.tensor("grad.tall", Some(step))).sum()
                + (params.vector.val() * self.tensor("grad.vector", Some(step))).sum();
            let mut gradients = Gradients::default();
            gradients.collect("", &params, loss.backward());
            params = optimizer.step(params, &gradients, rate.as_f64().unwrap());
            let Some(n) = kept.iter().position(|k| k.as_u64() == Some(step as u64 + 1)) else {
                continue;
            };
            for (param, found) in [
                ("wide", values(params.wide.val())),
                ("tall", values(params.tall.val())),
                ("vector", values(params.vector.val())),
            ] {
                let key = format!("{name}.{param}");
                let expected = if param == "vector" {
                    values(self.tensor::<NdArray, 1>(&key, Some(n)))
                } else {
                    values(self.tensor::<NdArray, 2>(&key, Some(n)))
                };
                let what = format!("seed {}, {key}, step {}", self.seed, step + 1);
                assert_close(&what, &found, &expected, 1e-5);
                compared += 1;
            }
        }
        assert_eq!(compared, 12);
    }
}

/// The golden's optimizers by its names.
fn optimizers() -> Vec<(&'static str, Algorithm)> {
    let weight_decay = 0.1;
    let adamw = |beta2, weight_decay| AdamWConfig { betas: [0.9, beta2], eps: 1e-8, weight_decay };
    let sgd = |momentum, nesterov, weight_decay| {
        Algorithm::Sgd(SgdConfig { momentum, nesterov, weight_decay })
    };
    let adafactor = |clip_threshold, weight_decay| {
        let default = AdafactorConfig::default();
        Algorithm::Adafactor(AdafactorConfig { clip_threshold, weight_decay, ..default })
    };
    let muon = |momentum, nesterov, scale, weight_decay| {
        let adamw = adamw(0.95, weight_decay);
        Algorithm::Muon(MuonConfig { momentum, nesterov, scale, adamw })
    };
    vec![
        ("adamw", Algorithm::AdamW(adamw(0.99, weight_decay))),
        ("lion", Algorithm::Lion(LionConfig { betas: [0.9, 0.99], weight_decay })),
        ("sgd", sgd(0.0, false, weight_decay)),
        ("sgd_momentum", sgd(0.9, false, weight_decay)),
        ("sgd_nesterov", sgd(0.8, true, 0.0)),
        ("adafactor", adafactor(1.0, weight_decay)),
        ("adafactor_clipped", adafactor(0.5, 0.0)),
        ("muon_original", muon(0.95, true, MuonScale::Original, weight_decay)),
        ("muon_match_rms", muon(0.9, false, MuonScale::MatchRmsAdamw, 0.0)),
    ]
}

fn all_follow<B: OptimizerBackend>() {
    let facts = golden_json("optimizer/rules.json");
    let names: Vec<_> = facts["rules"].as_array().unwrap().iter().map(|n| n.as_str()).collect();
    assert_eq!(names, optimizers().iter().map(|(name, _)| Some(*name)).collect::<Vec<_>>());
    // PyTorch's decay is for vectors too.
    let groups = ParamGroups { decay_norms_and_biases: true, ..ParamGroups::default() };
    for seed in [1, 2] {
        let file = golden_tensors("optimizer/rules.safetensors");
        let golden = Golden { file, facts: facts.clone(), seed };
        for (name, algorithm) in optimizers() {
            golden.follow::<B>(name, OptimizerConfig { algorithm, groups });
        }
    }
}

#[test]
fn trajectories_on_ndarray() {
    all_follow::<NdArray>();
}

#[test]
fn trajectories_on_flex() {
    all_follow::<Flex>();
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

type State<B> = (Tensor<B, 1>, Option<Moments<B>>);

/// Three steps from the same start, each by `step`.
fn three_steps<B: OptimizerBackend>(
    n: usize,
    step: impl Fn(emberlm::trainer::optimizer::adamw::AdamWStep, Tensor<B, 1>, State<B>) -> State<B>,
) -> [Vec<f32>; 3] {
    let device = Default::default();
    let tensor = |seed| float_tensor::<B, 1>(numbers(n, seed), [n], &device);
    let config = AdamWConfig { weight_decay: 0.1, ..AdamWConfig::default() };
    let mut state = (tensor(1), None);
    for number in 1..4 {
        let numbers = config.at(u64::from(number), 1e-2, 0.1);
        state = step(numbers, tensor(10 + number), state);
    }
    let (weight, moments) = state;
    let moments = moments.unwrap();
    [weight, moments.first, moments.second].map(|t| t.into_data().iter::<f32>().collect())
}

/// Odd sizes, and more than a thread takes at a time.
#[test]
fn the_kernel_equals_the_portable_step() {
    for n in [1, 7, 16_385, 100_003] {
        let kernel = three_steps::<Flex>(n, |step, gradient, (weight, old)| {
            let (weight, moments) = Flex::adamw(step, weight, gradient, old);
            (weight, Some(moments))
        });
        let portable = three_steps::<Flex>(n, |step, gradient, (weight, old)| {
            let (weight, moments) = portable_adamw(step, weight, gradient, old);
            (weight, Some(moments))
        });
        for (what, (kernel, portable)) in
            ["weight", "first", "second"].iter().zip(kernel.iter().zip(&portable))
        {
            let wide = |values: &[f32]| values.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
            assert_close(what, &wide(kernel), &wide(portable), 1e-6);
        }
    }
}

#[test]
fn the_kernel_gives_the_same_bits_on_any_number_of_threads() {
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            three_steps::<Flex>(100_003, |step, gradient, (weight, old)| {
                let (weight, moments) = Flex::adamw(step, weight, gradient, old);
                (weight, Some(moments))
            })
        })
    };
    let one = run(1);
    for threads in [2, 3, 5] {
        assert_eq!(run(threads), one, "{threads} threads");
    }
}

/// The kernel works in place, but never in a tensor that somebody else holds, nor beyond a view.
#[test]
fn the_kernel_leaves_shared_tensors_alone() {
    let tensor = |seed: u32| {
        Tensor::<Flex, 1>::from_data(
            TensorData::new(numbers(100, seed), [100]),
            &Default::default(),
        )
    };
    let (weight, gradient) = (tensor(1), tensor(2));
    let moments = Moments { first: tensor(3), second: tensor(4).abs() };
    let bits = |tensor: &Tensor<Flex, 1>| tensor.to_data().iter::<f32>().collect::<Vec<_>>();
    let before = [&weight, &gradient, &moments.first, &moments.second].map(bits);
    let step = AdamWConfig::default().at(5, 0.1, 0.0);
    let whole = Flex::adamw(step, weight.clone(), gradient.clone(), Some(moments.clone()));
    let part = |tensor: &Tensor<Flex, 1>| tensor.clone().narrow(0, 30, 40);
    let of_part = Moments { first: part(&moments.first), second: part(&moments.second) };
    let middle = Flex::adamw(step, part(&weight), part(&gradient), Some(of_part));
    assert_eq!([&weight, &gradient, &moments.first, &moments.second].map(bits), before);
    assert_ne!(bits(&whole.0), before[0]);
    assert_eq!(bits(&middle.0), bits(&whole.0)[30..70]);
    assert_eq!(bits(&middle.1.second), bits(&whole.1.second)[30..70]);
}

#[test]
fn state_takes_what_the_plan_says() {
    let golden = Golden {
        file: golden_tensors("optimizer/rules.safetensors"),
        facts: golden_json("optimizer/rules.json"),
        seed: 1,
    };
    for (name, algorithm) in optimizers() {
        let params: Params<Autodiff<Flex>> = Params {
            wide: golden.param("wide"),
            tall: golden.param("tall"),
            vector: golden.param("vector"),
        };
        let planned: u64 = [("wide", &[12, 20][..]), ("tall", &[20, 12]), ("vector", &[24])]
            .into_iter()
            .map(|(path, shape)| algorithm.state_bytes(path, shape))
            .sum();
        let loss = params.wide.val().sum() + params.tall.val().sum() + params.vector.val().sum();
        let mut gradients = Gradients::default();
        gradients.collect("", &params, loss.backward());
        let mut optimizer = Optimizer::<Flex>::new(algorithm);
        optimizer.step(params, &gradients, 1e-3);
        assert_eq!(optimizer.state_bytes() as u64, planned, "{name}");
    }
}
