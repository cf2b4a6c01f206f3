//! [`Chat`]: a conversation, with everything else that a template sees.
//!
//! Out of scope: rendering.

use minijinja::Value;
use minijinja::value::{Serde, ValueKind};
use serde::Serialize;

use super::Now;
use super::generation::{END, START};
use fulmen_data::{Error, Result};

/// A conversation for a [`ChatTemplate`](super::ChatTemplate): messages with `role`, `content` and
/// whatever else the template reads, such as `tool_calls`.
///
/// The order of the keys of an object is kept, because templates write objects by `tojson`.
/// [`from_json`](Chat::from_json) keeps the order of the text. `serde_json::Value` sorts keys.
///
/// As in transformers, keys of a message whose value is null are left out, and reasoning is passed
/// as both `reasoning_content` and `thinking`, whichever of these or `reasoning` a message has.
///
/// ```
/// use fulmen_text::{Chat, ChatTemplate};
///
/// let template = ChatTemplate::from_source("{{ tools | tojson }} {{ messages[0].content }} {{ thinking }}")?;
/// let chat = Chat::from_json(
///     r#"{"messages": [{"role": "user", "content": "How warm is it?"}],
///         "tools": [{"type": "function", "function": {"name": "temperature"}}]}"#,
/// )?
/// .variable("thinking", true)?;
/// assert_eq!(
///     template.render(&chat)?.text,
///     r#"[{"type": "function", "function": {"name": "temperature"}}] How warm is it? True"#
/// );
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Chat {
    pub(super) messages: Vec<Value>,
    pub(super) tools: Option<Value>,
    pub(super) documents: Option<Value>,
    pub(super) variables: Vec<(String, Value)>,
    pub(super) add_generation_prompt: bool,
    pub(super) continue_final_message: bool,
    pub(super) template: Option<String>,
    pub(super) now: Option<Now>,
}

/// The names by which messages have their reasoning; the first that is there is used.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// What is appended to a message that is to be continued, to find its end in the text.
const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

impl Chat {
    /// A conversation of messages: a list of objects.
    ///
    /// # Errors
    /// No list of objects; an empty list; a text with one of the characters U+FDD0 and U+FDD1, which
    /// mark answers and are no characters of texts.
    pub fn new(messages: impl Serialize) -> Result<Chat> {
        Chat::of_messages(&Value::from(Serde(messages)))
    }

    /// A conversation in JSON: a list of messages, or an object with `messages`. `tools`,
    /// `documents` and `chat_template_kwargs` (an object of variables) of the object are used if they
    /// are there.
    ///
    /// # Errors
    /// Those of [`new`](Chat::new); a text that is not JSON, or without messages.
    pub fn from_json(json: &str) -> Result<Chat> {
        let value = parse(json)?;
        if value.kind() == ValueKind::Seq {
            return Chat::of_messages(&value);
        }
        let Some(messages) = member(&value, "messages") else {
            return Err(Error::new(
                "a conversation in JSON should be a list of messages or an object with `messages`",
            ));
        };
        Chat::of_messages(&messages)?.with_extras(&value)
    }

    /// Adds the tools, the documents and the variables of a JSON object.
    pub(in super::super) fn with_extras(mut self, object: &Value) -> Result<Chat> {
        if let Some(tools) = member(object, "tools") {
            self = self.tools(tools)?;
        }
        if let Some(documents) = member(object, "documents") {
            self = self.documents(documents)?;
        }
        if let Some(variables) = member(object, "chat_template_kwargs") {
            let failed = |e: minijinja::Error| Error::new(format!("`chat_template_kwargs`: {e}"));
            for name in variables.try_iter().map_err(failed)? {
                let value = variables.get_item(&name).map_err(failed)?;
                self = self.variable(&name.to_string(), value)?;
            }
        }
        Ok(self)
    }

