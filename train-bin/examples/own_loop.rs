//! A custom training loop over the library's functions, with one of Burn's optimizers.
//!
//! `cargo run --release --example own_loop [MODEL_FOLDER]`

use std::path::Path;

use anyhow::Result;
use burn::optim::{Optimizer, SgdConfig, momentum::MomentumConfig};
use burn_flex::Flex;
use emberlm::base::BUILTIN;
use emberlm::base::builtin;
use emberlm::trainer::step::Recompute;
use emberlm::{Base, Gradients, StepOptions, Training, WeightForm, loss_and_grads};
use emberlm_data::{Batch, Cursor, Dataset, ExampleOptions, Loader, LoaderOptions};
use emberlm_lora::{LoraConfig, inject};

type Device = Training<Flex>;

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).unwrap_or(BUILTIN.into());
    let device = Default::default();
    let base = Base::open_path(Path::new(&folder))?;
    let mut model = base.build::<Device>(WeightForm::default(), &device)?;
    let lora = LoraConfig { r: 8, alpha: 16.0, ..LoraConfig::default() };
    inject(model.linears_mut(), &lora, 0, &device)?;

    let rows = builtin::train_rows()?;
    let data = Dataset::build(&rows, &base.tokenizer, &ExampleOptions::default())?;
    let loader = Loader::new(&data, LoaderOptions { shuffle: true, ..LoaderOptions::default() });
    let mut cursor = Cursor::default();
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
    let mut optimizer = SgdConfig::new().with_momentum(Some(momentum)).init();

    for step in 0..20 {
        let rows;
        (rows, cursor) = loader.take(cursor, 8);
        let batch = Batch::of_rows(&rows, &data.examples, 0);
        let supervised = batch.targets.len() as f64;

        let mut gradients = Gradients::default();
        let options = StepOptions {
            scale: 1.0 / supervised,
            recompute: Recompute::Block,
            dropout: None,
            noise: None,
            phases: None,
        };
        let loss = loss_and_grads(&model, &base.config, &batch, options, &mut gradients);
        let norm = gradients.norm();
        gradients.clip(norm, 1.0);

        let gradients = gradients.into_burn(&model);
        model = optimizer.step(0.1, model, gradients);
        println!("step {:>2}  loss {:.4}  gradient norm {norm:.3}", step + 1, loss / supervised);
    }
    Ok(())
}
