//! Memory: what a run is expected to need ([`footprint`]), and what the process has used.

pub mod footprint;
mod process;

pub use process::{available_memory, peak_memory_mib};
