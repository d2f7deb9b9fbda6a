//! AdamW in 8 bits equals bitsandbytes' `AdamW8bit`.

use burn::backend::Autodiff;
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use emberlm::{AdamW8bitConfig, AdamWConfig, Algorithm, Gradients, Optimizer, OptimizerBackend};
use emberlm_quant::TensorFile;
use emberlm_quant::host::float_tensor;
use emberlm_tests::{assert_close, golden_json, golden_tensors, number, values};
use serde_json::Value;

use crate::support::{Flex, NdArray};

/// The golden's parameters.
const NAMES: [&str; 3] = ["whole", "ragged", "small"];

/// The golden's parameters: whole blocks of 256, a short last block, and one too small for 8 bits.
#[derive(Module, Debug)]
struct Params<B: Backend> {
    whole: Param<Tensor<B, 2>>,
    ragged: Param<Tensor<B, 2>>,
    small: Param<Tensor<B, 2>>,
}

impl<B: Backend> Params<B> {
    fn new(file: &TensorFile) -> Self {
        let [whole, ragged, small] = NAMES.map(|name| {
            let tensor = matrix::<B>(file, &format!("start.{name}"), 0);
            Param::from_tensor(tensor.require_grad())
        });
        Self { whole, ragged, small }
    }

    fn all(&self) -> [(&'static str, Tensor<B, 2>); 3] {
        let [whole, ragged, small] = NAMES;
        [(whole, self.whole.val()), (ragged, self.ragged.val()), (small, self.small.val())]
    }
}

/// Matrix number `n` of a stack of matrices.
fn matrix<B: Backend>(file: &TensorFile, key: &str, n: usize) -> Tensor<B, 2> {
    let [.., rows, columns] = file.entries()[key].shape[..] else { panic!("{key}: a matrix") };
    let size = rows * columns;
    let values = file.read_f32(key).unwrap()[n * size..(n + 1) * size].to_vec();
    float_tensor(values, [rows, columns], &Default::default())
}

struct Golden {
    file: TensorFile,
    facts: Value,
}

impl Golden {
    fn read() -> Self {
        let file = golden_tensors("optimizer/adamw8bit.safetensors");
        Self { file, facts: golden_json("optimizer/adamw8bit.json") }
    }

    fn config(&self) -> AdamWConfig {
        AdamWConfig {
            betas: [0, 1].map(|i| self.facts["betas"][i].as_f64().unwrap()),
            eps: number(&self.facts, "eps"),
            weight_decay: number(&self.facts, "weight_decay"),
        }
    }

    /// Runs all steps; `after` sees the parameters after each, and its number from 1.
    fn run<B: OptimizerBackend>(
        &self,
        config: Algorithm,
        mut after: impl FnMut(usize, &Params<Autodiff<B>>),
    ) -> Optimizer<B> {
        let mut params = Params::<Autodiff<B>>::new(&self.file);
        let mut optimizer = Optimizer::new(config);
        for (step, rate) in self.facts["lr"].as_array().unwrap().iter().enumerate() {
            // The gradient of Σ p · g is g.
            let losses = params.all().map(|(name, param)| {
                (param * matrix(&self.file, &format!("grad.{name}"), step)).sum()
            });
            let loss = losses.into_iter().reduce(|a, b| a + b).unwrap();
            let mut gradients = Gradients::default();
            gradients.collect("", &params, loss.backward());
            params = optimizer.step(params, &gradients, rate.as_f64().unwrap());
            after(step + 1, &params);
        }
        optimizer
    }

