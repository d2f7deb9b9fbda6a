//! Text from a model: prompt, cache, sampling, stop.

use std::collections::BTreeSet;

use emberlm_data::{DataError, TextTokenizer};
use emberlm_lora::random::{generator, unit};
use emberlm_model::{CausalLm, Inputs, KvCache, ModelBackend, ModelConfig, SequenceBatch};
use rand_chacha::ChaCha8Rng;

/// How the next token is chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Longest answer, in tokens.
    pub max_new_tokens: usize,
    /// 0: the likeliest token always.
    pub temperature: f64,
    /// Only the likeliest tokens that together have this probability.
    pub top_p: f64,
    /// Only so many of the likeliest tokens; 0: all.
    pub top_k: usize,
    /// Logits of tokens that have occurred are divided by it if positive, else multiplied (Keskar et al., 2019, arXiv:1909.05858).
    pub repetition_penalty: f64,
    /// Seed of the choice.
    pub seed: u64,
    /// Texts before which the answer ends.
    pub stop: Vec<String>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            max_new_tokens: 256,
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            repetition_penalty: 1.0,
            seed: 0,
            stop: Vec::new(),
        }
    }
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The model said so.
    EndOfTurn,
    /// A stop text came.
    StopText,
    /// It was as long as it may be.
    Length,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The text, without end marks and stop texts.
    pub text: String,
    /// Its tokens, the end mark included where there was one.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub ended: Ended,
}

/// Why no answer could be made.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// A prompt without tokens.
    #[error("the prompt has no tokens; there is nothing to continue")]
    EmptyPrompt,
    /// A token of the prompt that the model doesn't know.
    #[error(
        "the prompt has the token {id}, and the model knows {vocab_size} tokens only: tokenizer and model don't belong together"
    )]
    UnknownToken {
        /// The token.
        id: u32,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// Logits that aren't numbers.
    #[error(
        "the model computes NaN: its weights or the adapter's are damaged, or training diverged"
    )]
    NotFinite,
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] DataError),
}

/// A model that answers. Tokens that a prompt has in common with the one before aren't computed again.
pub struct Generator<'a, B: ModelBackend> {
    model: &'a CausalLm<B>,
    config: &'a ModelConfig,
    tokenizer: &'a TextTokenizer,
    cache: KvCache<B>,
    cached: Vec<u32>,
}

impl<'a, B: ModelBackend> Generator<'a, B> {
    /// A generator with an empty cache.
    pub fn new(
        model: &'a CausalLm<B>,
        config: &'a ModelConfig,
        tokenizer: &'a TextTokenizer,
    ) -> Self {
        let cache = KvCache::new(config.num_hidden_layers);
        Self { model, config, tokenizer, cache, cached: Vec::new() }
    }

    /// Continues a prompt. `on_text` gets the answer piece by piece, as it comes.
    ///
    /// # Errors
    /// [`GenerateError`].
    pub fn answer(
        &mut self,
        prompt: &[u32],
        sampling: &Sampling,
        stop_ids: &BTreeSet<u32>,
        mut on_text: impl FnMut(&str),
    ) -> Result<Answer, GenerateError> {
        let vocab_size = self.config.vocab_size;
        if let Some(&id) = prompt.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(GenerateError::UnknownToken { id, vocab_size });
        }
        let mut rng = generator(sampling.seed, "sampling", &[]);
        let mut context = prompt.to_vec();
        let mut text = StopBuffer::new(&sampling.stop);
        let mut decoder = self.tokenizer.decode_stream(true);
        let mut logits = self.advance(prompt)?;
        let mut ended = Ended::Length;
        for _ in 0..sampling.max_new_tokens {
            let id = choose(&mut logits, &context, sampling, &mut rng)?;
            context.push(id);
            if stop_ids.contains(&id) {
                ended = Ended::EndOfTurn;
                break;
            }
            if text.push(&decoder.push(id)?, &mut on_text) {
                ended = Ended::StopText;
                break;
            }
            if context.len() < prompt.len() + sampling.max_new_tokens {
                logits = self.advance(&context)?;
            }
        }
        if ended != Ended::StopText && text.push(&decoder.finish()?, &mut on_text) {
            ended = Ended::StopText;
        }
        let text = text.finish(&mut on_text);
        Ok(Answer { text, ids: context.split_off(prompt.len()), ended })
    }

    /// Brings the cache to `context` and returns the logits after its last token.
    fn advance(&mut self, context: &[u32]) -> Result<Vec<f32>, GenerateError> {
        let Some((_, before_last)) = context.split_last() else {
            return Err(GenerateError::EmptyPrompt);
        };
        // The last token is always computed: its logits are wanted.
        if !before_last.starts_with(&self.cached) {
            self.cache = KvCache::new(self.config.num_hidden_layers);
            self.cached.clear();
        }
        let past = self.cached.len();
        let ids = &context[past..];
        let positions: Vec<u32> = (past..context.len()).map(|p| p as u32).collect();
        let segments = vec![1; ids.len()];
        let batch = SequenceBatch {
            rows: 1,
            seq: ids.len(),
            ids,
            positions: &positions,
            segments: &segments,
        };
        let inputs = Inputs::with_past(self.config, batch, past, &self.model.device());
        let hidden = self.model.hidden_with_cache(&inputs, &mut self.cache);
        self.cached = context.to_vec();
        let [_, seq, width] = hidden.dims();
        let last = hidden.narrow(1, seq - 1, 1).reshape([1, width]);
        Ok(self.model.head(last).into_data().iter::<f32>().collect())
    }
}

