//! The proposals and their order.

use super::*;
use crate::base::builtin;
use crate::trainer::optimizer::AdamWConfig;

fn workload(model: &ModelConfig) -> Workload<'_> {
    Workload {
        model,
        quantization: None,
        trainable: &[],
        dtype: FloatDtype::F32,
        activations: FloatDtype::F32,
        lora: Some(LoraConfig { r: 8, ..LoraConfig::default() }),
        rows: 12,
        seq: 300,
        targets: 12 * 150,
        grad_accumulation: 2,
        recompute: Recompute::None,
        optimizer: Algorithm::AdamW(AdamWConfig::default()),
    }
}

#[test]
fn a_run_that_fits_has_no_proposals() {
    let base = builtin::base().unwrap();
    let workload = workload(&base.config);
    let total = workload.footprint().unwrap().total();
    assert!(proposals(&workload, total).unwrap().is_empty());
}

#[test]
fn proposals_are_ordered_by_cost_and_keep_the_examples_of_a_step() {
    let base = builtin::base().unwrap();
    let workload = workload(&base.config);
    let all = proposals(&workload, 1).unwrap();
    let sets: Vec<&str> =
        all.iter().flat_map(|proposal| &proposal.set).map(String::as_str).collect();
    let expected = [
        "train.micro_batch_size=3",
        "train.grad_accumulation=8",
        "train.recompute=selective",
        "train.recompute=block",
        "model.quant=nf4",
    ];
    assert_eq!(sets, expected, "12 rows can be halved twice");
    assert!(all.iter().all(|proposal| !proposal.fits));
    assert!(all.windows(2).all(|pair| pair[1].total < pair[0].total), "{all:?}");
    // If the first change is enough, nothing more is proposed.
    let enough = proposals(&workload, all[0].total).unwrap();
    assert!(enough.len() == 1 && enough[0].fits, "{enough:?}");
}

#[test]
fn full_fine_tuning_is_not_quantized() {
    let base = builtin::base().unwrap();
    let whole = Workload { lora: None, ..workload(&base.config) };
    let all = proposals(&whole, 1).unwrap();
    assert!(all.iter().all(|proposal| !proposal.set.contains(&"model.quant=nf4".into())));
}

#[test]
fn sizes_have_readable_units() {
    let shown = |bytes| Size(bytes).to_string();
    assert_eq!([shown(12), shown(5 << 20), shown(5 << 28)], ["12 bytes", "5 MiB", "1.25 GiB"]);
}
