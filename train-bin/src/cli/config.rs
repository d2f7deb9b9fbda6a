//! `emberlm config`.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueHint};
use emberlm_quant::atomic_file::write_atomically;

use crate::config::{declared, schema, shown, starting_file};
use crate::settings::reference;

/// Write a configuration file to start from, its JSON Schema, or the reference of all settings
#[derive(Debug, Clone, PartialEq, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Clone, PartialEq, Subcommand)]
enum ConfigCommand {
    /// Write a commented configuration file to start from: every setting with its default
    Init {
        /// File to write; default: stdout
        #[arg(value_name = "RUN.toml", value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
        /// Replace an existing file
        #[arg(long)]
        force: bool,
    },
    /// Print the JSON Schema of configuration files, for completion and checks in editors
    Schema,
    /// Print the reference of all settings as Markdown
    Reference,
}

pub(crate) fn run(args: &ConfigArgs) -> Result<()> {
    match &args.command {
        ConfigCommand::Init { file: None, .. } => print!("{}", starting_file()),
        ConfigCommand::Init { file: Some(file), force } => {
            if file.exists() && !force {
                bail!(
                    "{}: the file exists. Choose another, or replace it with --force",
                    file.display()
                );
            }
            write_atomically(file, |out| out.write_all(starting_file().as_bytes()))
                .with_context(|| shown(file).display().to_string())?;
            println!("{} written; start with: emberlm train {0}", shown(file).display());
        }
        ConfigCommand::Schema => println!("{}", serde_json::to_string_pretty(&schema())?),
        ConfigCommand::Reference => print!("{}", reference::markdown(declared())),
    }
    Ok(())
}
