//! Measures the padding of each layout on a data set.
//!
//! `cargo run --release -p emberlm-data --example padding -- TOKENIZER_FOLDER DATA [MAX_LENGTH] [MICRO_BATCH]`

use std::error::Error;
use std::num::NonZeroUsize;
use std::path::Path;

use emberlm_data::{
    Cursor, Dataset, ExampleOptions, Format, Layout, Loader, LoaderOptions, Piece, TextTokenizer,
    read_rows,
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [tokenizer, file, numbers @ ..] = arguments.as_slice() else {
        return Err("expected TOKENIZER_FOLDER DATA [MAX_LENGTH] [MICRO_BATCH]".into());
    };
    let number =
        |n: usize, default: usize| numbers.get(n).map_or(Ok(default), |text| text.parse::<usize>());
    let (max_length, micro_batch) = (number(0, 2048)?, number(1, 8)?.max(1));

    let tokenizer = TextTokenizer::from_dir(Path::new(tokenizer))?;
    let rows = read_rows(Path::new(file), Format::Auto)?;
    let options =
        ExampleOptions { max_length: NonZeroUsize::new(max_length), ..ExampleOptions::default() };
    let data = Dataset::build(&rows, &tokenizer, &options)?;
    println!("{}", data.summary);
    for layout in [Layout::OnePerRow, Layout::ByLength { micro_batch }, Layout::Packed] {
        let loader = Loader::new(&data, LoaderOptions { seed: 0, shuffle: true, layout });
        let (rows, _) = loader.take(Cursor::default(), loader.rows_of(0) as usize);
        let lengths: Vec<usize> = rows.iter().map(|row| row.iter().map(Piece::len).sum()).collect();
        let tokens: usize = lengths.iter().sum();
        let longest = |batch: &[usize]| batch.iter().max().copied().unwrap_or(0);
        let slots: usize =
            lengths.chunks(micro_batch).map(|batch| batch.len() * longest(batch)).sum();
        println!(
            "{layout:?}: {} rows, {:.1} % padding in micro-batches of {micro_batch}, rows filled to {:.1} %",
            rows.len(),
            100.0 * (1.0 - tokens as f64 / slots as f64),
            100.0 * tokens as f64 / (rows.len() * max_length) as f64,
        );
    }
    Ok(())
}
