//! `emberlm plan`.

use anyhow::{Result, bail};
use emberlm::cli::PlanArgs;
use emberlm::memory::footprint::{MemoryEstimate, Proposal, Size};
use emberlm::run::memory_need;
use serde_json::json;

pub(crate) fn run(args: &PlanArgs) -> Result<()> {
    let config = super::train::configuration(&args.run)?;
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
        println!("\nWhat would help, one after another:\n{}", proposals(&need.proposals));
    }
    bail!(
        "the run needs about {}, and there are {}",
        Size(need.footprint.total()),
        Size(need.available.unwrap_or(0))
    )
}

pub(super) fn print_table(need: &MemoryEstimate) {
    println!(
        "memory of a step: micro-batches of up to {} × {} tokens, recompute {}",
        need.rows, need.seq, need.recompute
    );
    for (name, bytes) in need.footprint.parts() {
        println!("  {name:<12} {:>10}", Size(bytes));
    }
    println!("  {:<12} {:>10}", "total", Size(need.footprint.total()));
    if let Some(available) = need.available {
        println!("  {:<12} {:>10}", "there is", Size(available));
    }
}

/// A line for each.
pub(super) fn proposals(proposals: &[Proposal]) -> String {
    let line = |Proposal { set, total, fits }: &Proposal| {
        let settings: Vec<String> = set.iter().map(|setting| format!("--set {setting}")).collect();
        let verdict = if *fits { "fits" } else { "still too much" };
        format!("  {:<66} {:>10}, {verdict}", settings.join(" "), Size(*total))
    };
    if proposals.is_empty() {
        return "  nothing that changes only memory: take shorter rows (data.max_length) or a smaller model".into();
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
