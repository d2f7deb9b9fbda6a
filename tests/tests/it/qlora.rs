//! Laws 1 and 2 for a quantized base: QLoRA equals bitsandbytes and PEFT; kernels equal the portable way; autodiff agrees
//! with differences.

use burn::backend::Autodiff;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use emberlm::trainer::step::Recompute;
use emberlm::{OptimizerBackend, evaluate};
use emberlm_data::{Dataset, ExampleOptions, Format, TextTokenizer, read_rows};
use emberlm_lora::peft::AdapterFolder;
use emberlm_lora::random::{generator, normal};
use emberlm_model::weights::{self, Checkpoint};
use emberlm_model::{CausalLm, ModelBackend, ModelConfig, WeightForm};
use emberlm_quant::host::float_tensor;
use emberlm_quant::{QuantBackend, QuantFormat, Quantization, Quantized, QuantizedMatrix, Weight};
use emberlm_tests::{
    GRADIENT_TOLERANCE, VALUE_TOLERANCE, assert_close, assert_close_number, expected, golden_json,
    golden_path, golden_tensors, number, values,
};

use crate::support::{
    Flex, NdArray, as_avx512_kernel_reads, golden_batch, inputs, mean_loss_and_grads,
};

/// The golden's model: quantized while loading, with the adapter.
fn qlora<B: ModelBackend>(quantization: &Quantization) -> (ModelConfig, CausalLm<B>) {
    let (folder, device) = (golden_path("models/llama"), Default::default());
    let config = ModelConfig::read(&folder.join("config.json")).unwrap();
    let checkpoint = Checkpoint::open(&folder, &config).unwrap();
    let form = WeightForm { quantization: Some(quantization), ..WeightForm::default() };
    let mut model = weights::from_checkpoint::<B>(&config, &checkpoint, form, &device).unwrap();
    assert_eq!(model.quantized().len(), 21, "every layer but the head");
    for named in model.linears_mut() {
        if let Weight::Quantized(weight) = &mut named.linear.weight {
            *weight = Quantized::new(as_avx512_kernel_reads(weight.to_host()), &device);
        }
    }
    let folder = AdapterFolder::open(&golden_path("adapters/lora-all")).unwrap();
    folder.apply(model.linears_mut(), &device).unwrap();
    (config, model)
}

/// The conversations of the goldens.
fn conversations() -> Dataset {
    let tokenizer = TextTokenizer::from_dir(&golden_path("models/llama")).unwrap();
    let rows = read_rows(&golden_path("train/lora-sft/data.jsonl"), Format::Auto).unwrap();
    Dataset::build(&rows, &tokenizer, &ExampleOptions::default()).unwrap()
}

pub(crate) fn equals_golden<B: OptimizerBackend>() {
    let golden = golden_tensors("qlora/golden.safetensors");
    let json = golden_json("qlora/golden.json");
    let nf4 = Quantization::new(QuantFormat::Nf4);
    let (_, batch) = golden_batch("llama");
    let (config, model) = qlora::<B>(&nf4);
    let logits = values(model.logits(&inputs(&config, &batch)));
    assert_close("logits", &logits, &expected(&golden, "logits"), VALUE_TOLERANCE);
    let merged = values(model.merge().logits(&inputs(&config, &batch)));
    assert_close("merged", &merged, &logits, VALUE_TOLERANCE);
    let (_, model) = qlora::<B>(&nf4);
    let chat_loss = evaluate(&model, &config, &conversations(), 0, 3).loss;
    assert_close_number("chat loss", chat_loss, number(&json, "chat_loss"), VALUE_TOLERANCE);

    let (config, model) = qlora::<emberlm::Training<B>>(&nf4);
    for recompute in [Recompute::None, Recompute::Selective, Recompute::Block] {
        let (loss, gradients) = mean_loss_and_grads(&model, &config, &batch, recompute);
        assert_close_number("loss", loss, number(&json, "loss"), VALUE_TOLERANCE);
        let keys = golden.entries().keys().filter(|key| key.starts_with("grad."));
        for key in keys.clone() {
            let ours = key
                .replace("grad.base_model.model.", "")
                .replace("lora_A.weight", "adapter.lora_a")
                .replace("lora_B.weight", "adapter.lora_b");
            let gradient = gradients.get(&ours).unwrap_or_else(|| panic!("no gradient of {ours}"));
            let gradient = values(gradient.value.clone());
            assert_close(&ours, &gradient, &expected(&golden, key), GRADIENT_TOLERANCE);
        }
        assert_eq!(gradients.iter().count(), keys.count(), "the base stays frozen");
    }
}

#[test]
fn qlora_on_ndarray() {
    equals_golden::<NdArray>();
}

#[test]
fn qlora_on_flex() {
    equals_golden::<Flex>();
}

/// Random numbers, the same on every backend.
fn numbers<B: Backend>(seed: u64, shape: [usize; 2]) -> Tensor<B, 2> {
    let n = shape.iter().product();
    float_tensor(normal(&mut generator(seed, "qlora", &[]), n, 1.0), shape, &Default::default())
}

fn quantization(format: QuantFormat, double_quant: bool) -> Quantization {
    Quantization { double_quant, ..Quantization::new(format) }
}

