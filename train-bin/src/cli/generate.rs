//! `emberlm generate`.

use std::io::{self, Read, Write};
use std::num::NonZeroUsize;

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use emberlm_data::{Message, TextTokenizer};
use serde_json::json;

use super::model_args::ModelArgs;
use super::values::{non_negative, positive, share};
use crate::eval::generate::Ended;
use crate::run::stop_ids;
use crate::trainer::backend::{Job, run_on};
use crate::{Base, Generator, Sampling, TrainBackend};

/// Generate text from a prompt
#[derive(Debug, Clone, PartialEq, Args)]
#[command(after_help = "\
Examples:
  emberlm generate --model models/llama --adapter runs/a --prompt 'Why is the sky blue?'
  emberlm generate --model models/llama --temperature 0.7 --top-p 0.9 < prompt.txt")]
pub(crate) struct GenerateArgs {
    /// The model.
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Prompt; default: read stdin
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// Use the prompt unchanged, without the chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// System message
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub(crate) system: Option<String>,
    /// Sampling of the next token.
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Sampling of the next token.
#[derive(Debug, Clone, PartialEq, Args)]
pub(crate) struct SamplingArgs {
    /// Maximum tokens to generate
    #[arg(long, value_name = "N", default_value = "256")]
    pub(crate) max_new_tokens: NonZeroUsize,
    /// Sampling temperature; 0: greedy, 1: the model's own distribution, higher: more varied
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = non_negative)]
    pub(crate) temperature: f64,
    /// Nucleus sampling: smallest set of tokens with this total probability; 1: off
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = share)]
    pub(crate) top_p: f64,
    /// Sample from the K most likely tokens; 0: off
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(crate) top_k: usize,
    /// Penalty for tokens that occurred before: divides positive logits, multiplies negative ones; 1: off
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = positive)]
    pub(crate) repetition_penalty: f64,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Stop before this text; repeatable
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) stop: Vec<String>,
}

pub(crate) fn run(args: &GenerateArgs) -> Result<()> {
    let prompt = match &args.prompt {
        Some(prompt) => prompt.clone(),
        None => {
            let mut prompt = String::new();
            io::stdin().read_to_string(&mut prompt).context("cannot read the prompt from stdin")?;
            prompt.trim_end_matches('\n').to_string()
        }
    };
    let base = Base::open_path(&args.model.model)?.for_adapter(args.model.adapter.as_deref())?;
    // Without a chat template the prompt is only continued.
    let ids = if args.raw || !base.tokenizer.has_chat_template() {
        base.tokenizer.encode_document(&prompt)?
    } else {
        let system = args.system.as_ref().map(|system| Message::new("system", system));
        let messages: Vec<_> = system.into_iter().chain([Message::new("user", prompt)]).collect();
        prompt_ids(&base.tokenizer, &messages)?
    };
    with_model(&args.model, &base, GenerateOnce { ids, args })?
}

pub(super) fn prompt_ids(tokenizer: &TextTokenizer, messages: &[Message]) -> Result<Vec<u32>> {
    Ok(tokenizer.encode(&tokenizer.render(messages, None, true)?)?)
}

impl SamplingArgs {
    pub(super) fn sampling(&self) -> Sampling {
        Sampling {
            max_new_tokens: self.max_new_tokens.get(),
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
            stop: self.stop.clone(),
        }
    }
}

/// Work with a loaded model.
pub(super) trait WithGenerator {
    fn run<A: TrainBackend>(
        self,
        generator: Generator<'_, A::InnerBackend>,
        base: &Base,
    ) -> Result<()>;
}

pub(super) fn with_model(
    args: &ModelArgs,
    base: &Base,
    work: impl WithGenerator,
) -> Result<Result<()>> {
    struct Build<'a, W> {
        args: &'a ModelArgs,
        base: &'a Base,
        work: W,
    }
    impl<W: WithGenerator> Job for Build<'_, W> {
        type Output = Result<()>;
        fn run<A: TrainBackend>(self, device: A::Device) -> Result<()> {
            let Self { args, base, work } = self;
            let (adapter, quantization) = (args.adapter.as_deref(), args.quantization());
            let form = args.form(quantization.as_ref());
            let model = base.build_with::<A::InnerBackend>(adapter, form, &device)?;
            work.run::<A>(Generator::new(&model, &base.config, &base.tokenizer), base)
        }
    }
    Ok(run_on(args.backend, Build { args, base, work })?)
}

struct GenerateOnce<'a> {
    ids: Vec<u32>,
    args: &'a GenerateArgs,
}

impl WithGenerator for GenerateOnce<'_> {
    fn run<A: TrainBackend>(
        self,
        mut generator: Generator<'_, A::InnerBackend>,
        base: &Base,
    ) -> Result<()> {
        let Self { ids, args } = self;
        let stop_ids = stop_ids(&base.config, &base.tokenizer);
        let sampling = args.sampling.sampling();
        let mut on_text = |text: &str| {
            if !args.json {
                print_now(text);
            }
        };
        let answer = generator.answer(&ids, &sampling, &stop_ids, &mut on_text)?;
        if args.json {
            let ended = match answer.ended {
                Ended::EndOfTurn => "end_of_turn",
                Ended::StopText => "stop_text",
                Ended::Length => "length",
            };
            println!(
                "{}",
                json!({
                    "text": answer.text,
                    "ids": answer.ids,
                    "prompt_tokens": ids.len(),
                    "ended": ended,
                })
            );
        } else {
            println!();
        }
        Ok(())
    }
}

/// Prints at once, without waiting for the end of the line.
pub(super) fn print_now(text: &str) {
    print!("{text}");
    // The next print reports a closed pipe.
    let _ = io::stdout().flush();
}
