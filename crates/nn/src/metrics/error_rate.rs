//! [`ErrorRate`], counted on the host, for texts of any length.

use std::panic::Location;

use crate::{Error, Result};

/// The word or character error rate of a corpus, as for recognized speech or handwriting: the edits
/// (substitutions, deletions and insertions) that turn all predictions into their references,
/// divided by the length of all references. Like torchmetrics' `WordErrorRate` and `CharErrorRate`,
/// and jiwer's `wer` and `cer`.
///
/// The edits of a text are as few as possible (Levenshtein 1966). The rate is 0 if all predictions
/// are right, and may exceed 1. Texts are compared as they are: convert case, remove punctuation
/// and normalize Unicode before.
///
/// ```
/// use fulmen_nn::metrics::ErrorRate;
///
/// let mut wer = ErrorRate::words();
/// wer.update("the cat sat on mat", "the cat sat on the mat"); // one deletion
/// wer.update("good  morning to you", "good morning you"); // one insertion
/// assert_eq!(wer.compute(), 2.0 / 9.0);
///
/// let mut cer = ErrorRate::characters();
/// cer.update("kitten", "sitting");
/// assert_eq!(cer.compute(), 3.0 / 7.0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct ErrorRate {
    unit: Unit,
    errors: u64,
    /// The number of words or characters of all references.
    length: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Words,
    Characters,
}

impl ErrorRate {
    /// The word error rate. Words are separated by white space of any length.
    pub fn words() -> ErrorRate {
        ErrorRate { unit: Unit::Words, errors: 0, length: 0 }
    }

    /// The character error rate, over Unicode code points. White space counts, also at the ends.
    pub fn characters() -> ErrorRate {
        ErrorRate { unit: Unit::Characters, ..ErrorRate::words() }
    }

    /// Counts a prediction and its reference.
    pub fn update(&mut self, prediction: &str, reference: &str) {
        let (errors, length) = match self.unit {
            Unit::Words => {
                let words = |text| str::split_whitespace(text).collect::<Vec<_>>();
                compare(&words(prediction), &words(reference))
            }
            Unit::Characters => {
                let characters = |text| str::chars(text).collect::<Vec<_>>();
                compare(&characters(prediction), &characters(reference))
            }
        };
        self.errors += errors as u64;
        self.length += length as u64;
    }

    /// Adds the counts of another rate.
    ///
    /// # Errors
    /// One counts words and the other characters; nothing is added then.
    #[track_caller]
    pub fn merge(&mut self, other: &ErrorRate) -> Result<()> {
        if self.unit != other.unit {
            let message =
                format!("cannot add counts of {:?} to those of {:?}", other.unit, self.unit);
            return Err(Error::usage_at(message.to_lowercase(), Location::caller()));
        }
        self.errors += other.errors;
        self.length += other.length;
        Ok(())
    }

    /// The rate of all counts. If all references are empty, it is infinite, or NaN without any
    /// error.
    pub fn compute(&self) -> f64 {
        self.errors as f64 / self.length as f64
    }
}

/// The edit distance between two texts, and the length of the reference.
fn compare<T: PartialEq>(prediction: &[T], reference: &[T]) -> (usize, usize) {
    // The distances of the prediction's start to every start of the reference.
    let mut distances: Vec<usize> = (0..=reference.len()).collect();
    for (i, token) in prediction.iter().enumerate() {
        let mut diagonal = i;
        distances[0] = i + 1;
        for (j, other) in reference.iter().enumerate() {
            let substituted = diagonal + usize::from(token != other);
            diagonal = distances[j + 1];
            distances[j + 1] = substituted.min(diagonal + 1).min(distances[j] + 1);
        }
    }
    (distances[reference.len()], reference.len())
}
