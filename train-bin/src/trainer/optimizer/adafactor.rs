//! Adafactor (Shazeer and Stern, 2018, arXiv:1804.04235), as transformers and fairseq compute it.
//!
//! For a matrix it keeps only the mean squares of rows and of columns. The variant: the rate of the schedule
//! (`relative_step = False`, `scale_parameter = False`), no first moment, and updates are scaled down to a maximum root mean
//! square.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use serde::Serialize;

use crate::settings::Reader;
use crate::trainer::optimizer::adamw::{elements, eps, weight_decay};

use crate::trainer::optimizer::rule::{ParamState, ParamUpdate, UpdateRule, tensor_bytes};
use crate::trainer::optimizer::state::{OptimizerState, StateError, StateReader};

/// The decay of the second moment at step t is `1 − t^-0.8`.
const DECAY_POWER: f64 = -0.8;

/// The constants of Adafactor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct AdafactorConfig {
    /// Added to the squares of gradients.
    pub eps: f64,
    /// Root mean square that an update is scaled down to, before the rate.
    pub clip_threshold: f64,
    /// Share of a weight that a step of rate 1 takes away, apart from the gradient.
    pub weight_decay: f64,
}

impl AdafactorConfig {
    /// As in the paper, without decay.
    pub const DEFAULT: Self = Self { eps: 1e-30, clip_threshold: 1.0, weight_decay: 0.0 };

    /// Reads its settings.
    pub(crate) fn read(self, s: &mut Reader) -> Self {
        Self {
            eps: eps(s, self.eps),
            clip_threshold: s
                .number("clip_threshold", "Maximum root mean square of an update")
                .above(0.0)
                .or(self.clip_threshold),
            weight_decay: weight_decay(s, self.weight_decay),
        }
    }

    /// Bytes of state for a parameter.
    pub(crate) fn state_bytes(&self, _path: &str, shape: &[usize]) -> u64 {
        match shape {
            &[rows, columns] => 4 * (rows + columns) as u64,
            _ => 4 * elements(shape),
        }
    }
}

impl Default for AdafactorConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Mean squares of a parameter's gradients.
#[derive(Debug, Clone)]
pub(crate) enum MeanSquares<B: Backend> {
    /// Of a matrix: of each row, `[rows]`, and of each column, `[columns]`.
    Factored { row: Tensor<B, 1>, column: Tensor<B, 1> },
    /// Of anything else: `[elements]`.
    Whole(Tensor<B, 1>),
}

const ROW: &str = "exp_avg_sq_row";
const COLUMN: &str = "exp_avg_sq_col";
const WHOLE: &str = "exp_avg_sq";

impl<B: Backend> ParamState<B> for MeanSquares<B> {
    const ROLES: &'static [&'static str] = &[ROW, COLUMN, WHOLE];

    fn bytes(&self) -> usize {
        match self {
            Self::Factored { row, column } => tensor_bytes(row) + tensor_bytes(column),
            Self::Whole(squares) => tensor_bytes(squares),
        }
    }

    fn shape(&self) -> Vec<usize> {
        match self {
            Self::Factored { row, column } => vec![row.dims()[0], column.dims()[0]],
            Self::Whole(squares) => squares.dims().to_vec(),
        }
    }

    fn put(&self, path: &str, state: &mut OptimizerState) {
        match self {
            Self::Factored { row, column } => {
                state.put(ROW, path, row);
                state.put(COLUMN, path, column);
            }
            Self::Whole(squares) => state.put(WHOLE, path, squares),
        }
    }

    fn take(
        path: &str,
        state: &mut StateReader<'_>,
        device: &B::Device,
    ) -> Result<Self, StateError> {
        if state.peek(WHOLE, path).is_some() {
            return Ok(Self::Whole(state.floats(WHOLE, path, None, device)?));
        }
        let row = state.floats(ROW, path, None, device)?;
        Ok(Self::Factored { row, column: state.floats(COLUMN, path, None, device)? })
    }
}

impl<B: Backend> UpdateRule<B> for AdafactorConfig {
    type State = MeanSquares<B>;

    fn update(
        &self,
        at: &ParamUpdate<'_>,
        old: Option<MeanSquares<B>>,
        weight: Tensor<B, 1>,
        gradient: Tensor<B, 1>,
    ) -> (Tensor<B, 1>, Option<MeanSquares<B>>) {
        let decay = 1.0 - (at.step as f64).powf(DECAY_POWER);
        let squares = gradient.clone().powi_scalar(2) + self.eps;
        let mean = |old: Option<Tensor<B, 1>>, new: Tensor<B, 1>| match old {
            None => new * (1.0 - decay),
            Some(old) => old * decay + new * (1.0 - decay),
        };
        let [elements] = gradient.dims();
        let (update, new) = match *at.shape {
            [rows, columns] => {
                let (old_row, old_column) = match old {
                    Some(MeanSquares::Factored { row, column }) => (Some(row), Some(column)),
                    _ => (None, None),
                };
                let squares = squares.reshape([rows, columns]);
                let row = mean(old_row, squares.clone().mean_dim(1).reshape([rows]));
                let column = mean(old_column, squares.mean_dim(0).reshape([columns]));
                let by_row = (row.clone() / row.clone().mean()).sqrt().recip().reshape([rows, 1]);
                let by_column = column.clone().sqrt().recip().reshape([1, columns]);
                let update = gradient.reshape([rows, columns]) * by_row * by_column;
                (update.reshape([elements]), MeanSquares::Factored { row, column })
            }
            _ => {
                let old = match old {
                    Some(MeanSquares::Whole(old)) => Some(old),
                    _ => None,
                };
                let squares = mean(old, squares);
                (gradient * squares.clone().sqrt().recip(), MeanSquares::Whole(squares))
            }
        };
        let root_mean_square = update.clone().powi_scalar(2).mean().sqrt();
        let too_much = (root_mean_square / self.clip_threshold).clamp_min(1.0);
        let keep = 1.0 - at.rate * at.decay(self.weight_decay);
        (weight * keep - update / too_much * at.rate, Some(new))
    }
}
