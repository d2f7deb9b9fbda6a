//! Decoder operations under autodiff: nodes that save only what their gradients need.
//!
//! Each forward runs on the inner backend, with its kernel; each backward calls the `_backward` of [`ModelBackend`],
//! again on the inner backend. Saved for backward: the input of norms; the angles of rotate_half; the two inputs of
//! gated; attention's q, k, v, output and one number per query; cross-entropy's gradient, which is computed together
//! with the loss.
//!
//! The `_recomputed` operations are "memory-bound" in Burn's terms: with
//! [`BalancedCheckpointing`](burn_autodiff::checkpoint::strategy::BalancedCheckpointing) their outputs are recomputed
//! when backward first needs them, and dropped after the last use.

use std::marker::PhantomData;
use std::sync::Arc;

use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{Int, Tensor, TensorPrimitive};
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::retro_forward::RetroForward;
use burn_autodiff::checkpoint::state::BackwardStates;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, ComputePropertyDone, Ops, OpsKind, OpsPrep};
use burn_autodiff::{Autodiff, NodeId};

use crate::AttentionGradients;
use crate::{Activation, AttentionMask, ModelBackend, Scoring};

impl<B: ModelBackend, C: CheckpointStrategy> ModelBackend for Autodiff<B, C> {
    fn rms_norm(x: Tensor<Self, 2>, weight: Tensor<Self, 1>, eps: f64) -> Tensor<Self, 2> {
        let (x, weight) = (primitive(x), primitive(weight));
        let node = RmsNorm.prepare::<C>([x.node.clone(), weight.node.clone()]).compute_bound();
        norm_node(node, x, weight, eps)
    }

    fn rms_norm_recomputed(
        x: Tensor<Self, 2>,
        weight: Tensor<Self, 1>,
        eps: f64,
    ) -> Tensor<Self, 2> {
        let (x, weight) = (primitive(x), primitive(weight));
        let recompute = NormRecompute::<B> { x: x.node.id, weight: weight.primitive.clone(), eps };
        let node = RmsNorm.prepare::<C>([x.node.clone(), weight.node.clone()]);
        // The weight is part of `recompute`: as a parent, a frozen weight would prevent recomputation.
        let node = node.memory_bound().retro_forward(recompute).parents([&x]);
        norm_node(node, x, weight, eps)
    }

