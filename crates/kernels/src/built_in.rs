//! [`BuiltIn`]: the kernels of this crate by name, as `fulmen selftest` tests and approves them.

use crate::{FlashAttention, rms_norm};

/// A kernel of this crate.
///
/// ```
/// use fulmen_kernels::BuiltIn;
///
/// assert_eq!(BuiltIn::ALL.map(BuiltIn::name), ["flash_attention", "rms_norm_residual"]);
/// assert!(BuiltIn::FlashAttention.text().contains("module"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuiltIn {
    /// [`FlashAttention`], forward and backward.
    FlashAttention,
    /// [`rms_norm_residual`](crate::rms_norm_residual), forward and backward.
    RmsNormResidual,
}

impl BuiltIn {
    /// All kernels.
    pub const ALL: [BuiltIn; 2] = [BuiltIn::FlashAttention, BuiltIn::RmsNormResidual];

    /// The name of its function.
    pub fn name(self) -> &'static str {
        match self {
            BuiltIn::FlashAttention => "flash_attention",
            BuiltIn::RmsNormResidual => "rms_norm_residual",
        }
    }

    /// The version of this crate and the Mosaic text of calls that use each feature. It changes with
    /// the kernel.
    pub fn text(self) -> String {
        let kernels = match self {
            BuiltIn::FlashAttention => FlashAttention::examples(),
            BuiltIn::RmsNormResidual => rms_norm::examples(),
        };
        let kernels = match kernels {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_is_that_of_the_kernels_and_the_same_again() {
        for (kernel, modules) in [(BuiltIn::FlashAttention, 12), (BuiltIn::RmsNormResidual, 2)] {
            let text = kernel.text();
            assert_eq!(text.matches("module @kernel").count(), modules, "{text}");
            assert_eq!(text, kernel.text());
        }
    }
}
