//! [`LossMethod`]: how the loss over a large vocabulary is computed.

use std::fmt;
use std::str::FromStr;

use fulmen_error::Error;

use crate::auto_kernels::{AutoKernel, decide};
use crate::method_name;

/// How [`LinearCrossEntropyLoss`](super::LinearCrossEntropyLoss) is computed. The results differ
/// only in rounding.
///
/// The names are `auto`, `plain`, `chunks` and `kernel`.
///
/// ```
/// use fulmen_nn::loss::LossMethod;
///
/// assert_eq!("chunks".parse::<LossMethod>()?, LossMethod::Chunks);
/// let error = "blocks".parse::<LossMethod>().unwrap_err().to_string();
/// assert_eq!(error, "`blocks` is not a method of the loss; there are: auto, plain, chunks, kernel");
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossMethod {
    /// `plain` if the logits of one sequence need at most 1 GiB in f32, `4·vocabulary·length` bytes.
    /// Otherwise `kernel` where the Trainer may take it, and `chunks` elsewhere.
    ///
    /// The Trainer takes the kernel on TPUs of a kind on which `fulmen selftest` has passed its cases,
    /// for f32 and bf16, from 128 tokens on, up to 8,192 features in bf16 and 4,096 in f32, if devices
    /// split the batch alone.
    #[default]
    Auto,
    /// All logits are in memory at once.
    Plain,
    /// The logits of one chunk of each sequence are in memory at a time, forward and backward. The
    /// backward pass computes them again.
    Chunks,
    /// [`LinearCrossEntropy`](fulmen_kernels::LinearCrossEntropy): on a TPU, logits never leave vector
    /// memory. Elsewhere a loop over small blocks computes the same, slower than `chunks`. It takes
    /// neither a bias nor an int8 weight, nor class weights together with label smoothing. It has no
    /// second derivative, and needs the feature `kernels`, which ready-made models turn on. No TPU
    /// that we know of has run it.
    Kernel,
}

const NAMES: [(&str, LossMethod); 4] = [
    ("auto", LossMethod::Auto),
    ("plain", LossMethod::Plain),
    ("chunks", LossMethod::Chunks),
    ("kernel", LossMethod::Kernel),
];

/// [`LossMethod::Auto`] is plain unless the logits of one sequence need more bytes than this.
const LARGE: usize = 1 << 30;

impl LossMethod {
    /// This method, with a decision for [`LossMethod::Auto`]. `kernel_fits` is asked only for it.
    pub(super) fn decided(
        self,
        vocabulary: usize,
        length: usize,
        kernel_fits: impl FnOnce() -> bool,
    ) -> LossMethod {
        if self != LossMethod::Auto {
            return self;
        }
        let is_large = vocabulary.saturating_mul(length).saturating_mul(4) > LARGE;
        let otherwise = if is_large { LossMethod::Chunks } else { LossMethod::Plain };
        decide(AutoKernel::Loss, is_large && kernel_fits(), LossMethod::Kernel, otherwise)
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
    use crate::auto_kernels::with_auto_kernels;

    #[test]
    fn logits_of_more_than_a_gibibyte_are_computed_by_an_approved_kernel_or_in_chunks() {
        let auto = |length, fits| LossMethod::Auto.decided(128_256, length, || fits);
        let approved = |length, fits| {
            let (method, taken) = with_auto_kernels(&AutoKernel::ALL, || auto(length, fits));
            assert!(taken[&AutoKernel::Loss].methods.contains(&method.to_string()));
            method
        };
        assert_eq!([auto(2092, true), auto(2093, true)], [LossMethod::Plain, LossMethod::Chunks]);
        assert_eq!(approved(2092, true), LossMethod::Plain);
        assert_eq!(approved(2093, true), LossMethod::Kernel);
        assert_eq!(approved(2093, false), LossMethod::Chunks);
        let (method, taken) = with_auto_kernels(&[AutoKernel::Attention], || auto(2093, true));
        assert!(method == LossMethod::Chunks && taken[&AutoKernel::Loss].kernel_fits);
        let named = LossMethod::Plain.decided(usize::MAX, usize::MAX, || true);
        assert_eq!(named, LossMethod::Plain);
    }
}
