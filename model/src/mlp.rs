//! The gated feed-forward.

use burn::module::Module;
use burn::tensor::{Tensor, backend::Backend};
use emberlm_lora::{DropoutKey, Linear};

use crate::{Activation, ModelBackend};

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
    /// `[batch, seq, hidden] -> [batch, seq, hidden]`.
    pub fn forward(&self, x: Tensor<B, 3>, dropout: Option<&DropoutKey>) -> Tensor<B, 3> {
        let [batch, seq, hidden] = x.dims();
        let x = x.reshape([batch * seq, hidden]);
        let gate = self.gate_proj.forward(x.clone(), dropout);
        let up = self.up_proj.forward(x, dropout);
        let inner = B::gated(gate, up, self.activation);
        self.down_proj.forward(inner, dropout).reshape([batch, seq, hidden])
    }
}
