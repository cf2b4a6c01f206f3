//! Downloads plugins once. The CPU plugin is downloaded when it is first used, so that a first run
//! only needs Python's pip. Plugins for TPUs and GPUs are downloaded on request. This module loads
//! no plugin.
//!
//! The version and the SHA-256 of each package are pinned. The file is written to the cache folder
//! atomically: it is downloaded and unpacked next to its final path, under a lock, and then renamed
//! ([`fulmen_durable`]). Hashing a plugin at every start would take longer than loading it. It is
//! hashed when its size or time has changed since it was last hashed; a file next to it has those.
//! A damaged file is downloaded again.

mod package;
mod wheel;

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use self::package::{CPU, CUDA, LIBTPU};
#[doc(hidden)]
pub use self::package::{LIBTPU_PACKAGE, Package};
use crate::error::{self, Error, Fact, Result};
use crate::hash;
use crate::locate::{self, Platform};

/// The variable that forbids downloads.
const OFFLINE_VARIABLE: &str = "FULMEN_OFFLINE";

/// The folder for everything that Fulmen downloads: `$XDG_CACHE_HOME/fulmen` or `~/.cache/fulmen`.
pub fn cache_folder() -> Result<PathBuf> {
    cache_folder_by(&|name| env::var_os(name))
}

/// Like [`cache_folder`], with the given variables.
pub(crate) fn cache_folder_by(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    // The XDG specification says that a relative path is ignored.
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .map(|cache| cache.join("fulmen"))
        .ok_or_else(|| {
            Error::of(
                Fact::NotFound,
                "there is no cache folder: neither XDG_CACHE_HOME nor HOME is an absolute path; set one of them, or set \
                 FULMEN_PJRT_PLUGIN to a plugin's path",
            )
        })
}

/// The path of the CPU plugin in the cache folder. It is downloaded if it is missing.
///
/// The download runs `pip download`, after one line on standard error with the name and the size.
/// With `FULMEN_OFFLINE=1` nothing is downloaded, and the error says what to do by hand. If several
/// processes call this at once, one downloads and the others wait for its file.
pub fn cpu_plugin() -> Result<PathBuf> {
    let Some(package) = CPU else {
        return Err(unpublished(env::consts::OS, env::consts::ARCH));
    };
    Fetcher::new(package)?.get()
}

/// The error on systems without a published CPU plugin.
fn unpublished(os: &str, arch: &str) -> Error {
    Error::of(
        Fact::Unsupported,
        format!(
            "no XLA CPU plugin is published for {os} on {arch}, only for Linux on x86-64 and 64-bit ARM; run in a Linux \
             container (Fulmen's repository has one in .devcontainer), or build a plugin from XLA and set \
             FULMEN_PJRT_PLUGIN to its path"
        ),
    )
}

/// The path of libtpu in the cache folder. It is downloaded if it is missing: 205 MB, 575 MB
/// unpacked.
///
/// libtpu compiles for TPUs on any machine, and runs programs on TPU machines. It is Google's,
/// under the Google Cloud Platform Terms of Service, so Fulmen cannot include it. This function
/// downloads it from PyPI with pip, by the rules of [`cpu_plugin`]. [`locate`](locate::locate)
/// finds it afterwards.
pub fn libtpu() -> Result<PathBuf> {
    let Some(package) = LIBTPU else {
        return Err(Error::of(
            Fact::Unsupported,
            format!("Google publishes libtpu for x86_64 only, not for {}", env::consts::ARCH),
        ));
    };
    Fetcher::new(package)?.get()
}

/// The version of libtpu that [`libtpu`](libtpu()) downloads. This version of Fulmen was tested
/// with it.
///
/// ```
/// assert!(fulmen_pjrt::fetch::libtpu_version().is_none_or(|version| version.starts_with("0.")));
/// ```
pub fn libtpu_version() -> Option<&'static str> {
    LIBTPU.map(|package| package.version)
}

