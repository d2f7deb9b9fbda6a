//! `emberlm quantize`.

use anyhow::Result;
use emberlm::cli::QuantizeArgs;
use emberlm::config::Backend;
use emberlm::export::quantize::{QuantizeReport, quantize};
use emberlm::trainer::backend::{Job, run_on};
use emberlm::{Base, TrainBackend};
use emberlm_quant::Quantization;

pub(crate) fn run(args: &QuantizeArgs) -> Result<()> {
    let base = Base::open_path(&args.model)?;
    // Quantizing is arithmetic on the host; no GPU would make it faster.
    let report = run_on(Backend::Flex, QuantizeJob { args, base: &base })??;
    println!(
        "{} layers quantized to {}, {:.3} bytes a parameter; saved in {}",
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
