//! `emberlm merge`.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use emberlm::cli::{MergeArgs, MergeDtype};
use emberlm::export::merge::{MergeOptions, Merged, Moved, Requantized, SAMPLE, merge};
use emberlm::export::requantize::Survival;
use emberlm::trainer::backend::{Job, run_on};
use emberlm::{Base, Divergence, TrainBackend};

pub(crate) fn run(args: &MergeArgs) -> Result<()> {
    let sample = match &args.sample {
        Some(path) => fs::read_to_string(path)
            .with_context(|| format!("{}: expected a text to compare on", path.display()))?,
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

fn warn_of_another_base(moved: &Moved) {
    eprintln!(
        "warning: this adapter was trained beside a base in {}, and now stands on the dense one, whose weights differ{}",
        moved.trained_on,
        match &moved.divergence {
            Some(found) => format!(": {}", said(found)),
            None => String::new(),
        }
    );
}

/// Steps between codes are often wider than a delta, and every weight of the base stands on a code: most go back to it.
fn warn_of_loss(requantized: &Requantized) {
    if let Some(share) = requantized.all.survives.filter(|&share| share < 0.5) {
        eprintln!(
            "warning: {:.1} % of the adapter is left. Keep it beside the base, or merge it into the dense model that the base was made from, and quantize that: emberlm quantize",
            100.0 * share
        );
    }
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
        "layer", "number", "‖delta‖", "survives", "least", "noise"
    );
    for (kind, layers) in &kinds {
        line(&Survival::together(kind, layers.iter().copied()), layers);
    }
    line(&requantized.all, &requantized.layers.iter().collect::<Vec<_>>());
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
            MergeDtype::All(dtype) => Some(dtype.float()),
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
