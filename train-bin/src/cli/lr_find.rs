//! `emberlm lr-find`.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};
use emberlm_quant::atomic_file::write_atomically;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::interrupt::stop_on_signal;
use super::run_args::RunArgs;
use super::usage::WrongUsage;
use super::values::positive;
use crate::config::shown;
use crate::report::sweep_page;
use crate::run::lr_find::{Range, Sweep, lr_find};

/// Learning-rate range test
///
/// Raises the learning rate step by step, with the model, data, batches and optimizer of the run; no weights are saved. The
/// proposal is a tenth of the learning rate at which the running mean of the loss was lowest.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(after_help = "\
Example: emberlm lr-find run.toml --from 1e-6 --to 1e-1")]
pub(crate) struct LrFindArgs {
    /// The run.
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// First learning rate
    #[arg(long, value_name = "RATE", default_value_t = 1e-6, value_parser = positive)]
    pub(crate) from: f64,
    /// Last learning rate; the test stops earlier if the loss diverges
    #[arg(long, value_name = "RATE", default_value_t = 1.0, value_parser = positive)]
    pub(crate) to: f64,
    /// Number of steps, at learning rates equally spaced on a logarithmic scale
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(2..=1_000_000))]
    pub(crate) steps: u64,
    /// HTML file for the chart
    #[arg(long, value_name = "FILE", default_value = "lr-find.html", value_hint = ValueHint::FilePath)]
    pub(crate) picture: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Rows of the table.
const ROWS: usize = 20;

pub(crate) fn run(args: &LrFindArgs) -> Result<()> {
    if args.to <= args.from {
        bail!(WrongUsage(format!("--to {} must be greater than --from {}", args.to, args.from)));
    }
    let config = args.run.configuration()?;
    let interrupt = Arc::new(AtomicBool::new(false));
    stop_on_signal(interrupt.clone(), || eprintln!("\nstopping after this step"), || {})?;
    let range = Range { from: args.from, to: args.to, steps: args.steps };
    let bar = ProgressBar::new(args.steps);
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len}  {eta} left  {wide_msg}")
    {
        bar.set_style(style);
    }
    let sweep = lr_find(&config, range, &interrupt, &mut |tried| {
        bar.inc(1);
        bar.set_message(format!("lr {:.2e}  loss {:.4}", tried.rate, tried.loss));
    });
    bar.finish_and_clear();
    let sweep = sweep?;
    let name =
        args.run.config.as_deref().map_or("this run".into(), |file| {
            file.file_name().unwrap_or_default().to_string_lossy()
        });
    let page = sweep_page(&name, &sweep)?;
    write_atomically(&args.picture, |out| out.write_all(page.as_bytes()))
        .with_context(|| shown(&args.picture).display().to_string())?;
    if args.json {
        let mut object = serde_json::to_value(&sweep)?;
        object["picture"] = json!(args.picture);
        println!("{object}");
    } else {
        print_table(&sweep);
        println!("\nchart written to {}", shown(&args.picture).display());
    }
    Ok(())
}

fn print_table(sweep: &Sweep) {
    println!("{:>10}  {:>9}  {:>9}", "rate", "loss", "mean");
    let every = sweep.tried.len().div_ceil(ROWS).max(1);
    let last = sweep.tried.len().saturating_sub(1);
    for (_, tried) in
        sweep.tried.iter().enumerate().filter(|(n, _)| (last - n).is_multiple_of(every))
    {
        println!("{:>10.2e}  {:>9.4}  {:>9.4}", tried.rate, tried.loss, tried.mean);
    }
    if sweep.diverged {
        println!("the loss diverged, so the test stopped early");
    }
    let rate = |rate: Option<f64>| rate.map_or("none".to_owned(), |rate| format!("{rate:.2e}"));
    println!("\nlowest running mean at  {}", rate(sweep.least_at));
    println!("steepest descent at     {}", rate(sweep.steepest_at));
    println!("proposed learning rate  {}", rate(sweep.proposal));
    println!("  {}", sweep.remark);
}
