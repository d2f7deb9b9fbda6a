//! Decoding token by token, for text that is shown while it is generated.

use crate::error::DataError;
use crate::tokenizer::TextTokenizer;

/// Decodes tokens one by one. Text is returned as soon as its characters are complete.
#[derive(Debug)]
pub struct StreamDecoder<'a> {
    tokenizer: &'a TextTokenizer,
    skip_special: bool,
    ids: Vec<u32>,
    /// Start of the tokens that are decoded together: some decoders need the previous token.
    context: usize,
    /// Number of tokens whose text was returned.
    returned: usize,
}

impl TextTokenizer {
    /// A decoder for one token at a time, which never returns an incomplete character.
    pub fn decode_stream(&self, skip_special: bool) -> StreamDecoder<'_> {
        StreamDecoder { tokenizer: self, skip_special, ids: Vec::new(), context: 0, returned: 0 }
    }
}

impl StreamDecoder<'_> {
    /// Adds a token and returns the text that is complete now, which may be empty.
    ///
    /// # Errors
    /// A failure of the tokenizer.
    pub fn push(&mut self, id: u32) -> Result<String, DataError> {
        self.ids.push(id);
        self.take(false)
    }

    /// Returns the remaining text, with a replacement character for an incomplete one.
    ///
    /// # Errors
    /// A failure of the tokenizer.
    pub fn finish(&mut self) -> Result<String, DataError> {
        self.take(true)
    }

    fn take(&mut self, all: bool) -> Result<String, DataError> {
        let before =
            self.tokenizer.decode(&self.ids[self.context..self.returned], self.skip_special)?;
        let now = self.tokenizer.decode(&self.ids[self.context..], self.skip_special)?;
        // An incomplete character decodes to a replacement character until its other tokens arrive.
        if !all && now.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        let Some(new) = now.strip_prefix(&before) else { return Ok(String::new()) };
        if !new.is_empty() {
            self.context = self.returned;
            self.returned = self.ids.len();
        }
        Ok(new.to_owned())
    }
}
