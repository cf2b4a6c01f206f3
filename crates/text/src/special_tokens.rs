//! The special tokens around a text, and around each of two texts, as a post-processor.

use tokenizers::processors::template::{Template, TemplateProcessing};

/// The tokens of a template. `A` and `B` are the texts.
#[derive(Clone, Debug)]
pub(crate) struct SpecialTokens {
    /// Around a single text.
    pub(crate) single: Vec<Part>,
    /// Around two texts.
    pub(crate) pair: Vec<Part>,
}

/// A part of a template.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    A,
    /// The second text, of this type.
    B(u32),
    /// A special token, of this type.
    Token(String, u32),
}

impl SpecialTokens {
    /// Tokens before and after each text. Those of the second text have the type `second`.
    pub(crate) fn around(before: Option<&str>, after: Option<&str>, second: u32) -> SpecialTokens {
        let token = |text: Option<&str>, kind| text.map(|text| Part::Token(text.to_owned(), kind));
        let around = |text: Part, kind| {
            let parts = [token(before, kind), Some(text), token(after, kind)];
            parts.into_iter().flatten()
        };
        let single: Vec<Part> = around(Part::A, 0).collect();
        let pair = single.iter().cloned().chain(around(Part::B(second), second)).collect();
        SpecialTokens { single, pair }
    }

    /// The post-processor, which also gives the second text its type.
    pub(crate) fn processing(
        &self,
        id: impl Fn(&str) -> Option<u32>,
    ) -> Result<TemplateProcessing, String> {
        let mut tokens: Vec<(String, u32)> = Vec::new();
        for part in self.single.iter().chain(&self.pair) {
            if let Part::Token(text, _) = part {
                let id = id(text).ok_or_else(|| {
                    format!("the special token {text:?} is not in the vocabulary")
                })?;
                tokens.push((text.clone(), id));
            }
        }
        tokens.sort();
        tokens.dedup();
        let processing = TemplateProcessing::builder()
            .single(template(&self.single)?)
            .pair(template(&self.pair)?)
            .special_tokens(tokens)
            .build();
        processing.map_err(|error| error.to_string())
    }
}

fn template(parts: &[Part]) -> Result<Template, String> {
    let text = |part: &Part| match part {
        Part::A => "$A:0".to_owned(),
        Part::B(kind) => format!("$B:{kind}"),
        Part::Token(text, kind) => format!("{text}:{kind}"),
    };
    let parts: Vec<String> = parts.iter().map(text).collect();
    Template::try_from(parts).map_err(|error| error.to_string())
}
