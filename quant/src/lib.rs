//! What a linear layer's weight is made of, and how it lies in files.
//!
//! [`Weight`] is the frozen or trainable matrix of a linear layer: dense today, quantized forms beside it.
//! [`QuantBackend`] is the one operation that depends on the form: `x · Wᵀ`.
//! [`tensor_file`] reads and writes safetensors strictly, and [`atomic_file`] never leaves half a file behind.
#![deny(missing_docs)]

pub mod atomic_file;
mod backend;
pub mod host;
pub mod tensor_file;
mod weight;

pub use backend::QuantBackend;
pub use tensor_file::{TensorFile, TensorFileError};
pub use weight::Weight;
