//! Multiplying by a frozen weight under autodiff: a node that keeps only the weight in its stored form.
//!
//! Composed of ordinary operations, a quantized weight, or a 16-bit weight with f32 activations, would stay in the
//! graph as an f32 copy until backward, and quantization would save nothing. The product itself would be kept too, and
//! the gradient of the logits could not reuse their memory.

use burn::module::AutodiffModule;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Tensor, TensorPrimitive};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};

use crate::tensor_file::FloatDtype;
use crate::{Packing, QuantBackend, Quantized, portable};

impl<B: QuantBackend, C: CheckpointStrategy> QuantBackend for Autodiff<B, C> {
    const PACKING: Packing = B::PACKING;

    fn has_float_type(dtype: FloatDtype, device: &Self::Device) -> bool {
        B::has_float_type(dtype, device)
    }

    fn activation_type(weights: DType) -> DType {
        B::activation_type(weights)
    }

    fn matmul_dense(x: Tensor<Self, 2>, weight: Tensor<Self, 2>) -> Tensor<Self, 2> {
        let weight = primitive(weight);
        if !weight.node.requirement.is_none() {
            return portable::matmul_dense(x, tensor(weight));
        }
        let (x, weight) = (primitive(x), tensor(weight.primitive));
        let forward = |x, weight| primitive(B::matmul_dense(tensor(x), weight));
        let node = MatmulFrozen.prepare::<C>([x.node.clone()]).compute_bound();
        tensor(match node.stateful() {
            OpsKind::Tracked(prep) => {
                let y = forward(x.primitive, weight.clone());
                prep.finish(primitive(weight), y)
            }
            OpsKind::UnTracked(prep) => prep.finish(forward(x.primitive, weight)),
        })
    }

    fn dequantize_weight(weight: &Quantized<Self>, dtype: DType) -> Tensor<Self, 2> {
        Tensor::from_inner(B::dequantize_weight(&weight.valid(), dtype))
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
        let dense = Self::dequantize_weight(weight, grad.dtype());
        grad.matmul(dense)
    }
}

/// The product with a frozen dense weight.
#[derive(Debug)]
struct MatmulFrozen;

impl<B: QuantBackend> Backward<B, 1> for MatmulFrozen {
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = tensor(grads.consume::<B>(&ops.node));
        if let [Some(node)] = ops.parents {
            let d_x = B::matmul_dense_backward(grad, tensor(ops.state));
            grads.register::<B>(node.id, primitive(d_x));
        }
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
