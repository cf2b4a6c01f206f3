//! [`Resume`]: whether a fit resumes from an earlier run. `checkpoint/named_checkpoint.rs` finds
//! the checkpoint.

use crate::options::named_enum::named_enum;

/// Whether a fit resumes from an earlier run of the program.
///
/// ```
/// use fulmen_trainer::Resume;
/// assert_eq!("auto".parse::<Resume>()?, Resume::Auto);
/// # Ok::<(), fulmen_trainer::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Resume {
    /// It starts from scratch, unless `ckpt_path` names a checkpoint.
    #[default]
    Never,
    /// It resumes from the newest complete checkpoint of this program's runs, if there is one.
    Auto,
}

const NAMES: [(&str, Resume); 2] = [("never", Resume::Never), ("auto", Resume::Auto)];

named_enum!(Resume, "resume mode");
