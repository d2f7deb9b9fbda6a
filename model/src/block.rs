//! One block of a decoder.

use burn::module::Module;
use burn::tensor::{Tensor, backend::Backend};
use emberlm_lora::{DropoutKey, Linear};

use crate::kv_cache::LayerCache;
use crate::{Attention, Inputs, Mlp, ModelBackend, RmsNorm};

/// Attention and feed-forward, each on a normalised copy of the residual stream and added to it.
#[derive(Module, Debug)]
pub struct DecoderLayer<B: Backend> {
    /// Tokens look at each other.
    pub self_attn: Attention<B>,
    /// Tokens think for themselves.
    pub mlp: Mlp<B>,
    /// Before attention.
    pub input_layernorm: RmsNorm<B>,
    /// Before the feed-forward.
    pub post_attention_layernorm: RmsNorm<B>,
}

impl<B: Backend> DecoderLayer<B> {
    /// The linear layers with their paths from here.
    pub(crate) fn linears(&self) -> [(&'static str, &Linear<B>); 7] {
        let Self { self_attn, mlp, .. } = self;
        [
            ("self_attn.q_proj", &self_attn.q_proj),
            ("self_attn.k_proj", &self_attn.k_proj),
            ("self_attn.v_proj", &self_attn.v_proj),
            ("self_attn.o_proj", &self_attn.o_proj),
            ("mlp.gate_proj", &mlp.gate_proj),
            ("mlp.up_proj", &mlp.up_proj),
            ("mlp.down_proj", &mlp.down_proj),
        ]
    }

    /// As [`linears`](Self::linears), to change them.
    pub(crate) fn linears_mut(&mut self) -> [(&'static str, &mut Linear<B>); 7] {
        let Self { self_attn, mlp, .. } = self;
        [
            ("self_attn.q_proj", &mut self_attn.q_proj),
            ("self_attn.k_proj", &mut self_attn.k_proj),
            ("self_attn.v_proj", &mut self_attn.v_proj),
            ("self_attn.o_proj", &mut self_attn.o_proj),
            ("mlp.gate_proj", &mut mlp.gate_proj),
            ("mlp.up_proj", &mut mlp.up_proj),
            ("mlp.down_proj", &mut mlp.down_proj),
        ]
    }
}

impl<B: ModelBackend> DecoderLayer<B> {
    /// `[batch, seq, hidden] -> [batch, seq, hidden]`, for training: without a cache.
    pub fn forward(
        &self,
        x: Tensor<B, 3>,
        inputs: &Inputs<B>,
        dropout: Option<&DropoutKey>,
    ) -> Tensor<B, 3> {
        self.forward_with_cache(x, inputs, None, dropout)
    }

    pub(crate) fn forward_with_cache(
        &self,
        x: Tensor<B, 3>,
        inputs: &Inputs<B>,
        cache: Option<&mut LayerCache<B>>,
        dropout: Option<&DropoutKey>,
    ) -> Tensor<B, 3> {
        let [batch, seq, hidden] = x.dims();
        let tokens = |x: &Tensor<B, 3>| x.clone().reshape([batch * seq, hidden]);
        let normed = self.input_layernorm.forward(tokens(&x), inputs.keep);
        let x = B::residual(x, self.self_attn.forward(normed, inputs, cache, dropout));
        let normed = self.post_attention_layernorm.forward(tokens(&x), inputs.keep);
        B::residual(x, self.mlp.forward(normed, inputs.keep, dropout))
    }
}
