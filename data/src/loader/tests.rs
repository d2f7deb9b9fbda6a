//! Contents, layout and resumption of epochs.

use proptest::prelude::*;

use super::*;

fn loader(tokens: &[usize], options: LoaderOptions) -> Loader {
    let lengths = tokens.iter().map(|&tokens| Length { tokens, is_document: false }).collect();
    Loader::over(lengths, None, &[], options)
}

fn shuffled(layout: Layout) -> LoaderOptions {
    LoaderOptions { seed: 42, shuffle: true, layout }
}

fn examples(rows: &[Vec<Piece>]) -> Vec<usize> {
    rows.iter().flatten().map(|piece| piece.example).collect()
}

#[test]
fn one_per_row_follows_the_shuffled_order_across_epochs() {
    let loader = loader(&[1; 8], shuffled(Layout::OnePerRow));
    let (rows, after) = loader.take(Cursor { epoch: 0, place: 6 }, 4);
    // The orders of `order.rs`.
    assert_eq!(examples(&rows), [1, 7, 0, 4]);
    assert_eq!(after, Cursor { epoch: 1, place: 2 });
    let (rows, after) = loader.take(loader.cursor(16), 0);
    assert_eq!((rows.len(), after), (0, Cursor { epoch: 2, place: 0 }));
    assert_eq!(loader.epochs_at(Cursor { epoch: 1, place: 2 }), 1.25);
}

#[test]
fn without_examples_there_are_no_rows() {
    for layout in [Layout::OnePerRow, Layout::Packed, Layout::ByLength { micro_batch: 2 }] {
        let loader = loader(&[], shuffled(layout));
        assert_eq!(loader.take(loader.cursor(3), 2), (vec![], Cursor::default()));
        assert_eq!(loader.rows_in(2.5), 0);
    }
}

#[test]
fn packing_without_shuffling_keeps_the_order_of_the_data() {
    let options = LoaderOptions { layout: Layout::Packed, ..LoaderOptions::default() };
    let lengths = [6, 5, 3, 4, 1];
    let (rows, _) = loader(&lengths, options).take(Cursor::default(), 4);
    // No row is longer than the longest example; the last example fills the second row.
    assert_eq!(rows.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2, 1, 1]);
    assert_eq!(examples(&rows), [0, 1, 4, 2, 3]);
}

#[test]
fn the_rows_of_a_long_document_are_shuffled() {
    let lengths = vec![Length { tokens: 1000, is_document: true }];
    let loader = Loader::over(lengths, Some(11), &[], shuffled(Layout::OnePerRow));
    assert_eq!(loader.rows_of(0), 100, "ten targets a row, 999 in all");
    let starts = |epoch| -> Vec<usize> {
        let (rows, _) = loader.take(Cursor { epoch, place: 0 }, 100);
        rows.iter().map(|row| row[0].start).collect()
    };
    let in_order: Vec<usize> = (0..100).map(|row| 10 * row).collect();
    assert_ne!(starts(0), in_order);
    assert_ne!(starts(0), starts(1));
    let mut sorted = starts(1);
    sorted.sort_unstable();
    assert_eq!(sorted, in_order);
}

#[test]
fn micro_batches_by_length_have_little_padding_and_a_random_order() {
    // 4000 unsorted lengths from 1 to 1000.
    let lengths: Vec<usize> = (0..4000).map(|i| 1 + i * 7919 % 1000).collect();
    let padding = |layout| {
        let (rows, _) = loader(&lengths, shuffled(layout)).take(Cursor::default(), 4000);
        let longest = |batch: &[Vec<Piece>]| batch.iter().map(|row| row[0].len()).max().unwrap();
        let laid: usize = rows.chunks(8).map(|batch| longest(batch) * 8).sum();
        let longest: Vec<usize> = rows.chunks(8).map(longest).collect();
        (1.0 - lengths.iter().sum::<usize>() as f64 / laid as f64, longest)
    };
    let (random, _) = padding(Layout::OnePerRow);
    let (grouped, longest) = padding(Layout::ByLength { micro_batch: 8 });
    assert!(random > 0.4 && grouped < 0.02, "{random} of padding, grouped {grouped}");
    let rises = longest.windows(2).filter(|pair| pair[0] < pair[1]).count();
    assert!((200..300).contains(&rises), "{rises} of 499 micro-batches are longer than the last");
}

