//! What a run records of each step, and the files that other programs read it from.

pub mod tensorboard;
pub mod trainer_state;