    fn layer_norm_forward(
        x: Tensor<Self, 2>,
        weight: Tensor<Self, 1>,
        bias: Tensor<Self, 1>,
        eps: f64,
    ) -> Tensor<Self, 2> {
        let (x, weight, bias) = (primitive(x), primitive(weight), primitive(bias));
        let nodes = [x.node.clone(), weight.node.clone(), bias.node.clone()];
        let forward = |x, weight, bias| {
            primitive(B::layer_norm_forward(tensor(x), tensor(weight), tensor(bias), eps))
        };
        tensor(match LayerNorm.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let state = (prep.checkpoint(&x), prep.checkpoint(&weight), eps);
                prep.finish(state, forward(x.primitive, weight.primitive, bias.primitive))
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(forward(x.primitive, weight.primitive, bias.primitive))
            }
        })
    }

    fn residual(x: Tensor<Self, 3>, y: Tensor<Self, 2>) -> Tensor<Self, 3> {
        let dims = y.dims();
        let (x, y) = (primitive(x), primitive(y));
        let node = Residual.prepare::<C>([x.node.clone(), y.node.clone()]).compute_bound();
        let sum = primitive(B::residual(tensor(x.primitive), tensor(y.primitive)));
        tensor(match node.stateful() {
            OpsKind::Tracked(prep) => prep.finish(dims, sum),
            OpsKind::UnTracked(prep) => prep.finish(sum),
        })
    }

    fn split_heads(x: Tensor<Self, 2>, dims: [usize; 4]) -> Tensor<Self, 4> {
        let x = primitive(x);
        let node = SplitHeads.prepare::<C>([x.node.clone()]).compute_bound();
        tensor(node.stateless(primitive(B::split_heads(tensor(x.primitive), dims))))
    }

    fn rotate_half(
        x: Tensor<Self, 4>,
        cos: Tensor<Self, 4>,
        sin: Tensor<Self, 4>,
    ) -> Tensor<Self, 4> {
        let x = primitive(x);
        let (cos, sin) = (primitive(cos).primitive, primitive(sin).primitive);
        let forward = |x, cos, sin| primitive(B::rotate_half(tensor(x), tensor(cos), tensor(sin)));
        let node = Rotate.prepare::<C>([x.node.clone()]).compute_bound();
        tensor(match node.stateful() {
            OpsKind::Tracked(prep) => {
                let y = forward(x.primitive, cos.clone(), sin.clone());
                prep.finish((cos, sin), y)
            }
            OpsKind::UnTracked(prep) => prep.finish(forward(x.primitive, cos, sin)),
        })
    }

    fn gated(
        gate: Tensor<Self, 2>,
        up: Tensor<Self, 2>,
        activation: Activation,
    ) -> Tensor<Self, 2> {
        let (gate, up) = (primitive(gate), primitive(up));
        let node = Gated.prepare::<C>([gate.node.clone(), up.node.clone()]).compute_bound();
        gated_node(node, gate, up, activation)
    }

    fn gated_recomputed(
        gate: Tensor<Self, 2>,
        up: Tensor<Self, 2>,
        activation: Activation,
    ) -> Tensor<Self, 2> {
        let (gate, up) = (primitive(gate), primitive(up));
        let recompute = GatedRecompute::<B> {
            gate: gate.node.id,
            up: up.node.id,
            activation,
            backend: PhantomData,
        };
        let node = Gated.prepare::<C>([gate.node.clone(), up.node.clone()]);
        let node = node.memory_bound().retro_forward(recompute).parents([&gate, &up]);
        gated_node(node, gate, up, activation)
    }

    fn causal_attention(
        q: Tensor<Self, 4>,
        k: Tensor<Self, 4>,
        v: Tensor<Self, 4>,
        mask: &Arc<AttentionMask>,
        scoring: Scoring,
    ) -> Tensor<Self, 4> {
        let (q, k, v) = (primitive(q), primitive(k), primitive(v));
        let forward =
            |q, k, v| B::attention_forward(tensor(q), tensor(k), tensor(v), mask, scoring);
        let nodes = [q.node.clone(), k.node.clone(), v.node.clone()];
        tensor(match Attention.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let inputs = [prep.checkpoint(&q), prep.checkpoint(&k), prep.checkpoint(&v)];
                let (out, log_sum) = forward(q.primitive, k.primitive, v.primitive);
                let (out, log_sum) = (primitive(out), primitive(log_sum));
                let (mask, out_kept) = (mask.clone(), out.clone());
                let state = AttentionState { inputs, out: out_kept, log_sum, mask, scoring };
                prep.finish(state, out)
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(primitive(forward(q.primitive, k.primitive, v.primitive).0))
            }
        })
    }

    fn cross_entropy_sum(
        logits: Tensor<Self, 2>,
        targets: Tensor<Self, 1, Int>,
        soft_cap: Option<f64>,
    ) -> Tensor<Self, 1> {
        let logits = primitive(logits);
        let targets: IntTensor<B> = targets.into_primitive();
        let node = CrossEntropy.prepare::<C>([logits.node.clone()]).compute_bound();
        let (logits, targets) = (tensor::<B, 2>(logits.primitive), Tensor::from_primitive(targets));
        tensor(match node.stateful() {
            OpsKind::Tracked(prep) => {
                let (sum, gradient) = B::cross_entropy_with_grad(logits, targets, soft_cap);
                prep.finish(primitive(gradient), primitive(sum))
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(primitive(B::cross_entropy_sum(logits, targets, soft_cap)))
            }
        })
    }
}

/// A node whose backward is `Op`, ready for its state.
type Node<Op, B, State, C, const N: usize> = OpsPrep<Op, B, State, C, N, ComputePropertyDone>;

