//! Multiplying by a quantized weight under autodiff: a node that keeps codes only.
//!
//! Composed of ordinary operations, the dense weight would stay in the graph until backward, and quantizing would save
//! nothing. This node keeps the packed weight, which the model holds anyway, and dequantizes again in backward.

use burn::module::AutodiffModule;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Tensor, TensorPrimitive};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use crate::{Packing, QuantBackend, Quantized};

impl<B: QuantBackend, C: CheckpointStrategy> QuantBackend for Autodiff<B, C> {
    const PACKING: Packing = B::PACKING;

    fn dequantize_weight(weight: &Quantized<Self>) -> Tensor<Self, 2> {
        Tensor::from_inner(B::dequantize_weight(&weight.valid()))
    }

    fn matmul_quantized(x: Tensor<Self, 2>, weight: &Quantized<Self>) -> Tensor<Self, 2> {
        let (x, weight) = (primitive(x), weight.valid());
        let forward = |x| primitive(B::matmul_quantized(tensor(x), &weight));
        let node = MatmulQuantized.prepare::<C>([x.node.clone()]).compute_bound();
        tensor(match node.stateful() {
            OpsKind::Tracked(prep) => {
                let y = forward(x.primitive);
                prep.finish(weight, y)
            }
            OpsKind::UnTracked(prep) => prep.finish(forward(x.primitive)),
        })
    }

    fn matmul_quantized_backward(
        grad: Tensor<Self, 2>,
        weight: &Quantized<Self>,
    ) -> Tensor<Self, 2> {
        grad.matmul(Self::dequantize_weight(weight))
    }
}

#[derive(Debug)]
struct MatmulQuantized;

impl<B: QuantBackend> Backward<B, 1> for MatmulQuantized {
    type State = Quantized<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = tensor(grads.consume::<B>(&ops.node));
        if let [Some(node)] = ops.parents {
            let d_x = B::matmul_quantized_backward(grad, &ops.state);
            grads.register::<B>(node.id, primitive(d_x));
        }
    }
}

fn tensor<B: Backend>(primitive: FloatTensor<B>) -> Tensor<B, 2> {
    Tensor::from_primitive(TensorPrimitive::Float(primitive))
}

fn primitive<B: Backend>(tensor: Tensor<B, 2>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}
