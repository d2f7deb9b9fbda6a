//! The command line: one file per subcommand, with its arguments and the function that runs it. Results go to stdout,
//! everything else to stderr.

#[macro_use]
mod output;
#[macro_use]
mod subcommands;

mod bench;
mod chat;
mod color;
mod completions;
mod config;
mod data;
mod eval;
mod generate;
mod interrupt;
mod lr_find;
mod man;
mod merge;
mod model_args;
mod plan;
mod quantize;
mod report;
mod reproduce;
mod run_args;
mod train;
mod usage;
mod values;
mod verbose;

use std::process::ExitCode;

use clap::Parser;

/// Fine-tune large language models: LoRA, QLoRA, full fine-tuning and continued pre-training.
#[derive(Debug, Clone, PartialEq, Parser)]
#[command(
    name = "emberlm",
    version,
    max_term_width = 100,
    propagate_version = true,
    arg_required_else_help = true
)]
#[command(after_help = "\
Examples:
  emberlm train                                       train the built-in example
  emberlm train run.toml --set train.learning_rate=1e-4
  emberlm eval --model models/llama --adapter runs/a --data test.jsonl
  emberlm generate --model models/llama --adapter runs/a --prompt 'Why is the sky blue?'
  emberlm data check 'data/*.jsonl' --model models/llama
  emberlm merge --model models/llama --adapter runs/a --out models/merged
  emberlm report runs/a runs/b

Exit codes: 0 success, 1 failure, 2 wrong usage.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    verbosity: verbose::Verbosity,
}

subcommands! {
    /// The commands, in the order of the help.
    Command {
        Train(train::TrainArgs),
        Reproduce(reproduce::ReproduceArgs),
        Plan(plan::PlanArgs),
        Eval(eval::EvalArgs),
        Generate(generate::GenerateArgs),
        Chat(chat::ChatArgs),
        Merge(merge::MergeArgs),
        Quantize(quantize::QuantizeArgs),
        Data(data::DataArgs),
        Config(config::ConfigArgs),
        Bench(bench::BenchArgs),
        Report(report::ReportArgs),
        LrFind(lr_find::LrFindArgs),
        Completions(completions::CompletionsArgs),
        Man(man::ManArgs),
    }
}

/// Parses the arguments of the process and runs the command.
pub fn main() -> ExitCode {
    let Cli { command, verbosity } = Cli::parse();
    verbosity.start_log();
    match command.run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            usage::exit_code(&error)
        }
    }
}

#[cfg(test)]
mod tests;
