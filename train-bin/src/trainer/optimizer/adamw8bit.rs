//! AdamW with moments in 8 bits (Dettmers et al., 2022, arXiv:2110.02861), as bitsandbytes' `AdamW8bit`.
//!
//! A step decodes the moments to 32 bits and encodes them again in blocks of 256 elements: the first with the signed dynamic
//! map, the second with the unsigned one. They take two bytes per element, where AdamW takes eight.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use emberlm_quant::codec::blockwise::{BLOCK, BlockwiseVector};
use emberlm_quant::{Blockwise, DynamicMap, QuantBackend};
use serde::Serialize;

use crate::settings::Reader;
use crate::trainer::optimizer::adamw::{AdamWConfig, EXP_AVG, EXP_AVG_SQ, Moments, elements};
use crate::trainer::optimizer::backend::OptimizerBackend;
use crate::trainer::optimizer::rule::{ParamState, ParamUpdate, UpdateRule};
use crate::trainer::optimizer::state::{OptimizerState, StateDtype, StateError, StateReader};

/// Parameters with fewer elements keep their moments in 32 bits: bitsandbytes' `min_8bit_size`.
pub const MIN_8BIT_SIZE: usize = 4096;

/// Elements that are decoded at a time, so that a large embedding's moments never exist in 32 bits as a whole.
const PART: usize = 1 << 14 << BLOCK.ilog2();

/// The constants of AdamW, with moments in 8 bits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(transparent)]
pub struct AdamW8bitConfig(pub AdamWConfig);

impl AdamW8bitConfig {
    /// PyTorch's, without decay.
    pub const DEFAULT: Self = Self(AdamWConfig::DEFAULT);

    /// Reads its settings.
    pub(crate) fn read(self, s: &mut Reader) -> Self {
        Self(self.0.read(s))
    }

    /// Bytes of state for a parameter.
    pub(crate) fn state_bytes(&self, path: &str, shape: &[usize]) -> u64 {
        match elements(shape) {
            few if few < MIN_8BIT_SIZE as u64 => self.0.state_bytes(path, shape),
            many => 2 * (many + 4 * many.div_ceil(BLOCK as u64)),
        }
    }
}

/// The state of a parameter.
#[derive(Debug, Clone)]
pub(crate) enum EightBitState<B: Backend> {
    /// Of a small parameter, in 32 bits.
    Small(Moments<B>),
    /// Of a large one: each part of [`PART`] elements; the last may be shorter.
    Coded(Vec<CodedMoments<B>>),
}

#[derive(Debug, Clone)]
pub(crate) struct CodedMoments<B: Backend> {
    first: Blockwise<B>,
    second: Blockwise<B>,
}

impl<B: QuantBackend> CodedMoments<B> {
    fn code(moments: Moments<B>) -> Self {
        Self {
            first: Blockwise::quantize(moments.first, DynamicMap::Signed),
            second: Blockwise::quantize(moments.second, DynamicMap::Unsigned),
        }
    }

    fn decode(&self) -> Moments<B> {
        Moments { first: self.first.dequantize(), second: self.second.dequantize() }
    }
}

/// The names of an encoded moment and of its blocks' scales in a state.
struct CodedRole {
    codes: &'static str,
    absmax: &'static str,
    map: DynamicMap,
}

const FIRST: CodedRole =
    CodedRole { codes: EXP_AVG, absmax: "exp_avg_absmax", map: DynamicMap::Signed };
const SECOND: CodedRole =
    CodedRole { codes: EXP_AVG_SQ, absmax: "exp_avg_sq_absmax", map: DynamicMap::Unsigned };

impl CodedRole {
    /// Adds a moment from its parts. All parts except the last are whole blocks, so they can be joined.
    fn put<'a, B: QuantBackend>(
        &self,
        path: &str,
        parts: impl Iterator<Item = &'a Blockwise<B>>,
        state: &mut OptimizerState,
    ) {
        let (mut codes, mut absmax) = (Vec::new(), Vec::new());
        for part in parts.map(Blockwise::to_host) {
            codes.extend(part.codes);
            absmax.extend(part.absmax);
        }
        state.put_u8(self.codes, path, codes);
        state.put_f32(self.absmax, path, &absmax);
    }

    fn take<B: QuantBackend>(
        &self,
        path: &str,
        elements: Option<usize>,
        state: &mut StateReader<'_>,
        device: &B::Device,
    ) -> Result<Vec<Blockwise<B>>, StateError> {
        let codes = state.u8s(self.codes, path, elements)?;
        let absmax = state.f32s(self.absmax, path, codes.len().div_ceil(BLOCK))?;
        let part = |(codes, absmax): (&[u8], &[f32])| {
            let (codes, absmax) = (codes.to_vec(), absmax.to_vec());
            Blockwise::from_host(BlockwiseVector { map: self.map, codes, absmax }, device)
        };
        Ok(codes.chunks(PART).zip(absmax.chunks(PART / BLOCK)).map(part).collect())
    }
}

