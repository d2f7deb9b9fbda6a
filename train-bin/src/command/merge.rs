//! `emberlm merge`.

use anyhow::Result;
use emberlm::backend::{Job, run_on};
use emberlm::cli::{MergeArgs, MergeDtype};
use emberlm::config::Dtype;
use emberlm::merge::{MergeOptions, Merged, merge};
use emberlm::{Base, TrainBackend};
use emberlm_quant::tensor_file::FloatDtype;

pub(crate) fn run(args: &MergeArgs) -> Result<()> {
    let base = Base::open_path(&args.model)?;
    let merged = run_on(args.backend, MergeJob { args, base: &base })??;
    println!(
        "merged into {} ({}); logits differ from base + adapter by {:.1e} of the greatest",
        args.out.display(),
        merged.dtype.torch_name(),
        merged.difference
    );
    Ok(())
}

struct MergeJob<'a> {
    args: &'a MergeArgs,
    base: &'a Base,
}

impl Job for MergeJob<'_> {
    type Output = Result<Merged>;

    fn run<A: TrainBackend>(self, device: A::Device) -> Self::Output {
        let Self { args, base } = self;
        let dtype = match args.dtype {
            MergeDtype::Auto => None,
            MergeDtype::All(Dtype::F32) => Some(FloatDtype::F32),
            MergeDtype::All(Dtype::F16) => Some(FloatDtype::F16),
            MergeDtype::All(Dtype::Bf16) => Some(FloatDtype::Bf16),
        };
        let options =
            MergeOptions { adapter: &args.adapter, out: &args.out, dtype, force: args.force };
        Ok(merge::<A::InnerBackend>(base, options, &device)?)
    }
}
