//! `emberlm plan`.

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;

use super::run_args::RunArgs;
use super::values::memory_size;
use crate::memory::footprint::{MemoryEstimate, Proposal, Size};
use crate::run::memory_need;

/// Estimate the memory of a run, and propose settings if it does not fit
///
/// Reads the configuration and the data, but no weights. Fails if the run does not fit.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(after_help = "\
Examples:
  emberlm plan run.toml
  emberlm plan --model models/llama --data chats.jsonl --memory 24GiB")]
pub(crate) struct PlanArgs {
    /// The run.
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Available memory, such as 8GiB or 500MiB; default: this machine's free memory
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    pub(crate) memory: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &PlanArgs) -> Result<()> {
    let config = args.run.configuration()?;
    let need = memory_need(&config, args.memory)?;
    if args.json {
        println!("{}", as_json(&need));
    } else {
        print_table(&need);
    }
    if need.fits() {
        return Ok(());
    }
    if !args.json {
        println!("\nTo reduce memory, in this order:\n{}", proposals(&need.proposals));
    }
    bail!(
        "the run requires about {}; available: {}",
        Size(need.footprint.total()),
        Size(need.available.unwrap_or(0))
    )
}

pub(super) fn print_table(need: &MemoryEstimate) {
    println!(
        "memory per step: micro-batches of up to {} × {} tokens, recompute {}",
        need.rows, need.seq, need.recompute
    );
    for (name, bytes) in need.footprint.parts() {
        println!("  {name:<12} {:>10}", Size(bytes));
    }
    println!("  {:<12} {:>10}", "total", Size(need.footprint.total()));
    if let Some(available) = need.available {
        println!("  {:<12} {:>10}", "available", Size(available));
    }
}

/// One line per proposal.
pub(super) fn proposals(proposals: &[Proposal]) -> String {
    let line = |Proposal { set, total, fits }: &Proposal| {
        let settings: Vec<String> = set.iter().map(|setting| format!("--set {setting}")).collect();
        let verdict = if *fits { "fits" } else { "still too much" };
        format!("  {:<66} {:>10}, {verdict}", settings.join(" "), Size(*total))
    };
    if proposals.is_empty() {
        return "  no setting saves memory without changing training: use shorter rows (data.max_length) or a smaller model".into();
    }
    proposals.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn as_json(need: &MemoryEstimate) -> serde_json::Value {
    json!({
        "total": need.footprint.total(),
        "parts": need.footprint,
        "rows": need.rows,
        "seq": need.seq,
        "recompute": need.recompute.to_string(),
        "available": need.available,
        "fits": need.fits(),
        "proposals": need.proposals,
    })
}
