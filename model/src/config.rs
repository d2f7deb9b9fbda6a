//! A model's architecture, independent of its family.

use emberlm_quant::bnb::BnbConfig;

use crate::linears::in_block;
use crate::{Activation, BlockLinear, LinearRole, RopeConfig, RopeKind, Scoring};

/// The architecture of a decoder-only language model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The family's name, `model_type` in `config.json`.
    pub model_type: String,
    /// Tokens in the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Inner width of the feed-forward.
    pub intermediate_size: usize,
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; each serves `num_attention_heads / num_key_value_heads` query heads.
    pub num_key_value_heads: usize,
    /// Features per head.
    pub head_dim: usize,
    /// Added to the mean square before the square root.
    pub rms_norm_eps: f64,
    /// Positions.
    pub rope: RopeConfig,
    /// The feed-forward's activation function.
    pub activation: Activation,
    /// Whether q, k and v have biases.
    pub qkv_bias: bool,
    /// Whether o has a bias.
    pub output_bias: bool,
    /// Whether the feed-forward's layers have biases.
    pub mlp_bias: bool,
    /// Whether the output head shares the embedding's weight.
    pub tie_word_embeddings: bool,
    /// For each block, the sliding window in tokens (the current one included); `None`: full attention.
    pub sliding_windows: Vec<Option<usize>>,
    /// Maximum sequence length.
    pub max_position_embeddings: usize,
    /// Standard deviation of random initial weights.
    pub initializer_range: f64,
    /// End-of-text tokens in `config.json`.
    pub eos_token_ids: Vec<u32>,
    /// Soft cap of attention scores, before the mask (`tanh(s / cap) · cap`).
    pub attention_soft_cap: Option<f64>,
    /// Soft cap of the logits.
    pub logit_soft_cap: Option<f64>,
    /// Quantization of the checkpoint's linear layers.
    pub quantization: Option<BnbConfig>,
}

impl ModelConfig {
    /// Sizes that can't be used, alone or together.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
        ];
        for (key, _) in sizes.iter().filter(|(_, size)| *size == 0) {
            faults.push(format!("{key} is 0, expected at least 1"));
        }
        if self.num_key_value_heads > 0
            && !self.num_attention_heads.is_multiple_of(self.num_key_value_heads)
        {
            faults.push(format!(
                "num_attention_heads is {}, expected a multiple of num_key_value_heads ({})",
                self.num_attention_heads, self.num_key_value_heads
            ));
        }
        if !self.head_dim.is_multiple_of(2) {
            faults.push(format!("head_dim is {}, expected an even number", self.head_dim));
        }
        let caps = [
            ("attention_soft_cap", self.attention_soft_cap),
            ("logit_soft_cap", self.logit_soft_cap),
        ];
        for (name, cap) in caps {
            if let Some(cap) = cap.filter(|cap| !(cap.is_finite() && *cap > 0.0)) {
                faults.push(format!("{name} is {cap}, expected a number greater than 0"));
            }
        }
        if let RopeKind::LongRope { short_factor, long_factor, .. } = &self.rope.kind {
            for (key, factors) in [("short_factor", short_factor), ("long_factor", long_factor)] {
                if factors.len() != self.head_dim / 2 {
                    faults.push(format!(
                        "rope {key} has {} numbers, expected head_dim / 2 = {}",
                        factors.len(),
                        self.head_dim / 2
                    ));
                }
            }
        }
        faults
    }

    /// How attention scores are computed from the dot products of queries and keys.
    pub fn scoring(&self) -> Scoring {
        let scale = 1.0 / (self.head_dim as f64).sqrt();
        Scoring { scale, soft_cap: self.attention_soft_cap }
    }

    /// The linear layers of a block, in the order of [`LinearRole::ALL`].
    pub fn block_linears(&self) -> [BlockLinear; 7] {
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let q = self.num_attention_heads * self.head_dim;
        let kv = self.num_key_value_heads * self.head_dim;
        LinearRole::ALL.map(|role| {
            let (d_out, d_in, bias) = match role {
                LinearRole::Query => (q, hidden, self.qkv_bias),
                LinearRole::Key | LinearRole::Value => (kv, hidden, self.qkv_bias),
                LinearRole::Output => (hidden, q, self.output_bias),
                LinearRole::Gate | LinearRole::Up => (inner, hidden, self.mlp_bias),
                LinearRole::Down => (hidden, inner, self.mlp_bias),
            };
            BlockLinear { role, d_out, d_in, bias }
        })
    }

    /// The linear layers of all blocks with their paths in the model. The head is not one of them.
    pub fn linears(&self) -> impl Iterator<Item = (String, BlockLinear)> {
        let linears = self.block_linears();
        (0..self.num_hidden_layers)
            .flat_map(move |block| linears.map(|linear| (linear.role.path_in(block), linear)))
    }

    /// Every tensor of the model's checkpoint: key and shape, in the order of the model.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let hidden = self.hidden_size;
        let mut tensors = vec![("model.embed_tokens.weight".into(), vec![self.vocab_size, hidden])];
        let mut linear = |path: String, d_out: usize, d_in: usize, bias: bool| {
            tensors.push((format!("{path}.weight"), vec![d_out, d_in]));
            if bias {
                tensors.push((format!("{path}.bias"), vec![d_out]));
            }
        };
        for (path, BlockLinear { d_out, d_in, bias, .. }) in self.linears() {
            linear(path, d_out, d_in, bias);
        }
        if !self.tie_word_embeddings {
            linear("lm_head".into(), self.vocab_size, hidden, false);
        }
        for layer in 0..self.num_hidden_layers {
            for norm in ["input_layernorm", "post_attention_layernorm"] {
                tensors.push((in_block(layer, &format!("{norm}.weight")), vec![hidden]));
            }
        }
        tensors.push(("model.norm.weight".into(), vec![hidden]));
        tensors
    }
}
