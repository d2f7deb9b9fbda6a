//! Noise on the embeddings is part of the law: layouts, micro-batches and recomputing change nothing.

use emberlm::trainer::noise::EmbeddingNoise;
use emberlm::trainer::step::Recompute;
use emberlm::{Gradients, StepOptions, Training, loss_and_grads};
use emberlm_data::{
    Batch, Cursor, Dataset, ExampleOptions, Format, Layout, Loader, TextTokenizer, read_rows,
};
use emberlm_lora::walk::set_trainable;
use emberlm_tests::{assert_close, assert_close_number, golden_path, values};

use crate::support::{NdArray, load};

#[test]
fn a_noisy_step_is_the_same_in_every_layout_and_with_every_recompute() {
    let (config, model) = load::<Training<NdArray>>("llama");
    let model = set_trainable(model, |_| true);
    let tokenizer = TextTokenizer::from_dir(&golden_path("models/llama")).unwrap();
    let rows = read_rows(&golden_path("train/lora-sft/data.jsonl"), Format::Auto).unwrap();
    let max_length = std::num::NonZeroUsize::new(128);
    let options = ExampleOptions { max_length, ..ExampleOptions::default() };
    let data = Dataset::build(&rows, &tokenizer, &options).unwrap();
    // Rows a micro-batch; together they are the step.
    let step = |layout, micro_batch: usize, recompute, noise: Option<EmbeddingNoise>| {
        let loader = Loader::each_once(&data, layout);
        let (rows, _) = loader.take(Cursor::default(), loader.rows_of(0) as usize);
        let collate = |rows: &[_]| Batch::of_rows(rows, &data.examples, 0);
        let batches: Vec<Batch> = rows.chunks(micro_batch).map(collate).collect();
        let weight: f64 = batches.iter().map(Batch::weight).sum();
        let mut gradients = Gradients::default();
        let mut sum = 0.0;
        for batch in &batches {
            let options = StepOptions {
                scale: 1.0 / weight,
                recompute,
                dropout: None,
                noise: noise.as_ref(),
                phases: None,
            };
            sum += loss_and_grads(&model, &config, batch, options, &mut gradients);
        }
        (sum / weight, gradients)
    };
    let noise = EmbeddingNoise { alpha: 10.0, seed: 5, step: 2 };
    let (loss, reference) = step(Layout::OnePerRow, 6, Recompute::None, Some(noise));
    let (quiet, _) = step(Layout::OnePerRow, 6, Recompute::None, None);
    assert!((loss - quiet).abs() > 1e-4 * quiet, "{loss} and {quiet}");
    for (layout, micro_batch, recompute) in [
        (Layout::OnePerRow, 1, Recompute::None),
        (Layout::OnePerRow, 4, Recompute::Selective),
        (Layout::Packed, 1, Recompute::Block),
        (Layout::Packed, 2, Recompute::None),
    ] {
        let what = format!("{layout:?}, {micro_batch}, {recompute}");
        let (found, gradients) = step(layout, micro_batch, recompute, Some(noise));
        assert_close_number(&what, found, loss, 1e-5);
        for (key, gradient) in reference.iter() {
            let found = values(gradients.get(key).unwrap().value.clone());
            assert_close(&format!("{what}: {key}"), &found, &values(gradient.value.clone()), 1e-4);
        }
    }
}
