//! Law 4 from rows to weights: what is packed trains as what is not.

use std::sync::atomic::AtomicBool;

use burn::module::AutodiffModule;
use emberlm::config;
use emberlm::eval::evaluate::{evaluate, evaluate_in};
use emberlm::run::{Event, RunOptions, run};
use emberlm::trainer::error::TrainError;
use emberlm::trainer::metrics::StepMetrics;
use emberlm::trainer::step::Recompute;
use emberlm::trainer::train::Flow;
use emberlm::{AdamWConfig, Algorithm, OptimizerBackend, Plan, Training, train};
use emberlm_data::{
    Batch, Cursor, Dataset, ExampleOptions, Format, Layout, Loader, TextTokenizer, parse_rows,
    read_rows,
};
use emberlm_lora::walk::{ParamVisitor, for_each_param, set_trainable};
use emberlm_lora::{LoraConfig, inject};
use emberlm_model::{CausalLm, ModelBackend, ModelConfig};
use emberlm_tests::{assert_close, assert_close_number, golden_path, values};

use crate::support::{Flex, NdArray, load, mean_loss_and_grads};

/// Tokens of a packed row.
const ROW: usize = 128;

fn tokenizer() -> TextTokenizer {
    TextTokenizer::from_dir(&golden_path("models/llama")).unwrap()
}

/// The goldens' conversations.
fn conversations() -> Dataset {
    let rows = read_rows(&golden_path("train/lora-sft/data.jsonl"), Format::Auto).unwrap();
    let max_length = std::num::NonZeroUsize::new(ROW);
    let options = ExampleOptions { max_length, ..ExampleOptions::default() };
    Dataset::build(&rows, &tokenizer(), &options).unwrap()
}

/// All examples in one batch.
fn batch(data: &Dataset, layout: Layout) -> Batch {
    let loader = Loader::each_once(data, layout);
    let (rows, _) = loader.take(Cursor::default(), loader.rows_of(0) as usize);
    Batch::of_rows(&rows, &data.examples, 0)
}

/// A golden model to be trained whole, or with adapters whose B is not zero.
fn trainable<B: ModelBackend>(name: &str, lora: bool) -> (ModelConfig, CausalLm<Training<B>>) {
    let (config, mut model) = load::<Training<B>>(name);
    if !lora {
        return (config, set_trainable(model, |_| true));
    }
    let lora = LoraConfig { r: 4, alpha: 12.0, ..LoraConfig::default() };
    inject(model.linears_mut(), &lora, 1, &Default::default()).unwrap();
    for named in model.linears_mut() {
        if let Some(adapter) = &mut named.linear.adapter {
            adapter.lora_b = adapter.lora_b.clone().map(|b| (b + 0.1).detach().require_grad());
        }
    }
    (config, model)
}

fn packed_step_equals_unpacked<B: OptimizerBackend>() {
    let data = conversations();
    let [unpacked, packed] = [Layout::OnePerRow, Layout::Packed].map(|layout| batch(&data, layout));
    assert_eq!(unpacked.rows, 6);
    assert!(packed.rows < 6 && packed.segments.iter().max() > Some(&1), "several in a row");
    // A plain one, one whose rotary angles depend on a sequence's length, and biases.
    for name in ["llama", "llama-dynamic-rope", "qwen2"] {
        for lora in [false, true] {
            let (config, model) = trainable::<B>(name, lora);
            let (expected, reference) =
                mean_loss_and_grads(&model, &config, &unpacked, Recompute::None);
            for recompute in [Recompute::None, Recompute::Block] {
                let what = format!("{name}, lora {lora}, {recompute}");
                let (loss, gradients) = mean_loss_and_grads(&model, &config, &packed, recompute);
                assert_close_number(&format!("{what}: loss"), loss, expected, 1e-5);
                assert_eq!(gradients.iter().count(), reference.iter().count());
                for (key, gradient) in reference.iter() {
                    let found = values(gradients.get(key).unwrap().value.clone());
                    let expected = values(gradient.value.clone());
                    assert_close(&format!("{what}: {key}"), &found, &expected, 1e-4);
                }
            }
        }
    }
}

