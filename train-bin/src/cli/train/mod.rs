//! `emberlm train`.

mod curves;
mod format_event;
mod resume;
mod screen;
mod stages;
mod tui;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use clap::{Args, ValueHint};

use curves::Curves;
use indicatif::HumanCount;
use screen::Screen;
use tui::Tui;

use crate::cli::interrupt::stop_on_signal;
use crate::cli::plan;
use crate::cli::run_args::RunArgs;
use crate::config::{self, RunConfig, RunFile, shown};
use crate::memory;
use crate::run::resume::Resume;
use crate::run::{Event, Report, RunOptions, run as run_config};

/// Train LoRA adapters or all weights
///
/// Settings come from the file, then from --set, then from the other flags; later ones take precedence. A file without a
/// section `[lora]` trains all weights. Without file, model and data, the built-in example is trained.
#[derive(Debug, Clone, Default, PartialEq, Args)]
#[command(after_help = "\
Examples:
  emberlm train                                                 train the built-in example
  emberlm train --model models/llama --data chats.jsonl --out runs/a
  emberlm train run.toml --set train.learning_rate=1e-4
  emberlm train run.toml --dry-run
  emberlm train --resume=runs/a")]
pub(crate) struct TrainArgs {
    /// The run.
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Resume an interrupted run from its newest checkpoint, or from PATH, a checkpoint or a run folder. Without RUN.toml,
    /// the configuration of the checkpoint is used
    #[arg(long, value_name = "PATH", num_args = 0..=1, require_equals = true, value_hint = ValueHint::DirPath)]
    pub(crate) resume: Option<Option<PathBuf>>,
    /// Resume even if training settings changed
    #[arg(long, requires = "resume")]
    pub(crate) allow_changes: bool,
    /// Check configuration, model and data, print the plan and exit
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print warnings and errors only, no progress
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Show the run on a full-screen dashboard
    #[arg(long, conflicts_with_all = ["quiet", "dry_run", "verbose"])]
    pub(crate) tui: bool,
}

/// After the first Ctrl-C.
const STOPPING: &str = "stopping after this step, then saving (press again to quit immediately)";

pub(crate) fn run(args: &TrainArgs) -> Result<()> {
    let resume = args.resume.clone().map(|from| Resume { from, allow_changes: args.allow_changes });
    if let Some(file) = args.run.config.as_deref()
        && let RunFile::Stages(stages) = config::load_run_file(file, &args.run.overrides())?
    {
        let first = stages.first().map(|stage| &stage.config);
        let process = Process::begin(first, How::of(args))?;
        if args.dry_run {
            // The models of later stages do not exist yet.
            let first = stages.first().context("no stage")?;
            return process.run(&first.config, None, true);
        }
        return stages::run(stages, resume, |config, resume| process.run(config, resume, false));
    }
    let config = match &args.resume {
        None => args.run.configuration()?,
        Some(from) => resume::configuration(&args.run, from.as_deref())?,
    };
    Process::begin(Some(&config), How::of(args))?.run(&config, resume, args.dry_run)
}

/// Runs a configuration from the beginning.
pub(super) fn run_configured(config: &RunConfig, quiet: bool) -> Result<()> {
    let how = if quiet { How::Quiet } else { How::Lines };
    Process::begin(Some(config), how)?.run(config, None, false)
}

/// How the progress of a run is displayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Quiet,
    Lines,
    Board,
}

impl How {
    fn of(args: &TrainArgs) -> Self {
        match (args.tui, args.quiet) {
            (true, _) => Self::Board,
            (false, true) => Self::Quiet,
            (false, false) => Self::Lines,
        }
    }
}

/// Set once per process: threads, and the handler of Ctrl-C.
struct Process {
    interrupt: Arc<AtomicBool>,
    how: How,
}

impl Process {
    fn begin(config: Option<&RunConfig>, how: How) -> Result<Self> {
        if let Some(threads) = config.and_then(|config| config.train.threads) {
            rayon::ThreadPoolBuilder::new()
                .num_threads(threads.get())
                .build_global()
                .context("train.threads")?;
        }
        let interrupt = Arc::new(AtomicBool::new(false));
        // The dashboard itself shows that the run is stopping.
        let say: fn() = match how {
            How::Board => || {},
            How::Quiet | How::Lines => || eprintln!("\n{STOPPING}"),
        };
        stop_on_signal(interrupt.clone(), say, tui::leave)?;
        Ok(Self { interrupt, how })
    }

    fn run(&self, config: &RunConfig, resume: Option<Resume>, dry_run: bool) -> Result<()> {
        let resumed = resume.is_some();
        let options = RunOptions { dry_run, interrupt: &self.interrupt, resume };
        let mut shown = Shown::new(self.how, config, &self.interrupt)?;
        let mut curves = Curves::new(config, resumed);
        let report = run_config(config, options, &mut |event| {
            curves.record(&event);
            shown.show(&event);
        });
        shown.close();
        curves.close();
        let report = report?;
        if dry_run {
            plan::print_table(&report.memory);
        }
        print_report(&report, dry_run);
        Ok(())
    }
}

/// The display of a running run.
enum Shown {
    Lines(Screen),
    Board(Tui),
}

impl Shown {
    fn new(how: How, config: &RunConfig, interrupt: &Arc<AtomicBool>) -> Result<Self> {
        let log_every = config.train.log_every.get();
        if how != How::Board {
            return Ok(Self::Lines(Screen::new(how == How::Quiet, log_every)));
        }
        let title = shown(&config.train.output_dir).display().to_string();
        Ok(Self::Board(Tui::open(title, log_every, interrupt.clone())?))
    }

    fn show(&mut self, event: &Event<'_>) {
        match self {
            Self::Lines(screen) => screen.show(event),
            Self::Board(board) => board.show(event),
        }
    }

    /// Restores the terminal.
    fn close(self) {
        match self {
            Self::Lines(screen) => screen.close(),
            Self::Board(board) => drop(board),
        }
    }
}

fn print_report(report: &Report, dry_run: bool) {
    if dry_run {
        println!("dry run: configuration, model and data are valid; nothing was trained");
        return;
    }
    println!(
        "trained {} of {} parameters in {:.1} s, {} steps{}",
        HumanCount(report.count.trainable as u64),
        HumanCount(report.count.total as u64),
        report.seconds,
        report.steps,
        report.resumed_at.map(|step| format!(", resumed after step {step}")).unwrap_or_default()
    );
    if let Some(peak) = memory::peak_memory_mib() {
        println!("peak memory {peak} MiB");
    }
    if let Some((before, after)) = &report.evaluations {
        println!(
            "evaluation loss {:.4} → {:.4}, perplexity {:.2} → {:.2}",
            before.loss, after.loss, before.perplexity, after.perplexity
        );
    }
    if let Some(best) = report.best.filter(|best| best.step != report.steps) {
        println!("lowest evaluation loss {:.4}, after step {}", best.loss, best.step);
    }
    for (prompt, before, after) in &report.answers {
        println!("\n  {prompt}\n    before  {before}\n    after   {after}");
    }
    if report.interrupted {
        println!("\ninterrupted after step {}; progress saved. Resume with --resume", report.steps);
    }
    if report.stopped_early {
        println!(
            "\nstopped early at step {}: evaluation loss is not improving (train.patience)",
            report.steps
        );
    }
    if let Some(path) = &report.saved {
        let what = if report.is_adapter { "adapter" } else { "model" };
        println!("\n{what} saved to {}", shown(path).display());
    }
}