    pub(in super::super) fn of_messages(messages: &Value) -> Result<Chat> {
        let messages: Vec<Value> = match messages.kind() {
            ValueKind::Seq => messages.try_iter().map_err(Error::new)?.collect(),
            kind => {
                return Err(Error::new(format!(
                    "the messages of a conversation are {kind}, expected a list of objects"
                )));
            }
        };
        if messages.is_empty() {
            return Err(Error::new("a conversation has no messages, expected at least one"));
        }
        let messages = messages.iter().enumerate().map(|(number, message)| {
            check_marks(message)?;
            prepare(message)
                .map_err(|text| Error::new(format!("message {number} of a conversation {text}")))
        });
        Ok(Chat {
            messages: messages.collect::<Result<_>>()?,
            tools: None,
            documents: None,
            variables: Vec::new(),
            add_generation_prompt: false,
            continue_final_message: false,
            template: None,
            now: None,
        })
    }

    /// The tools that the model may call: a list of JSON schemas.
    ///
    /// # Errors
    /// A text with one of the characters U+FDD0 and U+FDD1.
    pub fn tools(mut self, tools: impl Serialize) -> Result<Chat> {
        let tools = Value::from(Serde(tools));
        check_marks(&tools)?;
        self.tools = Some(tools);
        Ok(self)
    }

    /// The documents that the model may cite: a list of objects with `title` and `text`.
    ///
    /// # Errors
    /// A text with one of the characters U+FDD0 and U+FDD1.
    pub fn documents(mut self, documents: impl Serialize) -> Result<Chat> {
        let documents = Value::from(Serde(documents));
        check_marks(&documents)?;
        self.documents = Some(documents);
        Ok(self)
    }

    /// A further variable that the template sees, such as `enable_thinking`. It takes the place of a
    /// special token or another variable of its name.
    ///
    /// # Errors
    /// A text with one of the characters U+FDD0 and U+FDD1.
    pub fn variable(mut self, name: &str, value: impl Serialize) -> Result<Chat> {
        let value = Value::from(Serde(value));
        check_marks(&value)?;
        self.variables.push((name.to_owned(), value));
        Ok(self)
    }

    /// Whether the text ends with the beginning of an answer of the assistant; initially false.
    pub fn add_generation_prompt(mut self, add: bool) -> Chat {
        self.add_generation_prompt = add;
        self
    }

    /// Whether the text ends with the content of the last message, so that a model continues it;
    /// initially false.
    pub fn continue_final_message(mut self, continue_it: bool) -> Chat {
        self.continue_final_message = continue_it;
        self
    }

    /// Which template of several is used, by its name. Initially `tool_use` if there are tools and
    /// such a template, otherwise `default`.
    pub fn template(mut self, name: &str) -> Chat {
        self.template = Some(name.to_owned());
        self
    }

    /// The time that `strftime_now` formats, in UTC. A template that asks for the time without it is
    /// an error, because its texts would change from day to day.
    pub fn now(mut self, now: Now) -> Chat {
        self.now = Some(now);
        self
    }

    /// The number of messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Always false: a conversation has messages.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The role of a message, if it has one.
    pub fn role(&self, message: usize) -> Option<String> {
        let role = member(self.messages.get(message)?, "role")?;
        role.as_str().map(str::to_owned)
    }

    /// The messages that a template sees. The last one has a tag if it is to be continued.
    pub(super) fn messages_for(&self, source: &str) -> Result<Vec<Value>> {
        let mut messages = self.messages.clone();
        if !self.continue_final_message {
            return Ok(messages);
        }
        if self.add_generation_prompt {
            return Err(Error::usage(
                "a conversation is rendered with both add_generation_prompt and continue_final_message; a text ends \
                 either with the beginning of a new message or within the last one",
            ));
        }
        if !source.contains("content") {
            return Err(Error::new(
                "the last message cannot be continued: the chat template does not read `content`",
            ));
        }
        let Some(last) = messages.last_mut() else { return Ok(messages) };
        let content =
            member(last, "content").and_then(|content| tagged(&content)).ok_or_else(|| {
                Error::new("the last message cannot be continued: it has no text in `content`")
            })?;
        *last = with_member(last, "content", content).map_err(Error::new)?;
        Ok(messages)
    }

