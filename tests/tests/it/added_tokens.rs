//! Rows of tokens that are trained by themselves are the rows of the tables, in value and in gradient.

use emberlm::trainer::step::Recompute;
use emberlm::{OptimizerBackend, Training};
use emberlm_lora::peft::{self, AdapterFolder};
use emberlm_lora::random::{generator, uniform};
use emberlm_lora::walk::set_trainable;
use emberlm_lora::{LoraConfig, TokenRows, inject};
use emberlm_model::{CausalLm, ModelBackend, ModelConfig};
use emberlm_tests::{assert_close, assert_close_number, values};

use crate::support::{Flex, NdArray, golden_batch, inputs, load, mean_loss_and_grads};

/// More tokens than the model had, and among those with rows of their own some of the old ones, with gaps between.
fn grown<B: ModelBackend>(name: &str) -> (ModelConfig, CausalLm<B>, Vec<usize>) {
    let (config, model) = load::<B>(name);
    let old = config.vocab_size;
    let config = ModelConfig { vocab_size: old + 5, ..config };
    // A token of the golden batch, so that its vector is used.
    let (_, batch) = golden_batch(name);
    let mut ids = vec![batch.ids[3] as usize, 0, old - 1, old, old + 2, old + 3];
    ids.sort_unstable();
    ids.dedup();
    (config, model.grow_vocabulary(old + 5), ids)
}

fn random_rows<B: ModelBackend>(ids: &[usize], width: usize, seed: u64) -> TokenRows<B> {
    let values = uniform(&mut generator(seed, "rows", &[]), ids.len() * width, 0.2);
    TokenRows::from_values(ids.to_vec(), width, values, &Default::default())
}

fn with_rows<B: ModelBackend>(name: &str) -> (ModelConfig, CausalLm<B>, Vec<usize>) {
    let (config, model, ids) = grown::<B>(name);
    let mut model = set_trainable(model, |_| false).train_tokens(&ids);
    let width = config.hidden_size;
    model.model.embed_tokens.tokens = Some(random_rows(&ids, width, 1));
    if model.lm_head.is_some() {
        model.head_tokens = Some(random_rows(&ids, width, 2));
    }
    (config, model, ids)
}

#[test]
fn new_rows_are_the_mean_of_the_old_ones() {
    for name in ["llama", "llama-tied-bias"] {
        let (old, before) = load::<NdArray>(name);
        let (config, model, _) = grown::<NdArray>(name);
        let [vocab, width] = [config.vocab_size, config.hidden_size];
        let mut tables = vec![(
            values(before.model.embed_tokens.weight.val()),
            values(model.model.embed_tokens.weight.val()),
        )];
        if let (Some(old), Some(new)) = (&before.lm_head, &model.lm_head) {
            tables.push((values(old.weight.to_dense()), values(new.weight.to_dense())));
        }
        for (old_table, table) in tables {
            assert_eq!(table.len(), vocab * width);
            assert_eq!(table[..old_table.len()], old_table);
            for (i, row) in table[old_table.len()..].chunks(width).enumerate() {
                let mean = |column: usize| {
                    let column = old_table.iter().skip(column).step_by(width);
                    column.sum::<f64>() / old.vocab_size as f64
                };
                let expected: Vec<f64> = (0..width).map(mean).collect();
                assert_close(&format!("{name}: row {i}"), row, &expected, 1e-5);
            }
        }
    }
}

