//! [`BuiltIn`]: the kernels of this crate by name, as `fulmen selftest` tests and approves them.

use fulmen_tensor::Refusal;

use crate::{FlashAttention, Kernel, LinearCrossEntropy, rms_norm};

/// A kernel of this crate.
///
/// ```
/// use fulmen_kernels::BuiltIn;
///
/// let names = BuiltIn::ALL.map(BuiltIn::name);
/// assert_eq!(names, ["flash_attention", "linear_cross_entropy", "rms_norm_residual"]);
/// assert!(BuiltIn::FlashAttention.text().contains("module"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuiltIn {
    /// [`FlashAttention`], forward and backward.
    FlashAttention,
    /// [`LinearCrossEntropy`], forward and backward.
    LinearCrossEntropy,
    /// [`rms_norm_residual`](crate::rms_norm_residual), forward and backward.
    RmsNormResidual,
}

impl BuiltIn {
    /// All kernels.
    pub const ALL: [BuiltIn; 3] =
        [BuiltIn::FlashAttention, BuiltIn::LinearCrossEntropy, BuiltIn::RmsNormResidual];

    /// The name of its function.
    pub fn name(self) -> &'static str {
        match self {
            BuiltIn::FlashAttention => "flash_attention",
            BuiltIn::LinearCrossEntropy => "linear_cross_entropy",
            BuiltIn::RmsNormResidual => "rms_norm_residual",
        }
    }

    /// The version of this crate and the Mosaic text of calls that use each feature. It changes with
    /// the kernel.
    pub fn text(self) -> String {
        let kernels = match self.examples() {
            Ok(kernels) => kernels,
            Err(refusal) => return format!("{refusal:?}"),
        };
        let mut text = env!("CARGO_PKG_VERSION").to_owned();
        for kernel in &kernels {
            text.push('\n');
            text.push_str(&kernel.mosaic().unwrap_or_else(|error| error.to_string()));
        }
        text
    }

    /// The kernels of calls that use each feature.
    pub(crate) fn examples(self) -> Result<Vec<Kernel>, Refusal> {
        match self {
            BuiltIn::FlashAttention => FlashAttention::examples(),
            BuiltIn::LinearCrossEntropy => LinearCrossEntropy::examples(),
            BuiltIn::RmsNormResidual => rms_norm::examples(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_is_that_of_the_kernels_and_the_same_again() {
        for (kernel, modules) in BuiltIn::ALL.into_iter().zip([12, 6, 2]) {
            let text = kernel.text();
            assert_eq!(text.matches("module @kernel").count(), modules, "{text}");
            assert_eq!(text, kernel.text());
        }
    }
}