/// The path of XLA's plugin for NVIDIA GPUs with CUDA 12 or 13 in the cache folder. It is
/// downloaded if it is missing.
///
/// The download follows the rules of [`cpu_plugin`]. The plugin loads NVIDIA's libraries (CUDA,
/// cuDNN, NCCL and others), which are not downloaded. [`locate`](locate::locate) finds the plugin
/// afterwards.
///
/// # Errors
/// The version of CUDA is not 12 or 13; the processor is not x86-64; those of [`cpu_plugin`].
pub fn cuda_plugin(version: u32) -> Result<PathBuf> {
    let name = format!("jax-cuda{version}-pjrt");
    let package = CUDA.iter().find(|package| package.name == name).ok_or_else(|| {
        Error::of(
            Fact::Unsupported,
            format!(
                "there is no plugin for CUDA {version} on {}, only for CUDA 12 and 13 on x86-64",
                env::consts::ARCH
            ),
        )
    })?;
    Fetcher::new(*package)?.get()
}

/// The paths of downloaded plugins in this cache folder, the preferred one first.
pub(crate) fn fetched_in(cache: &Path, platform: Platform) -> Vec<PathBuf> {
    package::packages(platform).iter().map(|package| target(cache, package)).collect()
}

fn target(cache: &Path, package: &Package<'_>) -> PathBuf {
    let file = Path::new(package.member).file_name().unwrap_or_default();
    cache.join("pjrt").join(format!("{}-{}", package.name, package.version)).join(file)
}

/// Whether this file, whose path has no links, is a downloaded plugin, so that its SHA-256 is
/// known.
#[doc(hidden)]
pub fn is_published(plugin: &Path) -> bool {
    fetcher_of(plugin).is_some()
}

/// Compares a downloaded plugin with its published SHA-256, if its size or time has changed since
/// that was last done, and returns the SHA-256. A damaged file is downloaded again. The right
/// content of other files is not known: for them, this is `None`.
///
/// # Errors
/// Those of [`repair`].
pub(crate) fn verify_if_changed(plugin: &Path) -> Result<Option<&'static str>> {
    let Some(fetcher) = fetcher_of(plugin) else { return Ok(None) };
    fetcher.verify_if_changed()?;
    Ok(Some(fetcher.package.member_sha256))
}

/// Downloads a downloaded plugin again if its file is damaged, and reports this. Returns whether it
/// did. Other files are left alone.
///
/// # Errors
/// The file is damaged and cannot be downloaded, or is only downloaded on request.
pub fn repair(plugin: &Path) -> Result<bool> {
    fetcher_of(plugin).map_or(Ok(false), |fetcher| fetcher.repair())
}

fn fetcher_of(plugin: &Path) -> Option<Fetcher<'static>> {
    let packages =
        [Platform::Cpu, Platform::Cuda, Platform::Tpu].into_iter().flat_map(package::packages);
    packages.filter_map(|package| Fetcher::new(package).ok()).find(|fetcher| {
        let target = fetcher.target();
        // A link instead of the file is a user's own plugin.
        let folder = target.parent().and_then(|folder| folder.canonicalize().ok());
        folder.zip(target.file_name()).is_some_and(|(folder, name)| folder.join(name) == plugin)
    })
}

struct Fetcher<'a> {
    cache: PathBuf,
    /// The command that runs pip, with its first arguments.
    pip: Vec<OsString>,
    offline: bool,
    package: Package<'a>,
}

