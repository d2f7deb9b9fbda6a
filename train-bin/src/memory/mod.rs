//! Memory: the estimate for a run ([`footprint`]), and the use of the process.

pub mod footprint;
mod process;

pub use process::{available_memory, peak_memory_mib};
