//! [`GradientClipAlgorithm`]: how gradients are kept from being too large. What it does to them is in `rules/clip.rs`.

use crate::options::named::named;

/// How gradients are kept from being too large.
///
/// ```
/// use fulmen_trainer::GradientClipAlgorithm;
/// assert_eq!("value".parse::<GradientClipAlgorithm>()?, GradientClipAlgorithm::Value);
/// # Ok::<(), fulmen_trainer::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GradientClipAlgorithm {
    /// All gradients together are made shorter, so that their Euclidean length is at most so much: `g·min(1, c/(‖g‖ +
    /// 10⁻⁶))`, PyTorch's `clip_grad_norm_`.
    #[default]
    Norm,
    /// Each element is brought between `−c` and `c`, PyTorch's `clip_grad_value_`.
    Value,
}

const NAMES: [(&str, GradientClipAlgorithm); 2] =
    [("norm", GradientClipAlgorithm::Norm), ("value", GradientClipAlgorithm::Value)];

named!(GradientClipAlgorithm, "way to clip gradients");
