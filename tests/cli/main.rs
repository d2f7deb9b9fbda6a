//! End-to-end runs of the binary.

mod broken_inputs;
mod data_commands;
mod merging;
mod pictures;
mod quantized_inputs;
mod support;
mod whole_jobs;
