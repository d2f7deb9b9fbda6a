//! Self-attention with rotary positions and grouped keys and values.

use burn::module::Module;
use burn::tensor::{Tensor, backend::Backend};
use emberlm_lora::{DropoutKey, Linear};

use crate::kv_cache::{LayerCache, extend};
use crate::{Inputs, ModelBackend, Scoring};

/// Grouped-query attention (Ainslie et al., 2023, arXiv:2305.13245).
#[derive(Module, Debug)]
pub struct Attention<B: Backend> {
    /// `[heads · head_dim, hidden]`.
    pub q_proj: Linear<B>,
    /// `[kv_heads · head_dim, hidden]`.
    pub k_proj: Linear<B>,
    /// `[kv_heads · head_dim, hidden]`.
    pub v_proj: Linear<B>,
    /// `[hidden, heads · head_dim]`.
    pub o_proj: Linear<B>,
    pub(crate) head_dim: usize,
    #[module(skip)]
    pub(crate) window: Option<usize>,
    #[module(skip)]
    pub(crate) scoring: Scoring,
}

impl<B: ModelBackend> Attention<B> {
    /// `[batch · seq, hidden] -> [batch · seq, hidden]`.
    pub(crate) fn forward(
        &self,
        x: Tensor<B, 2>,
        inputs: &Inputs<B>,
        cache: Option<&mut LayerCache<B>>,
        dropout: Option<&DropoutKey>,
    ) -> Tensor<B, 2> {
        let [batch, seq] = inputs.ids.dims();
        let heads = |x: Tensor<B, 2>| {
            let [_, features] = x.dims();
            B::split_heads(x, [batch, features / self.head_dim, seq, self.head_dim])
        };
        let q = heads(self.q_proj.forward(x.clone(), dropout));
        let k = heads(self.k_proj.forward(x.clone(), dropout));
        let v = heads(self.v_proj.forward(x, dropout));
        let q = B::rotate_half(q, inputs.cos.clone(), inputs.sin.clone());
        let k = B::rotate_half(k, inputs.cos.clone(), inputs.sin.clone());
        let (k, v) = match cache {
            Some(cache) => extend(cache, k, v),
            None => (k, v),
        };
        let y = B::causal_attention(q, k, v, inputs.mask(self.window), self.scoring);
        let [_, heads, _, head_dim] = y.dims();
        let y = y.swap_dims(1, 2).reshape([batch * seq, heads * head_dim]);
        self.o_proj.forward(y, dropout)
    }
}
