//! Trained rows of a frozen token table (embedding, output head): PEFT's `trainable_token_indices`. Adding tokens to a
//! vocabulary then trains only their rows.

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Int, Tensor, backend::Backend};
use emberlm_quant::host::{float_tensor, index_tensor};

/// Trained rows that replace rows of a frozen table.
#[derive(Module, Debug)]
pub struct TokenRows<B: Backend> {
    /// `[tokens, width]`.
    pub rows: Param<Tensor<B, 2>>,
    /// The rows' tokens, sorted and unique.
    #[module(skip)]
    pub ids: Vec<usize>,
}

/// Token rows with the path of their table.
#[derive(Debug)]
pub struct NamedTokenRows<'a, B: Backend> {
    /// `model.embed_tokens`, `lm_head`.
    pub name: String,
    /// The rows.
    pub rows: &'a TokenRows<B>,
}

/// A run of consecutive tokens.
struct Run {
    first: usize,
    /// Row of its first token.
    place: usize,
    len: usize,
}

impl<B: Backend> TokenRows<B> {
    /// Trainable rows of the tokens `ids`, sorted and unique. `values`: `[ids, width]`, row-major.
    pub fn from_values(
        ids: Vec<usize>,
        width: usize,
        values: Vec<f32>,
        device: &B::Device,
    ) -> Self {
        let rows = float_tensor::<B, 2>(values, [ids.len(), width], device).require_grad();
        Self { rows: Param::initialized(ParamId::new(), rows), ids }
    }

    /// Replaces vectors looked up in the frozen table, `found: [tokens, width]`, by the trained ones. `ids`:
    /// `[tokens]`.
    pub fn replace_vectors(&self, found: Tensor<B, 2>, ids: Tensor<B, 1, Int>) -> Tensor<B, 2> {
        self.runs().into_iter().fold(found, |found, Run { first, place, len }| {
            let (first, end) = (first as i64, (first + len) as i64);
            let is_own = ids.clone().greater_equal_elem(first);
            let is_own = is_own.bool_and(ids.clone().lower_elem(end));
            let places = ids.clone().clamp(first, end - 1) - (first - place as i64);
            let own = self.rows.val().select(0, places);
            // Exact: one of the factors is 1, the other 0.
            let is_own = is_own.float().unsqueeze_dim(1);
            found * (is_own.clone() * -1.0 + 1.0) + own * is_own
        })
    }

    /// Replaces the frozen table's logits, `found: [positions, vocab]`, by those of the trained rows, `own: [positions,
    /// tokens]`.
    pub fn replace_logits(&self, found: Tensor<B, 2>, own: Tensor<B, 2>) -> Tensor<B, 2> {
        self.replace(found, own, 1)
    }

    /// The table with its trained rows: `[vocab, width]`.
    pub fn replace_rows(&self, table: Tensor<B, 2>) -> Tensor<B, 2> {
        self.replace(table, self.rows.val(), 0)
    }

    fn replace(&self, found: Tensor<B, 2>, own: Tensor<B, 2>, dim: usize) -> Tensor<B, 2> {
        let length = found.dims()[dim];
        let mut parts = Vec::new();
        let mut at = 0;
        for Run { first, place, len } in self.runs() {
            if first > at {
                parts.push(found.clone().narrow(dim, at, first - at));
            }
            parts.push(own.clone().narrow(dim, place, len));
            at = first + len;
        }
        if at < length {
            parts.push(found.narrow(dim, at, length - at));
        }
        Tensor::cat(parts, dim)
    }

    fn runs(&self) -> Vec<Run> {
        let mut place = 0;
        let runs = self.ids.chunk_by(|a, b| a + 1 == *b);
        runs.map(|run| {
            let run = Run { first: run[0], place, len: run.len() };
            place += run.len;
            run
        })
        .collect()
    }
}

/// The rows of tokens in a table, on the host: `[ids, width]`, row-major.
pub fn rows_of<B: Backend>(table: Tensor<B, 2>, ids: &[usize]) -> Vec<f32> {
    let places = index_tensor(ids.iter().copied(), [ids.len()], &table.device());
    table.select(0, places).into_data().iter::<f32>().collect()
}