#[test]
fn packed_rows_are_full() {
    let lengths = (0..20_000).map(|i| 20 + i * 7919 % 300);
    let lengths: Vec<Length> =
        lengths.map(|tokens| Length { tokens, is_document: false }).collect();
    let tokens: usize = lengths.iter().map(|length| length.tokens).sum();
    let loader = Loader::over(lengths, Some(2048), &[], shuffled(Layout::Packed));
    let full = tokens as f64 / (2048 * loader.rows_of(0)) as f64;
    assert!(full > 0.99, "{full}");
    let (rows, _) = loader.take(Cursor::default(), 1);
    let (again, _) = loader.take(Cursor { epoch: 1, place: 0 }, 1);
    assert_ne!(rows, again, "each epoch is packed differently");
}

fn layouts() -> impl Strategy<Value = Layout> {
    prop_oneof![
        Just(Layout::OnePerRow),
        Just(Layout::Packed),
        (1usize..7).prop_map(|micro_batch| Layout::ByLength { micro_batch }),
    ]
}

fn lengths() -> impl Strategy<Value = Vec<Length>> {
    let length = (2usize..40, prop::bool::weighted(0.3));
    let length = length.prop_map(|(tokens, is_document)| Length { tokens, is_document });
    prop::collection::vec(length, 1..60)
}

/// Shares of a mixture with `examples` examples in all.
fn shares_of(examples: usize, parts: &[(f64, f64)]) -> Vec<Share> {
    let mut left = examples;
    let mut shares: Vec<Share> = parts
        .iter()
        .map(|&(weight, part)| {
            let examples = (part * left as f64) as usize;
            left -= examples;
            Share { examples, weight }
        })
        .collect();
    if let Some(last) = shares.last_mut() {
        last.examples += left;
    }
    shares
}

proptest! {
    #[test]
    fn an_epoch_predicts_each_token_once(
        lengths in lengths(),
        layout in layouts(),
        seed: u64,
        shuffle: bool,
        epoch in 0u64..5,
    ) {
        let options = LoaderOptions { seed, shuffle, layout };
        let loader = Loader::over(lengths.clone(), Some(16), &[], options);
        let rows = loader.rows_of(epoch);
        let (taken, after) = loader.take(Cursor { epoch, place: 0 }, rows as usize);
        prop_assert_eq!(after, Cursor { epoch: epoch + 1, place: 0 });
        let mut predicted: Vec<Vec<usize>> = lengths.iter().map(|_| Vec::new()).collect();
        for row in &taken {
            prop_assert!(layout == Layout::Packed || row.len() == 1);
            // Only an example that must not be split may be longer than a row, and then it is alone in it.
            let tokens: usize = row.iter().map(Piece::len).sum();
            let is_document = lengths[row[0].example].is_document;
            prop_assert!(tokens <= 16 || (row.len() == 1 && !is_document));
            for piece in row {
                predicted[piece.example].extend(piece.start + 1..piece.end);
            }
        }
        for (length, mut predicted) in lengths.iter().zip(predicted) {
            predicted.sort_unstable();
            prop_assert_eq!(predicted, (1..length.tokens).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_stream_resumes_at_any_cursor(
        lengths in lengths(),
        layout in layouts(),
        parts in prop::collection::vec((0.1f64..3.0, 0.0f64..1.0), 1..4),
        seed: u64,
        start in 0usize..150,
        count in 0usize..60,
    ) {
        let shares = shares_of(lengths.len(), &parts);
        let options = LoaderOptions { seed, shuffle: true, layout };
        let fresh = || Loader::over(lengths.clone(), Some(16), &shares, options);
        let (whole, _) = fresh().take(Cursor::default(), start + count);
        let loader = fresh();
        let (skipped, there) = loader.take(Cursor::default(), start);
        prop_assert_eq!(&skipped[..], &whole[..start]);
        prop_assert_eq!(there, fresh().cursor(start as u64));
        let (resumed, after) = fresh().take(there, count);
        prop_assert_eq!(&resumed[..], &whole[start..]);
        prop_assert_eq!(after, loader.cursor((start + count) as u64));
    }

    #[test]
    fn whole_epochs_have_whole_rows(lengths in lengths(), layout in layouts(), seed: u64) {
        let options = LoaderOptions { seed, shuffle: true, layout };
        let loader = Loader::over(lengths, Some(16), &[], options);
        let rows: u64 = (0..3).map(|epoch| loader.rows_of(epoch)).sum();
        prop_assert_eq!(loader.rows_in(3.0), rows);
        prop_assert_eq!(loader.cursor(rows), Cursor { epoch: 3, place: 0 });
        let half = (loader.rows_of(3) as f64 / 2.0).round() as u64;
        prop_assert_eq!(loader.rows_in(3.5), rows + half);
    }
}
