//! Options for text: what a document is, which documents are for validation, and the tokenizer.
//!
//! Out of scope: the location and the size of the shards (`options`).

use fulmen_data::{Error, Result};
use fulmen_text::Tokenizer;

/// The options for text.
///
/// ```
/// use fulmen_cli::prepare::TextOptions;
///
/// let options = TextOptions::new().field("content").validation(0.01);
/// ```
#[derive(Clone, Debug)]
pub struct TextOptions {
    pub(crate) field: String,
    pub(crate) lines: bool,
    pub(crate) validation: f64,
    pub(crate) tokenizer: Option<Tokenizer>,
    pub(crate) separator: Option<String>,
}

impl Default for TextOptions {
    fn default() -> TextOptions {
        TextOptions::new()
    }
}

impl TextOptions {
    /// The default options: documents from the field `text` of JSON lines and Parquet rows, and
    /// from whole text files; no validation; texts instead of tokens.
    pub fn new() -> TextOptions {
        TextOptions {
            field: "text".to_owned(),
            lines: false,
            validation: 0.0,
            tokenizer: None,
            separator: None,
        }
    }

    /// The field or column of JSON lines and Parquet files with the text.
    #[must_use]
    pub fn field(mut self, name: &str) -> TextOptions {
        self.field = name.to_owned();
        self
    }

    /// Whether each line of a text file is a document, instead of the whole file.
    #[must_use]
    pub fn lines(mut self, lines: bool) -> TextOptions {
        self.lines = lines;
        self
    }

    /// The fraction of documents for validation, from 0 to below 1. The choice depends only on a
    /// hash of the text and the seed. The same text is therefore always in the same split, even if
    /// it occurs several times or other texts are added.
    #[must_use]
    pub fn validation(mut self, share: f64) -> TextOptions {
        self.validation = share;
        self
    }

    /// Writes token files instead of texts.
    #[must_use]
    pub fn tokenizer(mut self, tokenizer: Tokenizer) -> TextOptions {
        self.tokenizer = Some(tokenizer);
        self
    }

    /// The token that is appended to each document, such as `<|endoftext|>`.
    #[must_use]
    pub fn separator(mut self, token: &str) -> TextOptions {
        self.separator = Some(token.to_owned());
        self
    }

    pub(crate) fn has_tokenizer(&self) -> bool {
        self.tokenizer.is_some()
    }

    pub(crate) fn check(&self) -> Result<()> {
        if !(0.0..1.0).contains(&self.validation) {
            return Err(Error::usage(format!(
                "the fraction of documents for validation must be at least 0 and less than 1, but it is {}",
                self.validation
            )));
        }
        if self.separator.is_some() && !self.has_tokenizer() {
            return Err(Error::usage("a token between documents needs a tokenizer"));
        }
        Ok(())
    }
}
