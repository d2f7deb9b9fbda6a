//! A LoRA adapter: the two factors of a linear layer's delta.

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Tensor, backend::Backend};
use emberlm_quant::host::float_tensor;

use crate::random::{generator, uniform};
use crate::{AdapterParam, AdapterRole, AdapterShape, Dropout, DropoutKey, LoraBackend};

/// The delta `B · A · scaling` of a linear layer.
#[derive(Module, Debug)]
pub struct Adapter<B: Backend> {
    /// `[r, d_in]`.
    pub lora_a: Param<Tensor<B, 2>>,
    /// `[d_out, r]`.
    pub lora_b: Param<Tensor<B, 2>>,
    /// `alpha / r`, or `alpha / √r` for rsLoRA.
    pub scaling: f64,
    /// Probability of dropping an input feature of the delta in training.
    pub dropout: f64,
    /// The linear layer's path, part of the seed of its random numbers.
    #[module(skip)]
    pub site: String,
}

impl<B: Backend> Adapter<B> {
    /// A fresh adapter: A from PEFT's uniform distribution (Kaiming with a = √5, which is ±1/√d_in), B = 0, so that the
    /// layer's output is unchanged until B is trained.
    ///
    /// A depends only on `seed` and `site`, not on which other layers have adapters.
    pub fn fresh(site: &str, shape: AdapterShape, seed: u64, device: &B::Device) -> Self {
        let bound = 1.0 / (shape.d_in as f32).sqrt();
        let initial = |param: &AdapterParam| {
            let elements = param.shape(&shape).iter().product();
            match param.role {
                AdapterRole::A => uniform(&mut generator(seed, site, &[]), elements, bound),
                AdapterRole::B => vec![0.0; elements],
            }
        };
        let values = shape.params().iter().map(initial).collect();
        Self::from_values(site, shape, values, device)
    }

    /// A trainable adapter. `values`: one row-major list for each of [`AdapterShape::params`].
    ///
    /// # Panics
    /// If the number of lists or of their values does not match `shape`.
    pub fn from_values(
        site: &str,
        shape: AdapterShape,
        values: Vec<Vec<f32>>,
        device: &B::Device,
    ) -> Self {
        let AdapterShape { d_out, d_in, r, scaling, dropout } = shape;
        let [a, b]: [Vec<f32>; 2] = values.try_into().expect("one list of values a parameter");
        let param = |values, shape: [usize; 2]| {
            let tensor = float_tensor::<B, 2>(values, shape, device);
            Param::initialized(ParamId::new(), tensor.require_grad())
        };
        Self {
            lora_a: param(a, [r, d_in]),
            lora_b: param(b, [d_out, r]),
            scaling,
            dropout,
            site: site.into(),
        }
    }

    /// Its sizes and constants.
    pub fn shape(&self) -> AdapterShape {
        let ([r, d_in], [d_out, _]) = (self.lora_a.dims(), self.lora_b.dims());
        AdapterShape { d_out, d_in, r, scaling: self.scaling, dropout: self.dropout }
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

#[cfg(test)]
mod tests {
    use burn_ndarray::NdArray;

    use super::*;
    use crate::walk::{ParamVisitor, for_each_param};

    #[test]
    fn every_parameter_is_listed_with_its_shape() {
        struct Found(Vec<(String, Vec<usize>)>);
        impl<B: Backend> ParamVisitor<B> for Found {
            fn param<const D: usize>(&mut self, name: &str, param: &Param<Tensor<B, D>>) {
                self.0.push((name.into(), param.dims().to_vec()));
            }
        }
        let shape = AdapterShape { d_out: 5, d_in: 3, r: 2, scaling: 1.0, dropout: 0.0 };
        let adapter = Adapter::<NdArray<f32>>::fresh("q_proj", shape, 0, &Default::default());
        let mut found = Found(Vec::new());
        for_each_param(&adapter, &mut found);
        let listed: Vec<_> =
            shape.params().iter().map(|p| (p.name.to_owned(), p.shape(&shape))).collect();
        assert_eq!(found.0, listed);
        assert_eq!(adapter.shape(), shape);
        assert_eq!(shape.elements(), 2 * 3 + 5 * 2);
        for param in shape.params() {
            let path = format!("model.layers.0.self_attn.q_proj.adapter.{}", param.name);
            assert_eq!(AdapterParam::at_path(&path).map(|p| p.role), Some(param.role));
        }
        assert!(AdapterParam::at_path("model.layers.0.self_attn.q_proj.weight").is_none());
    }
}
