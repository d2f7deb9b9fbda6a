//! `emberlm train`.

mod curves;
mod said;
mod screen;
mod tui;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use emberlm::base::builtin;
use emberlm::cli::{RunArgs, TrainArgs};
use emberlm::config::{self, Asked, Override, RunConfig, shown};
use emberlm::memory;
use emberlm::run::checkpoint::{self, CONFIG_FILE};
use emberlm::run::resume::Resume;
use emberlm::run::{Event, Report, RunOptions, run as run_config};

use curves::Curves;
use said::grouped;
use screen::Screen;
use tui::Tui;

pub(crate) fn run(args: &TrainArgs) -> Result<()> {
    let resume = args.resume.clone();
    let resume = resume.map(|from| Resume { from, allow_changes: args.allow_changes });
    if let Some(file) = &args.run.config
        && let Asked::Stages(stages) = config::load_stages(file, &args.run.overrides())?
    {
        let first = stages.first().map(|stage| &stage.config);
        let process = Process::begin(first, How::of(args))?;
        if args.dry_run {
            // The models of the others are yet to be made.
            let first = stages.first().context("no stage")?;
            return process.run(&first.config, None, true);
        }
        return super::stages::run(stages, resume, |config, resume| {
            process.run(config, resume, false)
        });
    }
    let config = match &args.resume {
        None => configuration(&args.run)?,
        Some(from) => configuration_to_resume(&args.run, from.as_deref())?,
    };
    Process::begin(Some(&config), How::of(args))?.run(&config, resume, args.dry_run)
}

/// Runs a configuration from the beginning.
pub(super) fn run_configured(config: &RunConfig, quiet: bool) -> Result<()> {
    let how = if quiet { How::Quiet } else { How::Lines };
    Process::begin(Some(config), how)?.run(config, None, false)
}

/// How a run is shown as it goes.
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

/// What is set once a process: its threads, and what happens on Ctrl-C.
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
        // A dashboard says by itself that the run is stopping.
        let say: fn(&str) = match how {
            How::Board => |_| {},
            How::Quiet | How::Lines => |said| eprintln!("\n{said}"),
        };
        stop_on_signal(interrupt.clone(), say)?;
        Ok(Self { interrupt, how })
    }

    fn run(&self, config: &RunConfig, resume: Option<Resume>, dry_run: bool) -> Result<()> {
        let goes_on = resume.is_some();
        let options = RunOptions { dry_run, interrupt: &self.interrupt, resume };
        let mut shown = Shown::new(self.how, config, &self.interrupt)?;
        let mut curves = Curves::new(config, goes_on);
        let report = run_config(config, options, &mut |event| {
            curves.take(&event);
            shown.take(&event);
        });
        shown.close();
        curves.close();
        let report = report?;
        if dry_run {
            super::plan::print_table(&report.memory);
        }
        print_report(&report, dry_run);
        Ok(())
    }
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

/// The configuration of a run that goes on: that of the checkpoint where none is given. What a default would decide anew,
/// the day, is as it was.
fn configuration_to_resume(args: &RunArgs, from: Option<&Path>) -> Result<RunConfig> {
    let names_none = args.config.is_none() && args.model.is_none() && args.data.is_empty();
    if let (Some(from), true) = (from, names_none) {
        let file = from.join(CONFIG_FILE);
        if !file.is_file() {
            bail!(
                "{}: expected a checkpoint or a run folder, which has a {CONFIG_FILE}; found none",
                shown(from).display()
            );
        }
        let mut overrides = vec![];
        // The folder may have been moved since.
        if args.out.is_none() {
            let is_checkpoint = from.join(checkpoint::STATE_FILE).is_file();
            let folder = if is_checkpoint { from.parent().unwrap_or(from) } else { from };
            let Some(folder) = std::path::absolute(folder)?.to_str().map(str::to_owned) else {
                bail!("{}: expected a path in UTF-8", folder.display());
            };
            overrides.push(Override::Flag {
                flag: "--resume",
                key: "train.output_dir",
                value: folder.into(),
            });
        }
        overrides.extend(args.overrides());
        return Ok(config::load(Some(&file), &overrides)?);
    }
    let config = configuration(args)?;
    let folder = from.unwrap_or(&config.train.output_dir);
    let Ok(was) = config::load(Some(&folder.join(CONFIG_FILE)), &[]) else { return Ok(config) };
    let mut args = args.clone();
    args.date = Some(was.data.date);
    configuration(&args)
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
    fn new(how: How, config: &RunConfig, interrupt: &Arc<AtomicBool>) -> Result<Self> {
        let log_every = config.train.log_every.get();
        if how != How::Board {
            return Ok(Self::Lines(Screen::new(how == How::Quiet, log_every)));
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
        "trained {} of {} parameters in {:.1} s, {} steps{}",
        grouped(report.count.trainable),
        grouped(report.count.total),
        report.seconds,
        report.steps,
        report.resumed_at.map(|step| format!(", resumed after {step}")).unwrap_or_default()
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
    if let Some(best) = report.best.filter(|best| best.step != report.steps) {
        println!("the lowest held-out loss was {:.4}, after step {}", best.loss, best.step);
    }
    for (prompt, before, after) in &report.answers {
        println!("\n  {prompt}\n    before  {before}\n    after   {after}");
    }
    if report.interrupted {
        println!(
            "\ninterrupted after step {}; what was trained until then is saved. Go on with --resume",
            report.steps
        );
    }
    if report.stopped_early {
        println!(
            "\nover after step {}: no progress on the held-out rows (train.patience)",
            report.steps
        );
    }
    if let Some(path) = &report.saved {
        let what = if report.is_adapter { "adapter" } else { "model" };
        println!("\n{what} saved in {}", shown(path).display());
    }
}
