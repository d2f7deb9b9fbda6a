//! Muon (Jordan et al., 2024, <https://kellerjordan.github.io/posts/muon>): nearly orthogonalized momentum for the matrices of
//! hidden layers; AdamW for everything else.
//!
//! As `torch.optim.Muon`, except that the Newton-Schulz iteration runs in f32 instead of bf16.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use clap::ValueEnum;
use serde::Serialize;

use crate::settings::Reader;
use crate::trainer::optimizer::sgd::momentum;

use crate::trainer::optimizer::adamw::{AdamWConfig, EXP_AVG, EXP_AVG_SQ, Moments, elements};
use crate::trainer::optimizer::backend::OptimizerBackend;
use crate::trainer::optimizer::groups::is_embedding_or_head;
use crate::trainer::optimizer::rule::{
    MOMENTUM, ParamState, ParamUpdate, UpdateRule, tensor_bytes,
};
use crate::trainer::optimizer::state::{OptimizerState, StateError, StateReader};

/// Coefficients of the quintic `a·x + b·x³ + c·x⁵`, which drives singular values into the neighbourhood of 1 quickly.
const QUINTIC: [f64; 3] = [3.4445, -4.775, 2.0315];

/// Number of applications of the quintic.
const ITERATIONS: usize = 5;

/// Lower bound of the norm by which a matrix is divided.
const LEAST_NORM: f64 = 1e-7;

/// How the rate depends on a matrix's shape `[rows, columns]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize)]
#[value(rename_all = "snake_case")]
#[serde(rename_all = "snake_case")]
pub enum MuonScale {
    /// 0.2 · √max(rows, columns): updates as large as AdamW's, so that one rate fits both (Liu et al., 2025,
    /// arXiv:2502.16982).
    #[default]
    MatchRmsAdamw,
    /// √max(1, rows / columns), as in the original.
    Original,
}

impl MuonScale {
    fn factor(self, rows: usize, columns: usize) -> f64 {
        let (rows, columns) = (rows as f64, columns as f64);
        match self {
            Self::Original => (rows / columns).max(1.0).sqrt(),
            Self::MatchRmsAdamw => 0.2 * rows.max(columns).sqrt(),
        }
    }
}

/// The constants of Muon.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MuonConfig {
    /// Decay of the running mean of gradients.
    pub momentum: f64,
    /// Whether the step looks ahead along the mean (Nesterov).
    pub nesterov: bool,
    /// How the rate depends on a matrix's shape.
    #[serde(rename = "muon_scale")]
    pub scale: MuonScale,
    /// For embeddings, the head, norms and biases; its weight decay is for all.
    #[serde(flatten)]
    pub adamw: AdamWConfig,
}

impl MuonConfig {
    /// Jordan's momentum, and AdamW's defaults for the rest.
    pub const DEFAULT: Self = Self {
        momentum: 0.95,
        nesterov: true,
        scale: MuonScale::MatchRmsAdamw,
        adamw: AdamWConfig::DEFAULT,
    };

    /// Reads its settings.
    pub(crate) fn read(self, s: &mut Reader) -> Self {
        let (momentum, nesterov) = momentum(s, self.momentum, self.nesterov);
        Self {
            momentum,
            nesterov,
            scale: s
                .choice("muon_scale", "Scaling of Muon's learning rate by the shape of a matrix")
                .or(self.scale),
            adamw: self.adamw.read(s),
        }
    }

    /// Bytes of state for a parameter.
    pub(crate) fn state_bytes(&self, path: &str, shape: &[usize]) -> u64 {
        match Self::takes(path, shape) {
            true => 4 * elements(shape),
            false => self.adamw.state_bytes(path, shape),
        }
    }

    /// Whether a parameter is updated by Muon, not by AdamW.
    pub fn takes(path: &str, shape: &[usize]) -> bool {
        shape.len() == 2 && !is_embedding_or_head(path)
    }
}

/// The state of a parameter.
#[derive(Debug, Clone)]
pub(crate) enum MuonState<B: Backend> {
    /// Of a matrix: the mean of its gradients, `[rows, columns]`.
    Matrix(Tensor<B, 2>),
    /// Of the rest.
    Other(Moments<B>),
}

