//! Adding tokens to a vocabulary: new rows, trained with the whole model or alone.

use burn::module::{Param, ParamId};
use burn::tensor::{Tensor, backend::Backend};
use emberlm_lora::{TokenRows, rows_of};
use emberlm_quant::host::float_tensor;
use emberlm_quant::portable::in_type;
use emberlm_quant::{QuantBackend, Weight};

use crate::CausalLm;

impl<B: QuantBackend> CausalLm<B> {
    /// The model with a vocabulary of `vocab` tokens: embedding and head get the missing rows, each one the mean of the
    /// existing rows. (transformers' `resize_token_embeddings` samples around that mean, with a standard deviation of
    /// about 1e-5 of theirs.) Nothing is removed if `vocab` is smaller.
    pub fn grow_vocabulary(mut self, vocab: usize) -> Self {
        let embedding = &mut self.model.embed_tokens.weight;
        *embedding = grown_param(embedding.clone(), vocab);
        if let Some(head) = &mut self.lm_head {
            if let Weight::Dense(weight) = &head.weight {
                head.weight = Weight::Dense(grown_param(weight.clone(), vocab));
            }
            head.bias = head.bias.take().map(|bias| {
                bias.map(|bias| {
                    let column: Tensor<B, 2> = bias.unsqueeze_dim(1);
                    grown(column, vocab).squeeze_dim(1)
                })
            });
        }
        self
    }

    /// Makes only the rows of the tokens `ids` (sorted, unique) trainable, in the embedding and in an untied head.
    /// Their initial values are the current ones.
    pub fn train_tokens(mut self, ids: &[usize]) -> Self {
        if ids.is_empty() {
            return self;
        }
        let device = self.device();
        let rows = |table: Tensor<B, 2>| {
            let [_, width] = table.dims();
            TokenRows::from_values(ids.to_vec(), width, rows_of(table, ids), &device)
        };
        self.model.embed_tokens.tokens = Some(rows(self.model.embed_tokens.weight.val()));
        self.head_tokens = self.lm_head.as_ref().map(|head| rows(head.weight.to_dense()));
        self
    }

    /// Copies separately trained rows into their tables.
    pub fn merge_tokens(mut self) -> Self {
        let embedding = &mut self.model.embed_tokens;
        if let Some(tokens) = embedding.tokens.take() {
            let weight = with_rows(embedding.weight.val().detach(), &tokens);
            embedding.weight = Param::initialized(ParamId::new(), weight);
        }
        if let (Some(head), Some(tokens)) = (&mut self.lm_head, self.head_tokens.take()) {
            head.weight = Weight::dense(with_rows(head.weight.to_dense(), &tokens));
        }
        self
    }
}

/// The table with its trained rows, in the table's type.
fn with_rows<B: Backend>(table: Tensor<B, 2>, rows: &TokenRows<B>) -> Tensor<B, 2> {
    let held_in = table.dtype();
    let table = in_type(table, rows.rows.val().dtype());
    in_type(rows.replace_rows(table), held_in).detach()
}

fn grown_param<B: Backend>(table: Param<Tensor<B, 2>>, vocab: usize) -> Param<Tensor<B, 2>> {
    table.map(|table| grown(table, vocab))
}

/// `[rows, width] -> [vocab, width]`.
fn grown<B: Backend>(table: Tensor<B, 2>, vocab: usize) -> Tensor<B, 2> {
    let [rows, width] = table.dims();
    let Some(more) = vocab.checked_sub(rows).filter(|more| *more > 0) else { return table };
    // On the host in f64: equal on every backend, and accurate for many rows.
    let mut sums = vec![0.0_f64; width];
    for (i, value) in table.to_data().iter::<f32>().enumerate() {
        sums[i % width] += f64::from(value);
    }
    let mean: Vec<f32> = sums.iter().map(|sum| (sum / rows as f64) as f32).collect();
    let is_trained = table.is_require_grad();
    let new = float_tensor(mean.repeat(more), [more, width], &table.device());
    let new = in_type(new, table.dtype());
    Tensor::cat(vec![table.detach(), new], 0).detach().set_require_grad(is_trained)
}
