//! Metrics of a run: its rows, and the files in other programs' formats.

pub mod row;
pub mod tensorboard;
pub mod trainer_state;
