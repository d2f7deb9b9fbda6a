//! From rows to batches: no token is lost, in any layout.

mod fixture;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use emberlm_data::{
    Batch, Cursor, Dataset, ExampleOptions, Format, Layout, Loader, LoaderOptions, TextTokenizer,
    parse_rows,
};
use fixture::tokenizer;

const TOKENS: [&str; 3] = ["<s>", "</s>", "<turn>"];
const LAYOUTS: [Layout; 3] =
    [Layout::OnePerRow, Layout::ByLength { micro_batch: 3 }, Layout::Packed];

fn data(tokenizer: &TextTokenizer, lines: &str, max_length: usize) -> Dataset {
    let rows = parse_rows(lines, "rows", Format::Auto).unwrap();
    let max_length = NonZeroUsize::new(max_length);
    Dataset::build(&rows, tokenizer, &ExampleOptions { max_length, ..Default::default() }).unwrap()
}

/// The first epoch in micro-batches of three rows.
fn batches(data: &Dataset, layout: Layout) -> Vec<Batch> {
    let loader = Loader::new(data, LoaderOptions { seed: 3, shuffle: true, layout });
    let (rows, _) = loader.take(Cursor::default(), loader.rows_of(0) as usize);
    rows.chunks(3).map(|rows| Batch::of_rows(rows, &data.examples, 258)).collect()
}

#[test]
fn documents_are_split_over_rows_without_loss() {
    let tokenizer = tokenizer(&TOKENS, None);
    let book: String = ('a'..='z').cycle().take(100).collect();
    let lines =
        format!("{{\"text\": \"{book}\"}}\n{{\"text\": \"short\"}}\n{{\"text\": \"{book}\"}}\n");
    for layout in LAYOUTS {
        for max_length in [2, 7, 16, 101, 500] {
            let data = data(&tokenizer, &lines, max_length);
            assert_eq!(data.summary.truncated, 0);
            assert_eq!(
                data.summary.split,
                if max_length < 101 { 2 } else { 0 } + usize::from(max_length < 6)
            );
            // Each token of a document except the first is predicted once, from the token before it.
            let mut predicted: BTreeMap<usize, Vec<(u32, u32)>> = BTreeMap::new();
            for batch in batches(&data, layout) {
                assert!(batch.seq <= max_length);
                for alone in batch.sequences() {
                    let found = predicted.entry(alone.examples[0]).or_default();
                    found.extend(alone.targets.iter().map(|t| (alone.ids[t.index], t.token)));
                }
            }
            for (index, example) in data.examples.iter().enumerate() {
                let mut expected: Vec<(u32, u32)> =
                    example.ids.windows(2).map(|pair| (pair[0], pair[1])).collect();
                let mut found = predicted.remove(&index).unwrap();
                expected.sort_unstable();
                found.sort_unstable();
                assert_eq!(found, expected, "{layout:?}, rows of {max_length}");
                assert_eq!(
                    example.ids.last(),
                    tokenizer.eos_id().as_ref(),
                    "ends with its end token"
                );
            }
        }
    }
}

#[test]
fn conversations_are_never_split_or_mixed() {
    let tokenizer = tokenizer(&TOKENS, None);
    let line =
        |n: usize| format!("{{\"prompt\": \"q{n}\", \"completion\": \"{}\"}}\n", "a".repeat(n % 9));
    let lines: String = (0..40).map(line).collect();
    let data = data(&tokenizer, &lines, 16);
    let supervised: usize = data.examples.iter().map(|example| example.supervised()).sum();
    for layout in LAYOUTS {
        let mut seen = Vec::new();
        let mut targets = 0;
        for batch in batches(&data, layout) {
            targets += batch.targets.len();
            for alone in batch.sequences() {
                let index = alone.examples[0];
                let expected = Batch::collate(&[(index, &data.examples.get(index))], 258);
                assert_eq!(alone, expected, "same as alone");
                seen.push(index);
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..40).collect::<Vec<_>>());
        assert_eq!(targets, supervised);
    }
    let padding = |layout| {
        let batches = batches(&data, layout);
        let tokens: usize = batches.iter().map(Batch::tokens).sum();
        let slots: usize = batches.iter().map(|batch| batch.ids.len()).sum();
        1.0 - tokens as f64 / slots as f64
    };
    let [random, grouped, packed] = LAYOUTS.map(padding);
    assert!(packed < 0.1 && grouped < random, "{random}, {grouped}, {packed}");
}

#[test]
fn a_mixture_draws_by_weight_and_repeats_no_example_early() {
    let tokenizer = tokenizer(&TOKENS, None);
    let lines = |name: &str, rows: usize| -> String {
        (0..rows).map(|n| format!("{{\"text\": \"{name}{n}\"}}\n")).collect()
    };
    let source = |name, rows| data(&tokenizer, &lines(name, rows), 16);
    let mixed = Dataset::mixture([(source("a", 30), 1.0), (source("b", 10), 3.0)]);
    assert_eq!((mixed.summary.examples, mixed.summary.rows, mixed.examples.len()), (40, 40, 40));
    let loader =
        Loader::new(&mixed, LoaderOptions { seed: 1, shuffle: true, ..Default::default() });
    assert_eq!(loader.rows_of(7), 40, "as many draws as there are examples");
    // Each of three epochs draws 10 from the 30 examples of the first source, and 30 from the 10 of the second.
    let (rows, _) = loader.take(Cursor::default(), 120);
    let mut counts = [0; 40];
    rows.iter().flatten().for_each(|piece| counts[piece.example] += 1);
    assert_eq!(counts[..30], [1; 30]);
    assert_eq!(counts[30..], [9; 10]);
}
