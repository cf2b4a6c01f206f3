//! Examples of fine-tuning in JSON: conversations with answers, and pairs of answers.
//!
//! Out of scope: tokens.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::chat::{member, parse};
use super::{Chat, ChatTemplate, RenderedChat};
use fulmen_data::{Error, Result};

/// A prompt with two answers: the preferred one and another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedPreference {
    /// The conversation with the preferred answer, which is the range in
    /// [`generation`](RenderedChat::generation).
    pub chosen: RenderedChat,
    /// The conversation with the other answer.
    pub rejected: RenderedChat,
}

impl ChatTemplate {
    /// Renders an example of supervised fine-tuning, with what the model should learn in
    /// [`RenderedChat::generation`]. The JSON is an object of TRL's datasets:
    ///
    /// - with `messages`, as for [`Chat::from_json`]: all answers of the assistant
    ///   ([`render_with_answers`](ChatTemplate::render_with_answers));
    /// - with `prompt` and `completion`, lists of messages: everything after the prompt, which is
    ///   rendered with `add_generation_prompt`.
    ///
    /// ```
    /// use fulmen_text::ChatTemplate;
    ///
    /// let template = ChatTemplate::from_source(
    ///     "{% for message in messages %}<{{ message.role }}>{{ message.content }};{% endfor %}
    /// {%- if add_generation_prompt %}<assistant>{% endif %}",
    /// )?;
    /// let example = template.render_example(
    ///     r#"{"prompt": [{"role": "user", "content": "2 + 2"}], "completion": [{"role": "assistant", "content": "4"}]}"#,
    /// )?;
    /// assert_eq!(&example.text[example.generation[0].clone()], "4;");
    /// # Ok::<(), fulmen_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// Another JSON; those of [`render_with_answers`](ChatTemplate::render_with_answers); a template
    /// that writes the prompt otherwise if the completion follows.
    pub fn render_example(&self, json: &str) -> Result<RenderedChat> {
        let object = parse(json)?;
        if member(&object, "messages").is_some() || object.kind() == ValueKind::Seq {
            return self.render_with_answers(&Chat::from_json(json)?);
        }
        let (Some(prompt), Some(completion)) =
            (member(&object, "prompt"), member(&object, "completion"))
        else {
            return Err(Error::new(
                "an example of fine-tuning should be an object with `messages`, or with `prompt` and `completion`",
            ));
        };
        self.render_completion(
            &object,
            messages(&prompt, "prompt")?,
            messages(&completion, "completion")?,
        )
    }

    /// Renders a pair of answers for training with preferences. The JSON is an object of TRL's
    /// datasets with `chosen` and `rejected`, lists of messages, and `prompt`, the messages before
    /// them. Without `prompt`, it is the messages with which both begin.
    ///
    /// # Errors
    /// Another JSON; equal answers; those of [`render`](ChatTemplate::render); a template that writes
    /// the prompt otherwise if an answer follows.
    pub fn render_preference(&self, json: &str) -> Result<RenderedPreference> {
        let object = parse(json)?;
        let (Some(chosen), Some(rejected)) =
            (member(&object, "chosen"), member(&object, "rejected"))
        else {
            return Err(Error::new(
                "a pair of answers should be an object with `chosen` and `rejected`",
            ));
        };
        let mut chosen = messages(&chosen, "chosen")?;
        let mut rejected = messages(&rejected, "rejected")?;
        if chosen == rejected {
            return Err(Error::new("`chosen` and `rejected` are equal"));
        }
        let prompt = match member(&object, "prompt") {
            Some(prompt) => messages(&prompt, "prompt")?,
            None => {
                let is_shared = |&(first, second): &(&Value, &Value)| first == second;
                let shared = chosen.iter().zip(&rejected).take_while(is_shared).count();
                rejected.drain(..shared);
                chosen.drain(..shared).collect()
            }
        };
        Ok(RenderedPreference {
            chosen: self.render_completion(&object, prompt.clone(), chosen)?,
            rejected: self.render_completion(&object, prompt, rejected)?,
        })
    }

    /// Renders a prompt and what follows it, whose text is in `generation`.
    fn render_completion(
        &self,
        object: &Value,
        prompt: Vec<Value>,
        completion: Vec<Value>,
    ) -> Result<RenderedChat> {
        let count = prompt.len();
        let all: Vec<Value> = prompt.into_iter().chain(completion).collect();
        if count == 0 || count == all.len() {
            return Err(Error::new("an example has no prompt, or nothing follows its prompt"));
        }
        let chat = Chat::of_messages(&Value::from(all))?.with_extras(object)?;
        let mut rendered = self.render(&chat)?;
        let before = self.render_first(&chat, count, true)?;
        if !rendered.text.starts_with(&before) {
            return Err(Error::new(format!(
                "{self:?}: the template writes the prompt otherwise if an answer follows, so the answer cannot be \
                 found:\n{before:?}\n{:?}",
                rendered.text
            )));
        }
        rendered.generation = std::iter::once(before.len()..rendered.text.len()).collect();
        Ok(rendered)
    }
}

/// A list of messages.
fn messages(value: &Value, name: &str) -> Result<Vec<Value>> {
    if value.kind() != ValueKind::Seq {
        return Err(Error::new(format!(
            "`{name}` is {}, expected a list of messages with `role` and `content`",
            value.kind()
        )));
    }
    Ok(value.try_iter().map_err(Error::new)?.collect())
}
