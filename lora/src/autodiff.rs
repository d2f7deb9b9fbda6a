//! An adapter's delta under autodiff: one node, which keeps `x`, the narrow product `x · Aᵀ` and the key of its
//! dropout.

use burn::tensor::ops::FloatTensor;
use burn::tensor::{Tensor, TensorPrimitive, backend::Backend};
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};
use burn_autodiff::{Autodiff, NodeId};

use crate::backend::DeltaGradients;
use crate::{Dropout, LoraBackend};

impl<B: LoraBackend, C: CheckpointStrategy> LoraBackend for Autodiff<B, C> {
    fn add_delta(
        base: Tensor<Self, 2>,
        x: Tensor<Self, 2>,
        lora_a: Tensor<Self, 2>,
        lora_b: Tensor<Self, 2>,
        scaling: f64,
        dropout: Option<Dropout>,
    ) -> Tensor<Self, 2> {
        let [base, x, a, b] = [base, x, lora_a, lora_b].map(primitive);
        let forward = |base, x, a, b| {
            let x = drop_out(tensor(x), dropout.as_ref());
            let (y, narrow) = B::add_delta_forward(tensor(base), x, tensor(a), tensor(b), scaling);
            (primitive(y), primitive(narrow))
        };
        let nodes = [base.node.clone(), x.node.clone(), a.node.clone(), b.node.clone()];
        tensor(match Delta.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let inputs = [prep.checkpoint(&x), prep.checkpoint(&a), prep.checkpoint(&b)];
                let (y, narrow) = forward(base.primitive, x.primitive, a.primitive, b.primitive);
                prep.finish((inputs, narrow, scaling, dropout), y)
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(forward(base.primitive, x.primitive, a.primitive, b.primitive).0)
            }
        })
    }
}

#[derive(Debug)]
struct Delta;

impl<B: LoraBackend> Backward<B, 4> for Delta {
    type State = ([NodeId; 3], FloatTensor<B>, f64, Option<Dropout>);

    fn backward(
        self,
        ops: Ops<Self::State, 4>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let (inputs, narrow, scaling, dropout) = ops.state;
        let grad = grads.consume::<B>(&ops.node);
        let [x, a, b] = inputs.map(|id| tensor(checkpointer.retrieve_node_output(id)));
        let [base_node, x_node, a_node, b_node] = ops.parents;
        let x = drop_out(x, dropout.as_ref());
        let DeltaGradients { d_x, d_a, d_b } =
            B::add_delta_backward(x, tensor(narrow), a, b, tensor(grad.clone()), scaling);
        let d_x = if x_node.is_some() { drop_out(d_x, dropout.as_ref()) } else { d_x };
        if let Some(node) = base_node {
            grads.register::<B>(node.id, grad);
        }
        for (node, gradient) in [(x_node, d_x), (a_node, d_a), (b_node, d_b)] {
            if let Some(node) = node {
                grads.register::<B>(node.id, primitive(gradient));
            }
        }
    }
}

fn drop_out<B: Backend>(x: Tensor<B, 2>, dropout: Option<&Dropout>) -> Tensor<B, 2> {
    match dropout {
        Some(dropout) => dropout.apply(x),
        None => x,
    }
}

fn tensor<B: Backend>(primitive: FloatTensor<B>) -> Tensor<B, 2> {
    Tensor::from_primitive(TensorPrimitive::Float(primitive))
}

fn primitive<B: Backend>(tensor: Tensor<B, 2>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}