fn norm_node<B: ModelBackend, C: CheckpointStrategy>(
    node: Node<RmsNorm, B, (NodeId, NodeId, f64), C, 2>,
    x: FloatTensor<Autodiff<B, C>>,
    weight: FloatTensor<Autodiff<B, C>>,
    eps: f64,
) -> Tensor<Autodiff<B, C>, 2> {
    let forward = |x, weight| primitive(B::rms_norm(tensor(x), tensor(weight), eps));
    tensor(match node.stateful() {
        OpsKind::Tracked(mut prep) => {
            let state = (prep.checkpoint(&x), prep.checkpoint(&weight), eps);
            prep.finish(state, forward(x.primitive, weight.primitive))
        }
        OpsKind::UnTracked(prep) => prep.finish(forward(x.primitive, weight.primitive)),
    })
}

fn gated_node<B: ModelBackend, C: CheckpointStrategy>(
    node: Node<Gated, B, (NodeId, NodeId, Activation), C, 2>,
    gate: FloatTensor<Autodiff<B, C>>,
    up: FloatTensor<Autodiff<B, C>>,
    activation: Activation,
) -> Tensor<Autodiff<B, C>, 2> {
    let forward = |gate, up| primitive(B::gated(tensor(gate), tensor(up), activation));
    tensor(match node.stateful() {
        OpsKind::Tracked(mut prep) => {
            let state = (prep.checkpoint(&gate), prep.checkpoint(&up), activation);
            prep.finish(state, forward(gate.primitive, up.primitive))
        }
        OpsKind::UnTracked(prep) => prep.finish(forward(gate.primitive, up.primitive)),
    })
}

/// Recomputes the output of a norm.
#[derive(Debug)]
struct NormRecompute<B: Backend> {
    x: NodeId,
    weight: FloatTensor<B>,
    eps: f64,
}

impl<B: ModelBackend> RetroForward for NormRecompute<B> {
    fn forward(&self, states: &mut BackwardStates, out_node: NodeId) {
        let x = tensor(states.get_state::<FloatTensor<B>>(&self.x));
        let out = B::rms_norm(x, tensor(self.weight.clone()), self.eps);
        states.save(out_node, primitive(out));
    }
}

/// Recomputes the output of a gated product.
#[derive(Debug)]
struct GatedRecompute<B: Backend> {
    gate: NodeId,
    up: NodeId,
    activation: Activation,
    backend: PhantomData<B>,
}

impl<B: ModelBackend> RetroForward for GatedRecompute<B> {
    fn forward(&self, states: &mut BackwardStates, out_node: NodeId) {
        let gate = tensor(states.get_state::<FloatTensor<B>>(&self.gate));
        let up = tensor(states.get_state::<FloatTensor<B>>(&self.up));
        states.save(out_node, primitive(B::gated(gate, up, self.activation)));
    }
}

#[derive(Debug)]
struct Residual;

impl<B: ModelBackend> Backward<B, 2> for Residual {
    type State = [usize; 2];

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad: Tensor<B, 3> = tensor(grads.consume::<B>(&ops.node));
        let [x_node, y_node] = ops.parents;
        if let Some(node) = y_node {
            grads.register::<B>(node.id, primitive(grad.clone().reshape(ops.state)));
        }
        if let Some(node) = x_node {
            grads.register::<B>(node.id, primitive(grad));
        }
    }
}

#[derive(Debug)]
struct SplitHeads;

impl<B: ModelBackend> Backward<B, 1> for SplitHeads {
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad: Tensor<B, 4> = tensor(grads.consume::<B>(&ops.node));
        let [batch, heads, seq, head_dim] = grad.dims();
        if let [Some(node)] = ops.parents {
            let d_x = grad.swap_dims(1, 2).reshape([batch * seq, heads * head_dim]);
            grads.register::<B>(node.id, primitive(d_x));
        }
    }
}

#[derive(Debug)]
struct RmsNorm;

