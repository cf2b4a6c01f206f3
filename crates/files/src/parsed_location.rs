//! Parses the location of a file or a folder.
//!
//! Out of scope: reading a location (`location`).

use std::path::PathBuf;

use super::object_path::{ObjectPath, Scheme};

/// A local path, an object in a store, or an invalid string.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum ParsedLocation {
    Local(PathBuf),
    Store(ObjectPath),
    /// An invalid string, and the reason.
    Invalid(String, String),
}

/// Parses a path or an address.
pub(super) fn parse(text: &str) -> ParsedLocation {
    let bad = |reason: &str| ParsedLocation::Invalid(text.to_owned(), reason.to_owned());
    let Some((scheme, rest)) = text.split_once("://") else {
        return ParsedLocation::Local(PathBuf::from(text));
    };
    // A leading slash marks a local path.
    if scheme.is_empty()
        || !scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+.-".contains(&byte))
    {
        return ParsedLocation::Local(PathBuf::from(text));
    }
    let scheme = match scheme {
        "gs" => Scheme::Gs,
        "s3" => Scheme::S3,
        "file" if rest.starts_with('/') => return ParsedLocation::Local(PathBuf::from(rest)),
        "file" => {
            return bad("a file:// address needs the absolute path, as in file:///data/train.tar");
        }
        "http" => Scheme::Http,
        "https" => Scheme::Https,
        _ => {
            return bad(
                "expected a local path, gs://bucket/path, s3://bucket/path or https://host/path",
            );
        }
    };
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte);
    if bucket.is_empty() || !bucket.bytes().all(plain) {
        return bad(
            "a bucket name may only contain letters, digits, dots, hyphens and underscores",
        );
    }
    if matches!(scheme, Scheme::Http | Scheme::Https) && key.contains(['?', '#', '%']) {
        return bad("the address of a file on a web server must not contain `?`, `#` or `%`");
    }
    let key = key.trim_matches('/');
    if key.split('/').any(|part| part.is_empty() || part == "." || part == "..") && !key.is_empty()
    {
        return bad("the names between its slashes must not be empty, `.` or `..`");
    }
    ParsedLocation::Store(ObjectPath { scheme, bucket: bucket.to_owned(), key: key.to_owned() })
}