fn rows_are_the_tables_rows<B: OptimizerBackend>() {
    // With a head of its own, and with the embedding as head.
    for name in ["llama", "llama-tied-bias"] {
        let (_, batch) = golden_batch(name);
        let (config, model, ids) = with_rows::<B>(name);
        let logits = values(model.logits(&inputs(&config, &batch)));
        let merged = model.clone().merge();
        assert!(merged.token_rows().is_empty());
        let dense = values(merged.logits(&inputs(&config, &batch)));
        assert_close(&format!("{name}: logits"), &logits, &dense, 1e-6);

        // The gradient of a row is the row of the table's gradient.
        let (_, model, _) = with_rows::<Training<B>>(name);
        let (_, merged, _) = with_rows::<Training<B>>(name);
        let merged = set_trainable(merged.merge(), |_| true);
        let (expected_loss, dense) = mean_loss_and_grads(&merged, &config, &batch, Recompute::None);
        let width = config.hidden_size;
        for recompute in [Recompute::None, Recompute::Selective, Recompute::Block] {
            let (loss, gradients) = mean_loss_and_grads(&model, &config, &batch, recompute);
            assert_close_number(&format!("{name}: loss"), loss, expected_loss, 1e-6);
            let mut tables = vec![("model.embed_tokens.tokens.rows", "model.embed_tokens.weight")];
            if model.lm_head.is_some() {
                tables.push(("head_tokens.rows", "lm_head.weight"));
            }
            assert_eq!(gradients.iter().count(), tables.len(), "nothing else is trained");
            for (rows, table) in tables {
                let table = values(dense.get(table).unwrap().value.clone());
                let expected: Vec<f64> =
                    ids.iter().flat_map(|id| table[id * width..][..width].to_vec()).collect();
                let found = values(gradients.get(rows).unwrap().value.clone());
                assert!(expected.iter().any(|value| *value != 0.0));
                assert_close(&format!("{name}, {recompute}: {rows}"), &found, &expected, 1e-5);
            }
        }
    }
}

#[test]
fn rows_are_the_tables_rows_on_ndarray() {
    rows_are_the_tables_rows::<NdArray>();
}

#[test]
fn rows_are_the_tables_rows_on_flex() {
    rows_are_the_tables_rows::<Flex>();
}

#[test]
fn rows_are_saved_as_pefts_and_come_back() {
    for name in ["llama", "llama-tied-bias"] {
        let (config, mut model, ids) = with_rows::<NdArray>(name);
        let lora = LoraConfig { r: 2, ..LoraConfig::default() };
        inject(model.linears_mut(), &lora, 1, &Default::default()).unwrap();
        let out = tempfile::tempdir().unwrap();
        let with_rows = model.clone();
        let rows = with_rows.token_rows();
        peft::save_with_tokens(out.path(), &model.linears_mut(), &rows, &lora, None).unwrap();
        let text = std::fs::read_to_string(out.path().join(peft::CONFIG_FILE)).unwrap();
        let written: serde_json::Value = serde_json::from_str(&text).unwrap();
        let tokens = &written["trainable_token_indices"];
        match model.lm_head {
            None => assert_eq!(*tokens, serde_json::json!(ids)),
            Some(_) => {
                assert_eq!(*tokens, serde_json::json!({"embed_tokens": ids, "lm_head": ids}))
            }
        }
        let folder = AdapterFolder::open(out.path()).unwrap();
        assert_eq!(folder.least_vocabulary(), ids.last().unwrap() + 1);
        for named in &rows {
            let table = named.name.rsplit('.').next().unwrap();
            let found =
                folder.token_rows::<NdArray>(table, config.hidden_size, &Default::default());
            let found = found.unwrap().unwrap();
            assert_eq!(found.ids, named.rows.ids);
            assert_eq!(values(found.rows.val()), values(named.rows.rows.val()));
        }
        let error = folder.token_rows::<NdArray>("embed_tokens", 7, &Default::default());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("shape of base_model.model.model.embed_tokens"), "{error}");

        // In another order, as PEFT keeps what it was given.
        if model.lm_head.is_none() {
            let reversed: Vec<usize> = ids.iter().rev().copied().collect();
            let mut written = written;
            written["trainable_token_indices"] = serde_json::json!(reversed);
            std::fs::write(out.path().join(peft::CONFIG_FILE), written.to_string()).unwrap();
            let folder = AdapterFolder::open(out.path()).unwrap();
            let width = config.hidden_size;
            let found = folder.token_rows::<NdArray>("embed_tokens", width, &Default::default());
            let found = found.unwrap().unwrap();
            assert_eq!(found.ids, ids);
            let expected: Vec<f64> = values(rows[0].rows.rows.val())
                .chunks(width)
                .rev()
                .flat_map(<[f64]>::to_vec)
                .collect();
            assert_eq!(values(found.rows.val()), expected);
        }
    }
}

#[test]
fn a_param_of_rows_is_trainable_and_the_tables_are_not() {
    let (_, model, _) = with_rows::<Training<NdArray>>("llama");
    assert!(!model.model.embed_tokens.weight.is_require_grad());
    for named in model.token_rows() {
        assert!(named.rows.rows.is_require_grad(), "{}", named.name);
    }
    assert_eq!(model.token_rows().len(), 2);
}
