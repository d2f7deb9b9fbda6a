//! `emberlm train`.

mod curves;
mod said;
mod screen;
mod tui;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use emberlm::cli::{RunArgs, TrainArgs};
use emberlm::config::{self, RunConfig, shown};
use emberlm::run::{Event, Report, RunOptions, run as run_config};
use emberlm::{builtin, memory};

use super::WrongUsage;
use curves::Curves;
use said::grouped;
use screen::Screen;
use tui::Tui;

pub(crate) fn run(args: &TrainArgs) -> Result<()> {
    if args.resume.is_some() {
        bail!(WrongUsage("--resume is not yet available; start the run again".into()));
    }
    let config = configuration(&args.run)?;
    if let Some(threads) = config.train.threads {
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads.get())
            .build_global()
            .context("train.threads")?;
    }
    let interrupt = Arc::new(AtomicBool::new(false));
    // A dashboard says by itself that the run is stopping.
    stop_on_signal(
        interrupt.clone(),
        if args.tui { |_| {} } else { |said| eprintln!("\n{said}") },
    )?;
    let options = RunOptions { dry_run: args.dry_run, interrupt: &interrupt };
    let mut shown = Shown::new(args, &config, &interrupt)?;
    let mut curves = Curves::new(&config, args.resume.is_some());
    let report = run_config(&config, options, &mut |event| {
        curves.take(&event);
        shown.take(&event);
    });
    shown.close();
    curves.close();
    let report = report?;
    if args.dry_run {
        super::plan::print_table(&report.memory);
    }
    print_report(&report, args.dry_run);
    Ok(())
}

/// File, `--set` and flags; with nothing at all the built-in example, with flags alone LoRA at its defaults.
pub(super) fn configuration(args: &RunArgs) -> Result<RunConfig> {
    let overrides = args.overrides();
    Ok(match &args.config {
        Some(file) => config::load(Some(file), &overrides)?,
        None if args.model.is_none() && args.data.is_empty() => {
            config::load_str(builtin::RUN, "built-in example.toml", &overrides)?
        }
        None => config::load_str("[lora]\n", "defaults", &overrides)?,
    })
}

/// The first Ctrl-C or SIGTERM asks the run to stop after its step; the second ends the process at once.
/// `say` is told what follows.
pub(super) fn stop_on_signal(interrupt: Arc<AtomicBool>, say: fn(&str)) -> Result<()> {
    ctrlc::set_handler(move || {
        if interrupt.swap(true, Ordering::Relaxed) {
            tui::leave();
            std::process::exit(130);
        }
        say("stopping after this step, then saving (once more: stop at once)");
    })
    .context("can't listen for Ctrl-C")
}

/// Where a run is shown as it goes.
enum Shown {
    Lines(Screen),
    Board(Tui),
}

impl Shown {
    fn new(args: &TrainArgs, config: &RunConfig, interrupt: &Arc<AtomicBool>) -> Result<Self> {
        let log_every = config.train.log_every.get();
        if !args.tui {
            return Ok(Self::Lines(Screen::new(args.quiet, log_every)));
        }
        let title = shown(&config.train.output_dir).display().to_string();
        Ok(Self::Board(Tui::open(title, log_every, interrupt.clone())?))
    }

    fn take(&mut self, event: &Event<'_>) {
        match self {
            Self::Lines(screen) => screen.show(event),
            Self::Board(board) => board.take(event),
        }
    }

    /// Leaves the terminal to others.
    fn close(self) {
        match self {
            Self::Lines(screen) => screen.close(),
            Self::Board(board) => drop(board),
        }
    }
}

fn print_report(report: &Report, dry_run: bool) {
    if dry_run {
        println!("dry run: configuration, model and data are sound; nothing was trained");
        return;
    }
    println!(
        "trained {} of {} parameters in {:.1} s, {} steps",
        grouped(report.count.trainable),
        grouped(report.count.total),
        report.seconds,
        report.steps
    );
    if let Some(peak) = memory::peak_memory_mib() {
        println!("peak memory {peak} MiB");
    }
    if let Some((before, after)) = &report.evaluations {
        println!(
            "held-out loss {:.4} → {:.4}, perplexity {:.2} → {:.2}",
            before.loss, after.loss, before.perplexity, after.perplexity
        );
    }
    for (prompt, before, after) in &report.answers {
        println!("\n  {prompt}\n    before  {before}\n    after   {after}");
    }
    if report.interrupted {
        println!("\ninterrupted after step {}; what was trained until then is saved", report.steps);
    }
    if let Some(path) = &report.saved {
        let what = if report.is_adapter { "adapter" } else { "model" };
        println!("\n{what} saved in {}", shown(path).display());
    }
}
