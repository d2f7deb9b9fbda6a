//! The kernels under `Fusion`: each one a custom operation that runs later on the inner backend.
//!
//! An operation is registered with its output types, which must equal those of the kernels, or of the portable
//! operations without a kernel.

use std::sync::Arc;

use burn::tensor::{Int, Tensor};
use burn_fusion::{Fusion, FusionBackend};
use emberlm_quant::fusion::{FusedOp, primitive, tensor};

use super::launch::sum_type;
use crate::AttentionGradients;
use crate::{Activation, AttentionMask, ModelBackend, Scoring};

impl<B: FusionBackend + ModelBackend> ModelBackend for Fusion<B> {
    fn rms_norm(x: Tensor<Self, 2>, weight: Tensor<Self, 1>, eps: f64) -> Tensor<Self, 2> {
        let outputs = [(x.shape(), x.dtype())];
        let op = FusedOp::<B>::new("rms_norm").float(x).float(weight);
        let [y] = op.register(outputs, move |inputs| {
            [primitive(B::rms_norm(inputs.float(), inputs.float(), eps))]
        });
        tensor(y)
    }

    fn rms_norm_backward(
        x: Tensor<Self, 2>,
        weight: Tensor<Self, 1>,
        grad: Tensor<Self, 2>,
        eps: f64,
    ) -> (Tensor<Self, 2>, Tensor<Self, 1>) {
        let outputs = [(x.shape(), x.dtype()), (weight.shape(), weight.dtype())];
        let op = FusedOp::<B>::new("rms_norm_backward").float(x).float(weight).float(grad);
        let [d_x, d_weight] = op.register(outputs, move |inputs| {
            let (x, weight, grad) = (inputs.float(), inputs.float(), inputs.float());
            let (d_x, d_weight) = B::rms_norm_backward(x, weight, grad, eps);
            [primitive(d_x), primitive(d_weight)]
        });
        (tensor(d_x), tensor(d_weight))
    }

    fn layer_norm_forward(
        x: Tensor<Self, 2>,
        weight: Tensor<Self, 1>,
        bias: Tensor<Self, 1>,
        eps: f64,
    ) -> Tensor<Self, 2> {
        let outputs = [(x.shape(), x.dtype())];
        let op = FusedOp::<B>::new("layer_norm").float(x).float(weight).float(bias);
        let [y] = op.register(outputs, move |inputs| {
            let (x, weight, bias) = (inputs.float(), inputs.float(), inputs.float());
            [primitive(B::layer_norm_forward(x, weight, bias, eps))]
        });
        tensor(y)
    }

    fn layer_norm_backward(
        x: Tensor<Self, 2>,
        weight: Tensor<Self, 1>,
        grad: Tensor<Self, 2>,
        eps: f64,
    ) -> (Tensor<Self, 2>, Tensor<Self, 1>, Tensor<Self, 1>) {
        let of_weight = (weight.shape(), weight.dtype());
        let outputs = [(x.shape(), x.dtype()), of_weight.clone(), of_weight];
        let op = FusedOp::<B>::new("layer_norm_backward").float(x).float(weight).float(grad);
        let [d_x, d_weight, d_bias] = op.register(outputs, move |inputs| {
            let (x, weight, grad) = (inputs.float(), inputs.float(), inputs.float());
            let (d_x, d_weight, d_bias) = B::layer_norm_backward(x, weight, grad, eps);
            [primitive(d_x), primitive(d_weight), primitive(d_bias)]
        });
        (tensor(d_x), tensor(d_weight), tensor(d_bias))
    }

    fn rotate_half(
        x: Tensor<Self, 4>,
        cos: Tensor<Self, 4>,
        sin: Tensor<Self, 4>,
    ) -> Tensor<Self, 4> {
        let outputs = [(x.shape(), x.dtype())];
        let op = FusedOp::<B>::new("rotate_half").float(x).float(cos).float(sin);
        let [y] = op.register(outputs, move |inputs| {
            [primitive(B::rotate_half(inputs.float(), inputs.float(), inputs.float()))]
        });
        tensor(y)
    }

    fn gated(
        gate: Tensor<Self, 2>,
        up: Tensor<Self, 2>,
        activation: Activation,
    ) -> Tensor<Self, 2> {
        let outputs = [(gate.shape(), gate.dtype())];
        let op = FusedOp::<B>::new("gated").float(gate).float(up);
        let [y] = op.register(outputs, move |inputs| {
            [primitive(B::gated(inputs.float(), inputs.float(), activation))]
        });
        tensor(y)
    }

