//! The hashes by which a hub names the content of files: SHA-256 for large files (Git LFS), and Git's
//! SHA-1 for others.
//!
//! Out of scope: the expected values (`listing`).

use fulmen_data::internal::hex;
use ring::digest;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The hash of a file, in hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FileHash {
    /// Of the content.
    Sha256(String),
    /// Of Git's blob: the word `blob`, the size, a zero byte, and the content.
    GitSha1(String),
}

impl FileHash {
    pub(super) fn digits(&self) -> &str {
        match self {
            FileHash::Sha256(digits) | FileHash::GitSha1(digits) => digits,
        }
    }

    /// Whether it has the form of a hash. It becomes part of a file's name.
    pub(super) fn is_valid(&self) -> bool {
        let length = match self {
            FileHash::Sha256(_) => 64,
            FileHash::GitSha1(_) => 40,
        };
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        self.digits().len() == length && self.digits().bytes().all(is_digit)
    }

    /// Starts to hash a file of `size` bytes in the same way.
    pub(super) fn hasher(&self, size: u64) -> Hasher {
        match self {
            FileHash::Sha256(_) => Hasher::Sha256(Sha256::new()),
            FileHash::GitSha1(_) => {
                let mut hash = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
                hash.update(format!("blob {size}\0").as_bytes());
                Hasher::GitSha1(hash)
            }
        }
    }
}

/// A hash in progress.
pub(super) enum Hasher {
    Sha256(Sha256),
    GitSha1(digest::Context),
}

impl Hasher {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hash) => hash.update(bytes),
            Hasher::GitSha1(hash) => hash.update(bytes),
        }
    }

    pub(super) fn finish(self) -> FileHash {
        match self {
            Hasher::Sha256(hash) => FileHash::Sha256(hex(&hash.finalize())),
            Hasher::GitSha1(hash) => FileHash::GitSha1(hex(hash.finish().as_ref())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values: `git hash-object` and `sha256sum`.
    #[test]
    fn hashes_are_those_of_git() {
        for expected in [
            FileHash::GitSha1("ce013625030ba8dba906f756967f9e9ca394464a".to_owned()),
            FileHash::Sha256(
                "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03".to_owned(),
            ),
        ] {
            let mut hash = expected.hasher(6);
            hash.update(b"hel");
            hash.update(b"lo\n");
            assert!(expected.is_valid());
            assert_eq!(hash.finish(), expected);
        }
        assert!(!FileHash::GitSha1("../../x".to_owned()).is_valid());
        assert!(
            !FileHash::Sha256("ce013625030ba8dba906f756967f9e9ca394464a".to_owned()).is_valid()
        );
    }
}
