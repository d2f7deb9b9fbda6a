//! One adapter: the two factors of a linear layer's delta.

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Tensor, backend::Backend};
use emberlm_quant::host::float_tensor;

use crate::random::{generator, uniform};
use crate::{Dropout, DropoutKey, LoraBackend};

/// The delta `B · A · scaling` of a linear layer.
#[derive(Module, Debug)]
pub struct Adapter<B: Backend> {
    /// `[r, d_in]`.
    pub lora_a: Param<Tensor<B, 2>>,
    /// `[d_out, r]`.
    pub lora_b: Param<Tensor<B, 2>>,
    /// `alpha / r`, or `alpha / √r` for rsLoRA.
    pub scaling: f64,
    /// Probability that an input feature is dropped on its way into the delta, in training.
    pub dropout: f64,
    /// The path of the linear layer; it tells its random numbers from those of others.
    #[module(skip)]
    pub site: String,
}

impl<B: Backend> Adapter<B> {
    /// A fresh adapter: A from the uniform distribution that PEFT uses (Kaiming with a = √5, that is ±1/√d_in), B = 0,
    /// so that the layer's output is unchanged until B is trained.
    ///
    /// A depends on `seed` and `site` alone, not on which other layers have adapters.
    pub fn fresh(site: &str, shape: AdapterShape, seed: u64, device: &B::Device) -> Self {
        let AdapterShape { d_out, d_in, r, .. } = shape;
        let bound = 1.0 / (d_in as f32).sqrt();
        let a = uniform(&mut generator(seed, site, &[]), r * d_in, bound);
        Self::from_values(site, shape, a, vec![0.0; d_out * r], device)
    }

    /// An adapter with given factors, row-major; trainable.
    pub fn from_values(
        site: &str,
        shape: AdapterShape,
        lora_a: Vec<f32>,
        lora_b: Vec<f32>,
        device: &B::Device,
    ) -> Self {
        let AdapterShape { d_out, d_in, r, scaling, dropout } = shape;
        let param = |values, shape: [usize; 2]| {
            let tensor = float_tensor::<B, 2>(values, shape, device);
            Param::initialized(ParamId::new(), tensor.require_grad())
        };
        Self {
            lora_a: param(lora_a, [r, d_in]),
            lora_b: param(lora_b, [d_out, r]),
            scaling,
            dropout,
            site: site.into(),
        }
    }

    /// `B · A · scaling`: `[d_out, d_in]`.
    pub fn delta(&self) -> Tensor<B, 2> {
        self.lora_b.val().matmul(self.lora_a.val()) * self.scaling
    }
}

impl<B: LoraBackend> Adapter<B> {
    /// `base + delta(x)`, with `base` and the output `[tokens, d_out]` and `x` `[tokens, d_in]`.
    pub(crate) fn add_to(
        &self,
        base: Tensor<B, 2>,
        x: Tensor<B, 2>,
        dropout: Option<&DropoutKey>,
    ) -> Tensor<B, 2> {
        let dropout = dropout.filter(|_| self.dropout > 0.0).map(|&key| Dropout {
            key,
            p: self.dropout,
            site: self.site.clone(),
        });
        B::add_delta(base, x, self.lora_a.val(), self.lora_b.val(), self.scaling, dropout)
    }
}

/// The sizes and constants of an adapter.
#[derive(Debug, Clone, Copy)]
pub struct AdapterShape {
    /// Output features of the layer.
    pub d_out: usize,
    /// Input features of the layer.
    pub d_in: usize,
    /// Rank.
    pub r: usize,
    /// Factor on the delta.
    pub scaling: f64,
    /// Dropout probability on the delta's input.
    pub dropout: f64,
}
