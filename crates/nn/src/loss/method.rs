//! [`LossMethod`]: how the loss over a large vocabulary is computed.

use std::fmt;
use std::str::FromStr;

use fulmen_error::Error;

use crate::method_name;

/// How [`LinearCrossEntropyLoss`](super::LinearCrossEntropyLoss) is computed. The results differ
/// only in rounding.
///
/// The names are `auto`, `plain` and `chunks`. There is no method with kernels yet.
///
/// ```
/// use fulmen_nn::loss::LossMethod;
///
/// assert_eq!("chunks".parse::<LossMethod>()?, LossMethod::Chunks);
/// let error = "kernel".parse::<LossMethod>().unwrap_err().to_string();
/// assert_eq!(error, "`kernel` is not a method of the loss; there are: auto, plain, chunks");
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossMethod {
    /// `chunks` if the logits of one sequence need more than 1 GiB in f32, `4·vocabulary·length`
    /// bytes; otherwise `plain`.
    #[default]
    Auto,
    /// All logits are in memory at once.
    Plain,
    /// The logits of one chunk of each sequence are in memory at a time, forward and backward. The
    /// backward pass computes them again.
    Chunks,
}

const NAMES: [(&str, LossMethod); 3] =
    [("auto", LossMethod::Auto), ("plain", LossMethod::Plain), ("chunks", LossMethod::Chunks)];

/// [`LossMethod::Auto`] takes chunks if the logits of one sequence need more bytes than this.
const LARGE: usize = 1 << 30;

impl LossMethod {
    /// Whether sequences of this length are computed in chunks.
    pub(super) fn has_chunks(self, vocabulary: usize, length: usize) -> bool {
        match self {
            LossMethod::Auto => vocabulary.saturating_mul(length).saturating_mul(4) > LARGE,
            LossMethod::Plain => false,
            LossMethod::Chunks => true,
        }
    }
}

impl FromStr for LossMethod {
    type Err = Error;
    fn from_str(name: &str) -> Result<LossMethod, Error> {
        method_name::parse("the loss", &NAMES, name)
    }
}

impl fmt::Display for LossMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(method_name::name_of(&NAMES, self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_of_more_than_a_gibibyte_are_computed_in_chunks() {
        assert!(!LossMethod::Auto.has_chunks(128_256, 2092));
        assert!(LossMethod::Auto.has_chunks(128_256, 2093));
        assert!(!LossMethod::Plain.has_chunks(usize::MAX, usize::MAX));
        assert!(LossMethod::Chunks.has_chunks(1, 1));
    }
}
