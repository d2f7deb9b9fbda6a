//! Injects LoRA into a model, trains it on rows created in code, and saves the adapter.
//!
//! `cargo run --release --example lora_from_rows [MODEL_FOLDER]`

use std::path::Path;

use anyhow::Result;
use burn::module::AutodiffModule;
use burn_flex::Flex;
use emberlm::base::BUILTIN;
use emberlm::trainer::error::TrainError;
use emberlm::trainer::train::Flow;
use emberlm::{Base, Plan, Training, WeightForm, train};
use emberlm_data::{Dataset, ExampleOptions, Message, Row, Source, SourcedRow};
use emberlm_lora::{LoraConfig, Targets, inject, peft};

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).unwrap_or(BUILTIN.into());
    let device = Default::default();
    let base = Base::open_path(Path::new(&folder))?;
    let mut model = base.build::<Training<Flex>>(WeightForm::default(), &device)?;

    let targets = Targets::Names(vec!["q_proj".into(), "v_proj".into()]);
    let lora = LoraConfig { r: 8, alpha: 16.0, targets, ..LoraConfig::default() };
    inject(model.linears_mut(), &lora, 0, &device)?;

    let colours = [("straw", 230), ("brown", 260), ("purple", 280), ("blue", 300)];
    let row = |(line, (colour, degrees)): (usize, (&str, u32))| {
        let messages = vec![
            Message::new("user", format!("At how many degrees is steel {colour}?")),
            Message::new("assistant", format!("At {degrees} degrees.")),
        ];
        SourcedRow::new(Row::Chat { messages, tools: None }, Source::new("colours", line + 1))
    };
    let rows: Vec<SourcedRow> = colours.into_iter().enumerate().map(row).collect();
    let data = Dataset::build(&rows, &base.tokenizer, &ExampleOptions::default())?;

    let plan = Plan::new(30, 4, 1e-2);
    let model = train::<_, TrainError>(model, &base.config, &data, 0, &plan, |log, _| {
        println!("step {:>2}  loss {:.4}", log.step, log.loss);
        Ok(Flow::Continue)
    })?;

    let out = std::env::temp_dir().join("emberlm-colours");
    peft::save(&out, &model.valid().linears_mut(), &lora, Some(&base.name))?;
    println!("adapter saved to {}", out.display());
    Ok(())
}
