//! Items by index, of any Rust type: rows of a table, the bytes of files, documents.
//!
//! Out of scope: the sources themselves, and items that can only be read in sequence (`stream`).

use std::sync::Arc;

use crate::{Dataset, Field, Fingerprint, Result, Sample, Stage};

/// A collection of items that can be read by index, in any order and from any thread.
///
/// A source does not know about fields, batches or devices. [`into_dataset`](Source::into_dataset)
/// defines the fields of a sample and how an item is written into them.
///
/// ```
/// use fulmen_data::{DType, Dataset, Field, Fingerprint, HostBatch, Result, Source};
///
/// struct Words(Vec<&'static str>);
///
/// impl Source for Words {
///     type Item = &'static str;
///     fn len(&self) -> usize {
///         self.0.len()
///     }
///     fn get(&self, index: usize) -> Result<&'static str> {
///         Ok(self.0[index])
///     }
///     fn origin(&self, index: usize) -> String {
///         format!("word {index}")
///     }
///     fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
///         self.0.iter().for_each(|word| fingerprint.add("word", word));
///         Ok(())
///     }
/// }
///
/// let lengths = Words(vec!["bolt", "of", "lightning"])
///     .map(|word| Ok(word.len() as i32))
///     .into_dataset(vec![Field::new("length", DType::I32, [])], |length, sample| sample.write_value(0, length));
/// assert_eq!(HostBatch::collate(&lengths, &[2, 0])?.values::<i32>(0)?, [9, 4]);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
pub trait Source: Send + Sync + 'static {
    /// The type of an item.
    type Item: Send + 'static;

    /// The number of items. It must not change.
    fn len(&self) -> usize;

    /// Item `index`, which is below [`len`](Source::len). The same index must always give the same
    /// item.
    fn get(&self, index: usize) -> Result<Self::Item>;

    /// Where item `index` comes from, for messages: a file and a position in it
    /// (`train.csv, line 17`).
    fn origin(&self, index: usize) -> String;

    /// Adds everything the items depend on: the files with their sizes and modification times, and
    /// the reader's options.
    ///
    /// # Errors
    /// A file no longer exists, or the source does not know what its items depend on.
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()>;

    /// Whether there are no items.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Maps each item with `map`. Worker threads call it every time they read an item.
    fn map<T, F>(self, map: F) -> MapSource<Self, F>
    where
        Self: Sized,
        T: Send + 'static,
        F: Fn(Self::Item) -> Result<T> + Send + Sync + 'static,
    {
        MapSource { source: self, map }
    }

    /// Makes a dataset of samples with these fields. `write` writes an item into the fields; it
    /// gets random numbers from [`Sample::random`].
    fn into_dataset<F>(self, fields: Vec<Field>, write: F) -> SourceDataset<Self, F>
    where
        Self: Sized,
        F: Fn(Self::Item, &mut Sample<'_>) -> Result<()> + Send + Sync + 'static,
    {
        SourceDataset { source: self, fields, write }
    }
}

macro_rules! forward {
    ($pointer:ident) => {
        impl<S: Source + ?Sized> Source for $pointer<S> {
            type Item = S::Item;

            fn len(&self) -> usize {
                (**self).len()
            }
            fn get(&self, index: usize) -> Result<S::Item> {
                (**self).get(index)
            }
            fn origin(&self, index: usize) -> String {
                (**self).origin(index)
            }
            fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
                (**self).fingerprint(fingerprint)
            }
        }
    };
}

forward!(Arc);
forward!(Box);

/// A source whose items are mapped by a function. Made by [`Source::map`].
#[derive(Clone, Debug)]
pub struct MapSource<S, F> {
    source: S,
    map: F,
}

impl<S, T, F> Source for MapSource<S, F>
where
    S: Source,
    T: Send + 'static,
    F: Fn(S::Item) -> Result<T> + Send + Sync + 'static,
{
    type Item = T;

    fn len(&self) -> usize {
        self.source.len()
    }

    fn get(&self, index: usize) -> Result<T> {
        let item = self.source.get(index)?;
        Stage::Transform.timed(|| (self.map)(item))
    }

    fn origin(&self, index: usize) -> String {
        self.source.origin(index)
    }

    /// Identifies the function only by its type ([`Fingerprint::add_function`]).
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add_function::<F>("map");
        self.source.fingerprint(fingerprint)
    }
}

/// A dataset that writes the items of a source into the fields of samples. Made by
/// [`Source::into_dataset`].
#[derive(Clone, Debug)]
pub struct SourceDataset<S, F> {
    source: S,
    fields: Vec<Field>,
    write: F,
}

impl<S, F> Dataset for SourceDataset<S, F>
where
    S: Source,
    F: Fn(S::Item, &mut Sample<'_>) -> Result<()> + Send + Sync + 'static,
{
    fn len(&self) -> usize {
        self.source.len()
    }

    fn fields(&self) -> Vec<Field> {
        self.fields.clone()
    }

    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        let item = Stage::Read.timed(|| self.source.get(index))?;
        Stage::Transform.timed(|| (self.write)(item, sample))
    }

    fn origin(&self, index: usize) -> Option<String> {
        Some(self.source.origin(index))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add_function::<F>("write");
        self.source.fingerprint(fingerprint)
    }
}
