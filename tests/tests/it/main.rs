//! One binary for all integration tests: it links once.

mod adapter_goldens;
mod added_tokens;
mod data_goldens;
mod finite_differences;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod gpu;
mod half_weights;
mod kernels;
mod laws;
mod model_goldens;
mod noise;
mod optimizer_goldens;
mod optimizer_groups;
mod optimizer_rules;
mod optimizer_state;
mod packing;
mod qlora;
mod quant_goldens;
mod schedule_goldens;
mod support;
mod train_goldens;
mod weights;
