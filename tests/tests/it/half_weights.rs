//! Weights of 16 bits: a model that holds them computes what the f32 model with the same, rounded weights computes.

use std::sync::atomic::AtomicBool;

use burn::module::Param;
use burn::tensor::{DType, Tensor, TensorData};
use emberlm::config;
use emberlm::run::{RunOptions, run};
use emberlm::trainer::step::Recompute;
use emberlm::{OptimizerBackend, TrainBackend, Training, WeightForm};
use emberlm_lora::walk::{ParamMapper, ParamVisitor, for_each_param, map_params};
use emberlm_lora::{LoraConfig, inject};
use emberlm_model::weights::{Checkpoint, from_checkpoint};
use emberlm_model::{CausalLm, LoadError, ModelBackend, ModelConfig};
use emberlm_quant::tensor_file::FloatDtype;
use emberlm_quant::{QuantBackend, QuantFormat, Quantization, TensorFile};
use emberlm_tests::{assert_close, assert_close_number, golden_path, values};
use half::{bf16, f16};

use crate::support::{Flex, NdArray, golden_batch, inputs, load, mean_loss_and_grads};

const HALVES: [FloatDtype; 2] = [FloatDtype::Bf16, FloatDtype::F16];

fn rounded(dtype: FloatDtype, value: f32) -> f32 {
    match dtype {
        FloatDtype::F32 => value,
        FloatDtype::F16 => f16::from_f32(value).to_f32(),
        FloatDtype::Bf16 => bf16::from_f32(value).to_f32(),
    }
}

/// The golden's model in f32, every weight rounded to `dtype`.
fn load_rounded<B: ModelBackend>(name: &str, dtype: FloatDtype) -> (ModelConfig, CausalLm<B>) {
    struct Round(FloatDtype);
    impl<B: ModelBackend> ParamMapper<B> for Round {
        fn map<const D: usize>(
            &mut self,
            _: &str,
            param: Param<Tensor<B, D>>,
        ) -> Param<Tensor<B, D>> {
            param.map(|tensor| {
                let (dims, device) = (tensor.dims(), tensor.device());
                let values: Vec<f32> =
                    tensor.into_data().iter::<f32>().map(|v| rounded(self.0, v)).collect();
                Tensor::from_data(TensorData::new(values, dims), (&device, DType::F32))
            })
        }
    }
    let (config, model) = load::<B>(name);
    (config, map_params(model, &mut Round(dtype)))
}

/// The golden's model as it is loaded in `dtype`.
fn load_in<B: ModelBackend>(
    name: &str,
    form: WeightForm<'_>,
) -> Result<(ModelConfig, CausalLm<B>), LoadError> {
    let (folder, device) = (golden_path(&format!("models/{name}")), Default::default());
    let config = ModelConfig::read(&folder.join("config.json"))?;
    let checkpoint = Checkpoint::open(&folder, &config)?;
    let model = from_checkpoint::<B>(&config, &checkpoint, form, &device)?;
    Ok((config, model))
}

fn in_dtype(dtype: FloatDtype) -> WeightForm<'static> {
    WeightForm { dtype, ..WeightForm::default() }
}

/// Adapters whose B isn't zero.
fn adapted<A: TrainBackend>(mut model: CausalLm<A>) -> CausalLm<A> {
    let lora = LoraConfig { r: 4, alpha: 12.0, ..LoraConfig::default() };
    inject(model.linears_mut(), &lora, 3, &Default::default()).unwrap();
    for named in model.linears_mut() {
        if let Some(adapter) = &mut named.linear.adapter {
            adapter.lora_b = adapter.lora_b.clone().map(|b| (b + 0.03).detach().require_grad());
        }
    }
    model
}