    /// The parameter after step `step`, if the golden holds it.
    fn after(&self, run: &str, name: &str, step: usize) -> Option<Vec<f64>> {
        let kept = self.facts["kept"].as_array().unwrap();
        let n = kept.iter().position(|kept| kept.as_u64() == Some(step as u64))?;
        Some(values(matrix::<NdArray>(&self.file, &format!("{run}.{name}"), n)))
    }
}

fn trajectory_equals<B: OptimizerBackend>() {
    let golden = Golden::read();
    let mut compared = 0;
    golden.run::<B>(Algorithm::AdamW8bit(AdamW8bitConfig(golden.config())), |step, params| {
        for (name, param) in params.all() {
            let Some(expected) = golden.after("param", name, step) else { continue };
            // A moment on the border between two codes may fall to either side of it by rounding, which moves its
            // weight by another share of the rate; there are 1e5 moments coded in all.
            let far = values(param)
                .iter()
                .zip(&expected)
                .filter(|(found, expected)| (*found - *expected).abs() > 1e-6)
                .inspect(|(found, expected)| assert!((*found - *expected).abs() < 1e-3))
                .count();
            println!("step {step}, {name}: {far} of {} further than 1e-6", expected.len());
            assert!(far <= expected.len() / 1000, "step {step}, {name}: {far} differ");
            compared += 1;
        }
    });
    assert_eq!(compared, 12);
}

#[test]
fn eight_bits_follow_bitsandbytes_on_ndarray() {
    trajectory_equals::<NdArray>();
}

#[test]
fn eight_bits_follow_bitsandbytes_on_flex() {
    trajectory_equals::<Flex>();
}

fn root_mean_square(a: &[f64], b: &[f64]) -> f64 {
    let squares = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
    (squares / a.len() as f64).sqrt()
}

/// bitsandbytes' CPU library takes codes from a table that is coarse near zero. Its run differs from ours by far less
/// than the weights move.
#[test]
fn the_cpu_librarys_table_makes_little_difference() {
    let golden = Golden::read();
    golden.run::<Flex>(Algorithm::AdamW8bit(AdamW8bitConfig(golden.config())), |step, params| {
        for (name, param) in params.all() {
            let Some(table) = golden.after("table", name, step) else { continue };
            let start = values(matrix::<Flex>(&golden.file, &format!("start.{name}"), 0));
            let found = values(param);
            let share = root_mean_square(&found, &table) / root_mean_square(&found, &start);
            println!("step {step}, {name}: {share:.2e} of the way");
            assert!(share < 0.01, "step {step}, {name}: {share}");
        }
    });
}

/// Gradients of magnitudes far apart within one block, and steps without any: what makes 8-bit moments divide by
/// almost nothing if a small second moment becomes 0.
#[test]
fn small_gradients_beside_large_ones_move_nothing_too_far() {
    #[derive(Module, Debug)]
    struct One<B: Backend> {
        weight: Param<Tensor<B, 2>>,
    }
    const SHAPE: [usize; 2] = [32, 256];
    let gradient = |step: usize| -> Vec<f32> {
        let element = |i: usize| {
            let wave = ((i * 7919 + step * 104_729) % 2003) as f32 / 1000.0 - 1.0;
            if step % 4 == 3 { 0.0 } else { wave * 10f32.powi(-((i % 8) as i32)) }
        };
        (0..SHAPE[0] * SHAPE[1]).map(element).collect()
    };
    let run = |config| -> Vec<f64> {
        let device = Default::default();
        let tensor = |values| float_tensor::<Autodiff<Flex>, 2>(values, SHAPE, &device);
        let zeros = tensor(vec![0.0; SHAPE[0] * SHAPE[1]]);
        let mut one = One { weight: Param::from_tensor(zeros.require_grad()) };
        let mut optimizer = Optimizer::new(config);
        for step in 0..12 {
            let mut gradients = Gradients::default();
            let loss = (one.weight.val() * tensor(gradient(step))).sum();
            gradients.collect("", &one, loss.backward());
            one = optimizer.step(one, &gradients, 1e-3);
        }
        values(one.weight.val())
    };
    let config = AdamWConfig::default();
    let exact = run(Algorithm::AdamW(config));
    let found = run(Algorithm::AdamW8bit(AdamW8bitConfig(config)));
    let greatest = found.iter().fold(0.0f64, |max, value| max.max(value.abs()));
    println!("greatest {greatest:.2e}, difference {:.2e}", root_mean_square(&found, &exact));
    assert!(greatest < 12.0 * 1e-3 * 2.0, "a weight moved {greatest} in 12 steps of 1e-3");
}

#[test]
fn a_weight_without_gradients_only_decays() {
    let golden = Golden::read();
    let config = AdamWConfig { weight_decay: 0.0, ..golden.config() };
    golden.run::<Flex>(Algorithm::AdamW8bit(AdamW8bitConfig(config)), |_, params| {
        // Rows 5 and 40 to 43 never get a gradient; the blocks of 256 elements that they lie in do.
        let start = matrix::<Flex>(&golden.file, "start.ragged", 0);
        let now = params.ragged.val();
        for row in [5, 40, 43] {
            let row_of = |values: Vec<f64>| values[row * 67..(row + 1) * 67].to_vec();
            assert_eq!(row_of(values(now.clone())), row_of(values(start.clone())));
        }
    });
}

#[test]
fn two_bytes_an_element() {
    let golden = Golden::read();
    let config = golden.config();
    let bytes = |config| golden.run::<Flex>(config, |_, _| ()).state_bytes();
    let (whole, ragged, small) = (64 * 64, 63 * 67, 37 * 40);
    assert_eq!(bytes(Algorithm::AdamW(config)), 8 * (whole + ragged + small));
    let scales = 4 * 2 * (16 + 17);
    assert_eq!(
        bytes(Algorithm::AdamW8bit(AdamW8bitConfig(config))),
        2 * (whole + ragged) + scales + 8 * small,
        "two bytes an element and a scale for 256; small ones in 32 bits"
    );
}

/// A parameter that is decoded in parts equals the same numbers in small parameters.
#[test]
fn parts_of_a_large_parameter_are_independent() {
    #[derive(Module, Debug)]
    struct Large<B: Backend> {
        weight: Param<Tensor<B, 2>>,
    }
    const PART: usize = 1 << 22;
    let n = PART + 5000;
    let numbers = |seed: usize| -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed) % 2003) as f32 / 1000.0 - 1.0).collect()
    };
    let device = Default::default();
    let step = |range: std::ops::Range<usize>| -> Vec<f64> {
        let tensor = |seed| {
            let values = numbers(seed)[range.clone()].to_vec();
            float_tensor::<Autodiff<Flex>, 2>(values, [1, range.len()], &device)
        };
        let mut large = Large { weight: Param::from_tensor(tensor(1).require_grad()) };
        let mut optimizer =
            Optimizer::<Flex>::new(Algorithm::AdamW8bit(AdamW8bitConfig(AdamWConfig::default())));
        for seed in 2..4 {
            let loss = (large.weight.val() * tensor(seed)).sum();
            let mut gradients = Gradients::default();
            gradients.collect("", &large, loss.backward());
            large = optimizer.step(large, &gradients, 1e-2);
        }
        values(large.weight.val())
    };
    let whole = step(0..n);
    assert_eq!(whole[..PART], step(0..PART));
    assert_eq!(whole[PART..], step(PART..n));
}

/// The moments of 32 bits are PyTorch's, on the golden's gradients too: what 8 bits are measured against.
#[test]
fn small_parameters_are_plain_adamw() {
    let golden = Golden::read();
    golden.run::<Flex>(Algorithm::AdamW(golden.config()), |step, params| {
        if let Some(expected) = golden.after("param", "small", step) {
            assert_close("small", &values(params.small.val()), &expected, 1e-5);
        }
    });
}