    /// The text up to the end of the last message.
    pub(super) fn cut_after_final_message(&self, text: String, origin: &str) -> Result<String> {
        let Some(position) = text.rfind(TAG.trim_end()) else {
            return Err(Error::new(format!(
                "{origin}: the last message cannot be continued: the template does not write the end of it"
            )));
        };
        let before = &text[..position];
        // A template that trims contents would also have trimmed the end of this one.
        let is_trimmed = !text[position..].starts_with(TAG);
        Ok(if is_trimmed { before.trim_end() } else { before }.to_owned())
    }
}

/// A JSON text as a template sees it, with the keys in their order.
pub(in super::super) fn parse(json: &str) -> Result<Value> {
    serde_json::from_str(json).map_err(|e| Error::new(format!("a conversation is not JSON: {e}")))
}

/// A member of an object that is there and not null.
pub(in super::super) fn member(object: &Value, name: &str) -> Option<Value> {
    let value = object.get_attr(name).ok()?;
    (!value.is_undefined() && !value.is_none()).then_some(value)
}

/// Refuses the characters that mark generated text.
fn check_marks(value: &Value) -> Result<()> {
    let text = serde_json::to_string(value).map_err(Error::new)?;
    let Some(found) = text.chars().find(|&c| c == START || c == END) else { return Ok(()) };
    Err(Error::new(format!(
        "a conversation contains the noncharacter U+{:04X}, which marks answers while a template is rendered; remove it",
        u32::from(found)
    )))
}

/// A message without null members, with its reasoning by all names that templates read.
fn prepare(message: &Value) -> std::result::Result<Value, String> {
    if message.kind() != ValueKind::Map {
        return Err(format!("is {}, expected an object", message.kind()));
    }
    let mut members = members(message).map_err(|e| e.to_string())?;
    members.retain(|(_, value)| !value.is_none());
    if let Some(reasoning) = REASONING.iter().find_map(|name| member(message, name)) {
        let thinking = Value::from("thinking");
        if !members.iter().any(|(key, _)| *key == thinking) {
            members.insert(0, (thinking, reasoning.clone()));
        }
        let name = Value::from(REASONING[0]);
        match members.iter_mut().find(|(key, _)| *key == name) {
            Some((_, value)) => *value = reasoning,
            None => members.push((name, reasoning)),
        }
    }
    Ok(Value::from_pairs(members))
}

fn members(object: &Value) -> std::result::Result<Vec<(Value, Value)>, minijinja::Error> {
    object.try_iter()?.map(|key| Ok((key.clone(), object.get_item(&key)?))).collect()
}

/// An object with another value of a member.
fn with_member(
    object: &Value,
    name: &str,
    value: Value,
) -> std::result::Result<Value, minijinja::Error> {
    let name = Value::from(name);
    let mut members = members(object)?;
    for (key, member) in &mut members {
        if *key == name {
            *member = value.clone();
        }
    }
    Ok(Value::from_pairs(members))
}

/// A content with the tag after its text, or after its last part that is a text.
fn tagged(content: &Value) -> Option<Value> {
    if let Some(text) = content.as_str() {
        return Some(Value::from(format!("{text}{TAG}")));
    }
    if content.kind() != ValueKind::Seq {
        return None;
    }
    let mut parts: Vec<Value> = content.try_iter().ok()?.collect();
    let part = parts.iter_mut().rev().find(|part| member(part, "text").is_some())?;
    let text = member(part, "text")?;
    *part = with_member(part, "text", tagged(&text)?).ok()?;
    Some(Value::from(parts))
}
