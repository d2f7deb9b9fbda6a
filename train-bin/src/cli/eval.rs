//! `emberlm eval`.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueHint};
use emberlm_data::{
    Batch, Cursor, Dataset, ExampleOptions, Layout, Loader, TemplateChoice, TrainOn,
};
use emberlm_model::{CausalLm, ModelBackend};
use emberlm_quant::tensor_file::{FloatDtype, NamedTensor, write_tensors};
use serde_json::json;

use super::model_args::ModelArgs;
use crate::run::pad_id;
use crate::run::prepare::read_all;
use crate::trainer::backend::{Job, resolve, run_on};
use crate::trainer::step::inputs;
use crate::{Base, Evaluation, TrainBackend, evaluate};

/// Compute loss and perplexity of a model, with or without an adapter
#[derive(Debug, Clone, PartialEq, Args)]
#[command(after_help = "\
Examples:
  emberlm eval --model models/llama --adapter runs/a --data test.jsonl
  emberlm eval --model models/llama --quant nf4 --data test.jsonl --json")]
pub(crate) struct EvalArgs {
    /// The model.
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Evaluation data; repeatable
    #[arg(long, required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) data: Vec<PathBuf>,
    /// Format of the rows
    #[arg(long, default_value = "auto", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) format: String,
    /// Chat template: the tokenizer's, or none
    #[arg(long, value_enum, default_value_t)]
    pub(crate) template: TemplateChoice,
    /// Assistant turns that count in the loss
    #[arg(long, value_name = "TURNS", value_enum, default_value_t)]
    pub(crate) train_on: TrainOn,
    /// Maximum tokens of an example; longer ones are truncated, plain text is split
    #[arg(long, value_name = "N", default_value = "2048")]
    pub(crate) max_length: NonZeroUsize,
    /// Examples per batch; does not change the result
    #[arg(long, value_name = "N", default_value = "4")]
    pub(crate) batch_size: NonZeroUsize,
    /// Evaluate only the first N examples
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<NonZeroUsize>,
    /// Write token ids and logits of the first batch, to compare with other tools
    #[arg(long, value_name = "FILE.safetensors", value_hint = ValueHint::FilePath)]
    pub(crate) logits: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &EvalArgs) -> Result<()> {
    let base = Base::open_path(&args.model.model)?.for_adapter(args.model.adapter.as_deref())?;
    let mut rows = read_all(&args.data, args.format.parse()?)?;
    if let Some(limit) = args.limit {
        rows.truncate(limit.get());
    }
    let options = ExampleOptions {
        max_length: Some(args.max_length),
        template: args.template,
        train_on: args.train_on,
        ..ExampleOptions::default()
    };
    let data = Dataset::build(&rows, &base.tokenizer, &options)?;
    if !args.json {
        eprintln!("data      {}", data.summary);
    }
    let backend = resolve(args.model.backend);
    let found = run_on(backend, EvalJob { args, base: &base, data: &data })??;
    if args.json {
        let summary = &data.summary;
        println!(
            "{}",
            json!({
                "loss": found.loss,
                "perplexity": found.perplexity,
                "supervised_tokens": found.supervised_tokens,
                "examples": found.examples,
                "truncated": summary.truncated,
                "dropped": summary.dropped,
                "backend": backend.name(),
            })
        );
    } else {
        println!(
            "loss {:.6}  perplexity {:.4}  over {} supervised tokens in {} examples",
            found.loss, found.perplexity, found.supervised_tokens, found.examples
        );
    }
    Ok(())
}

struct EvalJob<'a> {
    args: &'a EvalArgs,
    base: &'a Base,
    data: &'a Dataset,
}

impl Job for EvalJob<'_> {
    type Output = Result<Evaluation>;

    fn run<A: TrainBackend>(self, device: A::Device) -> Self::Output {
        let Self { args, base, data } = self;
        let (adapter, quantization) = (args.model.adapter.as_deref(), args.model.quantization());
        let form = args.model.form(quantization.as_ref());
        let model = base.build_with::<A::InnerBackend>(adapter, form, &device)?;
        let batch_size = args.batch_size.get();
        if let Some(path) = &args.logits {
            write_logits(path, base, &model, data, batch_size)?;
        }
        Ok(evaluate(&model, &base.config, data, pad_id(&base.tokenizer), batch_size))
    }
}

/// Writes `input_ids.N` `[seq]` (as floats) and `logits.N` `[seq, vocab]` for the first `rows` rows, an example in each.
fn write_logits<B: ModelBackend>(
    path: &Path,
    base: &Base,
    model: &CausalLm<B>,
    data: &Dataset,
    rows: usize,
) -> Result<()> {
    let mut tensors = Vec::new();
    let loader = Loader::each_once(data, Layout::OnePerRow);
    let (taken, _) = loader.take(Cursor::default(), rows.min(loader.rows_of(0) as usize));
    for (n, row) in taken.into_iter().enumerate() {
        let batch = Batch::of_rows(&[row], &data.examples, 0);
        let ids = batch.ids.clone();
        let seq = ids.len();
        let logits = move || {
            let inputs = inputs(&base.config, &batch, &model.device());
            model.logits(&inputs).into_data().iter::<f32>().collect()
        };
        tensors.push(NamedTensor {
            name: format!("input_ids.{n}"),
            shape: vec![seq],
            values: Box::new(move || ids.iter().map(|&id| id as f32).collect()),
        });
        tensors.push(NamedTensor {
            name: format!("logits.{n}"),
            shape: vec![seq, base.config.vocab_size],
            values: Box::new(logits),
        });
    }
    Ok(write_tensors(path, &tensors, FloatDtype::F32)?)
}
