//! Paths and counts from the metadata of a checkpoint, which may be of someone else: checked here
//! before anything uses them.

use std::path::{Component, Path, PathBuf};

use serde_json::Value;

/// The largest count. Beyond it, a JSON number may be rounded, and sums may overflow.
const MAX_COUNT: u64 = 1 << 53;

/// A state that `ModelCheckpoint` keeps: its value, and the folder of its checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BestState {
    pub(crate) value: f64,
    pub(crate) path: PathBuf,
}

/// A path that a checkpoint names. It may be in the folder of an earlier run.
///
/// # Errors
/// A path that could lead elsewhere than it seems to, because it has a part `..` or a NUL.
pub(crate) fn path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let leads_up = path.components().any(|part| part == Component::ParentDir);
    if leads_up || text.contains('\0') || path.file_name().is_none() {
        return Err(format!(
            "{:?}, expected the path of a checkpoint without `..`",
            text.chars().take(200).collect::<String>()
        ));
    }
    Ok(path)
}

/// Checks a count of epochs, batches or steps.
///
/// # Errors
/// A count that no training reaches.
pub(crate) fn count(name: &str, count: u64) -> Result<u64, String> {
    if count > MAX_COUNT {
        return Err(format!("its metadata `{name}` is {count}, expected at most {MAX_COUNT}"));
    }
    Ok(count)
}

/// The best states in the saved state of `ModelCheckpoint`, the best first.
///
/// # Errors
/// A state without a value, or with a path that [`path`] rejects.
pub(crate) fn best_states(state: &Value) -> Result<Vec<BestState>, String> {
    let Some(states) = state.get("best") else { return Ok(Vec::new()) };
    let malformed = || "its metadata `callbacks` has a ModelCheckpoint whose `best` is not a list of values and paths";
    let read = |best: &Value| {
        let value = best[0].as_u64().map(f64::from_bits).ok_or_else(malformed)?;
        let text = best[1].as_str().ok_or_else(malformed)?;
        let path = path(text).map_err(|e| {
            format!("its metadata `callbacks` has a ModelCheckpoint with the path {e}")
        })?;
        Ok(BestState { value, path })
    };
    states.as_array().ok_or_else(malformed)?.iter().map(read).collect()
}

/// Whether a path is that of a checkpoint directly in `folder`.
pub(crate) fn is_in(path: &Path, folder: &Path) -> bool {
    path.file_name().is_some() && path.parent() == Some(folder)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_that_lead_up_are_rejected() {
        for text in ["..", "a/..", "/runs/best/../../home", "", "/", "a\0b", "../best"] {
            assert!(path(text).is_err(), "{text:?}");
        }
        for text in ["best", "/runs/version_0/checkpoints/best", "gs://bucket/a..b", "./a"] {
            assert_eq!(path(text), Ok(PathBuf::from(text)));
        }
        let folder = Path::new("/runs/checkpoints");
        assert!(is_in("/runs/checkpoints/best".as_ref(), folder));
        for other in ["/runs/checkpoints/..", "/runs/checkpoints/../x", "/runs/checkpoints/a/b"] {
            assert!(!is_in(other.as_ref(), folder), "{other}");
        }
    }

    #[test]
    fn the_best_states_are_read_whole_or_not_at_all() {
        let bits = 0.5f64.to_bits();
        let read = best_states(&json!({ "best": [[bits, "/runs/best"]] })).unwrap();
        assert_eq!(read, [BestState { value: 0.5, path: "/runs/best".into() }]);
        assert_eq!(best_states(&json!({})).unwrap(), []);
        for forged in [
            json!({ "best": [[bits, "/runs/best/../../.ssh"]] }),
            json!({ "best": [["x", "/runs/best"]] }),
            json!({ "best": [[bits]] }),
            json!({ "best": 3 }),
        ] {
            assert!(best_states(&forged).is_err(), "{forged}");
        }
        assert!(count("epoch", u64::MAX).unwrap_err().contains("`epoch` is 18446744073709551615"));
    }
}
