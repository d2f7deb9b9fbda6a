//! AdamW with moments in 8 bits (Dettmers et al., 2022, arXiv:2110.02861), as bitsandbytes' `AdamW8bit`.
//!
//! Before a step the moments are decoded to 32 bits, and after it coded again, in blocks of 256 elements: the first
//! with the signed dynamic map, the second with the unsigned one. Two bytes an element where AdamW has eight.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use emberlm_quant::codec::blockwise::{BLOCK, BlockwiseVector};
use emberlm_quant::{Blockwise, DynamicMap, QuantBackend};

use crate::grads::Gradients;
use crate::optimizer::adamw::{AdamWConfig, EXP_AVG, EXP_AVG_SQ, Moments};
use crate::optimizer::state::{OptimizerState, StateDtype, StateError, StateReader};
use crate::optimizer::{Rule, step_with};

/// Parameters with fewer elements keep their moments in 32 bits: bitsandbytes' `min_8bit_size`.
pub const MIN_8BIT_SIZE: usize = 4096;

/// Elements that are decoded at a time, so that a large embedding's moments are never all there in 32 bits.
const PART: usize = 1 << 14 << BLOCK.ilog2();

/// The optimizer and its state: two bytes a trainable element, and two scales for each 256 of them.
#[derive(Debug, Clone)]
pub struct AdamW8bit<B: Backend> {
    config: AdamWConfig,
    steps: u64,
    moments: BTreeMap<String, State<B>>,
}

#[derive(Debug, Clone)]
enum State<B: Backend> {
    /// Of a small parameter.
    Small(Moments<B>),
    /// Of each part of [`PART`] elements; the last may be short.
    Coded(Vec<CodedMoments<B>>),
}

#[derive(Debug, Clone)]
struct CodedMoments<B: Backend> {
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

    fn elements(&self) -> usize {
        self.first.codes.len()
    }
}

/// A coded moment in a state: its name, and that of its blocks' scales.
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
    /// Adds a moment whose parts are these. All parts but the last are whole blocks, so they can be joined.
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

impl<B: QuantBackend> AdamW8bit<B> {
    /// An optimizer that has made no step.
    pub fn new(config: AdamWConfig) -> Self {
        Self { config, steps: 0, moments: BTreeMap::new() }
    }

    /// One step: the model with every parameter moved that has a gradient.
    pub fn step<A, M>(&mut self, model: M, gradients: &Gradients<B>, learning_rate: f64) -> M
    where
        A: AutodiffBackend<InnerBackend = B>,
        M: Module<A>,
    {
        self.steps += 1;
        step_with::<A, M, _>(self, model, gradients, learning_rate)
    }

    /// Bytes that the moments take.
    pub fn state_bytes(&self) -> usize {
        let coded = |part: &CodedMoments<B>| part.first.memory() + part.second.memory();
        self.moments
            .values()
            .map(|state| match state {
                State::Small(moments) => moments.bytes(),
                State::Coded(parts) => parts.iter().map(coded).sum(),
            })
            .sum()
    }

    /// All that it knows beside its constants.
    pub fn state(&self) -> OptimizerState {
        let mut state = OptimizerState::new(Self::KIND, self.steps);
        for (path, moments) in &self.moments {
            match moments {
                State::Small(moments) => moments.put(path, &mut state),
                State::Coded(parts) => {
                    FIRST.put(path, parts.iter().map(|part| &part.first), &mut state);
                    SECOND.put(path, parts.iter().map(|part| &part.second), &mut state);
                }
            }
        }
        state
    }

    /// One that goes on where another left off.
    ///
    /// # Errors
    /// [`StateError`] if `state` isn't one of this optimizer.
    pub fn restore(
        config: AdamWConfig,
        state: &OptimizerState,
        device: &B::Device,
    ) -> Result<Self, StateError> {
        let mut reader = StateReader::new(Self::KIND, state)?;
        let mut moments = BTreeMap::new();
        for path in reader.paths(&[EXP_AVG, EXP_AVG_SQ]) {
            let is_coded =
                reader.peek(EXP_AVG, path).is_some_and(|first| first.dtype == StateDtype::U8);
            let state = if is_coded {
                State::take_coded(path, &mut reader, device)?
            } else {
                State::Small(Moments::take(path, &mut reader, device)?)
            };
            state.has_its_form(path)?;
            moments.insert(path.to_owned(), state);
        }
        reader.finish()?;
        Ok(Self { config, steps: state.steps, moments })
    }
}

impl<B: QuantBackend> Rule<B> for AdamW8bit<B> {
    const KIND: &'static str = "adamw8bit";

    fn shapes(&self) -> Vec<(&str, Vec<usize>)> {
        let moments = self.moments.iter();
        moments.map(|(path, state)| (path.as_str(), vec![state.elements()])).collect()
    }

    fn update(
        &mut self,
        name: &str,
        weight: Tensor<B, 1>,
        gradient: Tensor<B, 1>,
        rate: f64,
    ) -> Tensor<B, 1> {
        let Self { config, steps, moments } = self;
        let [elements] = weight.dims();
        let old = moments.remove(name);
        let (weight, new) = if elements < MIN_8BIT_SIZE {
            let old = old.and_then(State::small);
            let (weight, moments) = config.update(*steps, old, weight, gradient, rate);
            (weight, State::Small(moments))
        } else {
            let old = old.map_or_else(Vec::new, State::coded);
            let mut parts = Vec::with_capacity(elements.div_ceil(PART));
            let mut weights = Vec::with_capacity(parts.capacity());
            let split = weight.split(PART, 0).into_iter().zip(gradient.split(PART, 0));
            for (i, (weight, gradient)) in split.enumerate() {
                let old = old.get(i).map(CodedMoments::decode);
                let (weight, moments) = config.update(*steps, old, weight, gradient, rate);
                parts.push(CodedMoments::code(moments));
                weights.push(weight);
            }
            (joined(weights), State::Coded(parts))
        };
        moments.insert(name.to_string(), new);
        weight
    }
}

impl<B: QuantBackend> State<B> {
    fn take_coded(
        path: &str,
        state: &mut StateReader<'_>,
        device: &B::Device,
    ) -> Result<Self, StateError> {
        let first = FIRST.take(path, None, state, device)?;
        let elements = first.iter().map(|part: &Blockwise<B>| part.codes.len()).sum();
        let second = SECOND.take(path, Some(elements), state, device)?;
        let parts = first.into_iter().zip(second);
        Ok(Self::Coded(parts.map(|(first, second)| CodedMoments { first, second }).collect()))
    }

    fn elements(&self) -> usize {
        match self {
            Self::Small(moments) => moments.elements(),
            Self::Coded(parts) => parts.iter().map(CodedMoments::elements).sum(),
        }
    }

    /// Small parameters have floats, and large ones codes.
    fn has_its_form(&self, path: &str) -> Result<(), StateError> {
        let (expected, found) = match (self, self.elements() < MIN_8BIT_SIZE) {
            (Self::Small(_), true) | (Self::Coded(_), false) => return Ok(()),
            (Self::Small(_), false) => ("U8, as the parameter is large", StateDtype::F32),
            (Self::Coded(_), true) => ("F32, as the parameter is small", StateDtype::U8),
        };
        Err(StateError::Dtype { tensor: format!("{EXP_AVG}.{path}"), expected, found })
    }
}

impl<B: Backend> State<B> {
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

fn joined<B: Backend>(mut parts: Vec<Tensor<B, 1>>) -> Tensor<B, 1> {
    match parts.len() {
        1 => parts.remove(0),
        _ => Tensor::cat(parts, 0),
    }
}