/// Loss and the adapters' gradients are those of the f32 model with rounded weights.
pub(crate) fn equals_the_rounded_model<B: OptimizerBackend>(
    name: &str,
    dtype: FloatDtype,
    tolerances: [f64; 2],
) {
    let (_, batch) = golden_batch(name);
    let (config, model) = load_rounded::<Training<NdArray>>(name, dtype);
    let expected_logits = values(model.logits(&inputs(&config, &batch)));
    let model = adapted(model);
    let (expected_loss, expected) =
        mean_loss_and_grads(&model, &config, &batch, Recompute::Selective);

    let [value_tolerance, gradient_tolerance] = tolerances;
    let (config, model) = load_in::<Training<B>>(name, in_dtype(dtype)).unwrap();
    let what = format!("{name} in {}", dtype.name());
    let logits = values(model.logits(&inputs(&config, &batch)));
    assert_close(&format!("{what}: logits"), &logits, &expected_logits, value_tolerance);
    let model = adapted(model);
    for recompute in [Recompute::None, Recompute::Selective, Recompute::Block] {
        let (loss, found) = mean_loss_and_grads(&model, &config, &batch, recompute);
        let what = format!("{what}, {recompute}");
        assert_close_number(&format!("{what}: loss"), loss, expected_loss, value_tolerance);
        assert_eq!(found.iter().count(), expected.iter().count());
        for (key, gradient) in expected.iter() {
            let gradient = values(gradient.value.clone());
            let found = &found.get(key).unwrap().value;
            assert_eq!(found.dtype(), DType::F32, "{key}: adapters learn in f32");
            let found = values(found.clone());
            assert_close(&format!("{what}: {key}"), &found, &gradient, gradient_tolerance);
        }
    }
}

/// Activations have 16 bits here, and what is computed from them is as exact as those.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub(crate) fn where_the_device_has_them<B: OptimizerBackend>() {
    for dtype in HALVES {
        if B::has_float_type(dtype, &Default::default()) {
            for name in ["llama", "qwen2"] {
                equals_the_rounded_model::<B>(name, dtype, [2e-2, 1e-1]);
            }
        } else {
            let Err(error) = load_in::<B>("llama", in_dtype(dtype)) else {
                panic!("a device without {} loads it", dtype.name());
            };
            assert!(error.to_string().contains(dtype.name()), "{error}");
        }
    }
}

#[test]
fn flex_equals_the_rounded_model() {
    for name in ["llama", "llama-tied-bias", "qwen2"] {
        for dtype in HALVES {
            equals_the_rounded_model::<Flex>(name, dtype, [1e-5, 1e-4]);
        }
    }
}

#[test]
fn matrices_are_held_in_16_bits_and_rounding_moves_the_logits() {
    let (_, batch) = golden_batch("llama");
    let (config, plain) = load::<Flex>("llama");
    let before = values(plain.logits(&inputs(&config, &batch)));
    for (dtype, held) in HALVES.into_iter().zip([DType::BF16, DType::F16]) {
        let (config, model) = load_in::<Flex>("llama", in_dtype(dtype)).unwrap();
        struct Types(Vec<(usize, DType)>);
        impl<B: ModelBackend> ParamVisitor<B> for Types {
            fn param<const D: usize>(&mut self, _: &str, param: &Param<Tensor<B, D>>) {
                self.0.push((D, param.val().dtype()));
            }
        }
        let mut types = Types(Vec::new());
        for_each_param(&model, &mut types);
        for (rank, dtype) in types.0 {
            assert_eq!(dtype, if rank == 2 { held } else { DType::F32 });
        }
        let weights = |model: &CausalLm<Flex>| -> usize {
            model.linears().iter().map(|(_, linear)| linear.weight.memory()).sum()
        };
        assert_eq!(2 * weights(&model), weights(&plain));
        let logits = values(model.logits(&inputs(&config, &batch)));
        assert_ne!(logits, before, "{held:?}: the weights were not rounded");
        assert_close("beside f32", &logits, &before, 0.1);
    }
}

#[test]
fn quantized_layers_beside_16_bits() {
    let (_, batch) = golden_batch("llama");
    let quantization = Quantization::new(QuantFormat::Nf4);
    let form = WeightForm { dtype: FloatDtype::Bf16, quantization: Some(&quantization) };
    let (config, model) = load_in::<Flex>("llama", form).unwrap();
    let logits = values(model.logits(&inputs(&config, &batch)));
    // Quantized from the file's numbers, all else rounded.
    let (_, rounded) = load_rounded::<Flex>("llama", FloatDtype::Bf16);
    let form = WeightForm { quantization: Some(&quantization), ..WeightForm::default() };
    let (_, mut expected) = load_in::<Flex>("llama", form).unwrap();
    expected.lm_head = rounded.lm_head;
    expected.model.embed_tokens = rounded.model.embed_tokens;
    expected.model.norm = rounded.model.norm;
    for (layer, rounded) in expected.model.layers.iter_mut().zip(rounded.model.layers) {
        layer.input_layernorm = rounded.input_layernorm;
        layer.post_attention_layernorm = rounded.post_attention_layernorm;
    }
    let expected = values(expected.logits(&inputs(&config, &batch)));
    assert_close("logits", &logits, &expected, 1e-5);
}

