//! [`ChatTemplate`]: the Jinja template of a model, which makes a text of a conversation.
//!
//! Out of scope: labels and packing of conversations.

mod chat;
mod environment;
mod examples;
mod folder;
mod generation;
mod python_json;
mod tokens;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::time::SystemTime;

use minijinja::{Environment, Value};

use fulmen_data::{Error, Result};

pub use chat::Chat;
pub use examples::RenderedPreference;
pub use tokens::ChatTokens;

/// The template of a model's conversations, as transformers' `apply_chat_template` renders it.
///
/// The settings are transformers': blocks leave no empty lines, loops have `break` and `continue`,
/// texts and dictionaries have Python's methods, and templates can call `raise_exception`,
/// `strftime_now` and the filter `tojson`, which escapes no HTML. [`Chat`] has what a template sees.
///
/// ```
/// use fulmen_text::{Chat, ChatTemplate};
///
/// let template = ChatTemplate::from_source(
///     "{{ bos_token }}{% for message in messages %}[{{ message.role }}] {{ message.content | trim }}\n{% endfor %}
/// {%- if add_generation_prompt %}[assistant]{% endif %}",
/// )?
/// .special_token("bos_token", "<s>");
/// let chat = Chat::from_json(r#"[{"role": "user", "content": " Is it late? "}]"#)?.add_generation_prompt(true);
/// assert_eq!(template.render(&chat)?.text, "<s>[user] Is it late?\n[assistant]");
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// The templates by their names; that of a single template is `default`.
    templates: BTreeMap<String, NamedTemplate>,
    special_tokens: BTreeMap<String, String>,
}

/// A template of a folder.
#[derive(Clone, Debug)]
struct NamedTemplate {
    /// Where it comes from, which is also its name in `environment`.
    origin: String,
    source: String,
}

/// The name of the template that is used if none is asked for.
const DEFAULT: &str = "default";
/// The name of the template that is used for conversations with tools, if there is one.
const TOOL_USE: &str = "tool_use";

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedChat {
    /// The text.
    pub text: String,
    /// The ranges of bytes that the template's `{% generation %}` blocks made, which are what the
    /// assistant has said; empty if the template has no such blocks.
    pub generation: Vec<Range<usize>>,
}

impl ChatTemplate {
    /// Reads the template of a folder as transformers 5 does: from `chat_template.jinja` with the
    /// further templates in `additional_chat_templates`, or else from `chat_template` in
    /// `tokenizer_config.json`, which is a text or a list of named templates. `bos_token`,
    /// `eos_token` and the other special tokens come from `tokenizer_config.json`, else from
    /// `special_tokens_map.json`.
    ///
    /// ```
    /// use fulmen_text::{Chat, ChatTemplate};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let folder = folder.path();
    /// std::fs::write(
    ///     folder.join("tokenizer_config.json"),
    ///     r#"{"eos_token": {"content": "</s>", "special": true},
    ///         "chat_template": "{% for message in messages %}{{ message.content + eos_token }}{% endfor %}"}"#,
    /// )?;
    /// let template = ChatTemplate::from_folder(folder)?;
    /// let chat = Chat::from_json(r#"[{"role": "user", "content": "Hello"}]"#)?;
    /// assert_eq!(template.render(&chat)?.text, "Hello</s>");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A folder without a template; a file that cannot be read; a template that is not Jinja.
    pub fn from_folder(folder: impl AsRef<Path>) -> Result<ChatTemplate> {
        folder::read(folder.as_ref())
    }

    /// A template from its source.
    ///
    /// # Errors
    /// A template that is not Jinja.
    pub fn from_source(source: &str) -> Result<ChatTemplate> {
        let mut template = ChatTemplate::empty();
        template.add(DEFAULT, "chat template".to_owned(), source)?;
        Ok(template)
    }

    fn empty() -> ChatTemplate {
        ChatTemplate {
            environment: environment::environment(),
            templates: BTreeMap::new(),
            special_tokens: BTreeMap::new(),
        }
    }

    fn add(&mut self, name: &str, origin: String, source: &str) -> Result<()> {
        // As Jinja does, which ends lines by a line feed.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        let marked = generation::mark(&source);
        self.environment
            .add_template_owned(origin.clone(), marked)
            .map_err(|error| Error::new(environment::describe(&origin, &error)))?;
        self.templates.insert(name.to_owned(), NamedTemplate { origin, source });
        Ok(())
    }

