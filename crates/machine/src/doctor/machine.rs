//! The inputs of the checks: files, variables and a metadata server. Tests replace them.

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

/// A machine to check.
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
    /// The working directory of programs.
    pub(super) folder: PathBuf,
    pub(super) variables: BTreeMap<OsString, OsString>,
    pub(super) bucket: Option<String>,
    /// The command that lists the plugins: a program and its arguments.
    pub(super) plugin_list: Vec<OsString>,
    /// The free space of a path's file system for this user, in bytes.
    pub(super) free_bytes: fn(&Path) -> io::Result<u64>,
    pub(super) now: SystemTime,
    /// The time-out for a server; listing plugins may take twice as long.
    pub(super) timeout: Duration,
    plugins: OnceLock<Result<Plugins, String>>,
    metadata: OnceLock<Option<Metadata>>,
    bucket_region: OnceLock<Option<BucketRegion>>,
}

impl Machine {
    /// This machine, as this process sees it. `plugin_list` is a command that prints what `fulmen
    /// plugin list --json` prints. It is a separate process because the version of a plugin is
    /// known only after loading it, and a plugin may hang or crash.
    pub fn local(plugin_list: impl IntoIterator<Item = impl Into<OsString>>) -> Machine {
        let free_bytes = |path: &Path| {
            let stat = rustix::fs::statvfs(path)?;
            Ok(stat.f_bavail * stat.f_frsize)
        };
        Self {
            root: "/".into(),
            // The folder may have been deleted.
            folder: env::current_dir().unwrap_or_else(|_| "/".into()),
            variables: env::vars_os().collect(),
            bucket: None,
            plugin_list: plugin_list.into_iter().map(Into::into).collect(),
            free_bytes,
            now: SystemTime::now(),
            timeout: Duration::from_millis(900),
            plugins: OnceLock::new(),
            metadata: OnceLock::new(),
            bucket_region: OnceLock::new(),
        }
    }

    /// Compares the region of this bucket (`gs://NAME`) with the machine's zone, instead of the
    /// bucket in `FULMEN_CHECKPOINT_DIR`.
    #[must_use]
    pub fn bucket(mut self, bucket: impl Into<String>) -> Machine {
        self.bucket = Some(bucket.into());
        self
    }

    /// Runs all checks. Waits less than two seconds for other programs and servers.
    pub fn examine(&self) -> Report {
        thread::scope(|scope| {
            // Both queries wait for other programs or servers, so they run on threads. If a thread
            // cannot be started, the checks wait instead.
            let _ = Builder::new().spawn_scoped(scope, || self.plugins().is_ok());
            let _ = Builder::new().spawn_scoped(scope, || self.bucket_region().is_some());
            let sections = CHECKS
                .iter()
                .map(|check| Section { heading: check.heading, findings: (check.run)(self) });
            Report { sections: sections.collect() }
        })
    }

    /// The value of a variable that is set and not empty.
    pub(super) fn variable(&self, name: &str) -> Option<OsString> {
        self.variables.get(OsStr::new(name)).filter(|value| !value.is_empty()).cloned()
    }

    /// The value of a variable as text to show, if it is set and not empty.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.variable(name).map(|value| value.to_string_lossy().into_owned())
    }

    /// A file of the system, such as `proc/meminfo`; empty if it does not exist.
    pub(super) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.root.join(name)).unwrap_or_default()
    }

    pub(super) fn tpus(&self) -> Vec<DeviceFile> {
        device_files_under(&self.root, Platform::Tpu)
    }

    pub(super) fn plugins(&self) -> &Result<Plugins, String> {
        self.plugins.get_or_init(|| Plugins::ask(self))
    }

    /// The answers of the metadata server, if the machine has one.
    pub(super) fn metadata(&self) -> Option<&Metadata> {
        self.metadata.get_or_init(|| Metadata::ask(self)).as_ref()
    }

    /// The region of the bucket, if one is named.
    pub(super) fn bucket_region(&self) -> Option<&BucketRegion> {
        self.bucket_region.get_or_init(|| BucketRegion::ask(self)).as_ref()
    }
}
