//! [`AttentionMethod`]: how attention is computed.

use std::fmt;
use std::str::FromStr;

use fulmen_error::Error;

use crate::method_name;

/// How attention is computed. The results differ only in rounding.
///
/// The names are `auto`, `plain`, `blocks` and `kernel`.
///
/// ```
/// use fulmen_nn::attention::AttentionMethod;
///
/// assert_eq!("blocks".parse::<AttentionMethod>()?, AttentionMethod::Blocks);
/// let error = "flash".parse::<AttentionMethod>().unwrap_err().to_string();
/// assert_eq!(error, "`flash` is not a method of attention; there are: auto, plain, blocks, kernel");
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum AttentionMethod {
    /// `kernel` where the Trainer may take it, `blocks` for other long sequences, otherwise `plain`.
    /// [`Attention`](super::Attention) takes blocks if there are more than 6,000² pairs of queries and
    /// keys. The models of `fulmen_models` know what else needs memory, and decide by it.
    ///
    /// The Trainer takes the kernel on TPUs of a kind on which `fulmen selftest` has passed its cases,
    /// for f32 and bf16, from 128 queries and keys on, up to 256 features, without a mask or dropout,
    /// if devices split the batch alone.
    #[default]
    Auto,
    /// All scores are in memory at once: `[…, heads, length, positions]`.
    Plain,
    /// The scores of one block of queries and one block of keys are in memory at a time, forward
    /// and backward. The memory grows with the length, not with its square. Blocks that a causal
    /// mask or a window hides are not computed. The backward pass computes the scores again.
    Blocks,
    /// [`FlashAttention`](fulmen_kernels::FlashAttention): on a TPU, the scores of one block stay in
    /// vector memory. Elsewhere a loop over the blocks of each head computes the same, slower than
    /// `blocks`. It takes no mask and no dropout, has no second derivative, and needs the feature
    /// `kernels`, which ready-made models turn on. No TPU that we know of has run it.
    Kernel,
}

const NAMES: [(&str, AttentionMethod); 4] = [
    ("auto", AttentionMethod::Auto),
    ("plain", AttentionMethod::Plain),
    ("blocks", AttentionMethod::Blocks),
    ("kernel", AttentionMethod::Kernel),
];

impl FromStr for AttentionMethod {
    type Err = Error;
    fn from_str(name: &str) -> Result<AttentionMethod, Error> {
        method_name::parse("attention", &NAMES, name)
    }
}

impl fmt::Display for AttentionMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(method_name::name_of(&NAMES, self))
    }
}
