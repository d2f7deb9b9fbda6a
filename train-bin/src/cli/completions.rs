//! `emberlm completions`.

use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use super::Cli;

/// Print a completion script for a shell
#[derive(Debug, Clone, PartialEq, Args)]
#[command(after_help = "\
Examples:
  emberlm completions bash > ~/.local/share/bash-completion/completions/emberlm
  emberlm completions zsh > ~/.zfunc/_emberlm
  emberlm completions fish > ~/.config/fish/completions/emberlm.fish")]
pub(crate) struct CompletionsArgs {
    /// Shell
    #[arg(value_enum)]
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "emberlm", &mut script);
    print!("{}", String::from_utf8(script)?);
    Ok(())
}
