//! `emberlm train`.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use emberlm::checkpoint::{self, CONFIG_FILE};
use emberlm::cli::{RunArgs, TrainArgs};
use emberlm::config::{self, Asked, Override, RunConfig, shown};
use emberlm::footprint::Size;
use emberlm::prepare::Drawn;
use emberlm::resume::Resume;
use emberlm::run::{Event, Report, RunOptions, run as run_config};
use emberlm::train::Spike;
use emberlm::{builtin, memory};
use emberlm_data::{CacheEvent, Layout};
use indicatif::{ProgressBar, ProgressStyle};

pub(crate) fn run(args: &TrainArgs) -> Result<()> {
    let resume = args.resume.clone();
    let resume = resume.map(|from| Resume { from, allow_changes: args.allow_changes });
    if let Some(file) = &args.run.config
        && let Asked::Stages(stages) = config::load_stages(file, &args.run.overrides())?
    {
        let session = Session::begin(stages.first().map(|stage| &stage.config), args.quiet)?;
        if args.dry_run {
            // The models of the others are yet to be made.
            let first = stages.first().context("no stage")?;
            return session.run(&first.config, None, true);
        }
        return super::stages::run(stages, resume, |config, resume| {
            session.run(config, resume, false)
        });
    }
    let config = match &args.resume {
        None => configuration(&args.run)?,
        Some(from) => configuration_to_resume(&args.run, from.as_deref())?,
    };
    Session::begin(Some(&config), args.quiet)?.run(&config, resume, args.dry_run)
}

/// Runs a configuration from the beginning.
pub(super) fn run_configured(config: &RunConfig, quiet: bool) -> Result<()> {
    Session::begin(Some(config), quiet)?.run(config, None, false)
}

/// What is set once a process: its threads, and what happens on Ctrl-C.
struct Session {
    interrupt: Arc<AtomicBool>,
    quiet: bool,
}

impl Session {
    fn begin(config: Option<&RunConfig>, quiet: bool) -> Result<Self> {
        if let Some(threads) = config.and_then(|config| config.train.threads) {
            rayon::ThreadPoolBuilder::new()
                .num_threads(threads.get())
                .build_global()
                .context("train.threads")?;
        }
        let interrupt = Arc::new(AtomicBool::new(false));
        stop_on_signal(interrupt.clone())?;
        Ok(Self { interrupt, quiet })
    }