impl<'a> Fetcher<'a> {
    /// Uses the environment's settings.
    fn new(package: Package<'a>) -> Result<Fetcher<'a>> {
        let offline =
            env::var_os(OFFLINE_VARIABLE).is_some_and(|value| !value.is_empty() && value != "0");
        let pip = vec![locate::python().into_os_string(), "-m".into(), "pip".into()];
        Ok(Self { cache: cache_folder()?, pip, offline, package })
    }

    fn folder(&self) -> PathBuf {
        self.cache.join("pjrt")
    }

    fn target(&self) -> PathBuf {
        target(&self.cache, &self.package)
    }

    fn get(&self) -> Result<PathBuf> {
        let target = self.target();
        if target.is_file() {
            return Ok(target);
        }
        if self.offline {
            let description = self.package.description;
            return Err(Error::of(
                Fact::Fetch,
                format!(
                    "{description} is missing, and {OFFLINE_VARIABLE} forbids fetching it; {}",
                    self.manual_steps()
                ),
            ));
        }
        self.fetch_unless(|| Ok(target.is_file()))?;
        Ok(target)
    }

    fn verify_if_changed(&self) -> Result<()> {
        let target = self.target();
        let mut record = target.clone().into_os_string();
        record.push(".verified");
        let record = PathBuf::from(record);
        let mut state = self.state()?;
        let known = fulmen_durable::read_regular(&record, MAX_RECORD_BYTES);
        if known.is_ok_and(|known| known == state.as_bytes()) {
            return Ok(());
        }
        if self.repair()? {
            state = self.state()?;
        }
        // If it cannot be written, the next start hashes the file again.
        let write = |file: &mut BufWriter<&File>| file.write_all(state.as_bytes());
        let _ = fulmen_durable::write_unsynced(&record, Some(state.len() as u64), write);
        Ok(())
    }

    /// The published SHA-256, and the size and time of the file.
    fn state(&self) -> Result<String> {
        let target = self.target();
        let metadata = target.metadata().map_err(|error| {
            error::io(format!("cannot read the metadata of {}", target.display()), error)
        })?;
        let Package { member_sha256, .. } = self.package;
        let seconds = metadata.mtime();
        let nanos = metadata.mtime_nsec();
        Ok(format!("{member_sha256}, {} bytes, modified {seconds}.{nanos:09}\n", metadata.len()))
    }

    fn repair(&self) -> Result<bool> {
        let Package { description, member_sha256, .. } = self.package;
        let target = self.target();
        let actual = hash::of_file(&target)?;
        if actual == member_sha256 {
            return Ok(false);
        }
        let damaged = format!(
            "{description} in the cache folder is damaged: the SHA-256 of {} is {actual}, expected {member_sha256}",
            target.display()
        );
        let refuse = |next: String| error::corrupt(format!("{damaged}; {next}"));
        if let Some(how) = self.package.on_request {
            return Err(refuse(format!("delete the file and fetch it again: {how}")));
        }
        if self.offline {
            return Err(refuse(format!(
                "{OFFLINE_VARIABLE} forbids fetching it again; {}",
                self.manual_steps()
            )));
        }
        eprintln!("{}", capital(&damaged));
        self.fetch_unless(|| Ok(hash::of_file(&target)? == member_sha256))
            .map_err(|error| error.context(damaged))?;
        Ok(true)
    }

    /// Downloads the package, unless `is_present` holds once the lock is taken: another process may
    /// have been faster.
    fn fetch_unless(&self, is_present: impl Fn() -> Result<bool>) -> Result<()> {
        let Package { description, name, version, megabytes, note, .. } = self.package;
        let target = self.target();
        let folder = self.folder();
        let cannot = |what: &str| format!("cannot {what} in the cache folder {}", folder.display());
        fs::create_dir_all(&folder).map_err(|error| {
            error::io(
                format!(
                    "cannot create the cache folder {} (set XDG_CACHE_HOME to another folder)",
                    folder.display()
                ),
                error,
            )
        })?;
        let _lock =
            lock(&folder.join(".lock")).map_err(|error| error::io(cannot("take a lock"), error))?;
        if is_present()? {
            return Ok(());
        }
        remove_leftovers(&folder);
        eprintln!(
            "Fetching {description} ({name} {version}, {megabytes} MB, once) into {}{note}",
            folder.display()
        );
        let scratch = ScratchFolder::new(&folder)
            .map_err(|error| error::io(cannot("create a folder"), error))?;
        self.download(&scratch.0)?;
        let wheel = self.verified_wheel(&scratch.0)?;
        let parent = target.parent().unwrap_or(&folder);
        fs::create_dir_all(parent).map_err(|error| error::io(cannot("create a folder"), error))?;
        wheel::unpack(&wheel, self.package.member, &target).inspect_err(|_| {
            // This removes it only if it is empty.
            let _ = fs::remove_dir(parent);
        })
    }

    /// The steps to install the plugin by hand.
    fn manual_steps(&self) -> String {
        let Package { name, version, member, wheel, variable, .. } = self.package;
        let selection = match wheel {
            [] => String::new(),
            flags => format!("--only-binary=:all: {} ", flags.join(" ")),
        };
        format!(
            "run `python3 -m pip download --no-deps {selection}{name}=={version}` on a machine with a network, unpack \
             {member} from the wheel (it is a zip file) and copy it to {}, or set {variable} to its path",
            self.target().display()
        )
    }

    fn download(&self, into: &Path) -> Result<()> {
        let Package { name, version, .. } = self.package;
        let failed = |why: String| {
            Error::of(
                Fact::Fetch,
                format!(
                    "could not fetch {name} {version}: {why}. Nothing was left behind. {}",
                    capital(&self.manual_steps())
                ),
            )
        };
        let (program, arguments) = self
            .pip
            .split_first()
            .ok_or_else(|| failed("there is no pip program to run".to_owned()))?;
        let output = Command::new(program)
            .args(arguments)
            .args(["download", "--no-deps", "--no-input", "--disable-pip-version-check", "--quiet"])
            .args(["--only-binary=:all:", "--ignore-requires-python"])
            .args(self.package.wheel)
            .arg("--dest")
            .arg(into)
            .arg(format!("{name}=={version}"))
            // With `-m`, Python would run a pip.py in the user's current folder.
            .current_dir(into)
            .output();
        match output {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => {
                let output_text = String::from_utf8_lossy(&output.stderr);
                let stderr = output_text.trim();
                if stderr.contains("No module named pip") {
                    return Err(failed(
                        "Python has no pip; install it (`python3 -m ensurepip`, or the package python3-pip)".to_owned(),
                    ));
                }
                // The last lines are the most informative.
                let tail = stderr
                    .lines()
                    .rev()
                    .take(4)
                    .collect::<Vec<_>>()
                    .into_iter()
                    .rev()
                    .collect::<Vec<_>>();
                Err(failed(format!("pip failed ({}): {}", output.status, tail.join(" / "))))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(failed(format!(
                "cannot run pip, because {} does not exist; install Python 3 with pip",
                Path::new(program).display()
            ))),
            Err(error) => {
                Err(failed(format!("{} cannot be run: {error}", Path::new(program).display())))
            }
        }
    }

    fn verified_wheel(&self, folder: &Path) -> Result<PathBuf> {
        let Package { name, version, sha256, .. } = self.package;
        let entries = fs::read_dir(folder)
            .map_err(|error| error::io("cannot look for the download", error))?;
        let wheel = entries
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|e| e == "whl"));
        let Some(wheel) = wheel else {
            return Err(Error::of(
                Fact::Fetch,
                format!(
                    "pip reported success but left no wheel of {name} {version}. {}",
                    capital(&self.manual_steps())
                ),
            ));
        };
        let actual = hash::of_file(&wheel)?;
        if actual != sha256 {
            return Err(Error::of(
                Fact::Fetch,
                format!(
                    "the download of {name} {version} was cut off, or is not the published file: its SHA-256 is \
                     {actual}, expected {sha256}. Nothing was left behind. Try again; if it happens again, check which \
                     package index pip uses"
                ),
            ));
        }
        Ok(wheel)
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Holds the lock while the file is open. The system releases the lock when the process ends.
fn lock(path: &Path) -> io::Result<File> {
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    loop {
        // SAFETY: the descriptor is open.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
            return Ok(file);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// The size limit of the file that says in what state a plugin was last hashed.
const MAX_RECORD_BYTES: u64 = 4096;

const SCRATCH: &str = ".fetching-";

/// Removes the leftovers of killed processes. The caller must hold the lock: then no such folder is
/// in use.
fn remove_leftovers(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(SCRATCH)) {
            let _ = fs::remove_dir_all(entry.path());
        } else if entry.path().is_dir() {
            // The folder of this version or an earlier one.
            let _ = fulmen_durable::remove_leftovers(&entry.path());
        }
    }
}

/// A folder that is removed when this is dropped.
struct ScratchFolder(PathBuf);

impl ScratchFolder {
    fn new(folder: &Path) -> io::Result<ScratchFolder> {
        let path = folder.join(format!("{SCRATCH}{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests;
