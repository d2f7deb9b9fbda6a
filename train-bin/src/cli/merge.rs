//! `emberlm merge`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueHint};
use emberlm_quant::tensor_file::FloatDtype;

use super::values::{OrWord, or_word};
use crate::export::merge::{MergeOptions, Merged, Moved, Requantized, SAMPLE, merge};
use crate::export::requantize::Survival;
use crate::trainer::backend::{Backend, Job, run_on};
use crate::{Base, Divergence, TrainBackend};

/// Merge an adapter into its base model and write a plain Hugging Face folder
///
/// The merged model is compared with base and adapter before it is reported as finished.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(after_help = "\
Examples:
  emberlm merge --model models/llama --adapter runs/a --out models/merged
  emberlm merge --model models/llama --adapter runs/a --out models/merged --dtype bf16")]
pub(crate) struct MergeArgs {
    /// Base model: a Hugging Face folder, or `builtin`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) model: PathBuf,
    /// LoRA adapter: a PEFT folder such as a run folder
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) adapter: PathBuf,
    /// Folder for the merged model
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) out: PathBuf,
    /// Dtype of the merged model; auto: same as the base model
    #[arg(long, default_value = "auto", value_parser = or_word::<FloatDtype>("auto"))]
    pub(crate) dtype: OrWord<FloatDtype>,
    /// Quantize the merged layers in the base's format, and report how much of the adapter survives
    #[arg(long)]
    pub(crate) requantize: bool,
    /// Text for comparing models where merging changes their output; default: a built-in sample
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) sample: Option<PathBuf>,
    /// Backend
    #[arg(long, value_enum, default_value_t)]
    pub(crate) backend: Backend,
    /// Replace the contents of an existing folder
    #[arg(long)]
    pub(crate) force: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &MergeArgs) -> Result<()> {
    let sample = match &args.sample {
        Some(path) => fs::read_to_string(path).with_context(|| {
            format!("{}: expected a text file for the comparison", path.display())
        })?,
        None => SAMPLE.to_string(),
    };
    let base = Base::open_path(&args.model)?.for_adapter(Some(&args.adapter))?;
    let merged = run_on(args.backend, MergeJob { args, base: &base, sample: &sample })??;
    if let Some(moved) = &merged.moved {
        warn_of_another_base(moved);
    }
    if let Some(requantized) = &merged.requantized {
        warn_of_loss(requantized);
    }
    if args.json {
        println!("{}", serde_json::to_string(&merged)?);
        return Ok(());
    }
    let (out, dtype) = (args.out.display(), merged.dtype.torch_name());
    let difference = format!("{:.1e} of the largest logit", merged.difference);
    match &merged.requantized {
        None => println!(
            "merged into {out} ({dtype}); logits differ from base + adapter by {difference}"
        ),
        Some(requantized) => println!(
            "merged into {out} ({}, other tensors {dtype}); logits of the written model differ by {difference}",
            requantized.format
        ),
    }
    if let Some(requantized) = &merged.requantized {
        print_survival(requantized);
    }
    Ok(())
}

fn warn_of_another_base(moved: &Moved) {
    eprintln!(
        "warning: this adapter was trained on a base quantized to {}; merged into the dense base, whose weights differ{}",
        moved.trained_on,
        match &moved.divergence {
            Some(found) => format!(": {}", format_divergence(found)),
            None => String::new(),
        }
    );
}

/// Every weight of the base is exactly a quantization code, and a delta is often smaller than the distance to the next one: most
/// weights round back.
fn warn_of_loss(requantized: &Requantized) {
    if let Some(share) = requantized.all.survives.filter(|&share| share < 0.5) {
        eprintln!(
            "warning: only {:.1} % of the adapter survives. Use base and adapter unmerged, or merge into the original dense model and quantize the result: emberlm quantize",
            100.0 * share
        );
    }
}

/// One line per kind of layer, one for all of them, and the divergence.
fn print_survival(requantized: &Requantized) {
    let mut kinds: BTreeMap<&str, Vec<&Survival>> = BTreeMap::new();
    for layer in &requantized.layers {
        let kind = layer.module.rsplit('.').next().unwrap_or(&layer.module);
        kinds.entry(kind).or_default().push(layer);
    }
    let percent = |share: Option<f64>| {
        share.map_or_else(|| "–".into(), |share| format!("{:.1} %", 100.0 * share))
    };
    let line = |all: &Survival, layers: &[&Survival]| {
        let least = layers.iter().filter_map(|layer| layer.survives).min_by(f64::total_cmp);
        println!(
            "{:<12} {:>7} {:>10.4} {:>9} {:>9} {:>9}",
            all.module,
            layers.len(),
            all.delta_norm,
            percent(all.survives),
            percent(least),
            percent(all.noise),
        );
    };
    println!(
        "\n{:<12} {:>7} {:>10} {:>9} {:>9} {:>9}",
        "layer", "count", "‖delta‖", "survives", "min", "noise"
    );
    for (kind, layers) in &kinds {
        line(&Survival::together(kind, layers.iter().copied()), layers);
    }
    line(&requantized.all, &requantized.layers.iter().collect::<Vec<_>>());
    if let Some(found) = &requantized.divergence {
        println!("\nbase + adapter compared to the written model: {}", format_divergence(found));
    }
}

fn format_divergence(divergence: &Divergence) -> String {
    let Divergence { kl, loss_before, loss_after, positions } = divergence;
    format!(
        "KL divergence {kl:.4} nats per token, loss {loss_before:.4} → {loss_after:.4}, over {positions} tokens of the sample"
    )
}

struct MergeJob<'a> {
    args: &'a MergeArgs,
    base: &'a Base,
    sample: &'a str,
}

impl Job for MergeJob<'_> {
    type Output = Result<Merged>;

    fn run<A: TrainBackend>(self, device: A::Device) -> Self::Output {
        let Self { args, base, sample } = self;
        let options = MergeOptions {
            adapter: &args.adapter,
            out: &args.out,
            dtype: args.dtype.0,
            requantize: args.requantize,
            sample,
            force: args.force,
        };
        Ok(merge::<A::InnerBackend>(base, options, &device)?)
    }
}
