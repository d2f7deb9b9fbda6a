//! End-to-end runs of the binary.

mod added_tokens;
mod broken_inputs;
mod data_commands;
mod merging;
mod quantized_inputs;
mod support;
mod whole_jobs;
