//! The whole model: embedding, blocks, head.

use burn::module::{Module, Param};
use burn::tensor::{DType, Int, Tensor, backend::Backend};
use emberlm_lora::{DropoutKey, Linear, NamedLinear, NamedTokenRows, TokenRows};
use emberlm_quant::portable::in_type;
use emberlm_quant::{QuantBackend, Quantization, Quantized, QuantizedMatrix, Weight};

use crate::{
    DecoderLayer, Inputs, Keep, KvCache, ModelBackend, RmsNorm, cross_entropy_sum, soft_capped,
};

/// A decoder-only language model.
///
/// The three parts [`embed`](Self::embed), [`DecoderLayer::forward`] and [`head`](Self::head) are public, because a
/// trainer with recomputation, or with logits at some positions only, calls them separately.
#[derive(Module, Debug)]
pub struct CausalLm<B: Backend> {
    /// Everything below the head.
    pub model: Decoder<B>,
    /// The output head, `[vocab, hidden]`; `None` if it shares the embedding's weight.
    pub lm_head: Option<Linear<B>>,
    /// Trained rows that replace rows of the head. A tied head uses the embedding's.
    pub head_tokens: Option<TokenRows<B>>,
    /// Soft cap of the logits.
    #[module(skip)]
    pub soft_cap: Option<f64>,
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

/// A table with a row per token.
#[derive(Module, Debug)]
pub struct Embedding<B: Backend> {
    /// `[vocab, hidden]`.
    pub weight: Param<Tensor<B, 2>>,
    /// Trained rows that replace rows of the table.
    pub tokens: Option<TokenRows<B>>,
}

impl<B: QuantBackend> Embedding<B> {
    /// `[batch, seq] -> [batch, seq, hidden]`, in the type of activations.
    pub fn forward(&self, ids: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        let [batch, seq] = ids.dims();
        let [_, hidden] = self.weight.dims();
        let ids = ids.reshape([batch * seq]);
        let found = self.weight.val().select(0, ids.clone());
        let found = match &self.tokens {
            // Trained rows have their own type, independent of the table's.
            Some(tokens) => tokens.replace_vectors(in_type(found, tokens.rows.val().dtype()), ids),
            None => found,
        };
        in_type(found, self.activation_type()).reshape([batch, seq, hidden])
    }

    /// The type of the residual stream and of activations.
    fn activation_type(&self) -> DType {
        B::activation_type(self.weight.val().dtype())
    }
}

impl<B: Backend> CausalLm<B> {
    /// Every linear layer with its path, mutable, for adapters. A tied head is not one of them.
    pub fn linears_mut(&mut self) -> Vec<NamedLinear<'_, B>> {
        let mut linears = Vec::new();
        for (i, layer) in self.model.layers.iter_mut().enumerate() {
            for (role, linear) in layer.linears_mut() {
                linears.push(NamedLinear { name: role.path_in(i), is_head: false, linear });
            }
        }
        if let Some(head) = &mut self.lm_head {
            linears.push(NamedLinear { name: "lm_head".into(), is_head: true, linear: head });
        }
        linears
    }

    /// Every linear layer with its path.
    pub fn linears(&self) -> Vec<(String, &Linear<B>)> {
        let blocks =
            self.model.layers.iter().enumerate().flat_map(|(i, layer)| {
                layer.linears().map(|(role, linear)| (role.path_in(i), linear))
            });
        blocks.chain(self.lm_head.iter().map(|head| ("lm_head".into(), head))).collect()
    }

    /// The quantized weights with the paths of their layers.
    pub fn quantized(&self) -> Vec<(String, &Quantized<B>)> {
        self.linears()
            .into_iter()
            .filter_map(|(name, linear)| match &linear.weight {
                Weight::Quantized(weight) => Some((name, weight)),
                Weight::Dense(_) => None,
            })
            .collect()
    }

    /// Separately trained token rows, with the paths of their tables.
    pub fn token_rows(&self) -> Vec<NamedTokenRows<'_, B>> {
        let embedding =
            self.model.embed_tokens.tokens.iter().map(|rows| ("model.embed_tokens", rows));
        let tables = embedding.chain(self.head_tokens.iter().map(|rows| ("lm_head", rows)));
        tables.map(|(name, rows)| NamedTokenRows { name: name.into(), rows }).collect()
    }

    /// The model's device.
    pub fn device(&self) -> B::Device {
        self.model.embed_tokens.weight.device()
    }
}

