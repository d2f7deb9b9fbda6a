//! AdamW with moments in 8 bits (Dettmers et al., 2022, arXiv:2110.02861), as bitsandbytes' `AdamW8bit`.
//!
//! Before a step the moments are decoded to 32 bits, and after it coded again, in blocks of 256 elements: the first
//! with the signed dynamic map, the second with the unsigned one. Two bytes an element where AdamW has eight.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use emberlm_quant::codec::blockwise::BLOCK;
use emberlm_quant::{Blockwise, DynamicMap, QuantBackend};

use crate::adamw::{AdamWConfig, Moments};
use crate::grads::Gradients;
use crate::optimizer::{Rule, step_with};

/// Parameters with fewer elements keep their moments in 32 bits: bitsandbytes' `min_8bit_size`.
pub const MIN_8BIT_SIZE: usize = 4096;

/// Elements that are decoded at a time, so that a large embedding's moments are never all there in 32 bits.
const PART: usize = 1 << 14 << BLOCK.ilog2();

/// The optimizer and its state: two bytes a trainable element, and two scales for each 256 of them.
#[derive(Debug, Clone)]
pub struct AdamW8bit<B: Backend> {
    config: AdamWConfig,
    steps: i32,
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
}

impl<B: QuantBackend> Rule<B> for AdamW8bit<B> {
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