fn matrix(shape: [usize; 2], quantization: &Quantization) -> QuantizedMatrix {
    let weight = normal(&mut generator(9, "weight", &[]), shape[0] * shape[1], 0.3);
    QuantizedMatrix::quantize(&weight, shape, quantization)
}

/// Sizes with rows that are no whole blocks and no whole bytes, for a token, few and many.
const SIZES: [(usize, [usize; 2]); 7] = [
    (1, [5, 37]),
    (3, [64, 64]),
    (7, [33, 100]),
    (70, [40, 257]),
    (2, [1, 1]),
    // Rows of whole words that aren't whole blocks, more words than units share a row, rows that fill no cube.
    (1, [19, 1000]),
    (4, [9, 72]),
];

fn product<B: QuantBackend>(
    tokens: usize,
    shape: [usize; 2],
    quantization: &Quantization,
) -> [Vec<f64>; 2] {
    let weight = Quantized::<B>::new(matrix(shape, quantization), &Default::default());
    let [d_out, d_in] = shape;
    let y = B::matmul_quantized(numbers(1, [tokens, d_in]), &weight);
    let d_x = B::matmul_quantized_backward(numbers(2, [tokens, d_out]), &weight);
    [values(y), values(d_x)]
}

pub(crate) fn equals_dense<B: QuantBackend>() {
    for (tokens, shape @ [d_out, d_in]) in SIZES {
        for format in QuantFormat::ALL {
            for double_quant in [false, true] {
                let quantization = quantization(format, double_quant);
                let dense = matrix(shape, &quantization).dequantize();
                let dense = float_tensor::<NdArray, 2>(dense, shape, &Default::default());
                let y = numbers::<NdArray>(1, [tokens, d_in]).matmul(dense.clone().transpose());
                let d_x = numbers::<NdArray>(2, [tokens, d_out]).matmul(dense);
                let [found_y, found_d_x] = product::<B>(tokens, shape, &quantization);
                let what = format!("{format}, {tokens} × {shape:?}");
                assert_close(&what, &found_y, &values(y), 1e-5);
                assert_close(&what, &found_d_x, &values(d_x), 1e-5);
            }
        }
    }
}

#[test]
fn products_equal_dense_ones() {
    equals_dense::<NdArray>();
    equals_dense::<Flex>();
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let all = || {
        [(1, [300, 200]), (90, [300, 200]), (16, [1500, 3000])].map(|(tokens, shape)| {
            product::<Flex>(tokens, shape, &Quantization::new(QuantFormat::Nf4))
        })
    };
    let with = |threads| {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(all)
    };
    let one = with(1);
    for threads in [2, 3] {
        assert!(one == with(threads), "{threads} threads give other bits than 1");
    }
}

#[test]
fn the_gradient_agrees_with_differences_in_f64() {
    type F64 = burn_ndarray::NdArray<f64>;
    type Auto = Autodiff<F64>;
    for (tokens, shape @ [d_out, d_in]) in SIZES {
        for format in QuantFormat::ALL {
            let matrix = matrix(shape, &Quantization::new(format));
            let weight = Weight::<Auto>::Quantized(Quantized::new(matrix, &Default::default()));
            let direction = numbers::<F64>(3, [tokens, d_out]);
            let x = numbers::<Auto>(1, [tokens, d_in]).require_grad();
            let loss = (weight.matmul(x.clone()) * Tensor::from_inner(direction.clone())).sum();
            let gradient = values(x.grad(&loss.backward()).unwrap());
            let plain = burn::module::AutodiffModule::valid(&weight);
            let value = |x: Tensor<F64, 2>| values((plain.matmul(x) * direction.clone()).sum())[0];
            for i in (0..gradient.len()).step_by(1 + gradient.len() / 10) {
                let mut step = vec![0.0; gradient.len()];
                step[i] = 1.0;
                let step = float_tensor::<F64, 2>(step, [tokens, d_in], &Default::default());
                let h = 1e-4;
                let (up, down) =
                    (x.clone().inner() + step.clone() * h, x.clone().inner() - step * h);
                let difference = (value(up) - value(down)) / (2.0 * h);
                let error = (difference - gradient[i]).abs();
                assert!(error < 1e-7 * (1.0 + gradient[i].abs()), "{format} {shape:?} [{i}]");
            }
        }
    }
}

#[test]
fn a_quantized_weight_has_no_parameter_and_survives_the_module_walks() {
    fn check<A: AutodiffBackend + QuantBackend>()
    where
        A::InnerBackend: QuantBackend,
    {
        use burn::module::{AutodiffModule, Module};
        let matrix = matrix([6, 70], &Quantization::new(QuantFormat::Nf4));
        let weight = Weight::<A>::Quantized(Quantized::new(matrix.clone(), &Default::default()));
        assert_eq!(weight.num_params(), 0);
        let host = |weight: &Weight<A::InnerBackend>| match weight {
            Weight::Quantized(weight) => weight.to_host(),
            Weight::Dense(_) => panic!("it was quantized"),
        };
        assert_eq!(host(&weight.clone().set_trainable(true).no_grad().valid()), matrix);
    }
    check::<Autodiff<NdArray>>();
    check::<Autodiff<Flex>>();
}
