//! Text generation: prompt, KV cache, sampling, stop conditions.

use std::collections::BTreeSet;

use emberlm_data::{DataError, TextTokenizer};
use emberlm_lora::random::{generator, unit};
use emberlm_model::{CausalLm, Inputs, KvCache, ModelBackend, ModelConfig, SequenceBatch};
use rand_chacha::ChaCha8Rng;

/// Options of generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Maximum length of an answer in tokens.
    pub max_new_tokens: usize,
    /// Temperature; 0: always the most likely token.
    pub temperature: f64,
    /// Sample from the most likely tokens that together have this probability.
    pub top_p: f64,
    /// Sample from this number of most likely tokens; 0: all.
    pub top_k: usize,
    /// Divisor of positive, and factor of negative, logits of tokens that have occurred (Keskar et al., 2019,
    /// arXiv:1909.05858).
    pub repetition_penalty: f64,
    /// Seed of sampling.
    pub seed: u64,
    /// Stop texts, before which the answer ends.
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
    /// At an end token.
    EndOfTurn,
    /// At a stop text.
    StopText,
    /// At the maximum length.
    Length,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The text, without end tokens and stop texts.
    pub text: String,
    /// Its tokens, with the end token if it has one.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub ended: Ended,
}

/// Why generation fails.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// A prompt without tokens.
    #[error("the prompt is empty: expected at least one token")]
    EmptyPrompt,
    /// A token of the prompt is outside the model's vocabulary.
    #[error(
        "the prompt contains token {id}, but the model's vocabulary has {vocab_size} tokens: the tokenizer does not belong to the model"
    )]
    UnknownToken {
        /// The token.
        id: u32,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// The logits are NaN.
    #[error(
        "the model computes NaN: the weights of the model or the adapter are damaged, or training diverged"
    )]
    NotFinite,
    /// Of the tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] DataError),
}

/// Generates answers. The prefix that a prompt shares with the one before is not recomputed.
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

    /// Continues a prompt. `on_text` is called with each piece of the answer.
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

    /// Extends the cache to `context` and returns the logits after its last token.
    fn advance(&mut self, context: &[u32]) -> Result<Vec<f32>, GenerateError> {
        let Some((_, before_last)) = context.split_last() else {
            return Err(GenerateError::EmptyPrompt);
        };
        // The last token is always computed, for its logits.
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

/// Chooses the next token from the logits and the tokens so far.
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
    // Ties are broken by id, so that the choice depends on the seed alone.
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

/// The index of the first maximum.
fn greatest(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

/// End tokens of an answer: the tokenizer's and the model's.
pub fn stop_ids(config: &ModelConfig, tokenizer: &TextTokenizer) -> BTreeSet<u32> {
    let mut ids = tokenizer.stop_ids();
    ids.extend(&config.eos_token_ids);
    ids
}

/// Holds text back as long as it may be the start of a stop text.
struct StopBuffer<'a> {
    stops: &'a [String],
    text: String,
    emitted: usize,
}

impl<'a> StopBuffer<'a> {
    fn new(stops: &'a [String]) -> Self {
        Self { stops, text: String::new(), emitted: 0 }
    }

    /// Adds a piece. Returns true at a stop text, before which `text` then ends.
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
        self.emit(held.unwrap_or(self.text.len()), on_text);
        false
    }

    fn emit(&mut self, to: usize, on_text: &mut impl FnMut(&str)) {
        if to > self.emitted {
            on_text(&self.text[self.emitted..to]);
            self.emitted = to;
        }
    }

    fn finish(mut self, on_text: &mut impl FnMut(&str)) -> String {
        self.emit(self.text.len(), on_text);
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn emitted(stops: &[&str], pieces: &[&str]) -> (String, Vec<String>, bool) {
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
        let (text, out, stopped) = emitted(&["END"], &["a", "bE", "N", "Dc"]);
        assert!(stopped);
        assert_eq!((text.as_str(), out.concat().as_str()), ("ab", "ab"));
    }

    #[test]
    fn an_incomplete_stop_text_is_shown() {
        let (text, out, stopped) = emitted(&["END"], &["E", "N", "É", "E"]);
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
    fn a_penalty_lowers_repeated_tokens() {
        let sampling = Sampling { repetition_penalty: 4.0, ..Sampling::default() };
        let mut rng = generator(0, "test", &[]);
        assert_eq!(choose(&mut [2.0, 1.0], &[0], &sampling, &mut rng).unwrap(), 1);
        assert_eq!(choose(&mut [-1.0, -2.0], &[0], &sampling, &mut rng).unwrap(), 1);
    }
}