impl<B: ModelBackend> Backward<B, 2> for RmsNorm {
    type State = (NodeId, NodeId, f64);

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let (x, weight, eps) = ops.state;
        let grad = tensor(grads.consume::<B>(&ops.node));
        let x = tensor(checkpointer.retrieve_node_output(x));
        let weight = tensor(checkpointer.retrieve_node_output(weight));
        let (d_x, d_weight) = B::rms_norm_backward(x, weight, grad, eps);
        let [x_node, weight_node] = ops.parents;
        if let Some(node) = x_node {
            grads.register::<B>(node.id, primitive(d_x));
        }
        if let Some(node) = weight_node {
            grads.register::<B>(node.id, primitive(d_weight));
        }
    }
}

#[derive(Debug)]
struct LayerNorm;

impl<B: ModelBackend> Backward<B, 3> for LayerNorm {
    type State = (NodeId, NodeId, f64);

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let (x, weight, eps) = ops.state;
        let grad = tensor(grads.consume::<B>(&ops.node));
        let x = tensor(checkpointer.retrieve_node_output(x));
        let weight = tensor(checkpointer.retrieve_node_output(weight));
        let (d_x, d_weight, d_bias) = B::layer_norm_backward(x, weight, grad, eps);
        let gradients = [primitive(d_x), primitive(d_weight), primitive(d_bias)];
        for (node, gradient) in ops.parents.into_iter().zip(gradients) {
            if let Some(node) = node {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}

#[derive(Debug)]
struct Rotate;

impl<B: ModelBackend> Backward<B, 1> for Rotate {
    type State = (FloatTensor<B>, FloatTensor<B>);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (cos, sin) = ops.state;
        let grad = tensor(grads.consume::<B>(&ops.node));
        if let [Some(node)] = ops.parents {
            let sin: Tensor<B, 4> = tensor(sin);
            let d_x = B::rotate_half(grad, tensor(cos), sin.neg());
            grads.register::<B>(node.id, primitive(d_x));
        }
    }
}

#[derive(Debug)]
struct Gated;

impl<B: ModelBackend> Backward<B, 2> for Gated {
    type State = (NodeId, NodeId, Activation);

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let (gate, up, activation) = ops.state;
        let grad = tensor(grads.consume::<B>(&ops.node));
        let gate = tensor(checkpointer.retrieve_node_output(gate));
        let up = tensor(checkpointer.retrieve_node_output(up));
        let (d_gate, d_up) = B::gated_backward(gate, up, grad, activation);
        for (node, gradient) in ops.parents.into_iter().zip([d_gate, d_up]) {
            if let Some(node) = node {
                grads.register::<B>(node.id, primitive(gradient));
            }
        }
    }
}

#[derive(Debug)]
struct Attention;

#[derive(Debug, Clone)]
struct AttentionState<B: Backend> {
    inputs: [NodeId; 3],
    out: FloatTensor<B>,
    log_sum: FloatTensor<B>,
    mask: Arc<AttentionMask>,
    scoring: Scoring,
}

impl<B: ModelBackend> Backward<B, 3> for Attention {
    type State = AttentionState<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let AttentionState { inputs, out, log_sum, mask, scoring } = ops.state;
        let grad = tensor(grads.consume::<B>(&ops.node));
        let [q, k, v] = inputs.map(|id| tensor(checkpointer.retrieve_node_output(id)));
        let (out, log_sum) = (tensor(out), tensor(log_sum));
        let AttentionGradients { d_q, d_k, d_v } =
            B::attention_backward(q, k, v, out, log_sum, grad, &mask, scoring);
        for (node, gradient) in ops.parents.into_iter().zip([d_q, d_k, d_v]) {
            if let Some(node) = node {
                grads.register::<B>(node.id, primitive(gradient));
            }
        }
    }
}

#[derive(Debug)]
struct CrossEntropy;

impl<B: ModelBackend> Backward<B, 1> for CrossEntropy {
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad: Tensor<B, 1> = tensor(grads.consume::<B>(&ops.node));
        if let [Some(node)] = ops.parents {
            grads.register::<B>(node.id, primitive(B::scaled(tensor(ops.state), grad)));
        }
    }
}

fn tensor<B: Backend, const D: usize>(primitive: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(primitive))
}

fn primitive<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}
