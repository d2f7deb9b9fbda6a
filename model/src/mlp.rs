//! The gated feed-forward.

use burn::module::Module;
use burn::tensor::{Tensor, backend::Backend};
use emberlm_lora::{DropoutKey, Linear};

use crate::{Activation, Keep, ModelBackend};

/// `down(activation(gate(x)) · up(x))`.
#[derive(Module, Debug)]
pub struct Mlp<B: Backend> {
    /// `[inner, hidden]`.
    pub gate_proj: Linear<B>,
    /// `[inner, hidden]`.
    pub up_proj: Linear<B>,
    /// `[hidden, inner]`.
    pub down_proj: Linear<B>,
    #[module(skip)]
    pub(crate) activation: Activation,
}

impl<B: ModelBackend> Mlp<B> {
    /// `[tokens, hidden] -> [tokens, hidden]`.
    pub fn forward(
        &self,
        x: Tensor<B, 2>,
        keep: Keep,
        dropout: Option<&DropoutKey>,
    ) -> Tensor<B, 2> {
        let gate = self.gate_proj.forward(x.clone(), dropout);
        let up = self.up_proj.forward(x, dropout);
        let inner = match keep {
            Keep::All => B::gated(gate, up, self.activation),
            Keep::Costly => B::gated_recomputed(gate, up, self.activation),
        };
        self.down_proj.forward(inner, dropout)
    }
}
