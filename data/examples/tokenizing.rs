//! Measures the speed of tokenizing: reading, chat template, tokens, loss masks. `RAYON_NUM_THREADS` sets the threads.
//!
//! `cargo run --release -p emberlm-data --example tokenizing -- TOKENIZER_FOLDER DATA [CACHE_FOLDER]`
//!
//! Prints one JSON object. `tests/python/measure_tokenizing.py` compares it with `datasets.map`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use emberlm_data::{
    Cached, DataError, DataFiles, Dataset, ExampleOptions, OnError, ReadOptions, Rejects,
    TextTokenizer,
};

fn main() -> Result<(), DataError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, file, cache @ ..] = arguments.as_slice() else {
        eprintln!("usage: tokenizing TOKENIZER_FOLDER DATA [CACHE_FOLDER]");
        std::process::exit(2);
    };
    let tokenizer = TextTokenizer::from_dir(Path::new(folder))?;
    let files = [PathBuf::from(file)];
    let (read, options) = (ReadOptions::default(), ExampleOptions::default());
    let data = DataFiles { files: &files, read: &read, tokenizer: &tokenizer, options: &options };
    let mut rejects = Rejects::new(OnError::Skip { limit: None }, None)?;
    let started = Instant::now();
    let made = match cache {
        [] => Dataset::of_files(data, &mut rejects)?,
        [folder, ..] => Cached { folder: Path::new(folder), data }.load(&mut rejects, |_| ())?,
    };
    let seconds = started.elapsed().as_secs_f64();
    let summary = made.summary;
    println!(
        "{{\"rows\": {}, \"tokens\": {}, \"supervised_tokens\": {}, \"seconds\": {seconds:.3}, \"threads\": {}}}",
        summary.rows,
        summary.tokens,
        summary.supervised_tokens,
        rayon::current_num_threads(),
    );
    Ok(())
}
