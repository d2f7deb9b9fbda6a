//! Evaluation during a run: loss on the evaluation data, and answers to the sample prompts.

use emberlm_data::{DataError, Message};
use emberlm_model::{CausalLm, ModelBackend};
use serde::Serialize;

use crate::base::Base;
use crate::eval::evaluate::{Evaluation, evaluate_in};
use crate::eval::generate::{Generator, Sampling, stop_ids};
use crate::run::error::RunError;
use crate::run::event::Event;
use crate::run::metrics::row::EvalRow;
use crate::run::prepare::Data;
use crate::run::run_folder::RunFolder;
use crate::trainer::plan::Plan;

/// Maximum tokens of an answer to a sample prompt.
const ANSWER_TOKENS: usize = 48;

/// A row of `samples.jsonl`.
#[derive(Serialize)]
struct SampleRow<'a> {
    step: u64,
    prompt: &'a str,
    answer: &'a str,
}

/// The inputs of evaluations.
pub(super) struct Evaluator<'a> {
    pub(super) base: &'a Base,
    pub(super) data: &'a Data,
    pub(super) pad_id: u32,
    pub(super) plan: &'a Plan,
    pub(super) date: &'a str,
}

impl Evaluator<'_> {
    /// Evaluates and logs the loss on the evaluation data, if there is any.
    pub(super) fn evaluate<B: ModelBackend>(
        &self,
        model: &CausalLm<B>,
        step: u64,
        folder: &mut RunFolder,
    ) -> Result<Option<Evaluation>, RunError> {
        let Some(eval) = &self.data.eval else { return Ok(None) };
        let Plan { layout, micro_batch_size, .. } = *self.plan;
        let config = &self.base.config;
        let evaluation = evaluate_in(layout, model, config, eval, self.pad_id, micro_batch_size);
        folder.log(&EvalRow::new(step, &evaluation))?;
        Ok(Some(evaluation))
    }

    /// Generates and logs the most likely answers to the sample prompts.
    pub(super) fn answers<B: ModelBackend>(
        &self,
        model: &CausalLm<B>,
        step: u64,
        folder: &mut RunFolder,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<Vec<String>, RunError> {
        let Base { config, tokenizer, .. } = self.base;
        let sampling = Sampling { max_new_tokens: ANSWER_TOKENS, ..Sampling::default() };
        let stop_ids = stop_ids(config, tokenizer);
        let mut generator = Generator::new(model, config, tokenizer);
        let mut answers = Vec::new();
        for prompt in &self.data.prompts {
            let text = if tokenizer.has_chat_template() {
                let messages = [Message::new("user", prompt)];
                let text = tokenizer.render_on(&messages, None, true, Some(self.date));
                text.map_err(DataError::from)?
            } else {
                prompt.clone()
            };
            let ids = tokenizer.encode(&text)?;
            let answer = generator.answer(&ids, &sampling, &stop_ids, |_| ())?.text;
            let answer = answer.trim().to_string();
            folder.log_sample(&SampleRow { step, prompt, answer: &answer })?;
            on_event(Event::Answered { step, prompt, answer: &answer });
            answers.push(answer);
        }
        Ok(answers)
    }
}