    /// A special token that templates see as a variable, such as `bos_token`.
    pub fn special_token(mut self, name: &str, token: &str) -> ChatTemplate {
        self.special_tokens.insert(name.to_owned(), token.to_owned());
        self
    }

    /// The token of the model that templates see by this name, such as `eos_token`.
    pub fn special_token_named(&self, name: &str) -> Option<&str> {
        self.special_tokens.get(name).map(String::as_str)
    }

    /// The names of the templates; that of a single one is `default`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.templates.keys().map(String::as_str)
    }

    /// The template that a conversation is rendered by.
    fn choose(&self, chat: &Chat) -> Result<&NamedTemplate> {
        let name = match &chat.template {
            Some(name) => name,
            None if chat.tools.is_some() && self.templates.contains_key(TOOL_USE) => TOOL_USE,
            None => DEFAULT,
        };
        self.templates.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.names().collect();
            Error::usage(format!(
                "there is no chat template named {name:?}; there are {}; choose one by Chat::template",
                known.join(", ")
            ))
        })
    }

    /// Whether the template of a conversation marks what the assistant has said by
    /// `{% generation %}`.
    ///
    /// # Errors
    /// A conversation that names a template that does not exist.
    pub fn has_generation_blocks(&self, chat: &Chat) -> Result<bool> {
        let template = self.choose(chat)?;
        Ok(generation::mark(&template.source) != template.source)
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// What the template refuses or cannot do, with the file and the line of the template; a
    /// conversation without messages; a last message that cannot be continued.
    pub fn render(&self, chat: &Chat) -> Result<RenderedChat> {
        let template = self.choose(chat)?;
        let messages = chat.messages_for(&template.source)?;
        let text = self.render_messages(template, chat, messages, chat.add_generation_prompt)?;
        let mut rendered = generation::take_marks(&text)
            .map_err(|message| Error::new(format!("{}: {message}", template.origin)))?;
        if chat.continue_final_message {
            // The tag may be in the last block, as in transformers, which has no masks here.
            rendered.generation.clear();
            rendered.text = chat.cut_after_final_message(rendered.text, &template.origin)?;
        }
        Ok(rendered)
    }

    /// Renders some messages of a conversation.
    fn render_messages(
        &self,
        template: &NamedTemplate,
        chat: &Chat,
        messages: Vec<Value>,
        add_generation_prompt: bool,
    ) -> Result<String> {
        let mut context: BTreeMap<String, Value> = self
            .special_tokens
            .iter()
            .map(|(name, token)| (name.clone(), Value::from(token.as_str())))
            .collect();
        context.insert("messages".to_owned(), Value::from(messages));
        context.insert("tools".to_owned(), chat.tools.clone().unwrap_or_else(|| Value::from(())));
        context.insert(
            "documents".to_owned(),
            chat.documents.clone().unwrap_or_else(|| Value::from(())),
        );
        context.insert("add_generation_prompt".to_owned(), Value::from(add_generation_prompt));
        context.extend(chat.variables.iter().cloned());
        if let Some(now) = chat.now {
            let strftime = move |format: &str| environment::strftime(now, format);
            context.insert("strftime_now".to_owned(), Value::from_function(strftime));
        }
        self.environment
            .get_template(&template.origin)
            .and_then(|compiled| compiled.render(Value::from(context)))
            .map_err(|error| Error::new(environment::describe(&template.origin, &error)))
    }

    /// Renders the first messages of a conversation alone.
    fn render_first(
        &self,
        chat: &Chat,
        count: usize,
        add_generation_prompt: bool,
    ) -> Result<String> {
        let template = self.choose(chat)?;
        let messages = chat.messages.iter().take(count).cloned().collect();
        let text = self.render_messages(template, chat, messages, add_generation_prompt)?;
        let rendered = generation::take_marks(&text)
            .map_err(|message| Error::new(format!("{}: {message}", template.origin)))?;
        Ok(rendered.text)
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origins: Vec<&str> =
            self.templates.values().map(|template| template.origin.as_str()).collect();
        write!(f, "ChatTemplate({})", origins.join(", "))
    }
}

/// The time of a conversation, for `strftime_now`.
type Now = SystemTime;
