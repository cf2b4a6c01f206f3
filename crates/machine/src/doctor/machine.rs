//! What the checks look at: files, variables and a metadata server, each of which a test replaces.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread::{self, Builder};
use std::time::{Duration, SystemTime};
use std::{env, fs, io};

use fulmen_pjrt::diagnosis::{DeviceFile, device_files_under};
use fulmen_pjrt::locate::Platform;

use super::cloud::{BucketRegion, Metadata};
use super::plugins::Plugins;
use super::{CHECKS, Report, Section};

/// A machine to be looked at.
///
/// ```
/// use fulmen_machine::doctor::{Machine, Severity};
///
/// let machine = Machine::local(["fulmen", "plugin", "list", "--json"]).bucket("gs://my-bucket");
/// let report = machine.examine();
/// assert!(report.sections.iter().any(|section| section.heading == "Lock file"));
/// if report.count(Severity::Error) > 0 {
///     println!("{report}");
/// }
/// ```
#[derive(Debug)]
pub struct Machine {
    /// The folder that holds `dev`, `etc`, `proc`, `sys` and `tmp`.
    pub(super) root: PathBuf,
    /// Where programs are started.
    pub(super) folder: PathBuf,
    pub(super) variables: BTreeMap<OsString, OsString>,
    pub(super) bucket: Option<String>,
    /// The program that lists the plugins, and its arguments.
    pub(super) plugin_list: Vec<OsString>,
    /// How many bytes a user may still write to a path's file system.
    pub(super) free_bytes: fn(&Path) -> io::Result<u64>,
    pub(super) now: SystemTime,
    /// For the answer of a server, and twice that for listing plugins.
    pub(super) patience: Duration,
    plugins: OnceLock<Result<Plugins, String>>,
    metadata: OnceLock<Option<Metadata>>,
    bucket_region: OnceLock<Option<BucketRegion>>,
}

impl Machine {
    /// This machine, as this process sees it. `plugin_list` is a command that prints what `fulmen plugin list --json` does:
    /// to see a plugin's version is to load it, and a plugin may hang or crash.
    pub fn local(plugin_list: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        let free_bytes = |path: &Path| {
            let found = rustix::fs::statvfs(path)?;
            Ok(found.f_bavail * found.f_frsize)
        };
        Self {
            root: "/".into(),
            // A folder that was deleted meanwhile.
            folder: env::current_dir().unwrap_or_else(|_| "/".into()),
            variables: env::vars_os().collect(),
            bucket: None,
            plugin_list: plugin_list.into_iter().map(Into::into).collect(),
            free_bytes,
            now: SystemTime::now(),
            patience: Duration::from_millis(900),
            plugins: OnceLock::new(),
            metadata: OnceLock::new(),
            bucket_region: OnceLock::new(),
        }
    }

    /// Compares the region of this bucket (`gs://NAME`) with the machine's zone, and not that of `FULMEN_CHECKPOINT_DIR`.
    #[must_use]
    pub fn bucket(mut self, bucket: impl Into<String>) -> Self {
        self.bucket = Some(bucket.into());
        self
    }

    /// Makes all checks. Other programs and servers are waited for for less than two seconds.
    pub fn examine(&self) -> Report {
        thread::scope(|scope| {
            // Both wait for others. Where there is no thread to spare, the checks that need them wait.
            let _ = Builder::new().spawn_scoped(scope, || self.plugins().is_ok());
            let _ = Builder::new().spawn_scoped(scope, || self.bucket_region().is_some());
            let sections = CHECKS.iter().map(|check| Section { heading: check.heading, findings: (check.look)(self) });
            Report { sections: sections.collect() }
        })
    }

    /// The value of a variable that is set to something.
    pub(super) fn variable(&self, name: &str) -> Option<OsString> {
        self.variables.get(OsStr::new(name)).filter(|value| !value.is_empty()).cloned()
    }

    /// The same, to be shown.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.variable(name).map(|value| value.to_string_lossy().into_owned())
    }

    /// A file of the system, such as `proc/meminfo`; empty where there is none.
    pub(super) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.root.join(name)).unwrap_or_default()
    }

    pub(super) fn tpus(&self) -> Vec<DeviceFile> {
        device_files_under(&self.root, Platform::Tpu)
    }

    pub(super) fn plugins(&self) -> &Result<Plugins, String> {
        self.plugins.get_or_init(|| Plugins::ask(self))
    }

    /// What the metadata server says, on a machine that has one.
    pub(super) fn metadata(&self) -> Option<&Metadata> {
        self.metadata.get_or_init(|| Metadata::ask(self)).as_ref()
    }

    /// Where the bucket is, if one is named.
    pub(super) fn bucket_region(&self) -> Option<&BucketRegion> {
        self.bucket_region.get_or_init(|| BucketRegion::ask(self)).as_ref()
    }
}