#[test]
fn a_packed_step_equals_an_unpacked_one() {
    packed_step_equals_unpacked::<NdArray>();
    packed_step_equals_unpacked::<Flex>();
}

/// All parameters, one after another.
fn parameters<B: ModelBackend>(model: &CausalLm<B>) -> Vec<f64> {
    struct All(Vec<f64>);
    impl<B: ModelBackend> ParamVisitor<B> for All {
        fn param<const D: usize>(
            &mut self,
            _: &str,
            param: &burn::module::Param<burn::tensor::Tensor<B, D>>,
        ) {
            self.0.extend(values(param.val()));
        }
    }
    let mut all = All(Vec::new());
    for_each_param(model, &mut all);
    all.0
}

/// Losses, gradient norms and the final parameters of a run that takes all examples in each step.
fn whole_run<B: OptimizerBackend>(data: &Dataset, lora: bool, layout: Layout) -> [Vec<f64>; 3] {
    let (config, model) = trainable::<B>("llama", lora);
    let rows = batch(data, layout).rows;
    // Adam makes steps of one size of gradients that are nothing but rounding; a greater eps keeps those small.
    let adamw = AdamWConfig { eps: 1e-4, ..AdamWConfig::default() };
    let optimizer = Algorithm::AdamW(adamw).into();
    let plan = Plan { layout, seed: 5, optimizer, ..Plan::new(6, rows, 1e-2) };
    let [mut losses, mut norms] = [Vec::new(), Vec::new()];
    let model = train::<_, TrainError>(model, &config, data, 0, &plan, |log, _| {
        assert_eq!(log.epoch, log.step as f64, "all examples in a step");
        losses.push(log.loss);
        norms.push(log.grad_norm);
        Ok(Flow::Continue)
    });
    [losses, norms, parameters(&model.unwrap().valid())]
}

fn packed_run_equals_unpacked<B: OptimizerBackend>() {
    let data = conversations();
    for lora in [false, true] {
        let unpacked = whole_run::<B>(&data, lora, Layout::OnePerRow);
        let packed = whole_run::<B>(&data, lora, Layout::Packed);
        assert!(unpacked[0].last() < unpacked[0].first(), "it learns");
        for ((part, unpacked), packed) in
            ["losses", "norms", "parameters"].into_iter().zip(unpacked).zip(packed)
        {
            assert_close(&format!("lora {lora}: {part}"), &packed, &unpacked, 1e-4);
        }
    }
}

#[test]
fn a_packed_run_equals_an_unpacked_one() {
    packed_run_equals_unpacked::<NdArray>();
    packed_run_equals_unpacked::<Flex>();
}

#[test]
fn an_evaluation_is_the_same_in_every_layout() {
    let mut text: String = (0..40)
        .map(|n| format!("{{\"text\": \"Row {n} is {} long.\"}}\n", "very ".repeat(n % 7)))
        .collect();
    text += "{\"prompt\": \"How long is it? \", \"completion\": \"Long.\"}\n";
    let rows = parse_rows(&text, "rows", Format::Auto).unwrap();
    let max_length = std::num::NonZeroUsize::new(ROW);
    let options = ExampleOptions { max_length, ..ExampleOptions::default() };
    let data = Dataset::build(&rows, &tokenizer(), &options).unwrap();
    assert_eq!(data.summary.split, 0, "no document is cut but at the rows' ends");
    let (config, model) = load::<NdArray>("llama");
    let expected = evaluate(&model, &config, &data, 0, 4);
    assert_eq!(expected.supervised_tokens, data.summary.supervised_tokens);
    let by_length = Layout::ByLength { micro_batch: 4 };
    let grouped = evaluate_in(by_length, &model, &config, &data, 0, 4);
    assert_eq!(grouped.supervised_tokens, expected.supervised_tokens);
    assert_close_number("grouped", grouped.loss, expected.loss, 1e-6);
    // Documents are joined, so that some see less of their beginning: as many targets, another loss.
    let packed = evaluate_in(Layout::Packed, &model, &config, &data, 0, 2);
    assert_eq!(packed.supervised_tokens, expected.supervised_tokens);
    let data = conversations();
    let expected = evaluate(&model, &config, &data, 0, 4);
    let packed = evaluate_in(Layout::Packed, &model, &config, &data, 0, 2);
    assert_close_number("packed", packed.loss, expected.loss, 1e-6);
}

