//! LoRA: low-rank adapters for the linear layers of a model.
//!
//! ```text
//!                     ┌── weight [d_out, d_in] (frozen, any form) ──────────────┐
//!   x [tokens, d_in] ─┤                                                         ├─(+)─ bias ─► [tokens, d_out]
//!                     └── dropout ── A [r, d_in] ── B [d_out, r] ── × scaling ──┘
//! ```
//!
//! [`Linear`] implements this diagram. [`inject`] adds adapters to the layers that a [`LoraConfig`] targets, after the
//! base is loaded; [`peft`] reads and writes the files that PEFT, vLLM and llama.cpp load; [`Linear::merge`] merges the
//! delta. Only the delta is scaled, in one place: `base + delta · scaling` (Hu et al., 2021, arXiv:2106.09685).
#![deny(missing_docs)]

mod adapter;
mod autodiff;
mod backend;
mod config;
mod dropout;
#[cfg(feature = "cpu")]
mod flex;
mod inject;
mod linear;
mod params;
pub mod peft;
pub mod random;
mod token_rows;
pub mod walk;

pub use adapter::Adapter;
pub use backend::{DeltaGradients, LoraBackend};
pub use config::{LoraConfig, LoraConfigError, Targets};
pub use dropout::{Dropout, DropoutKey};
pub use inject::{InjectError, NamedLinear, inject};
pub use linear::Linear;
pub use params::{AdapterParam, AdapterRole, AdapterShape};
pub use token_rows::{NamedTokenRows, TokenRows, rows_of};
