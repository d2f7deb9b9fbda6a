//! The whole model: embedding, blocks, head.

use burn::module::{Module, Param};
use burn::tensor::{Int, Tensor, backend::Backend};
use emberlm_lora::{DropoutKey, Linear, NamedLinear};

use crate::{DecoderLayer, Inputs, KvCache, ModelBackend, RmsNorm};

/// A decoder-only language model.
///
/// The three parts [`embed`](Self::embed), [`DecoderLayer::forward`] and [`head`](Self::head) are public, because a
/// trainer that recomputes, or that needs logits for some positions only, runs them one by one.
#[derive(Module, Debug)]
pub struct CausalLm<B: Backend> {
    /// Everything below the head.
    pub model: Decoder<B>,
    /// The output head, `[vocab, hidden]`; `None` where its weight is the embedding's.
    pub lm_head: Option<Linear<B>>,
}

/// Embedding, blocks, final norm.
#[derive(Module, Debug)]
pub struct Decoder<B: Backend> {
    /// Tokens to vectors.
    pub embed_tokens: Embedding<B>,
    /// The blocks.
    pub layers: Vec<DecoderLayer<B>>,
    /// Before the head.
    pub norm: RmsNorm<B>,
}

/// A table with a row a token.
#[derive(Module, Debug)]
pub struct Embedding<B: Backend> {
    /// `[vocab, hidden]`.
    pub weight: Param<Tensor<B, 2>>,
}

impl<B: Backend> Embedding<B> {
    /// `[batch, seq] -> [batch, seq, hidden]`.
    pub fn forward(&self, ids: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        let [batch, seq] = ids.dims();
        let [_, hidden] = self.weight.dims();
        self.weight.val().select(0, ids.reshape([batch * seq])).reshape([batch, seq, hidden])
    }
}

impl<B: Backend> CausalLm<B> {
    /// Every linear layer with its path: where LoRA may put adapters. The embedding's use as a tied head is none.
    pub fn linears_mut(&mut self) -> Vec<NamedLinear<'_, B>> {
        let mut linears = Vec::new();
        let mut push = |name: String, is_head, linear| {
            linears.push(NamedLinear { name, is_head, linear });
        };
        for (i, layer) in self.model.layers.iter_mut().enumerate() {
            for (name, linear) in [
                ("self_attn.q_proj", &mut layer.self_attn.q_proj),
                ("self_attn.k_proj", &mut layer.self_attn.k_proj),
                ("self_attn.v_proj", &mut layer.self_attn.v_proj),
                ("self_attn.o_proj", &mut layer.self_attn.o_proj),
                ("mlp.gate_proj", &mut layer.mlp.gate_proj),
                ("mlp.up_proj", &mut layer.mlp.up_proj),
                ("mlp.down_proj", &mut layer.mlp.down_proj),
            ] {
                push(format!("model.layers.{i}.{name}"), false, linear);
            }
        }
        if let Some(head) = &mut self.lm_head {
            push("lm_head".into(), true, head);
        }
        linears
    }

    /// The same function without adapters: every delta folded into its weight. Tied weights stay tied.
    pub fn merge(mut self) -> Self {
        for NamedLinear { linear, .. } in self.linears_mut() {
            *linear = linear.clone().merge();
        }
        self
    }

    /// The device that the model lies on.
    pub fn device(&self) -> B::Device {
        self.model.embed_tokens.weight.device()
    }
}

impl<B: ModelBackend> CausalLm<B> {
    /// Tokens to the residual stream: `[batch, seq, hidden]`.
    pub fn embed(&self, inputs: &Inputs<B>) -> Tensor<B, 3> {
        self.model.embed_tokens.forward(inputs.ids.clone())
    }

    /// Embedding and blocks: `[batch, seq, hidden]`, before the final norm.
    pub fn hidden(&self, inputs: &Inputs<B>, dropout: Option<&DropoutKey>) -> Tensor<B, 3> {
        let embedded = self.embed(inputs);
        self.model.layers.iter().fold(embedded, |x, layer| layer.forward(x, inputs, dropout))
    }

    /// As [`hidden`](Self::hidden), for tokens that follow those in `cache`, which grows by them.
    pub fn hidden_with_cache(&self, inputs: &Inputs<B>, cache: &mut KvCache<B>) -> Tensor<B, 3> {
        let mut x = self.embed(inputs);
        for (i, layer) in self.model.layers.iter().enumerate() {
            x = layer.forward_with_cache(x, inputs, Some(cache.layer(i)), None);
        }
        x
    }

    /// Final norm and head: `[rows, hidden] -> [rows, vocab]`.
    pub fn head(&self, hidden: Tensor<B, 2>) -> Tensor<B, 2> {
        let normed = self.model.norm.forward(hidden);
        match &self.lm_head {
            Some(head) => head.forward(normed, None),
            None => B::matmul_dense(normed, self.model.embed_tokens.weight.val()),
        }
    }

    /// Logits at every position: `[batch, seq, vocab]`. For small inputs; training never needs them all.
    pub fn logits(&self, inputs: &Inputs<B>) -> Tensor<B, 3> {
        let hidden = self.hidden(inputs, None);
        let [batch, seq, width] = hidden.dims();
        let logits = self.head(hidden.reshape([batch * seq, width]));
        let [_, vocab] = logits.dims();
        logits.reshape([batch, seq, vocab])
    }
}
