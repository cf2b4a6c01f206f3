//! [`Resume`]: whether a fit goes on where an earlier one ended. Which checkpoint that is, `checkpoint/newest.rs` knows.

use crate::options::named::named;

/// Whether a fit goes on where an earlier run of the program ended.
///
/// ```
/// use fulmen_trainer::Resume;
/// assert_eq!("auto".parse::<Resume>()?, Resume::Auto);
/// # Ok::<(), fulmen_trainer::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Resume {
    /// It starts from the beginning, unless `ckpt_path` names a checkpoint.
    #[default]
    Never,
    /// It goes on with the newest whole checkpoint of this program's runs, if there is one.
    Auto,
}

const NAMES: [(&str, Resume); 2] = [("never", Resume::Never), ("auto", Resume::Auto)];

named!(Resume, "way to begin");
