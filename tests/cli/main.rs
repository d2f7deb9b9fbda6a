//! End-to-end runs of the binary.

mod added_tokens;
mod broken_inputs;
mod data_commands;
mod merging;
mod pictures;
mod quantized_inputs;
mod resuming;
mod support;
mod terminal;
mod watching;
mod whole_jobs;
