//! `emberlm quantize`.

use anyhow::Result;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueHint};
use emberlm_quant::{QuantFormat, Quantization};
use std::path::PathBuf;

use crate::export::quantize::{QuantizeReport, quantize};
use crate::trainer::backend::{Backend, Job, run_on};
use crate::{Base, TrainBackend};

/// Quantize a model's linear layers and write a folder that transformers and bitsandbytes load
///
/// Head, embeddings and norms stay dense, in the dtype they are stored in.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(after_help = "\
Example: emberlm quantize --model models/llama --type nf4 --out models/llama-nf4")]
pub(crate) struct QuantizeArgs {
    /// Model: a Hugging Face folder, or `builtin`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) model: PathBuf,
    /// Folder for the quantized model
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) out: PathBuf,
    /// Quantization format
    #[arg(long = "type", value_name = "TYPE", default_value = "nf4", value_enum)]
    pub(crate) format: QuantFormat,
    /// Store the scales of nf4 and fp4 in f32 instead of quantizing them too
    #[arg(long)]
    pub(crate) no_double_quant: bool,
    /// Linear layer to keep dense, such as `down_proj` or `layers.0`; repeatable
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) skip: Vec<String>,
    /// Replace the contents of an existing folder
    #[arg(long)]
    pub(crate) force: bool,
}

pub(crate) fn run(args: &QuantizeArgs) -> Result<()> {
    let base = Base::open_path(&args.model)?;
    // Quantizing is arithmetic on the host; no GPU would make it faster.
    let report = run_on(Backend::Flex, QuantizeJob { args, base: &base })??;
    println!(
        "{} layers quantized to {}, {:.3} bytes per parameter; saved to {}",
        report.layers,
        args.format,
        report.bytes as f64 / report.parameters as f64,
        args.out.display()
    );
    Ok(())
}

struct QuantizeJob<'a> {
    args: &'a QuantizeArgs,
    base: &'a Base,
}

impl Job for QuantizeJob<'_> {
    type Output = Result<QuantizeReport>;

    fn run<A: TrainBackend>(self, device: A::Device) -> Self::Output {
        let Self { args, base } = self;
        let quantization = Quantization {
            format: args.format,
            double_quant: !args.no_double_quant,
            skip_modules: args.skip.clone(),
        };
        Ok(quantize::<A::InnerBackend>(base, &args.out, args.force, &quantization, &device)?)
    }
}
