//! [`Approval`]: a file in the folder of the compiled programs, which says that a kernel passed its
//! tests on a kind of device.
//!
//! Out of scope: the tests, which `fulmen selftest` runs, and who uses an approved kernel.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::create_folder;
use crate::error::{self, Result};
use crate::hash;

/// The first line of a file; changes with the form.
const TITLE: &str = "fulmen: a kernel that passed its tests, form 1";

/// The beginning of the line with the checksum of those before it.
const CHECKSUM: &str = "sha-256 of these lines: ";

/// The size limit of a file.
const MAX_BYTES: u64 = 4096;

/// How many hexadecimal digits of a hash are in a file's name.
const DIGITS: usize = 16;

/// That a kernel passed its tests on a kind of device, with a plugin. Another plugin and another text
/// of the kernel are not approved by it.
///
/// The file is in the folder of a [`CompileCache`](super::CompileCache). Like compiled programs, it is
/// as trustworthy as those who may write there: its checksum finds damage, not lies.
///
/// ```
/// use fulmen_pjrt::compile_cache::{Approval, Standing};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let approval = Approval::new("attention", "the kernel's text", "TPU v5 lite", &"0".repeat(64));
/// assert_eq!(approval.standing(folder.path()), Standing::Missing);
/// approval.write(folder.path())?;
/// assert_eq!(approval.standing(folder.path()), Standing::Approved);
/// let later = Approval::new("attention", "another text", "TPU v5 lite", &"0".repeat(64));
/// assert_eq!(later.standing(folder.path()), Standing::Outdated);
/// assert!(approval.withdraw(folder.path())?);
/// assert_eq!(approval.standing(folder.path()), Standing::Missing);
/// # Ok::<(), fulmen_pjrt::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approval {
    kernel: String,
    text_digest: String,
    device_kind: String,
    plugin: String,
}

/// Whether a folder has an [`Approval`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The kernel passed its tests.
    Approved,
    /// There is no file.
    Missing,
    /// The file is of another text of the kernel, or of another version of Fulmen.
    Outdated,
    /// The file cannot be read, or its checksum does not match. The text says which, with the path.
    Damaged(String),
}

impl Approval {
    /// Of the kernel with this name and text, on devices of this [kind](crate::DeviceDescription::kind),
    /// with the plugin of this [identity](crate::Plugin::identity).
    pub fn new(kernel: &str, text: &str, device_kind: &str, plugin: &str) -> Approval {
        Approval {
            kernel: kernel.to_owned(),
            text_digest: hash::hex(&hash::of_bytes(text.as_bytes())),
            device_kind: device_kind.to_owned(),
            plugin: plugin.to_owned(),
        }
    }

