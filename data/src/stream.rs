//! Decoding one token after the other, for text that is shown while it is generated.

use crate::error::DataError;
use crate::tokenizer::TextTokenizer;

/// Takes tokens and gives text as soon as it is whole: never half a character.
#[derive(Debug)]
pub struct StreamDecoder<'a> {
    tokenizer: &'a TextTokenizer,
    skip_special: bool,
    ids: Vec<u32>,
    /// Tokens from here on are decoded together: some decoders look at the token before.
    context: usize,
    /// Tokens up to here have been given out.
    given: usize,
}

impl<'a> StreamDecoder<'a> {
    pub(crate) fn new(tokenizer: &'a TextTokenizer, skip_special: bool) -> Self {
        Self { tokenizer, skip_special, ids: Vec::new(), context: 0, given: 0 }
    }

    /// Takes a token; gives the text that has become whole, which may be empty.
    ///
    /// # Errors
    /// A failure of the tokenizer.
    pub fn push(&mut self, id: u32) -> Result<String, DataError> {
        self.ids.push(id);
        self.take(false)
    }

    /// Gives what is left, with a replacement character for half a character.
    ///
    /// # Errors
    /// A failure of the tokenizer.
    pub fn finish(&mut self) -> Result<String, DataError> {
        self.take(true)
    }

    fn take(&mut self, all: bool) -> Result<String, DataError> {
        let before =
            self.tokenizer.decode(&self.ids[self.context..self.given], self.skip_special)?;
        let now = self.tokenizer.decode(&self.ids[self.context..], self.skip_special)?;
        // Half a character decodes to a replacement character, which more tokens may mend.
        if !all && now.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        let Some(new) = now.strip_prefix(&before) else { return Ok(String::new()) };
        if !new.is_empty() {
            self.context = self.given;
            self.given = self.ids.len();
        }
        Ok(new.to_owned())
    }
}