/// Every step of a run of a configuration.
fn steps(data: &str, train: &str) -> Vec<StepMetrics> {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "[model]\npath = {:?}\nbackend = \"ndarray\"\n[lora]\nr = 2\n[data]\nmax_length = {ROW}\n{data}\n\
         [train]\nseed = 3\nmicro_batch_size = 1\ngrad_accumulation = 2\n{train}",
        golden_path("models/llama"),
    );
    let mut config = config::load_str(&text, "run.toml", &[]).unwrap();
    config.train.output_dir = folder.path().join("run");
    let interrupt = AtomicBool::new(false);
    let options = RunOptions { dry_run: false, interrupt: &interrupt, resume: None };
    let mut steps = Vec::new();
    run(&config, options, &mut |event| {
        if let Event::Step { row } = event {
            steps.push(row.metrics.clone());
        }
    })
    .unwrap();
    steps
}

fn supervised(steps: &[StepMetrics]) -> usize {
    steps.iter().map(|log| log.supervised_tokens).sum()
}

#[test]
fn a_packed_run_takes_each_example_once_an_epoch() {
    let file = golden_path("train/lora-sft/data.jsonl");
    let data = conversations();
    let train = format!("train = [{file:?}]");
    let rows = batch(&data, Layout::Packed).rows;
    let packed = steps(&format!("{train}\npacking = true"), "epochs = 3");
    assert_eq!(packed.len(), (3 * rows).div_ceil(2), "the last step takes what is left");
    assert_eq!(packed.last().unwrap().epoch, 3.0);
    assert_eq!(supervised(&packed), 3 * data.summary.supervised_tokens);
    let unpacked = steps(&train, "epochs = 3");
    assert_eq!((unpacked.len(), unpacked[8].epoch), (9, 3.0));
    assert!(unpacked.iter().all(|log| log.padding == 0.0), "one in a micro-batch needs none");
    assert_eq!(supervised(&unpacked), 3 * data.summary.supervised_tokens);
}

#[test]
fn a_mixture_runs_by_its_weights() {
    let file = golden_path("train/lora-sft/data.jsonl");
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.jsonl");
    std::fs::write(&other, "{\"prompt\": \"a\", \"completion\": \"b\"}\n").unwrap();
    let data = format!(
        "[[data.source]]\npath = {file:?}\nweight = 6\n[[data.source]]\npath = [{other:?}]\nweight = 1"
    );
    // Seven draws an epoch: six of the one, one of the other.
    let steps = steps(&data, "epochs = 2");
    let one = {
        let rows = read_rows(&other, Format::Auto).unwrap();
        Dataset::build(&rows, &tokenizer(), &ExampleOptions::default()).unwrap().summary
    };
    let each = conversations().summary.supervised_tokens + one.supervised_tokens;
    assert_eq!((steps.len(), supervised(&steps), steps[6].epoch), (7, 2 * each, 2.0));
}

#[test]
fn a_run_from_the_cache_equals_one_from_memory() {
    let file = golden_path("train/lora-sft/data.jsonl");
    let folder = tempfile::tempdir().unwrap();
    for layout in ["packing = true", "group_by_length = true"] {
        let data = format!("train = [{file:?}]\neval = [{file:?}]\n{layout}");
        let expected = steps(&data, "epochs = 2");
        for _ in ["made", "found"] {
            let cached = format!("{data}\ncache_dir = {:?}", folder.path().join("cache"));
            assert_eq!(steps(&cached, "epochs = 2"), expected, "bit for bit");
        }
    }
    let files = std::fs::read_dir(folder.path().join("cache")).unwrap().count();
    assert_eq!(files, 1, "the layout decides nothing of the tokens");
}