    fn gated_backward(
        gate: Tensor<Self, 2>,
        up: Tensor<Self, 2>,
        grad: Tensor<Self, 2>,
        activation: Activation,
    ) -> (Tensor<Self, 2>, Tensor<Self, 2>) {
        let outputs = [(gate.shape(), gate.dtype()), (up.shape(), up.dtype())];
        let op = FusedOp::<B>::new("gated_backward").float(gate).float(up).float(grad);
        let [d_gate, d_up] = op.register(outputs, move |inputs| {
            let (gate, up, grad) = (inputs.float(), inputs.float(), inputs.float());
            let (d_gate, d_up) = B::gated_backward(gate, up, grad, activation);
            [primitive(d_gate), primitive(d_up)]
        });
        (tensor(d_gate), tensor(d_up))
    }

    fn attention_forward(
        q: Tensor<Self, 4>,
        k: Tensor<Self, 4>,
        v: Tensor<Self, 4>,
        mask: &Arc<AttentionMask>,
        scoring: Scoring,
    ) -> (Tensor<Self, 4>, Tensor<Self, 3>) {
        let [batch, heads, seq, _] = q.dims();
        let outputs = [(q.shape(), q.dtype()), ([batch, heads, seq].into(), sum_type(q.dtype()))];
        let mask = mask.clone();
        let op = FusedOp::<B>::new("attention").float(q).float(k).float(v);
        let [out, log_sum] = op.register(outputs, move |inputs| {
            let (q, k, v) = (inputs.float(), inputs.float(), inputs.float());
            let (out, log_sum) = B::attention_forward(q, k, v, &mask, scoring);
            [primitive(out), primitive(log_sum)]
        });
        (tensor(out), tensor(log_sum))
    }

    fn attention_backward(
        q: Tensor<Self, 4>,
        k: Tensor<Self, 4>,
        v: Tensor<Self, 4>,
        out: Tensor<Self, 4>,
        log_sum: Tensor<Self, 3>,
        grad: Tensor<Self, 4>,
        mask: &Arc<AttentionMask>,
        scoring: Scoring,
    ) -> AttentionGradients<Self> {
        let outputs = [&q, &k, &v].map(|x| (x.shape(), x.dtype()));
        let mask = mask.clone();
        let op = FusedOp::<B>::new("attention_backward").float(q).float(k).float(v);
        let op = op.float(out).float(log_sum).float(grad);
        let gradients = op.register(outputs, move |inputs| {
            let (q, k, v) = (inputs.float(), inputs.float(), inputs.float());
            let (out, log_sum, grad) = (inputs.float(), inputs.float(), inputs.float());
            let AttentionGradients { d_q, d_k, d_v } =
                B::attention_backward(q, k, v, out, log_sum, grad, &mask, scoring);
            [d_q, d_k, d_v].map(primitive)
        });
        let [d_q, d_k, d_v] = gradients.map(tensor);
        AttentionGradients { d_q, d_k, d_v }
    }

    fn cross_entropy_sum(
        logits: Tensor<Self, 2>,
        targets: Tensor<Self, 1, Int>,
        soft_cap: Option<f64>,
    ) -> Tensor<Self, 1> {
        let outputs = [([1].into(), sum_type(logits.dtype()))];
        let op = FusedOp::<B>::new("cross_entropy").float(logits).int(targets);
        let [sum] = op.register(outputs, move |inputs| {
            [primitive(B::cross_entropy_sum(inputs.float(), inputs.int(), soft_cap))]
        });
        tensor(sum)
    }

    fn cross_entropy_with_grad(
        logits: Tensor<Self, 2>,
        targets: Tensor<Self, 1, Int>,
        soft_cap: Option<f64>,
    ) -> (Tensor<Self, 1>, Tensor<Self, 2>) {
        let outputs = [([1].into(), sum_type(logits.dtype())), (logits.shape(), logits.dtype())];
        let op = FusedOp::<B>::new("cross_entropy_with_grad").float(logits).int(targets);
        let [sum, gradient] = op.register(outputs, move |inputs| {
            let (sum, gradient) =
                B::cross_entropy_with_grad(inputs.float(), inputs.int(), soft_cap);
            [primitive(sum), primitive(gradient)]
        });
        (tensor(sum), tensor(gradient))
    }
}
