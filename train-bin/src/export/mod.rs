//! Models written for other programs: merged, quantized, quantized again after merging.

pub mod merge;
pub mod out_folder;
pub mod quantize;
pub mod requantize;
