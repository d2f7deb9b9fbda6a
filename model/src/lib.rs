//! Decoder-only language models: one implementation of the blocks, and model families as data.
//!
//! A Hugging Face folder becomes a [`ModelConfig`] (by its [`family`]) and a [`CausalLm`]; field paths are checkpoint
//! keys, so `model.layers.0.self_attn.q_proj` is the same layer here, in safetensors files and in LoRA targets.
#![deny(missing_docs)]

mod activation;
mod attention;
mod autodiff;
mod backend;
mod block;
mod causal_lm;
mod config;
#[cfg(feature = "cube")]
mod cube;
pub mod family;
#[cfg(feature = "cpu")]
mod flex;
mod hf_config;
mod inputs;
mod kv_cache;
mod linears;
mod loss;
mod mlp;
mod norm;
pub mod portable;
mod rope;
mod save;
mod soft_cap;
mod vocabulary;
pub mod weights;

pub use activation::Activation;
pub use attention::Attention;
pub use backend::ModelBackend;
pub use block::DecoderLayer;
pub use causal_lm::{CausalLm, Decoder, Embedding};
pub use config::ModelConfig;
pub use family::ConfigError;
pub use inputs::{AttentionMask, Inputs, Keep, MaskRanges, SequenceBatch};
pub use kv_cache::KvCache;
pub use linears::{BlockLinear, LinearInput, LinearRole};
pub use loss::cross_entropy_sum;
pub use mlp::Mlp;
pub use norm::RmsNorm;
pub use portable::AttentionGradients;
pub use rope::{RopeConfig, RopeKind, RotaryTable};
pub use save::save;
pub use soft_cap::{Scoring, soft_capped};
pub use weights::{LoadError, WeightForm, load, random, random_in};
