//! `emberlm chat`.

use std::io::{self, BufRead, IsTerminal};

use anyhow::{Context, Result};
use clap::Args;
use emberlm_data::Message;

use super::generate::{SamplingArgs, WithGenerator, print_now, prompt_ids, with_model};
use super::model_args::ModelArgs;
use crate::run::stop_ids;
use crate::{Base, Generator, TrainBackend};

/// Chat with a model in the terminal
#[derive(Debug, Clone, PartialEq, Args)]
#[command(after_help = "\
Example: emberlm chat --model models/llama --adapter runs/a
/reset clears the history, /exit or Ctrl-D quits.")]
pub(crate) struct ChatArgs {
    /// The model.
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Sampling of the next token.
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

pub(super) fn run(args: &ChatArgs) -> Result<()> {
    let base = Base::open_path(&args.model.model)?.for_adapter(args.model.adapter.as_deref())?;
    with_model(&args.model, &base, Talk { args })?
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
        let sampling = self.args.sampling.sampling();
        let system = self.args.system.as_ref().map(|system| Message::new("system", system));
        let opening: Vec<Message> = system.into_iter().collect();
        let mut messages = opening.clone();
        let is_terminal = io::stdin().is_terminal();
        if is_terminal {
            eprintln!("/reset clears the history, /exit or Ctrl-D quits");
        }
        let mut lines = io::stdin().lock().lines();
        loop {
            if is_terminal {
                eprint!("> ");
            }
            let Some(line) = lines.next() else { return Ok(()) };
            match line.context("cannot read stdin")?.trim() {
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
