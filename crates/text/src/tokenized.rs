//! The texts of a source or a stream as tokens.
//!
//! Out of scope: the tokenizer itself.

use std::any::TypeId;

use super::{Encoding, Tokenizer};
use fulmen_data::internal::make;
use fulmen_data::{Deferred, Fingerprint, Items, Result, Source, Stage, Stream, StreamItem};

/// The input of a tokenizer: a text, or a pair of texts.
///
/// A cache cannot detect a change in your own implementation, so it needs a version
/// ([`Fingerprint::add_function`]).
pub trait TextInput: Send + 'static {
    /// Tokenizes the input.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode`].
    fn encode(&self, tokenizer: &Tokenizer) -> Result<Encoding>;
}

impl TextInput for String {
    fn encode(&self, tokenizer: &Tokenizer) -> Result<Encoding> {
        tokenizer.encode(self)
    }
}

impl TextInput for &'static str {
    fn encode(&self, tokenizer: &Tokenizer) -> Result<Encoding> {
        tokenizer.encode(self)
    }
}

impl TextInput for (String, String) {
    fn encode(&self, tokenizer: &Tokenizer) -> Result<Encoding> {
        tokenizer.encode_pair(&self.0, &self.1)
    }
}

/// The texts of a [`Source`] or a [`Stream`] as tokens. Made by [`Tokenizer::tokenize`].
#[derive(Clone, Debug)]
pub struct Tokenized<S> {
    texts: S,
    tokenizer: Tokenizer,
}

impl<S> Tokenized<S> {
    pub(super) fn new(texts: S, tokenizer: Tokenizer) -> Tokenized<S> {
        Tokenized { texts, tokenizer }
    }
}

/// Adds everything that the tokens of inputs of type `T` depend on, except the inputs.
fn add_input<T: TextInput>(tokenizer: &Tokenizer, fingerprint: &mut Fingerprint) {
    tokenizer.fingerprint(fingerprint);
    let built_in =
        [TypeId::of::<String>(), TypeId::of::<&'static str>(), TypeId::of::<(String, String)>()];
    if !built_in.contains(&TypeId::of::<T>()) {
        fingerprint.add_function::<T>("text input");
    }
}

impl<S: Source<Item: TextInput>> Source for Tokenized<S> {
    type Item = Encoding;

    fn len(&self) -> usize {
        self.texts.len()
    }

    fn get(&self, index: usize) -> Result<Encoding> {
        let text = self.texts.get(index)?;
        Stage::Transform.timed(|| text.encode(&self.tokenizer))
    }

    fn origin(&self, index: usize) -> String {
        self.texts.origin(index)
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        add_input::<S::Item>(&self.tokenizer, fingerprint);
        self.texts.fingerprint(fingerprint)
    }
}

impl<S: Stream<Item: TextInput>> Stream for Tokenized<S> {
    type Item = Encoding;

    fn len(&self) -> Option<usize> {
        self.texts.len()
    }

    fn items(&self, epoch: u64) -> Result<Items<Encoding>> {
        self.deferred(epoch).map(make)
    }

    /// The tokens are computed later, so that a loader's workers tokenize in parallel.
    fn deferred(&self, epoch: u64) -> Result<Items<Deferred<Encoding>>> {
        let tokenizer = self.tokenizer.clone();
        let items = self.texts.deferred(epoch)?.map(move |item| {
            let StreamItem { index, origin, item } = item?;
            let tokenizer = tokenizer.clone();
            let encode = move || {
                let text = item.make()?;
                Stage::Transform.timed(|| text.encode(&tokenizer))
            };
            Ok(StreamItem { index, origin, item: Deferred::new(encode) })
        });
        Ok(Box::new(items))
    }

    fn describe(&self) -> String {
        format!("{}, {}", self.texts.describe(), self.tokenizer.describe())
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        add_input::<S::Item>(&self.tokenizer, fingerprint);
        self.texts.fingerprint(fingerprint)
    }
}
