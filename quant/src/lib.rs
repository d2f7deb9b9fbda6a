//! The weights of linear layers, in memory and in files.
//!
//! [`Weight`] is the matrix of a linear layer: dense, or [`Quantized`] as in bitsandbytes (NF4, FP4, int8).
//! [`QuantBackend`] has the operations on both forms: dequantizing and `x · Wᵀ`, with kernels for Flex and CubeCL's
//! GPUs, and one node under autodiff. [`codec`] is the arithmetic on the host, byte for byte as in bitsandbytes.
//! [`tensor_file`] reads and writes safetensors with strict checks, and [`atomic_file`] writes files and folders
//! atomically.
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