impl<B: QuantBackend> ParamState<B> for EightBitState<B> {
    const ROLES: &'static [&'static str] = &[EXP_AVG, EXP_AVG_SQ];

    fn bytes(&self) -> usize {
        let coded = |part: &CodedMoments<B>| part.first.memory() + part.second.memory();
        match self {
            Self::Small(moments) => moments.bytes(),
            Self::Coded(parts) => parts.iter().map(coded).sum(),
        }
    }

    fn shape(&self) -> Vec<usize> {
        vec![self.elements()]
    }

    fn put(&self, path: &str, state: &mut OptimizerState) {
        match self {
            Self::Small(moments) => moments.put(path, state),
            Self::Coded(parts) => {
                FIRST.put(path, parts.iter().map(|part| &part.first), state);
                SECOND.put(path, parts.iter().map(|part| &part.second), state);
            }
        }
    }

    fn take(
        path: &str,
        state: &mut StateReader<'_>,
        device: &B::Device,
    ) -> Result<Self, StateError> {
        let first = state.peek(EXP_AVG, path);
        let taken = if first.is_some_and(|first| first.dtype == StateDtype::U8) {
            let first = FIRST.take(path, None, state, device)?;
            let elements = first.iter().map(|part: &Blockwise<B>| part.codes.len()).sum();
            let second = SECOND.take(path, Some(elements), state, device)?;
            let parts = first.into_iter().zip(second);
            Self::Coded(parts.map(|(first, second)| CodedMoments { first, second }).collect())
        } else {
            Self::Small(Moments::take(path, state, device)?)
        };
        taken.has_its_form(path)?;
        Ok(taken)
    }
}

impl<B: Backend> EightBitState<B> {
    fn elements(&self) -> usize {
        match self {
            Self::Small(moments) => moments.first.dims()[0],
            Self::Coded(parts) => parts.iter().map(|part| part.first.codes.len()).sum(),
        }
    }

    /// Checks that small parameters have floats, and large ones codes.
    fn has_its_form(&self, path: &str) -> Result<(), StateError> {
        let (expected, found) = match (self, self.elements() < MIN_8BIT_SIZE) {
            (Self::Small(_), true) | (Self::Coded(_), false) => return Ok(()),
            (Self::Small(_), false) => ("U8, as the parameter is large", StateDtype::F32),
            (Self::Coded(_), true) => ("F32, as the parameter is small", StateDtype::U8),
        };
        Err(StateError::Dtype { tensor: format!("{EXP_AVG}.{path}"), expected, found })
    }

    fn small(self) -> Option<Moments<B>> {
        match self {
            Self::Small(moments) => Some(moments),
            Self::Coded(_) => None,
        }
    }

    fn coded(self) -> Vec<CodedMoments<B>> {
        match self {
            Self::Coded(parts) => parts,
            Self::Small(_) => Vec::new(),
        }
    }
}

impl<B: OptimizerBackend> UpdateRule<B> for AdamW8bitConfig {
    type State = EightBitState<B>;

    fn update(
        &self,
        at: &ParamUpdate<'_>,
        old: Option<Self::State>,
        weight: Tensor<B, 1>,
        gradient: Tensor<B, 1>,
    ) -> (Tensor<B, 1>, Option<Self::State>) {
        let Self(config) = self;
        let step = config.at(at.step, at.rate, at.decay(config.weight_decay));
        let [elements] = weight.dims();
        if elements < MIN_8BIT_SIZE {
            let old = old.and_then(EightBitState::small);
            let (weight, moments) = B::adamw(step, weight, gradient, old);
            return (weight, Some(EightBitState::Small(moments)));
        }
        let old = old.map_or_else(Vec::new, EightBitState::coded);
        let mut parts = Vec::with_capacity(elements.div_ceil(PART));
        let mut weights = Vec::with_capacity(parts.capacity());
        let split = weight.split(PART, 0).into_iter().zip(gradient.split(PART, 0));
        for (i, (weight, gradient)) in split.enumerate() {
            let old = old.get(i).map(CodedMoments::decode);
            let (weight, moments) = B::adamw(step, weight, gradient, old);
            parts.push(CodedMoments::code(moments));
            weights.push(weight);
        }
        (joined(weights), Some(EightBitState::Coded(parts)))
    }
}

fn joined<B: Backend>(mut parts: Vec<Tensor<B, 1>>) -> Tensor<B, 1> {
    match parts.len() {
        1 => parts.remove(0),
        _ => Tensor::cat(parts, 0),
    }
}
