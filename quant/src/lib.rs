//! What a linear layer's weight is made of, and how it lies in files.
//!
//! [`Weight`] is the matrix of a linear layer: dense, or [`Quantized`] as bitsandbytes has it (NF4, FP4, int8).
//! [`QuantBackend`] is what depends on the form: dequantizing, and `x · Wᵀ`, with kernels for Flex and for CubeCL's
//! GPUs, and a node of its own under autodiff. [`codec`] is the arithmetic on the host, byte for byte bitsandbytes'.
//! [`tensor_file`] reads and writes safetensors strictly, and [`atomic_file`] never leaves half a file behind.
#![deny(missing_docs)]

pub mod atomic_file;
mod autodiff;
mod backend;
pub mod blockwise;
pub mod bnb;
pub mod codec;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "cpu")]
mod flex;
mod format;
#[cfg(feature = "cube")]
pub mod fusion;
pub mod host;
mod packed;
pub mod portable;
mod quantized;
pub mod tensor_file;
mod tensor_writer;
mod weight;

pub use backend::{PANEL, QuantBackend};
pub use blockwise::Blockwise;
pub use codec::QuantizedMatrix;
pub use codec::blockwise::{BlockwiseVector, DynamicMap};
pub use format::{QuantFormat, Quantization};
pub use packed::{PackedBytes, Packing};
pub use quantized::{Quantized, QuantizedNested, QuantizedScales};
pub use tensor_file::{TensorFile, TensorFileError};
pub use weight::Weight;
