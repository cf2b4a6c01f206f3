//! Items by index, of whatever Rust type they come in: rows of a table, the bytes of files, documents.
//!
//! Not here: the sources themselves, and items that can only be read from the beginning to the end (`stream`).

use std::sync::Arc;

use crate::{Dataset, Field, Fingerprint, Result, Sample, Stage};

/// A collection of items that can be read by index, in any order and from any thread.
///
/// A source knows nothing of fields, batches or devices. [`into_dataset`](Source::into_dataset) says what a sample is
/// made of and how an item is written into it.
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
    /// What an item is.
    type Item: Send + 'static;

    /// How many items there are. It does not change.
    fn len(&self) -> usize;

    /// Item `index`, which is below [`len`](Source::len). The same index gives the same item each time.
    fn get(&self, index: usize) -> Result<Self::Item>;

    /// Where item `index` comes from, for messages: a file, and the place in it (`train.csv, line 17`).
    fn origin(&self, index: usize) -> String;

    /// Adds all that the items depend on: the list of files with their sizes and times of change, options of reading.
    ///
    /// # Errors
    /// Files that are no longer there; a source that cannot say what its items depend on.
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()>;

    /// Whether there are no items.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The items as `map` makes them. It is called by worker threads, for each item anew.
    fn map<T, F>(self, map: F) -> MapSource<Self, F>
    where
        Self: Sized,
        T: Send + 'static,
        F: Fn(Self::Item) -> Result<T> + Send + Sync + 'static,
    {
        MapSource { source: self, map }
    }

    /// Samples with these fields, into which `write` writes an item. [`Sample::random`] has random numbers for it.
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

/// The items of a source as a function makes them. Made by [`Source::map`].
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

    /// Of the function only its type is known ([`Fingerprint::add_function`]).
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add_function::<F>("map");
        self.source.fingerprint(fingerprint)
    }
}

/// The items of a source, written into the fields of samples. Made by [`Source::into_dataset`].
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
