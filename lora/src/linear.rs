//! The linear layer: weight × optional bias × optional adapter.

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Tensor, backend::Backend};
use emberlm_quant::portable::in_type;
use emberlm_quant::{QuantBackend, Weight};

use crate::{Adapter, DropoutKey, LoraBackend};

/// A linear layer. Its parts vary independently.
#[derive(Module, Debug)]
pub struct Linear<B: Backend> {
    /// `[d_out, d_in]`.
    pub weight: Weight<B>,
    /// `[d_out]`.
    pub bias: Option<Param<Tensor<B, 1>>>,
    /// The LoRA adapter.
    pub adapter: Option<Adapter<B>>,
}

impl<B: Backend> Linear<B> {
    /// A frozen layer without an adapter. `weight`: `[d_out, d_in]`, `bias`: `[d_out]`.
    pub fn new(weight: Weight<B>, bias: Option<Tensor<B, 1>>) -> Self {
        Self {
            weight,
            bias: bias.map(|bias| Param::initialized(ParamId::new(), bias)),
            adapter: None,
        }
    }

    /// `[d_out, d_in]`.
    pub fn dims(&self) -> [usize; 2] {
        self.weight.dims()
    }
}

impl<B: QuantBackend> Linear<B> {
    /// The dense weight with the adapter's delta added: `[d_out, d_in]`, in the adapter's type, if there is one: a
    /// 16-bit weight is too coarse for the delta.
    pub fn merged_weight(&self) -> Tensor<B, 2> {
        let weight = self.weight.to_dense();
        match &self.adapter {
            Some(adapter) => {
                let delta = adapter.delta();
                in_type(weight, delta.dtype()) + delta
            }
            None => weight,
        }
    }

    /// Merges the adapter into a dense weight; a quantized weight is dequantized.
    pub fn merge(self) -> Self {
        match (&self.weight, &self.adapter) {
            (Weight::Dense(_), None) => self,
            _ => {
                Self { weight: Weight::dense(self.merged_weight()), bias: self.bias, adapter: None }
            }
        }
    }
}

impl<B: LoraBackend> Linear<B> {
    /// `[tokens, d_in] -> [tokens, d_out]`. `dropout` is given in training only.
    pub fn forward(&self, x: Tensor<B, 2>, dropout: Option<&DropoutKey>) -> Tensor<B, 2> {
        let base = self.weight.matmul(x.clone());
        let y = match &self.adapter {
            Some(adapter) => adapter.add_to(base, x, dropout),
            None => base,
        };
        match &self.bias {
            Some(bias) => y + bias.val().unsqueeze(),
            None => y,
        }
    }
}
