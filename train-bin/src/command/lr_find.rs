//! `emberlm lr-find`.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use emberlm::cli::LrFindArgs;
use emberlm::config::shown;
use emberlm::report::sweep_page;
use emberlm::run::lr_find::{Range, Sweep, lr_find};
use emberlm_quant::atomic_file::write_atomically;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::WrongUsage;
use super::train::{configuration, stop_on_signal};

/// Rows of the table.
const ROWS: usize = 20;

pub(crate) fn run(args: &LrFindArgs) -> Result<()> {
    if args.to <= args.from {
        bail!(WrongUsage(format!("--to {} must be greater than --from {}", args.to, args.from)));
    }
    let config = configuration(&args.run)?;
    let interrupt = Arc::new(AtomicBool::new(false));
    stop_on_signal(interrupt.clone(), |_| eprintln!("\nstopping after this step"))?;
    let range = Range { from: args.from, to: args.to, steps: args.steps };
    let bar = ProgressBar::new(args.steps);
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len}  {eta} left  {wide_msg}")
    {
        bar.set_style(style);
    }
    let sweep = lr_find(&config, range, &interrupt, &mut |tried| {
        bar.inc(1);
        bar.set_message(format!("rate {:.2e}  loss {:.4}", tried.rate, tried.loss));
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
        println!("\npicture written to {}", shown(&args.picture).display());
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
        println!("the loss rose too far, or was no number any more: the sweep ended there");
    }
    let rate = |rate: Option<f64>| rate.map_or("none".to_owned(), |rate| format!("{rate:.2e}"));
    println!("\nleast running mean at   {}", rate(sweep.least_at));
    println!("steepest fall at        {}", rate(sweep.steepest_at));
    println!("proposed learning rate  {}", rate(sweep.proposal));
    println!("  {}", sweep.remark);
}
