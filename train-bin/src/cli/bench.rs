//! `emberlm bench`.

use anyhow::{Context, Result};
use clap::{Args, ValueHint};
use emberlm_quant::QuantFormat;
use emberlm_quant::tensor_file::FloatDtype;
use serde_json::Value;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use super::values::{OrWord, or_word, share};
use crate::run::bench::{BenchOptions, BenchReport, bench};
use crate::trainer::backend::{Backend, Job, run_on};
use crate::trainer::step::Recompute;
use crate::{Base, TrainBackend};

/// Time whole training steps on synthetic tokens
#[derive(Debug, Clone, PartialEq, Args)]
#[command(after_help = "\
Example: emberlm bench --model models/llama --batch 2 --seq 1024 --recompute block")]
pub(crate) struct BenchArgs {
    /// Model: a Hugging Face folder, or `builtin`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) model: PathBuf,
    /// Batch size: sequences per step
    #[arg(long, value_name = "N", default_value = "4")]
    pub(crate) batch: NonZeroUsize,
    /// Sequence length: tokens per sequence
    #[arg(long, value_name = "N", default_value = "512")]
    pub(crate) seq: NonZeroUsize,
    /// LoRA rank, on all linear layers
    #[arg(long, value_name = "N", default_value = "16")]
    pub(crate) rank: NonZeroUsize,
    /// Supervised share of each sequence, at its end
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, value_parser = share)]
    pub(crate) supervised: f64,
    /// Activations to recompute in backward
    #[arg(long, value_enum, default_value_t)]
    pub(crate) recompute: Recompute,
    /// Quantize the linear layers; none: keep the stored format
    #[arg(long, default_value = "none", value_parser = or_word::<QuantFormat>("none"))]
    pub(crate) quant: OrWord<QuantFormat>,
    /// Dtype of the frozen weights and, on GPUs, of activations
    #[arg(long, value_enum, default_value_t)]
    pub(crate) dtype: FloatDtype,
    /// Steps to time, after one warm-up step
    #[arg(long, value_name = "N", default_value = "5")]
    pub(crate) steps: NonZeroUsize,
    /// Backend
    #[arg(long, value_enum, default_value_t)]
    pub(crate) backend: Backend,
    /// JSON report of another tool, to print the ratios of speed and memory
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) compare_json: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let base = Base::open_path(&args.model)?;
    let options = BenchOptions {
        batch: args.batch.get(),
        seq: args.seq.get(),
        rank: args.rank.get(),
        supervised: args.supervised,
        recompute: args.recompute,
        quant: args.quant.0,
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
        println!("speed        {:>9.2} × the other tool's", report.tokens_per_s / speed);
    }
    let theirs = number("peak_memory_mib").or_else(|| number("peak_rss_mib"));
    if let (Some(ours), Some(theirs)) = (report.peak_memory_mib, theirs) {
        println!("memory       {:>9.2} × the other tool's", ours as f64 / theirs);
    }
}