impl<B: Backend> ParamState<B> for MuonState<B> {
    const ROLES: &'static [&'static str] = &[MOMENTUM, EXP_AVG, EXP_AVG_SQ];

    fn bytes(&self) -> usize {
        match self {
            Self::Matrix(momentum) => tensor_bytes(momentum),
            Self::Other(moments) => moments.bytes(),
        }
    }

    fn shape(&self) -> Vec<usize> {
        match self {
            Self::Matrix(momentum) => momentum.dims().to_vec(),
            Self::Other(moments) => moments.shape(),
        }
    }

    fn put(&self, path: &str, state: &mut OptimizerState) {
        match self {
            Self::Matrix(momentum) => state.put(MOMENTUM, path, momentum),
            Self::Other(moments) => moments.put(path, state),
        }
    }

    fn take(
        path: &str,
        state: &mut StateReader<'_>,
        device: &B::Device,
    ) -> Result<Self, StateError> {
        Ok(match state.peek(MOMENTUM, path) {
            Some(_) => Self::Matrix(state.floats(MOMENTUM, path, None, device)?),
            None => Self::Other(Moments::take(path, state, device)?),
        })
    }
}

impl<B: OptimizerBackend> UpdateRule<B> for MuonConfig {
    type State = MuonState<B>;

    fn update(
        &self,
        at: &ParamUpdate<'_>,
        old: Option<MuonState<B>>,
        weight: Tensor<B, 1>,
        gradient: Tensor<B, 1>,
    ) -> (Tensor<B, 1>, Option<MuonState<B>>) {
        let &[rows, columns] = at.shape else { return self.rest(at, old, weight, gradient) };
        if !Self::takes(at.path, at.shape) {
            return self.rest(at, old, weight, gradient);
        }
        let momentum = self.momentum;
        let gradient = gradient.reshape([rows, columns]);
        let fresh = gradient.clone() * (1.0 - momentum);
        let mean = match old {
            Some(MuonState::Matrix(old)) => old * momentum + fresh.clone(),
            _ => fresh.clone(),
        };
        let toward = if self.nesterov { fresh + mean.clone() * momentum } else { mean.clone() };
        let update = orthogonalize(toward).reshape([rows * columns]);
        let keep = 1.0 - at.rate * at.decay(self.adamw.weight_decay);
        let rate = at.rate * self.scale.factor(rows, columns);
        (weight * keep - update * rate, Some(MuonState::Matrix(mean)))
    }
}

impl MuonConfig {
    fn rest<B: OptimizerBackend>(
        &self,
        at: &ParamUpdate<'_>,
        old: Option<MuonState<B>>,
        weight: Tensor<B, 1>,
        gradient: Tensor<B, 1>,
    ) -> (Tensor<B, 1>, Option<MuonState<B>>) {
        let old = match old {
            Some(MuonState::Other(moments)) => Some(moments),
            _ => None,
        };
        let (weight, moments) = self.adamw.update(at, old, weight, gradient);
        (weight, moments.map(MuonState::Other))
    }
}

/// A matrix with the same singular vectors, and singular values of about 1 (0.7 to 1.2), except tiny ones.
pub(crate) fn orthogonalize<B: Backend>(matrix: Tensor<B, 2>) -> Tensor<B, 2> {
    let [rows, columns] = matrix.dims();
    // The product below has the size of the shorter side.
    let is_tall = rows > columns;
    let matrix = if is_tall { matrix.transpose() } else { matrix };
    let norm = matrix.clone().powi_scalar(2).sum().sqrt().clamp_min(LEAST_NORM);
    let mut x = matrix / norm.reshape([1, 1]);
    let [a, b, c] = QUINTIC;
    for _ in 0..ITERATIONS {
        let gram = x.clone().matmul(x.clone().transpose());
        let polynomial = gram.clone() * b + gram.clone().matmul(gram) * c;
        x = x.clone() * a + polynomial.matmul(x);
    }
    if is_tall { x.transpose() } else { x }
}

#[cfg(all(test, feature = "cpu", feature = "ndarray"))]
mod tests {
    use super::*;
    use emberlm_quant::host::float_tensor;

    /// Matrices with one entry in each row or column, whose magnitudes are the singular values: from 0.3 to 1.
    #[test]
    fn singular_values_approach_one_and_vectors_are_kept() {
        for [rows, columns] in [[6, 10], [10, 6], [8, 8]] {
            let short = rows.min(columns);
            let mut values = vec![0.0; rows * columns];
            for i in 0..short {
                let size = 0.3 + 0.7 * i as f32 / (short - 1) as f32;
                let (row, column) =
                    if rows > columns { ((i + 1) % short, i) } else { (i, (i + 1) % short) };
                values[row * columns + column] = if i % 2 == 0 { size } else { -size };
            }
            let device = Default::default();
            let matrix =
                float_tensor::<burn_ndarray::NdArray, 2>(values.clone(), [rows, columns], &device);
            let found = orthogonalize(matrix).into_data();
            for (found, value) in found.iter::<f32>().zip(values) {
                let ratio = found * value.signum();
                if value == 0.0 {
                    assert!(found.abs() < 1e-5, "{rows}x{columns}: {found}");
                } else {
                    assert!((0.65..1.25).contains(&ratio), "{rows}x{columns}: {value} to {found}");
                }
            }
        }
    }
}
