//! Custom operations under `Fusion`, which is lazy: it queues operations and fuses what it can.
//!
//! A custom operation is registered with a function that later runs on the inner backend.

use std::fmt;

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Int, Shape, Tensor, TensorPrimitive};
use burn_fusion::stream::{Operation, OperationStreams};
use burn_fusion::{Fusion, FusionBackend, FusionRuntime, FusionTensor};
use burn_ir::{CustomOpIr, HandleContainer, OperationIr, OperationOutput, TensorIr};

/// The queue's tensors by id.
type Handles<B> =
    HandleContainer<<<B as FusionBackend>::FusionRuntime as FusionRuntime>::FusionHandle>;

/// An operation while it is being registered: its inputs so far.
pub struct FusedOp<B: FusionBackend> {
    name: &'static str,
    inputs: Vec<FusionTensor<B::FusionRuntime>>,
}

impl<B: FusionBackend> FusedOp<B> {
    /// An operation of this name.
    pub fn new(name: &'static str) -> Self {
        Self { name, inputs: Vec::new() }
    }

    /// Adds a float tensor to the inputs.
    pub fn float<const D: usize>(mut self, tensor: Tensor<Fusion<B>, D>) -> Self {
        self.inputs.push(tensor.into_primitive().tensor());
        self
    }

    /// Adds an int tensor to the inputs.
    pub fn int<const D: usize>(mut self, tensor: Tensor<Fusion<B>, D, Int>) -> Self {
        self.inputs.push(tensor.into_primitive());
        self
    }

    /// Registers the operation. Later, `run` takes the inputs in the order of adding and returns outputs of the number,
    /// shapes and types in `outputs`.
    ///
    /// # Panics
    /// If there is no input.
    pub fn register<const N: usize>(
        self,
        outputs: [(Shape, DType); N],
        run: impl Fn(&mut OpInputs<'_, B>) -> [FloatTensor<B>; N] + Send + Sync + 'static,
    ) -> [FloatTensor<Fusion<B>>; N] {
        let Self { name, inputs } = self;
        let client = inputs.first().expect("an operation has inputs").client.clone();
        let streams = OperationStreams::with_inputs(&inputs);
        let outputs = outputs
            .map(|(shape, dtype)| TensorIr::uninit(client.create_empty_handle(), shape, dtype));
        let inputs: Vec<TensorIr> = inputs.into_iter().map(FusionTensor::into_ir).collect();
        let ir = CustomOpIr::new(name, &inputs, &outputs);
        let operation = Registered { ir: ir.clone(), run: Box::new(run) };
        client.register(streams, OperationIr::Custom(ir), operation).outputs()
    }
}

type Run<B, const N: usize> =
    dyn Fn(&mut OpInputs<'_, B>) -> [FloatTensor<B>; N] + Send + Sync + 'static;

struct Registered<B: FusionBackend, const N: usize> {
    ir: CustomOpIr,
    run: Box<Run<B, N>>,
}

impl<B: FusionBackend, const N: usize> fmt::Debug for Registered<B, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ir.fmt(f)
    }
}

impl<B: FusionBackend, const N: usize> Operation<B::FusionRuntime> for Registered<B, N> {
    fn execute(&self, handles: &mut Handles<B>) {
        let outputs = (self.run)(&mut OpInputs { tensors: self.ir.inputs.iter(), handles });
        for (ir, output) in self.ir.outputs.iter().zip(outputs) {
            handles.register_float_tensor::<B>(&ir.id, output);
        }
    }
}

/// The inputs of a running operation, taken one by one.
pub struct OpInputs<'a, B: FusionBackend> {
    tensors: std::slice::Iter<'a, TensorIr>,
    handles: &'a mut Handles<B>,
}

impl<B: FusionBackend> OpInputs<'_, B> {
    fn next(&mut self) -> &TensorIr {
        self.tensors.next().expect("no more inputs are taken than were added")
    }

    /// The next input, a float tensor.
    pub fn float<const D: usize>(&mut self) -> Tensor<B, D> {
        let ir = self.next().clone();
        Tensor::from_primitive(TensorPrimitive::Float(self.handles.get_float_tensor::<B>(&ir)))
    }

    /// The next input, an int tensor.
    pub fn int<const D: usize>(&mut self) -> Tensor<B, D, Int> {
        let ir = self.next().clone();
        Tensor::from_primitive(self.handles.get_int_tensor::<B>(&ir))
    }
}

/// A float tensor's primitive.
pub fn primitive<B: FusionBackend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}

/// A float tensor from its primitive.
pub fn tensor<B: FusionBackend, const D: usize>(
    primitive: FloatTensor<Fusion<B>>,
) -> Tensor<Fusion<B>, D> {
    Tensor::from_primitive(TensorPrimitive::Float(primitive))
}
