//! Loads a model and generates an answer.
//!
//! `cargo run --release --example generate [MODEL_FOLDER] [QUESTION]`; without a folder it uses the built-in model.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use burn_flex::Flex;
use emberlm::base::BUILTIN;
use emberlm::run::stop_ids;
use emberlm::{Base, Generator, Sampling, WeightForm};
use emberlm_data::Message;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().unwrap_or(BUILTIN.into());
    let question = args.next().unwrap_or("What is a hammer for?".into());

    // The model is generic over the backend; it runs on every one that implements `ModelBackend`.
    let device = Default::default();
    let base = Base::open_path(Path::new(&folder))?;
    let model = base.build::<Flex>(WeightForm::default(), &device)?;

    let prompt = base.tokenizer.render(&[Message::new("user", question)], None, true)?;
    let ids = base.tokenizer.encode(&prompt)?;
    let sampling = Sampling { max_new_tokens: 64, temperature: 0.7, ..Sampling::default() };
    let mut generator = Generator::new(&model, &base.config, &base.tokenizer);
    let answer =
        generator.answer(&ids, &sampling, &stop_ids(&base.config, &base.tokenizer), |text| {
            print!("{text}");
            std::io::stdout().flush().ok();
        })?;
    println!("\n({} tokens, {:?})", answer.ids.len(), answer.ended);
    Ok(())
}
