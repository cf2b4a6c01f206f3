//! The tokens of conversations, and which of them are answers of the assistant.
//!
//! Out of scope: rendering, and labels.

use std::ops::Range;

use super::{Chat, ChatTemplate, RenderedChat};
use crate::Tokenizer;
use fulmen_data::{Error, Result};

/// The tokens of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatTokens {
    /// The token ids.
    pub ids: Vec<u32>,
    /// For each token, whether it is within [`RenderedChat::generation`]: transformers'
    /// `assistant_masks`.
    pub generation: Vec<bool>,
}

impl RenderedChat {
    /// The tokens of the text. Special tokens are only those that the template writes. Any maximum
    /// length of the tokenizer is ignored. A token that is partly within a range of
    /// [`generation`](RenderedChat::generation) counts as within it.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode`].
    pub fn tokenize(&self, tokenizer: &Tokenizer) -> Result<ChatTokens> {
        let (ids, ranges) = tokenizer.encode_with_ranges(&self.text)?;
        let overlaps = |token: &Range<usize>| {
            let mut answers = self.generation.iter();
            answers.any(|answer| token.start < answer.end && answer.start < token.end)
        };
        let generation = ranges.iter().map(overlaps).collect();
        Ok(ChatTokens { ids, generation })
    }
}

impl ChatTemplate {
    /// Renders a conversation, with the ranges of all answers of the assistant in
    /// [`RenderedChat::generation`]: those of the template's `{% generation %}` blocks.
    ///
    /// A template without such blocks is rendered for the messages before each answer, with
    /// `add_generation_prompt`, and up to each answer. What the second text has more is the answer,
    /// with the tokens that end it. If the template does not write the beginning of the conversation
    /// in the same way in both, the answers are unknown, which is an error.
    ///
    /// ```
    /// use fulmen_text::{Chat, ChatTemplate};
    ///
    /// let template = ChatTemplate::from_source(
    ///     "{% for message in messages %}<{{ message.role }}>{{ message.content }};{% endfor %}
    /// {%- if add_generation_prompt %}<assistant>{% endif %}",
    /// )?;
    /// let chat = Chat::from_json(
    ///     r#"[{"role": "user", "content": "2 + 2"}, {"role": "assistant", "content": "4"}]"#,
    /// )?;
    /// let rendered = template.render_with_answers(&chat)?;
    /// assert_eq!(rendered.text, "<user>2 + 2;<assistant>4;");
    /// assert_eq!(&rendered.text[rendered.generation[0].clone()], "4;");
    /// # Ok::<(), fulmen_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`render`](ChatTemplate::render); answers that cannot be found.
    pub fn render_with_answers(&self, chat: &Chat) -> Result<RenderedChat> {
        let mut rendered = self.render(chat)?;
        if self.has_generation_blocks(chat)? {
            return Ok(rendered);
        }
        let unknown = |message: usize| {
            Error::new(format!(
                "{self:?}: the answer in message {message} cannot be found, because the template writes the messages \
                 before it otherwise if nothing follows them; put {{% generation %}} and {{% endgeneration %}} around \
                 what the template writes of an answer"
            ))
        };
        for message in
            (0..chat.len()).filter(|&message| chat.role(message).as_deref() == Some("assistant"))
        {
            let before = self.render_first(chat, message, true)?;
            let through = self.render_first(chat, message + 1, false)?;
            if !through.starts_with(&before) || !rendered.text.starts_with(&through) {
                return Err(unknown(message));
            }
            rendered.generation.push(before.len()..through.len());
        }
        Ok(rendered)
    }
}
