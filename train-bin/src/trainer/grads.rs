//! Gradients by name: their sum over chunks and micro-batches, norms and clipping.

use std::collections::BTreeMap;

use burn::module::{Module, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Tensor, backend::Backend};
use emberlm_lora::walk::{ParamVisitor, for_each_param};

/// The gradient of one parameter, flattened: norms and optimizers need no shape.
#[derive(Debug, Clone)]
pub struct Gradient<B: Backend> {
    /// The parameter's id in Burn.
    pub id: ParamId,
    /// `[elements]`, row-major.
    pub value: Tensor<B, 1>,
}

/// Gradients of a model's trainable parameters, by name.
#[derive(Debug, Clone)]
pub struct Gradients<B: Backend> {
    by_name: BTreeMap<String, Gradient<B>>,
}

impl<B: Backend> Default for Gradients<B> {
    fn default() -> Self {
        Self { by_name: BTreeMap::new() }
    }
}

impl<B: Backend> Gradients<B> {
    /// Adds the gradients that a backward pass left for `module`, the part of the model at the path `prefix`.
    pub fn collect<A, M>(
        &mut self,
        prefix: &str,
        module: &M,
        mut found: A::Gradients,
    ) -> A::Gradients
    where
        A: AutodiffBackend<InnerBackend = B>,
        M: Module<A>,
    {
        struct Collect<'a, A: AutodiffBackend> {
            prefix: &'a str,
            found: &'a mut A::Gradients,
            into: &'a mut BTreeMap<String, Gradient<A::InnerBackend>>,
        }
        impl<A: AutodiffBackend> ParamVisitor<A> for Collect<'_, A> {
            fn param<const D: usize>(&mut self, name: &str, param: &Param<Tensor<A, D>>) {
                let Some(gradient) = param.val().grad_remove(self.found) else { return };
                let elements = gradient.shape().num_elements();
                let value = gradient.reshape([elements]);
                let name = match self.prefix {
                    "" => name.to_string(),
                    prefix => format!("{prefix}.{name}"),
                };
                match self.into.remove(&name) {
                    None => self.into.insert(name, Gradient { id: param.id, value }),
                    Some(old) => {
                        self.into.insert(name, Gradient { id: param.id, value: old.value + value })
                    }
                };
            }
        }
        let mut walk = Collect::<A> { prefix, found: &mut found, into: &mut self.by_name };
        for_each_param(module, &mut walk);
        found
    }

    /// Adds `other · factor`.
    pub fn add_scaled(&mut self, other: Self, factor: f64) {
        for (name, Gradient { id, value }) in other.by_name {
            let scaled = value * factor;
            let value = match self.by_name.remove(&name) {
                None => scaled,
                Some(old) => old.value + scaled,
            };
            self.by_name.insert(name, Gradient { id, value });
        }
    }

    /// Names and gradients, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Gradient<B>)> {
        self.by_name.iter().map(|(name, gradient)| (name.as_str(), gradient))
    }

    /// The gradient of a parameter, if it received one.
    pub fn get(&self, name: &str) -> Option<&Gradient<B>> {
        self.by_name.get(name)
    }

    /// The Euclidean norm of all gradients as one vector, by which Hugging Face's Trainer clips.
    pub fn norm(&self) -> f64 {
        self.squares().iter().sum::<f64>().sqrt()
    }

    /// The Euclidean norm of each gradient, in the order of their names.
    pub fn norms(&self) -> Vec<f64> {
        self.squares().into_iter().map(f64::sqrt).collect()
    }

    /// The sum of squares of each gradient, in the order of their names.
    fn squares(&self) -> Vec<f64> {
        let squares: Vec<Tensor<B, 1>> =
            self.by_name.values().map(|g| g.value.clone().powi_scalar(2).sum()).collect();
        if squares.is_empty() {
            return Vec::new();
        }
        // One transfer from the device for all tensors.
        Tensor::cat(squares, 0).into_data().iter::<f64>().collect()
    }

    /// Multiplies each gradient by its factor, in the order of their names.
    pub fn scale(&mut self, factors: &[f64]) {
        for (gradient, &factor) in self.by_name.values_mut().zip(factors) {
            if factor != 1.0 {
                gradient.value = gradient.value.clone() * factor;
            }
        }
    }

    /// Scales all gradients so that their norm, presently `norm`, is at most `max_norm`, as
    /// `torch.nn.utils.clip_grad_norm_` does.
    pub fn clip(&mut self, norm: f64, max_norm: f64) {
        let factor = max_norm / (norm + 1e-6);
        if factor < 1.0 {
            for gradient in self.by_name.values_mut() {
                gradient.value = gradient.value.clone() * factor;
            }
        }
    }

    /// The first parameter by name whose gradient contains NaN or infinity.
    pub fn first_non_finite(&self) -> Option<&str> {
        self.iter().find(|(_, g)| !all_finite(g.value.clone())).map(|(name, _)| name)
    }

    /// The gradients in the form of Burn's own optimizers.
    pub fn into_burn<A, M>(self, model: &M) -> GradientsParams
    where
        A: AutodiffBackend<InnerBackend = B>,
        M: Module<A>,
    {
        struct Shape<'a, B: Backend> {
            gradients: &'a BTreeMap<String, Gradient<B>>,
            into: GradientsParams,
        }
        impl<A: AutodiffBackend> ParamVisitor<A> for Shape<'_, A::InnerBackend> {
            fn param<const D: usize>(&mut self, name: &str, param: &Param<Tensor<A, D>>) {
                if let Some(gradient) = self.gradients.get(name) {
                    let value = gradient.value.clone().reshape(param.shape());
                    self.into.register::<A::InnerBackend, D>(param.id, value);
                }
            }
        }
        let mut walk = Shape { gradients: &self.by_name, into: GradientsParams::new() };
        for_each_param::<A, M>(model, &mut walk);
        walk.into
    }
}

/// Whether a tensor has neither NaN nor infinity. Reads one number from the device.
pub fn all_finite<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> bool {
    // x · 0 is 0 for every finite x and NaN for all others, so nothing can overflow in the sum.
    let sum = (tensor * 0.0).sum().into_data();
    sum.iter::<f64>().all(|value| value == 0.0)
}
