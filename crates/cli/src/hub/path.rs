//! [`HubPath`]: a repository, a revision and files, as `HfFileSystem` of `huggingface_hub` writes
//! them.
//!
//! Out of scope: whether the hub has them.

use std::fmt;
use std::str::FromStr;

use fulmen_data::{Error, Result};
use glob::{MatchOptions, Pattern};

/// The revision if none is written.
const DEFAULT_REVISION: &str = "main";

const EXPECTED: &str = "expected hf:OWNER/NAME for a model or hf:datasets/OWNER/NAME for a dataset, then, if needed, \
     @REVISION and /PATH";

/// The kinds of repositories that can be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Model,
    Dataset,
}

/// A path on a Hugging Face hub: `hf:OWNER/NAME` is a model and `hf:datasets/OWNER/NAME` a dataset.
/// `@REVISION`, a branch, a tag or a commit, may follow, and `/PATH`: a file, a folder or a pattern,
/// whose `*` does not match a slash, but `**` matches any number of folders. `hf://` is `hf:`.
///
/// ```
/// use fulmen_cli::hub::HubPath;
///
/// let path: HubPath = "hf:datasets/stanfordnlp/imdb@refs/convert/parquet/**/*.parquet".parse()?;
/// assert_eq!(path.to_string(), "hf:datasets/stanfordnlp/imdb@refs/convert/parquet/**/*.parquet");
/// assert!("hf:gpt2".parse::<HubPath>().is_err());
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubPath {
    kind: Kind,
    /// `OWNER/NAME`.
    id: String,
    revision: Option<String>,
    /// The path or pattern of files; empty for all.
    files: String,
}

impl HubPath {
    /// Whether a text is meant as a path on a hub.
    ///
    /// ```
    /// assert!(fulmen_cli::hub::HubPath::is_meant("hf:openai-community/gpt2"));
    /// assert!(!fulmen_cli::hub::HubPath::is_meant("mnist"));
    /// ```
    pub fn is_meant(text: &str) -> bool {
        text.starts_with("hf:")
    }

    /// The repository alone, such as `hf:datasets/stanfordnlp/imdb`.
    pub(super) fn repository(&self) -> String {
        match self.kind {
            Kind::Model => format!("hf:{}", self.id),
            Kind::Dataset => format!("hf:datasets/{}", self.id),
        }
    }

    pub(super) fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(DEFAULT_REVISION)
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// The owner and the name.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Whether a file of the repository was asked for.
    pub(super) fn matches(&self, file: &str) -> bool {
        if self.files.is_empty() || self.files == file {
            return true;
        }
        if file.strip_prefix(&self.files).is_some_and(|rest| rest.starts_with('/')) {
            return true;
        }
        let options = MatchOptions { require_literal_separator: true, ..MatchOptions::default() };
        Pattern::new(&self.files).is_ok_and(|pattern| pattern.matches_with(file, options))
    }
}

impl FromStr for HubPath {
    type Err = Error;

    fn from_str(text: &str) -> Result<HubPath> {
        let refuse = |reason: String| Error::usage(format!("`{text}`: {reason}; {EXPECTED}"));
        let Some(rest) = text.strip_prefix("hf:") else {
            return Err(refuse("this does not start with hf:".to_owned()));
        };
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (kind, rest) = match rest.split_once('/') {
            Some(("datasets", rest)) => (Kind::Dataset, rest),
            Some(("models", rest)) => (Kind::Model, rest),
            Some((kind @ ("spaces" | "kernels" | "buckets"), _)) => {
                return Err(refuse(format!("{kind} cannot be fetched")));
            }
            _ => (Kind::Model, rest),
        };
        let (id, revision, files) = parts(rest);
        if id.split('/').count() != 2 || !id.split('/').all(is_name) {
            return Err(refuse(format!("`{}` is not an OWNER/NAME", id.escape_debug())));
        }
        if revision.as_deref().is_some_and(|revision| !is_revision(revision)) {
            return Err(refuse("the revision after the @ is not the name of one".to_owned()));
        }
        let files = files.trim_end_matches('/');
        let is_part = |part: &str| !["", ".", ".."].contains(&part);
        if !files.is_empty() && !files.split('/').all(is_part) {
            return Err(refuse(format!("`{}` is not a path of files", files.escape_debug())));
        }
        Pattern::new(files)
            .map_err(|error| refuse(format!("`{}`: {error}", files.escape_debug())))?;
        Ok(HubPath { kind, id: id.to_owned(), revision, files: files.to_owned() })
    }
}