#[test]
fn merging_folds_the_delta_in_where_there_is_room_for_it() {
    let (_, batch) = golden_batch("llama");
    let (config, model) = load_in::<Training<Flex>>("llama", in_dtype(FloatDtype::Bf16)).unwrap();
    let model = adapted(model);
    let logits = |model: &CausalLm<Training<Flex>>| values(model.logits(&inputs(&config, &batch)));
    let before = logits(&model);
    assert_close("merged", &logits(&model.merge()), &before, 1e-5);
}

#[test]
fn products_with_few_tokens_and_odd_sizes() {
    use emberlm_lora::random::{generator, normal};
    use emberlm_quant::host::{float_tensor, float_tensor_in};
    let numbers = |seed, n| normal(&mut generator(seed, "half", &[]), n, 1.0);
    for dtype in HALVES {
        let held = if dtype == FloatDtype::F16 { DType::F16 } else { DType::BF16 };
        for (tokens, d_out, d_in) in
            [(1, 1, 1), (1, 33, 65), (3, 17, 31), (4, 5, 100), (9, 70, 129)]
        {
            let device = Default::default();
            let weight = numbers(1, d_out * d_in);
            let dense = weight.iter().map(|&w| rounded(dtype, w)).collect();
            let dense = float_tensor::<NdArray, 2>(dense, [d_out, d_in], &device);
            let weight =
                float_tensor_in::<Flex, 2>(weight, [d_out, d_in], held, &Default::default());
            let (x, grad) = (numbers(2, tokens * d_in), numbers(3, tokens * d_out));
            let y = Flex::matmul_dense(
                float_tensor(x.clone(), [tokens, d_in], &Default::default()),
                weight.clone(),
            );
            let expected = float_tensor::<NdArray, 2>(x, [tokens, d_in], &device)
                .matmul(dense.clone().transpose());
            let what = format!("{tokens} × {d_in} by {d_out} in {}", dtype.name());
            assert_close(&what, &values(y), &values(expected), 1e-5);
            let d_x = Flex::matmul_dense_backward(
                float_tensor(grad.clone(), [tokens, d_out], &Default::default()),
                weight,
            );
            let expected = float_tensor::<NdArray, 2>(grad, [tokens, d_out], &device).matmul(dense);
            assert_close(&format!("{what}, backward"), &values(d_x), &values(expected), 1e-5);
        }
    }
}

#[test]
fn a_backend_without_the_type_says_so() {
    for dtype in HALVES {
        let Err(error) = load_in::<NdArray>("llama", in_dtype(dtype)) else {
            panic!("NdArray has no {}", dtype.name());
        };
        let text = error.to_string();
        assert!(text.contains(dtype.name()) && text.contains("Use f32"), "{text}");
    }
}

/// A run on the built-in model: its last loss, and the adapter it saved.
fn run_in(dtype: &str, recompute: &str) -> (f64, TensorFile) {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("run");
    let text = format!(
        "[model]\nbackend = \"flex\"\ndtype = \"{dtype}\"\n[lora]\nr = 4\n[train]\nsteps = 6\n\
         learning_rate = 1e-3\nrecompute = \"{recompute}\"\noutput_dir = {out:?}\n"
    );
    let config = config::load_str(&text, "run.toml", &[]).unwrap();
    let interrupt = AtomicBool::new(false);
    let options = RunOptions { dry_run: false, interrupt: &interrupt, resume: None };
    let report = run(&config, options, &mut |_| ()).unwrap();
    let (before, after) = report.evaluations.unwrap();
    assert!(after.loss < before.loss, "{dtype}: {} after {}", after.loss, before.loss);
    let adapter = TensorFile::open(&out.join("adapter_model.safetensors")).unwrap();
    (after.loss, adapter)
}

#[test]
fn a_whole_run_on_weights_of_16_bits() {
    let (plain, _) = run_in("f32", "block");
    let (loss, adapter) = run_in("bf16", "block");
    // The built-in model is stored in bf16: nothing is lost by holding it so.
    assert_close_number("loss after 6 steps", loss, plain, 1e-5);
    for (name, entry) in adapter.entries() {
        assert_eq!(FloatDtype::of_entry(entry.dtype), Some(FloatDtype::F32), "{name}");
    }
    let (again, _) = run_in("bf16", "selective");
    assert_close_number("recomputed otherwise", again, loss, 1e-5);
}
