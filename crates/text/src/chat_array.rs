//! Conversations in memory as tokens, of which only the answers have labels.
//!
//! Out of scope: rendering conversations (`chat_template`), and packing them.

use std::fmt;

use super::chat_template::{ChatTemplate, ChatTokens};
use super::document_reader::in_order;
use super::{TokenArray, TokenStore, Tokenizer};
use fulmen_data::{Error, Fingerprint, Result, Source};
use fulmen_durable::messages::quantity;

/// The tokens of conversations in memory, for supervised fine-tuning: only the assistant's answers
/// have labels. [`PackedDocuments`](super::PackedDocuments) packs whole conversations side by side.
///
/// A conversation longer than `max_length` is cut at its end. One of which no answer is left is left
/// out, because it has nothing to learn from. [`counts`](ChatArray::counts) says how many.
///
/// ```
/// use fulmen_data::HostBatch;
/// use fulmen_text::{CausalLabels, ChatArray, ChatTokens, PackedDocuments, TokenCollator};
///
/// let mut chats = ChatArray::new(100, 4)?;
/// chats.push(&ChatTokens { ids: vec![11, 12], generation: vec![false, true] })?;
/// chats.push(&ChatTokens { ids: vec![21, 22, 23, 24, 25], generation: vec![false, true, false, true, true] })?;
/// assert_eq!(
///     chats.counts().to_string(),
///     "2 conversations, of which 1 was cut at 4 tokens; 6 tokens, of which 3 are of answers"
/// );
/// let samples = TokenCollator::new(6, 0).documents(true).causal(CausalLabels::Shifted);
/// let data = samples.dataset(PackedDocuments::new(chats, 6)?)?;
/// let batch = HostBatch::collate(&data, &[0])?;
/// assert_eq!(batch.values::<i32>(0)?, [11, 12, 21, 22, 23, 24]);
/// assert_eq!(batch.values::<i32>(2)?, [1, 1, 2, 2, 2, 2]); // segment_ids
/// assert_eq!(batch.values::<i32>(4)?, [12, -100, 22, -100, 24, -100]); // labels
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ChatArray {
    tokens: TokenArray,
    targets: Vec<bool>,
    counts: ChatCounts,
}

/// What became of conversations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChatCounts {
    /// The conversations that are kept.
    pub conversations: usize,
    /// Those of them that were cut.
    pub truncated: usize,
    /// The conversations that were left out, because they have no answer, or none within the maximum
    /// length.
    pub without_answer: usize,
    /// The tokens that are kept.
    pub tokens: usize,
    /// Those of them that have labels.
    pub answer_tokens: usize,
    /// The maximum length.
    pub max_length: usize,
}

impl fmt::Display for ChatCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let was = |count: usize| if count == 1 { "was" } else { "were" };
        let are = |count: usize| if count == 1 { "is one of an answer" } else { "are of answers" };
        write!(f, "{}", quantity(self.conversations, "conversation"))?;
        if self.truncated > 0 {
            let cut = was(self.truncated);
            write!(f, ", of which {} {cut} cut at {} tokens", self.truncated, self.max_length)?;
        }
        if self.without_answer > 0 {
            let left = was(self.without_answer);
            write!(f, "; {} {left} left out without an answer", self.without_answer)?;
        }
        let tokens = quantity(self.tokens, "token");
        write!(f, "; {tokens}, of which {} {}", self.answer_tokens, are(self.answer_tokens))
    }
}

impl ChatArray {
    /// No conversations yet. Token ids are below `vocab_size`; longer conversations are cut after
    /// `max_length` tokens.
    ///
    /// # Errors
    /// A vocabulary that is empty or too large for an i32; a length below 2, in which no answer
    /// follows anything.
    pub fn new(vocab_size: usize, max_length: usize) -> Result<ChatArray> {
        if max_length < 2 {
            return Err(Error::usage(format!(
                "conversations of at most {max_length} tokens; use at least 2, one before an answer and one of it"
            )));
        }
        Ok(ChatArray {
            tokens: TokenArray::new(vocab_size)?,
            targets: Vec::new(),
            counts: ChatCounts { max_length, ..ChatCounts::default() },
        })
    }

    /// Adds a conversation.
    ///
    /// # Errors
    /// Another number of ids than of marks; a token outside the vocabulary.
    pub fn push(&mut self, chat: &ChatTokens) -> Result<()> {
        if chat.ids.len() != chat.generation.len() {
            return Err(Error::usage(format!(
                "a conversation has {} ids, but {} marks of answers; pass one for each",
                chat.ids.len(),
                chat.generation.len()
            )));
        }
        let length = chat.ids.len().min(self.counts.max_length);
        let targets = &chat.generation[..length];
        // Nothing predicts the first token.
        let answer_tokens = targets.iter().skip(1).filter(|&&target| target).count();
        if answer_tokens == 0 {
            self.counts.without_answer += 1;
            return Ok(());
        }
        self.tokens.push(&chat.ids[..length])?;
        self.targets.extend_from_slice(targets);
        self.counts.conversations += 1;
        self.counts.truncated += usize::from(length < chat.ids.len());
        self.counts.tokens += length;
        self.counts.answer_tokens += answer_tokens;
        Ok(())
    }

    /// Adds the conversations of a source of JSON texts, such as the lines of a file, rendered by
    /// [`ChatTemplate::render_example`]. `threads` threads read and tokenize them.
    ///
    /// # Errors
    /// The error of the first text that cannot be read, rendered or tokenized, with its place. The
    /// conversations before it have been added.
    pub fn extend<S: Source<Item = String>>(
        &mut self,
        examples: &S,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        threads: usize,
    ) -> Result<()> {
        let tokenize = |json: String| template.render_example(&json)?.tokenize(tokenizer);
        in_order(examples, threads, tokenize, |index, chat| {
            chat.and_then(|chat| self.push(&chat))
                .map_err(|error| error.at_sample(index as u64, Some(examples.origin(index))))
        })
    }

    /// How many conversations are kept, cut and left out.
    pub fn counts(&self) -> &ChatCounts {
        &self.counts
    }
}

impl TokenStore for ChatArray {
    fn num_tokens(&self) -> u64 {
        self.tokens.num_tokens()
    }

    fn document_ends(&self) -> &[u64] {
        self.tokens.document_ends()
    }

    fn read(&self, start: u64, tokens: &mut [u32]) -> Result<()> {
        self.tokens.read(start, tokens)
    }

    fn targets(&self, start: u64, length: usize) -> Result<Option<Vec<bool>>> {
        let start = start as usize;
        let range = start..start.saturating_add(length);
        match self.targets.get(range) {
            Some(targets) => Ok(Some(targets.to_vec())),
            None => Err(Error::usage(format!(
                "there are no {length} tokens from {start} on; there are {}",
                self.targets.len()
            ))),
        }
    }

    fn origin(&self, document: usize) -> String {
        format!("conversation {document}")
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        let targets: Vec<u8> = self.targets.iter().map(|&target| u8::from(target)).collect();
        fingerprint.add("targets", targets);
        self.tokens.fingerprint(fingerprint)
    }
}