    fn run(&self, config: &RunConfig, resume: Option<Resume>, dry_run: bool) -> Result<()> {
        let options = RunOptions { dry_run, interrupt: &self.interrupt, resume };
        let mut screen = Screen::new(self.quiet, config.train.log_every.get());
        let report = run_config(config, options, &mut |event| screen.show(&event));
        screen.bar.finish_and_clear();
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
fn stop_on_signal(interrupt: Arc<AtomicBool>) -> Result<()> {
    ctrlc::set_handler(move || {
        if interrupt.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        eprintln!("\nstopping after this step, then saving (once more: stop at once)");
    })
    .context("can't listen for Ctrl-C")
}

/// The run as it goes, on stderr.
struct Screen {
    bar: ProgressBar,
    quiet: bool,
    log_every: u64,
}

impl Screen {
    fn new(quiet: bool, log_every: u64) -> Self {
        Self { bar: ProgressBar::hidden(), quiet, log_every }
    }

    fn show(&mut self, event: &Event<'_>) {
        if self.quiet {
            return;
        }
        match event {
            Event::Skipped { faults } => eprintln!("skipped   {faults}"),
            Event::Cache(event) => match event {
                CacheEvent::Found { path } => {
                    eprintln!("tokens    found in {}", shown(path).display());
                }
                CacheEvent::Written { path } => {
                    eprintln!("tokens    written to {}", shown(path).display());
                }
                CacheEvent::Damaged { path, why } => {
                    eprintln!("warning: {} {why}; it is made again", shown(path).display());
                }
            },
            Event::Data { train, eval, mixture, preview } => {
                eprintln!("data      {train}");
                for Drawn { paths, examples, draws } in *mixture {
                    let names: Vec<_> =
                        paths.iter().map(|path| shown(path).display().to_string()).collect();
                    let names = names.join(", ");
                    eprintln!(
                        "mixture   {draws} draws an epoch from {examples} examples of {names}"
                    );
                }
                if let Some(eval) = eval {
                    eprintln!("held out  {eval}");
                }
                let text = preview(std::io::stderr().is_terminal());
                eprintln!("example, its trained part marked:\n{}\n", indented(&text));
            }
            Event::Memory { need } => {
                let (total, free) = (Size(need.footprint.total()), need.available.map(Size));
                match free {
                    Some(free) => eprintln!("memory    about {total} needed, {free} free"),
                    None => eprintln!("memory    about {total} needed"),
                }
                if !need.fits() {
                    let proposals = super::plan::proposals(&need.proposals);
                    eprintln!(
                        "warning: this may not fit. What would help, one after another:\n{proposals}"
                    );
                }
            }
            Event::Model { backend, count, plan, rows } => {
                let what = match plan.layout {
                    Layout::Packed => format!("packed rows, {rows} an epoch"),
                    _ => "examples".to_owned(),
                };
                eprintln!(
                    "training {} of {} parameters ({:.2} %) on {backend}: {} steps of {} × {} {what}",
                    grouped(count.trainable),
                    grouped(count.total),
                    100.0 * count.trainable as f64 / count.total as f64,
                    plan.steps,
                    plan.grad_accumulation,
                    plan.micro_batch_size,
                );
                self.bar = bar(plan.steps);
            }
            Event::Inside { inside } => eprintln!("{inside}"),
            Event::Warning { what } => self.line(format!("warning: {what}")),
            Event::Damaged { why } => {
                for why in *why {
                    eprintln!("warning: {why}");
                }
            }
            Event::Resumed { from: None, .. } => {
                eprintln!("resume    no checkpoint yet: from the beginning");
            }
            Event::Resumed { from: Some(path), step, changes } => {
                eprintln!("resume    after step {step}, from {}", shown(path).display());
                for change in *changes {
                    eprintln!("changed   {change}");
                }
            }
            Event::Evaluated { step, evaluation, is_best } => self.line(format!(
                "step {step:>5}  held-out loss {:.4}  perplexity {:.2}{}",
                evaluation.loss,
                evaluation.perplexity,
                if *is_best { "  (best so far)" } else { "" }
            )),
            Event::Answered { .. } => {}
            Event::Step { log, tokens_per_s } => {
                self.bar.set_position(log.step);
                self.bar.set_message(format!("loss {:.4}", log.loss));
                if let Some(Spike { unusual, examples }) = &log.spike {
                    let named: Vec<String> =
                        examples.iter().map(|(at, loss)| format!("{at} ({loss:.3})")).collect();
                    self.line(format!(
                        "warning: step {}: loss {:.4} is far above the {:.4} ± {:.4} before; the highest losses: {}",
                        log.step, unusual.loss, unusual.mean, unusual.deviation, named.join(", ")
                    ));
                }
                if let Some(why) = &log.skipped {
                    self.line(format!("warning: the weights stay as they are. {why}"));
                }
                if log.step.is_multiple_of(self.log_every) {
                    self.line(format!(
                        "step {:>5}  epoch {:>6.2}  loss {:.4}  grad norm {:.3}  rate {:.2e}  {:.0} tokens/s  padding {:.0} %",
                        log.step,
                        log.epoch,
                        log.loss,
                        log.grad_norm,
                        log.learning_rate,
                        tokens_per_s,
                        100.0 * log.padding,
                    ));
                }
            }
            Event::Saved { path } => self.line(format!("saved     {}", shown(path).display())),
        }
    }

    /// A line above the bar, or by itself where there is no bar.
    fn line(&self, text: String) {
        self.bar.suspend(|| eprintln!("{text}"));
    }
}

fn bar(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    let template = "{bar:32} {pos}/{len} steps  {msg}  {elapsed} gone, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
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

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  │ {line}")).collect::<Vec<_>>().join("\n")
}

/// `1234567` as `1 234 567`.
fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut grouped = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    grouped
}
