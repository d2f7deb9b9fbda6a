//! Decoder operations under autodiff: nodes that save only what their gradient needs.

use burn::tensor::{Tensor, TensorPrimitive, backend::Backend, ops::FloatTensor};
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};
use burn_autodiff::{Autodiff, NodeId};

use crate::{Activation, ModelBackend};

impl<B: ModelBackend, C: CheckpointStrategy> ModelBackend for Autodiff<B, C> {
    fn gated(
        gate: Tensor<Self, 2>,
        up: Tensor<Self, 2>,
        activation: Activation,
    ) -> Tensor<Self, 2> {
        let (gate, up) = (primitive(gate), primitive(up));
        let forward = |gate, up| primitive(B::gated(tensor(gate), tensor(up), activation));
        let node = Gated.prepare::<C>([gate.node.clone(), up.node.clone()]).compute_bound();
        tensor(match node.stateful() {
            OpsKind::Tracked(mut prep) => {
                let state = (prep.checkpoint(&gate), prep.checkpoint(&up), activation);
                prep.finish(state, forward(gate.primitive, up.primitive))
            }
            OpsKind::UnTracked(prep) => prep.finish(forward(gate.primitive, up.primitive)),
        })
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
        let [gate_node, up_node] = ops.parents;
        let (gate, up, activation) = ops.state;
        let grad = tensor::<B, 2>(grads.consume::<B>(&ops.node));
        let gate = tensor(checkpointer.retrieve_node_output(gate));
        let up = tensor(checkpointer.retrieve_node_output(up));
        let (d_gate, d_up) = B::gated_backward(gate, up, grad, activation);
        for (node, gradient) in [(gate_node, d_gate), (up_node, d_up)] {
            if let Some(node) = node {
                grads.register::<B>(node.id, primitive(gradient));
            }
        }
    }
}

fn tensor<B: Backend, const D: usize>(primitive: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(primitive))
}

fn primitive<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}
