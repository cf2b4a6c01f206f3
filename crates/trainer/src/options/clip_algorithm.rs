//! [`GradientClipAlgorithm`]: how gradients are clipped. `rules/clip.rs` clips them.

use crate::options::named_enum::named_enum;

/// How gradients are clipped.
///
/// ```
/// use fulmen_trainer::GradientClipAlgorithm;
/// assert_eq!("value".parse::<GradientClipAlgorithm>()?, GradientClipAlgorithm::Value);
/// # Ok::<(), fulmen_trainer::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GradientClipAlgorithm {
    /// Scales all gradients so that their Euclidean norm is at most `c`:
    /// `g·min(1, c/(‖g‖ + 10⁻⁶))`, as PyTorch's `clip_grad_norm_`.
    #[default]
    Norm,
    /// Clamps each element between `−c` and `c`, as PyTorch's `clip_grad_value_`.
    Value,
}

const NAMES: [(&str, GradientClipAlgorithm); 2] =
    [("norm", GradientClipAlgorithm::Norm), ("value", GradientClipAlgorithm::Value)];

named_enum!(GradientClipAlgorithm, "gradient clip algorithm");