/// Splits `OWNER/NAME@REVISION/PATH`. An `@` of the path is not one of a revision.
fn parts(rest: &str) -> (&str, Option<String>, &str) {
    let second = rest.match_indices('/').nth(1).map_or(rest.len(), |(index, _)| index);
    let Some((id, after)) = rest[..second].find('@').map(|at| (&rest[..at], &rest[at + 1..]))
    else {
        return (&rest[..second], None, rest[second..].strip_prefix('/').unwrap_or_default());
    };
    // These revisions have slashes.
    let slash =
        if after.starts_with("refs/pr/") || after.starts_with("refs/convert/") { 2 } else { 0 };
    let end = after.match_indices('/').nth(slash).map_or(after.len(), |(index, _)| index);
    let revision = after[..end].replace("%2F", "/").replace("%2f", "/");
    (id, Some(revision), after[end..].strip_prefix('/').unwrap_or_default())
}

fn is_name(part: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !part.starts_with('.') && !part.is_empty() && part.len() <= 96 && part.bytes().all(is_letter)
}

/// Whether git allows it as a name, roughly. It is one segment of an address, where `.` and `..` are
/// special.
fn is_revision(revision: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && !part.starts_with('.');
    revision.len() <= 255
        && revision.split('/').all(is_part)
        && !revision.chars().any(|letter| letter.is_control() || letter.is_whitespace())
}

impl fmt::Display for HubPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repository())?;
        if let Some(revision) = &self.revision {
            let is_special =
                revision.starts_with("refs/pr/") || revision.starts_with("refs/convert/");
            let encoded = if is_special { revision.clone() } else { revision.replace('/', "%2F") };
            write!(f, "@{encoded}")?;
        }
        if self.files.is_empty() { Ok(()) } else { write!(f, "/{}", self.files) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected parts: `parse_hf_uri` of huggingface_hub 2.4 with `hf://`.
    #[test]
    fn paths_are_read_as_huggingface_hub_reads_them() {
        for (text, repository, revision, files) in [
            ("hf:a/b", "hf:a/b", "main", ""),
            ("hf://a/b/", "hf:a/b", "main", ""),
            ("hf:models/a/b", "hf:a/b", "main", ""),
            ("hf:datasets/a/b/c/d.txt", "hf:datasets/a/b", "main", "c/d.txt"),
            ("hf:a/b@v1.0", "hf:a/b", "v1.0", ""),
            ("hf:a/b@v1.0/c/d", "hf:a/b", "v1.0", "c/d"),
            ("hf:a/b@refs/pr/10", "hf:a/b", "refs/pr/10", ""),
            ("hf:a/b@refs/pr/10/c", "hf:a/b", "refs/pr/10", "c"),
            (
                "hf:a/b@refs/convert/parquet/x/*.parquet",
                "hf:a/b",
                "refs/convert/parquet",
                "x/*.parquet",
            ),
            ("hf:a/b@feature%2Fx/c", "hf:a/b", "feature/x", "c"),
            ("hf:a/b/c@d.txt", "hf:a/b", "main", "c@d.txt"),
        ] {
            let path: HubPath = text.parse().unwrap();
            let found = (path.repository(), path.revision(), path.files.as_str());
            assert_eq!(found, (repository.to_owned(), revision, files), "{text}");
            assert_eq!(path.to_string().parse::<HubPath>().unwrap(), path);
        }
    }

    #[test]
    fn other_paths_are_refused() {
        for text in [
            "a/b",
            "hf:",
            "hf:a",
            "hf:gpt2@main",
            "hf:/b",
            "hf:a//b",
            "hf:../b",
            "hf:a/..",
            "hf:a/b@",
            "hf:a/b@..",
            "hf:a/b@x y",
            "hf:a/b//c",
            "hf:a/b/../c",
            "hf:a/b/./c",
            "hf:a b/c",
            "hf:a?/b",
            "hf:spaces/a/b",
            "hf:datasets/a",
            "hf:a/b/[",
            "hf:a/b@m//c",
        ] {
            let error = text.parse::<HubPath>().unwrap_err();
            assert!(
                error.is_usage() && error.to_string().contains("hf:OWNER/NAME"),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn a_pattern_matches_within_a_folder() {
        let matches = |path: &str, file: &str| path.parse::<HubPath>().unwrap().matches(file);
        for (path, file) in [
            ("hf:a/b", "x/y"),
            ("hf:a/b/x", "x"),
            ("hf:a/b/x", "x/y/z"),
            ("hf:a/b/*.json", "config.json"),
            ("hf:a/b/**/*.json", "x/y/config.json"),
            ("hf:a/b/**/*.json", "config.json"),
            ("hf:a/b/model-0000[12]*", "model-00002-of-3.safetensors"),
        ] {
            assert!(matches(path, file), "{path} {file}");
        }
        for (path, file) in
            [("hf:a/b/x", "xy"), ("hf:a/b/*.json", "x/config.json"), ("hf:a/b/x", "y/x")]
        {
            assert!(!matches(path, file), "{path} {file}");
        }
    }
}
