//! Export of models: merged, quantized, requantized after merging.

pub mod merge;
pub mod out_folder;
pub mod quantize;
pub mod requantize;
