//! `emberlm bench`.

use anyhow::{Context, Result};
use emberlm::cli::BenchArgs;
use emberlm::run::bench::{BenchOptions, BenchReport, bench};
use emberlm::trainer::backend::{Job, run_on};
use emberlm::{Base, TrainBackend};
use serde_json::Value;

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let base = Base::open_path(&args.model)?;
    let options = BenchOptions {
        batch: args.batch.get(),
        seq: args.seq.get(),
        rank: args.rank.get(),
        supervised: args.supervised,
        recompute: args.recompute,
        quant: args.quant,
        dtype: args.dtype,
        steps: args.steps.get(),
    };
    let other = args.compare_json.as_ref().map(|path| -> Result<Value> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        serde_json::from_str(text.trim()).with_context(|| path.display().to_string())
    });
    let other = other.transpose()?;
    let report = run_on(args.backend, BenchJob { base: &base, options: &options })??;
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print_table(&report, other.as_ref());
    }
    Ok(())
}

struct BenchJob<'a> {
    base: &'a Base,
    options: &'a BenchOptions,
}

impl Job for BenchJob<'_> {
    type Output = Result<BenchReport>;

    fn run<A: TrainBackend>(self, device: A::Device) -> Self::Output {
        Ok(bench::<A>(self.base, self.options, &device)?)
    }
}

fn print_table(report: &BenchReport, other: Option<&Value>) {
    let BenchReport { batch, seq, rank, supervised, .. } = report;
    println!(
        "batch {batch} × {seq}, rank {rank}, supervised {supervised}, recompute {}",
        report.recompute
    );
    println!("tokens/s     {:>9.1}", report.tokens_per_s);
    if let Some(peak) = report.peak_memory_mib {
        println!("peak memory  {peak:>9} MiB, planned {} MiB", report.planned_memory_mib);
    }
    for (phase, seconds) in [
        ("forward", report.forward_s),
        ("head", report.head_s),
        ("backward", report.backward_s),
        ("optimizer", report.optimizer_s),
    ] {
        println!("{phase:<12} {seconds:>9.3} s");
    }
    let number = |key: &str| other.and_then(|other| other.get(key)).and_then(Value::as_f64);
    if let Some(speed) = number("tokens_per_s") {
        println!("speed        {:>9.2} × the other's", report.tokens_per_s / speed);
    }
    let theirs = number("peak_memory_mib").or_else(|| number("peak_rss_mib"));
    if let (Some(ours), Some(theirs)) = (report.peak_memory_mib, theirs) {
        println!("memory       {:>9.2} × the other's", ours as f64 / theirs);
    }
}
