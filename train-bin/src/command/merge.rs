//! `emberlm merge`.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use emberlm::backend::{Job, run_on};
use emberlm::cli::{MergeArgs, MergeDtype};
use emberlm::config::Dtype;
use emberlm::merge::{MergeOptions, Merged, Moved, Requantized, SAMPLE, merge};
use emberlm::requantize::Survival;
use emberlm::{Base, Divergence, TrainBackend};
use emberlm_quant::tensor_file::FloatDtype;

pub(crate) fn run(args: &MergeArgs) -> Result<()> {
    let sample = match &args.sample {
        Some(path) => fs::read_to_string(path)
            .with_context(|| format!("{}: expected a text to compare on", path.display()))?,
        None => SAMPLE.to_string(),
    };
    let base = Base::open_path(&args.model)?;
    let merged = run_on(args.backend, MergeJob { args, base: &base, sample: &sample })??;
    if let Some(moved) = &merged.moved {
        warn(moved);
    }
    if args.json {
        println!("{}", serde_json::to_string(&merged)?);
        return Ok(());
    }
    let (out, dtype) = (args.out.display(), merged.dtype.torch_name());
    let difference = format!("{:.1e} of the greatest", merged.difference);
    match &merged.requantized {
        None => println!(
            "merged into {out} ({dtype}); logits differ from base + adapter by {difference}"
        ),
        Some(requantized) => println!(
            "merged into {out} ({}, else {dtype}); read back, its logits differ by {difference}",
            requantized.format
        ),
    }
    if let Some(requantized) = &merged.requantized {
        print_survival(requantized);
    }
    Ok(())
}

fn warn(moved: &Moved) {
    eprintln!(
        "warning: this adapter was trained beside a base in {}, and now stands on the dense one, whose weights differ{}",
        moved.trained_on,
        match &moved.divergence {
            Some(found) => format!(": {}", said(found)),
            None => String::new(),
        }
    );
}

/// A line for each kind of layer, one for all, and what it does to predictions.
fn print_survival(requantized: &Requantized) {
    let mut kinds: BTreeMap<&str, Vec<&Survival>> = BTreeMap::new();
    for layer in &requantized.layers {
        let kind = layer.module.rsplit('.').next().unwrap_or(&layer.module);
        kinds.entry(kind).or_default().push(layer);
    }
    let percent = |share: Option<f64>| {
        share.map_or_else(|| "–".into(), |share| format!("{:.1} %", 100.0 * share))
    };
    let line = |name: &str, layers: &[&Survival]| {
        let all = Survival::together(name, layers.iter().copied());
        let least = layers.iter().filter_map(|layer| layer.survives).min_by(f64::total_cmp);
        println!(
            "{name:<12} {:>7} {:>10.4} {:>9} {:>9} {:>9}",
            layers.len(),
            all.delta_norm,
            percent(all.survives),
            percent(least),
            percent(all.noise),
        );
    };
    println!(
        "\n{:<12} {:>7} {:>10} {:>9} {:>9} {:>9}",
        "layer", "number", "‖delta‖", "survives", "least", "noise"
    );
    for (kind, layers) in &kinds {
        line(kind, layers);
    }
    line("all", &requantized.layers.iter().collect::<Vec<_>>());
    if let Some(found) = &requantized.divergence {
        println!("\nbase + adapter against the written model: {}", said(found));
    }
}

fn said(divergence: &Divergence) -> String {
    let Divergence { kl, loss_before, loss_after, positions } = divergence;
    format!(
        "KL divergence {kl:.4} nats a token, loss {loss_before:.4} → {loss_after:.4}, over {positions} tokens of the sample"
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
        let dtype = match args.dtype {
            MergeDtype::Auto => None,
            MergeDtype::All(Dtype::F32) => Some(FloatDtype::F32),
            MergeDtype::All(Dtype::F16) => Some(FloatDtype::F16),
            MergeDtype::All(Dtype::Bf16) => Some(FloatDtype::Bf16),
        };
        let options = MergeOptions {
            adapter: &args.adapter,
            out: &args.out,
            dtype,
            requantize: args.requantize,
            sample,
            force: args.force,
        };
        Ok(merge::<A::InnerBackend>(base, options, &device)?)
    }
}