impl<B: QuantBackend> CausalLm<B> {
    /// The type of activations. Weights may have a smaller one.
    pub fn activation_type(&self) -> DType {
        self.model.embed_tokens.activation_type()
    }

    /// Merges adapters and token rows into dense weights; quantized weights are dequantized. Tied weights stay tied.
    pub fn merge(mut self) -> Self {
        for NamedLinear { linear, .. } in self.linears_mut() {
            *linear = linear.clone().merge();
        }
        self.merge_tokens()
    }

    /// Quantizes the dense weights of the linear layers, except the head and what `quantization` skips.
    pub fn quantize(mut self, quantization: &Quantization) -> Self {
        let device = self.device();
        for NamedLinear { name, is_head, linear } in self.linears_mut() {
            let Weight::Dense(weight) = &linear.weight else { continue };
            if is_head || quantization.skips(&name) {
                continue;
            }
            let (shape, values) = (weight.dims(), weight.val().into_data());
            let values: Vec<f32> = values.iter::<f32>().collect();
            let matrix = QuantizedMatrix::quantize(&values, shape, quantization);
            linear.weight = Weight::Quantized(Quantized::new(matrix, &device));
        }
        self
    }
}

impl<B: ModelBackend> CausalLm<B> {
    /// Tokens to the residual stream: `[batch, seq, hidden]`.
    pub fn embed(&self, inputs: &Inputs<B>) -> Tensor<B, 3> {
        let embedded = self.model.embed_tokens.forward(inputs.ids.clone());
        match &inputs.noise {
            Some(noise) => {
                let noise = in_type(noise.clone(), embedded.dtype());
                embedded + noise
            }
            None => embedded,
        }
    }

    /// Embedding and blocks: `[batch, seq, hidden]`, before the final norm.
    pub fn hidden(&self, inputs: &Inputs<B>, dropout: Option<&DropoutKey>) -> Tensor<B, 3> {
        let embedded = self.embed(inputs);
        self.model.layers.iter().fold(embedded, |x, layer| layer.forward(x, inputs, dropout))
    }

    /// As [`hidden`](Self::hidden), for tokens that follow the cached ones; appends them to `cache`.
    pub fn hidden_with_cache(&self, inputs: &Inputs<B>, cache: &mut KvCache<B>) -> Tensor<B, 3> {
        let mut x = self.embed(inputs);
        for (i, layer) in self.model.layers.iter().enumerate() {
            x = layer.forward_with_cache(x, inputs, Some(cache.layer(i)), None);
        }
        x
    }

    /// Final norm, head and soft cap: `[rows, hidden] -> [rows, vocab]`.
    pub fn head(&self, hidden: Tensor<B, 2>) -> Tensor<B, 2> {
        soft_capped(self.uncapped(hidden), self.soft_cap)
    }

    /// The sum of the losses of rows whose next tokens are `targets`, in nats: `[rows, hidden] -> [1]`.
    ///
    /// # Panics
    /// If the number of targets isn't the number of rows.
    pub fn loss_sum(&self, hidden: Tensor<B, 2>, targets: &[u32]) -> Tensor<B, 1> {
        cross_entropy_sum(self.uncapped(hidden), targets, self.soft_cap)
    }

    /// The logits before their soft cap.
    fn uncapped(&self, hidden: Tensor<B, 2>) -> Tensor<B, 2> {
        let normed = self.model.norm.forward(hidden, Keep::All);
        let (logits, tokens) = match &self.lm_head {
            Some(head) => (head.forward(normed.clone(), None), &self.head_tokens),
            None => {
                let Embedding { weight, tokens } = &self.model.embed_tokens;
                (B::matmul_dense(normed.clone(), weight.val()), tokens)
            }
        };
        match tokens {
            Some(tokens) => {
                let rows = tokens.rows.val();
                let dtype = rows.dtype();
                let own = B::matmul_dense(in_type(normed, dtype), rows);
                tokens.replace_logits(in_type(logits, dtype), own)
            }
            None => logits,
        }
    }

    /// Logits at every position: `[batch, seq, vocab]`. For small inputs: training never computes all logits.
    pub fn logits(&self, inputs: &Inputs<B>) -> Tensor<B, 3> {
        let hidden = self.hidden(inputs, None);
        let [batch, seq, width] = hidden.dims();
        let logits = self.head(hidden.reshape([batch * seq, width]));
        let [_, vocab] = logits.dims();
        logits.reshape([batch, seq, vocab])
    }
}