/// The next token, by the logits and the tokens so far.
fn choose(
    logits: &mut [f32],
    context: &[u32],
    sampling: &Sampling,
    rng: &mut ChaCha8Rng,
) -> Result<u32, GenerateError> {
    if logits.iter().any(|logit| logit.is_nan()) {
        return Err(GenerateError::NotFinite);
    }
    if sampling.repetition_penalty != 1.0 {
        let penalty = sampling.repetition_penalty as f32;
        for &id in &context.iter().copied().collect::<BTreeSet<u32>>() {
            let logit = &mut logits[id as usize];
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
    }
    if sampling.temperature == 0.0 {
        return Ok(greatest(logits));
    }
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    // Ties by id, so that the choice is a function of the seed alone.
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    if sampling.top_k > 0 {
        order.truncate(sampling.top_k);
    }
    let top = logits[order[0] as usize];
    let weight = |id: u32| (f64::from(logits[id as usize] - top) / sampling.temperature).exp();
    let mut weights: Vec<f64> = order.iter().map(|&id| weight(id)).collect();
    let all: f64 = weights.iter().sum();
    let mut kept = 0.0;
    let enough = weights.iter().position(|w| {
        kept += w;
        kept >= sampling.top_p * all
    });
    weights.truncate(enough.map_or(weights.len(), |last| last + 1));
    let mut left = f64::from(unit(rng)) * weights.iter().sum::<f64>();
    for (&id, weight) in order.iter().zip(&weights) {
        left -= weight;
        if left < 0.0 {
            return Ok(id);
        }
    }
    Ok(order[weights.len() - 1])
}

/// The first of the greatest.
fn greatest(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

/// Text that is handed on as soon as it can't be the beginning of a stop text any more.
struct StopBuffer<'a> {
    stops: &'a [String],
    text: String,
    handed_on: usize,
}

impl<'a> StopBuffer<'a> {
    fn new(stops: &'a [String]) -> Self {
        Self { stops, text: String::new(), handed_on: 0 }
    }

    /// Adds a piece; true if a stop text has come, and `text` then ends before it.
    fn push(&mut self, piece: &str, on_text: &mut impl FnMut(&str)) -> bool {
        self.text.push_str(piece);
        let stop = self.stops.iter().filter_map(|stop| self.text.find(stop.as_str())).min();
        if let Some(at) = stop {
            self.text.truncate(at);
            return true;
        }
        let held = (0..self.text.len())
            .filter(|&at| self.text.is_char_boundary(at))
            .find(|&at| self.stops.iter().any(|stop| stop.starts_with(&self.text[at..])));
        self.hand_on(held.unwrap_or(self.text.len()), on_text);
        false
    }

    fn hand_on(&mut self, to: usize, on_text: &mut impl FnMut(&str)) {
        if to > self.handed_on {
            on_text(&self.text[self.handed_on..to]);
            self.handed_on = to;
        }
    }

    fn finish(mut self, on_text: &mut impl FnMut(&str)) -> String {
        self.hand_on(self.text.len(), on_text);
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handed_on(stops: &[&str], pieces: &[&str]) -> (String, Vec<String>, bool) {
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let mut buffer = StopBuffer::new(&stops);
        let mut out = Vec::new();
        let mut on_text = |text: &str| out.push(text.to_string());
        let stopped = pieces.iter().any(|piece| buffer.push(piece, &mut on_text));
        let text = buffer.finish(&mut on_text);
        (text, out, stopped)
    }

    #[test]
    fn no_part_of_a_stop_text_is_shown() {
        let (text, out, stopped) = handed_on(&["END"], &["a", "bE", "N", "Dc"]);
        assert!(stopped);
        assert_eq!((text.as_str(), out.concat().as_str()), ("ab", "ab"));
    }

    #[test]
    fn what_only_looked_like_a_stop_text_is_shown() {
        let (text, out, stopped) = handed_on(&["END"], &["E", "N", "É", "E"]);
        assert!(!stopped);
        assert_eq!((text.as_str(), out.concat().as_str()), ("ENÉE", "ENÉE"));
    }

    fn chosen(sampling: &Sampling, logits: &[f32], draws: u64) -> Vec<usize> {
        let mut counts = vec![0; logits.len()];
        for seed in 0..draws {
            let mut rng = generator(seed, "test", &[]);
            let id = choose(&mut logits.to_vec(), &[], sampling, &mut rng).unwrap();
            counts[id as usize] += 1;
        }
        counts
    }

    #[test]
    fn sampling_follows_the_probabilities() {
        let logits = [0.0, (3.0f32).ln(), f32::NEG_INFINITY];
        let counts = chosen(&Sampling { temperature: 1.0, ..Sampling::default() }, &logits, 4000);
        assert!((counts[1] as f64 / 4000.0 - 0.75).abs() < 0.03, "{counts:?}");
        assert_eq!(counts[2], 0);
        for cut in [
            Sampling { temperature: 1.0, top_p: 0.7, ..Sampling::default() },
            Sampling { temperature: 1.0, top_k: 1, ..Sampling::default() },
            Sampling::default(),
        ] {
            assert_eq!(chosen(&cut, &logits, 200), [0, 200, 0]);
        }
    }

    #[test]
    fn a_penalty_pushes_repetitions_down() {
        let sampling = Sampling { repetition_penalty: 4.0, ..Sampling::default() };
        let mut rng = generator(0, "test", &[]);
        assert_eq!(choose(&mut [2.0, 1.0], &[0], &sampling, &mut rng).unwrap(), 1);
        assert_eq!(choose(&mut [-1.0, -2.0], &[0], &sampling, &mut rng).unwrap(), 1);
    }
}
