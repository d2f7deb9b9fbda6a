//! The KV cache for generation.

use burn::tensor::{Tensor, backend::Backend};

/// The keys and values of one block: `[batch, kv_heads, tokens, head_dim]`, keys after rotation.
pub(crate) type LayerCache<B> = Option<(Tensor<B, 4>, Tensor<B, 4>)>;

/// The KV cache of all blocks. The caller owns it; the model appends to it.
#[derive(Debug, Clone)]
pub struct KvCache<B: Backend> {
    layers: Vec<LayerCache<B>>,
}

impl<B: Backend> KvCache<B> {
    /// An empty cache for a model of `layers` blocks.
    pub fn new(layers: usize) -> Self {
        Self { layers: vec![None; layers] }
    }

    /// Number of cached tokens.
    pub fn len(&self) -> usize {
        let first = self.layers.first().and_then(Option::as_ref);
        first.map_or(0, |(keys, _)| {
            let [_, _, tokens, _] = keys.dims();
            tokens
        })
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn layer(&mut self, index: usize) -> &mut LayerCache<B> {
        &mut self.layers[index]
    }
}

/// Appends keys and values to a block's cache and returns the whole cache.
pub(crate) fn extend<B: Backend>(
    cache: &mut LayerCache<B>,
    keys: Tensor<B, 4>,
    values: Tensor<B, 4>,
) -> (Tensor<B, 4>, Tensor<B, 4>) {
    let all = match cache.take() {
        None => (keys, values),
        Some((old_keys, old_values)) => {
            (Tensor::cat(vec![old_keys, keys], 2), Tensor::cat(vec![old_values, values], 2))
        }
    };
    cache.insert(all).clone()
}
