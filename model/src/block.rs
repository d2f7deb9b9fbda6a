//! One block of a decoder.

use burn::module::Module;
use burn::tensor::{Tensor, backend::Backend};
use emberlm_lora::{DropoutKey, Linear};

use crate::kv_cache::LayerCache;
use crate::{Attention, Inputs, LinearRole, Mlp, ModelBackend, RmsNorm};

/// A pre-norm block: attention and feed-forward, each applied to the normalised residual stream and added to it.
#[derive(Module, Debug)]
pub struct DecoderLayer<B: Backend> {
    /// Self-attention.
    pub self_attn: Attention<B>,
    /// The feed-forward.
    pub mlp: Mlp<B>,
    /// The norm before attention.
    pub input_layernorm: RmsNorm<B>,
    /// The norm before the feed-forward.
    pub post_attention_layernorm: RmsNorm<B>,
}

impl<B: Backend> DecoderLayer<B> {
    /// The linear layers, in the order of [`LinearRole::ALL`].
    pub(crate) fn linears(&self) -> [(LinearRole, &Linear<B>); 7] {
        let Self { self_attn, mlp, .. } = self;
        [
            (LinearRole::Query, &self_attn.q_proj),
            (LinearRole::Key, &self_attn.k_proj),
            (LinearRole::Value, &self_attn.v_proj),
            (LinearRole::Output, &self_attn.o_proj),
            (LinearRole::Gate, &mlp.gate_proj),
            (LinearRole::Up, &mlp.up_proj),
            (LinearRole::Down, &mlp.down_proj),
        ]
    }

    /// As [`linears`](Self::linears), mutable.
    pub(crate) fn linears_mut(&mut self) -> [(LinearRole, &mut Linear<B>); 7] {
        let Self { self_attn, mlp, .. } = self;
        [
            (LinearRole::Query, &mut self_attn.q_proj),
            (LinearRole::Key, &mut self_attn.k_proj),
            (LinearRole::Value, &mut self_attn.v_proj),
            (LinearRole::Output, &mut self_attn.o_proj),
            (LinearRole::Gate, &mut mlp.gate_proj),
            (LinearRole::Up, &mut mlp.up_proj),
            (LinearRole::Down, &mut mlp.down_proj),
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
