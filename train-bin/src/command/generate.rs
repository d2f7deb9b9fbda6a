//! `emberlm generate` and `emberlm chat`.

use std::io::{self, BufRead, IsTerminal, Read, Write};

use anyhow::{Context, Result};
use emberlm::cli::{ChatArgs, GenerateArgs, ModelArgs, SamplingArgs};
use emberlm::eval::generate::Ended;
use emberlm::run::stop_ids;
use emberlm::trainer::backend::{Job, run_on};
use emberlm::{Base, Generator, Sampling, TrainBackend};
use emberlm_data::{Message, TextTokenizer};
use serde_json::json;

pub(crate) fn run(args: &GenerateArgs) -> Result<()> {
    let prompt = match &args.prompt {
        Some(prompt) => prompt.clone(),
        None => {
            let mut prompt = String::new();
            io::stdin().read_to_string(&mut prompt).context("reading the prompt from stdin")?;
            prompt.trim_end_matches('\n').to_string()
        }
    };
    let base = Base::open_path(&args.model.model)?.for_adapter(args.model.adapter.as_deref())?;
    // A model without a chat template can only continue.
    let ids = if args.raw || !base.tokenizer.has_chat_template() {
        base.tokenizer.encode_document(&prompt)?
    } else {
        let system = args.system.as_ref().map(|system| Message::new("system", system));
        let messages: Vec<_> = system.into_iter().chain([Message::new("user", prompt)]).collect();
        prompt_ids(&base.tokenizer, &messages)?
    };
    with_model(&args.model, &base, GenerateOnce { ids, args })?
}

pub(crate) fn chat(args: &ChatArgs) -> Result<()> {
    let base = Base::open_path(&args.model.model)?.for_adapter(args.model.adapter.as_deref())?;
    with_model(&args.model, &base, Talk { args })?
}

fn prompt_ids(tokenizer: &TextTokenizer, messages: &[Message]) -> Result<Vec<u32>> {
    Ok(tokenizer.encode(&tokenizer.render(messages, None, true)?)?)
}

fn sampling(args: &SamplingArgs) -> Sampling {
    Sampling {
        max_new_tokens: args.max_new_tokens.get(),
        temperature: args.temperature,
        top_p: args.top_p,
        top_k: args.top_k,
        repetition_penalty: args.repetition_penalty,
        seed: args.seed,
        stop: args.stop.clone(),
    }
}

/// What is done with a model that can answer.
trait WithGenerator {
    fn run<A: TrainBackend>(
        self,
        generator: Generator<'_, A::InnerBackend>,
        base: &Base,
    ) -> Result<()>;
}

fn with_model(args: &ModelArgs, base: &Base, work: impl WithGenerator) -> Result<Result<()>> {
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
        let sampling = sampling(&args.sampling);
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

struct Talk<'a> {
    args: &'a ChatArgs,
}

impl WithGenerator for Talk<'_> {
    fn run<A: TrainBackend>(
        self,
        mut generator: Generator<'_, A::InnerBackend>,
        base: &Base,
    ) -> Result<()> {
        let stop_ids = stop_ids(&base.config, &base.tokenizer);
        let sampling = sampling(&self.args.sampling);
        let system = self.args.system.as_ref().map(|system| Message::new("system", system));
        let opening: Vec<Message> = system.into_iter().collect();
        let mut messages = opening.clone();
        let is_terminal = io::stdin().is_terminal();
        if is_terminal {
            eprintln!("/reset begins anew, /exit or Ctrl-D ends");
        }
        let mut lines = io::stdin().lock().lines();
        loop {
            if is_terminal {
                eprint!("> ");
            }
            let Some(line) = lines.next() else { return Ok(()) };
            match line.context("reading from stdin")?.trim() {
                "" => continue,
                "/exit" => return Ok(()),
                "/reset" => messages.clone_from(&opening),
                text => {
                    messages.push(Message::new("user", text));
                    let ids = prompt_ids(&base.tokenizer, &messages)?;
                    let answer = generator.answer(&ids, &sampling, &stop_ids, print_now)?;
                    println!();
                    messages.push(Message::new("assistant", answer.text));
                }
            }
        }
    }
}

/// Prints without waiting for a line's end.
fn print_now(text: &str) {
    print!("{text}");
    // A closed pipe shows itself at the next print.
    let _ = io::stdout().flush();
}