    /// Whether a folder has approvals of the kernel with this name, of any kind. This is quick, and
    /// needs no hash of the plugin.
    pub fn exist(folder: &Path, kernel: &str) -> bool {
        let start = file_start(kernel);
        let Ok(entries) = fs::read_dir(folder) else { return false };
        entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(&start))
    }

    /// Whether this folder has the approval.
    pub fn standing(&self, folder: &Path) -> Standing {
        let path = self.path(folder);
        let damaged = |why: String| {
            Standing::Damaged(format!(
                "{}: {why}; the kernel counts as not approved",
                path.display()
            ))
        };
        let bytes = match fulmen_durable::read_regular(&path, MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Standing::Missing,
            Err(error) => return damaged(format!("cannot be read: {error}")),
        };
        let expected = self.encode();
        if bytes == expected.as_bytes() {
            return Standing::Approved;
        }
        if is_intact(&bytes) {
            return Standing::Outdated;
        }
        damaged("the file is damaged: its checksum does not match".to_owned())
    }

    /// Writes the file. It appears complete or not at all, and survives a power failure.
    ///
    /// # Errors
    /// The folder cannot be created or written to; the disk is full.
    pub fn write(&self, folder: &Path) -> Result<()> {
        create_folder(folder)?;
        let path = self.path(folder);
        let text = self.encode();
        fulmen_durable::write(&path, Some(text.len() as u64), |file| {
            file.write_all(text.as_bytes())
        })
        .map_err(|error| error::io(format!("cannot write {}", path.display()), error))
    }

    /// Removes the file, of whichever text of the kernel it is. Returns whether there was one.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn withdraw(&self, folder: &Path) -> Result<bool> {
        let path = self.path(folder);
        let removed = match fs::remove_file(&path) {
            Ok(()) => fulmen_durable::sync_folder(&path).map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        };
        removed.map_err(|error| error::io(format!("cannot remove {}", path.display()), error))
    }

    fn path(&self, folder: &Path) -> PathBuf {
        let digits = |text: &str| hash::hex(&hash::of_bytes(text.as_bytes()))[..DIGITS].to_owned();
        let start = file_start(&self.kernel);
        folder.join(format!("{start}{}-{}", digits(&self.device_kind), digits(&self.plugin)))
    }

    fn encode(&self) -> String {
        let lines = format!(
            "{TITLE}\nversion of Fulmen: {}\nkernel: {}\nsha-256 of the kernel's text: {}\ndevice kind: {:?}\n\
             sha-256 of the plugin: {}\n",
            env!("CARGO_PKG_VERSION"),
            self.kernel,
            self.text_digest,
            self.device_kind,
            self.plugin
        );
        let digest = hash::hex(&hash::of_bytes(lines.as_bytes()));
        format!("{lines}{CHECKSUM}{digest}\n")
    }
}

fn file_start(kernel: &str) -> String {
    format!("approval-{kernel}-")
}

/// Whether the checksum of a file matches.
fn is_intact(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Some((lines, digest)) = text.rsplit_once(CHECKSUM) else { return false };
    digest.strip_suffix('\n') == Some(&hash::hex(&hash::of_bytes(lines.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn approval() -> Approval {
        Approval::new("attention", "text", "TPU v5 lite", "ab")
    }

    #[test]
    fn any_flipped_bit_and_any_cut_is_no_approval() {
        let folder = tempfile::tempdir().unwrap();
        let path = approval().path(folder.path());
        approval().write(folder.path()).unwrap();
        let bytes = fs::read(&path).unwrap();
        let standing = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            approval().standing(folder.path())
        };
        assert_eq!(standing(&bytes), Standing::Approved);
        for i in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[i / 8] ^= 1 << (i % 8);
            assert!(matches!(standing(&flipped), Standing::Damaged(_)), "bit {i}");
        }
        for length in 0..bytes.len() {
            let Standing::Damaged(why) = standing(&bytes[..length]) else {
                panic!("cut to {length}");
            };
            assert!(why.contains("checksum does not match; the kernel counts as not"), "{why}");
        }
        let large = vec![b'x'; MAX_BYTES as usize + 1];
        assert!(matches!(standing(&large), Standing::Damaged(_)));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(matches!(approval().standing(folder.path()), Standing::Damaged(_)));
    }

    #[test]
    fn another_plugin_kind_kernel_or_text_is_not_approved() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("not yet there");
        assert!(!Approval::exist(&folder, "attention"));
        approval().write(&folder).unwrap();
        assert!(Approval::exist(&folder, "attention") && !Approval::exist(&folder, "norm"));
        for (other, expected) in [
            (Approval::new("attention", "text", "TPU v5 lite", "abc"), Standing::Missing),
            (Approval::new("attention", "text", "TPU v6 lite", "ab"), Standing::Missing),
            (Approval::new("norm", "text", "TPU v5 lite", "ab"), Standing::Missing),
            (Approval::new("attention", "texts", "TPU v5 lite", "ab"), Standing::Outdated),
        ] {
            assert_eq!(other.standing(&folder), expected, "{other:?}");
            // A file that was copied to the other's name says what it is of.
            let copy = other.path(&folder);
            if copy != approval().path(&folder) {
                fs::copy(approval().path(&folder), &copy).unwrap();
                assert_eq!(other.standing(&folder), Standing::Outdated, "{other:?}");
            }
        }
        assert_eq!(approval().standing(&folder), Standing::Approved);
    }
}
