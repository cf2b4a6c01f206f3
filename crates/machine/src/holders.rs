//! Who holds the TPU: whose process, since when, what it runs, and whether it makes progress.
//!
//! Not here: ending it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use fulmen_pjrt::diagnosis::{FilesInUse, device_files, files_in_use};
use fulmen_pjrt::locate::Platform;

use crate::LockFile;
use crate::lock_file::user;

/// Where a TPU's holders are looked for.
///
/// ```
/// use fulmen_machine::Tpu;
///
/// let holders = Tpu::here().holders();
/// for process in &holders.processes {
///     println!("{} of {}: {}", process.pid, process.user, process.command);
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Tpu {
    /// The files by which its chips are opened.
    pub device_files: Vec<PathBuf>,
    /// Files named `libtpu.so` count in this folder and below.
    pub libraries: PathBuf,
    /// The folder that has `tmp/libtpu_lockfile` in it.
    pub root: PathBuf,
}

/// The processes that have the TPU's device files open or a `libtpu.so` mapped. This process is never among them.
#[derive(Clone, Debug, Default)]
pub struct Holders {
    /// In order of their numbers.
    pub processes: Vec<Process>,
    /// How many processes could not be looked into: those of other users.
    pub unseen: usize,
    /// libtpu's lock file, if there is one.
    pub lock: Option<LockFile>,
}

/// A process that holds the TPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    /// Its number. The kernel gives it to another process later.
    pub pid: u32,
    /// When it was started, in the kernel's ticks. With the number, it names a process for ever.
    pub start_ticks: u64,
    /// How long it has run.
    pub age: Duration,
    /// The number of its parent.
    pub parent: u32,
    /// The kernel's letter for what it does: `R` runs, `S` sleeps, `D` waits in the kernel, `T` is stopped, `Z` has ended but
    /// for some of its threads.
    pub state: char,
    /// The number of its user.
    pub uid: u32,
    /// The user's name, or the number if the machine does not know it.
    pub user: String,
    /// The command line.
    pub command: String,
    /// The device files that it has open.
    pub devices: Vec<PathBuf>,
    /// The libraries of that name that it has mapped.
    pub libraries: Vec<PathBuf>,
    /// How long processors have worked for it.
    pub cpu: Duration,
    /// How far a training of Fulmen is, if it writes `FULMEN_PROGRESS_FILE`.
    pub step: Option<Step>,
}

/// What a training has written into its `FULMEN_PROGRESS_FILE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How many steps have finished.
    pub count: u64,
    /// When that was written.
    pub written: SystemTime,
}

/// A process, and what it did since it was looked at before.
#[derive(Clone, Debug, PartialEq)]
pub struct Watched {
    /// The process as it is now.
    pub process: Process,
    /// How many processors worked for it, 1.0 being one. None at the first look.
    pub load: Option<f64>,
    /// How many steps have finished since the look before. None if that is not known.
    pub steps: Option<u64>,
    /// How long a step took, between the last two numbers that were seen in its file.
    pub step_time: Option<Duration>,
}

/// Looks at the holders again and again, and compares.
pub struct Watch {
    tpu: Tpu,
    seen: HashMap<(u32, u64), (Instant, Watched)>,
}

impl Tpu {
    /// This machine's.
    pub fn here() -> Self {
        Self { device_files: device_files(Platform::Tpu), libraries: "/".into(), root: "/".into() }
    }

    /// Looks at all processes that this user may look into.
    pub fn holders(&self) -> Holders {
        let (found, unseen) = files_in_use(&self.device_files, "libtpu.so");
        let processes = found.into_iter().filter_map(|mut found| {
            found.mapped.retain(|library| library.starts_with(&self.libraries));
            let holds = !found.open.is_empty() || !found.mapped.is_empty();
            if holds && found.pid != std::process::id() { Process::read(found) } else { None }
        });
        Holders { processes: processes.collect(), unseen, lock: LockFile::find(&self.root) }
    }

    /// Prepares to look more than once.
    pub fn watch(self) -> Watch {
        Watch { tpu: self, seen: HashMap::new() }
    }
}

impl Watch {
    /// Looks, and compares with the look before.
    pub fn look(&mut self) -> (Vec<Watched>, Holders) {
        let holders = self.tpu.holders();
        let now = Instant::now();
        let watched = holders.processes.iter().map(|process| {
            let before = self.seen.get(&(process.pid, process.start_ticks));
            Watched::new(process.clone(), before.map(|(then, before)| (now - *then, before)))
        });
        let watched: Vec<Watched> = watched.collect();
        let keyed = watched.iter().map(|it| ((it.process.pid, it.process.start_ticks), (now, it.clone())));
        self.seen = keyed.collect();
        (watched, holders)
    }
}

impl Watched {
    fn new(process: Process, before: Option<(Duration, &Self)>) -> Self {
        let Some((time, before)) = before else {
            return Self { process, load: None, steps: None, step_time: None };
        };
        let load = process.cpu.saturating_sub(before.process.cpu).as_secs_f64() / time.as_secs_f64().max(1e-3);
        let steps = process.step.zip(before.process.step).map(|(now, then)| {
            // A second fit in the same process begins with less.
            (now.count.saturating_sub(then.count), now.written.duration_since(then.written).unwrap_or_default())
        });
        let step_time = match steps {
            Some((count, time)) if count > 0 => Some(time.div_f64(count as f64)),
            _ => before.step_time,
        };
        Self { process, load: Some(load), steps: steps.map(|(count, _)| count), step_time }
    }

    /// What it does, in a few words.
    pub fn progress(&self) -> String {
        let Self { process, load, steps, step_time } = self;
        let mut words = match (process.state, steps, load) {
            ('T' | 't', ..) => "stopped: it waits for SIGCONT".to_owned(),
            ('Z', ..) => "its first thread has ended, others have not".to_owned(),
            (_, Some(1..), _) => "trains".to_owned(),
            (_, _, Some(load)) if *load >= 0.005 => format!("uses {:.0} % of a processor", load * 100.0),
            ('D', _, Some(_)) => "waits in the kernel, and uses no processor".to_owned(),
            (_, _, Some(_)) => "uses no processor".to_owned(),
            (_, _, None) => "just seen".to_owned(),
        };
        if let Some(step) = process.step {
            words += &format!("; step {}", step.count);
            if let Some(time) = step_time {
                words += &format!(", {:.1} ms a step", time.as_secs_f64() * 1e3);
            }
            if let Ok(age) = step.written.elapsed()
                && age >= Duration::from_secs(5)
            {
                words += &format!(", the last one {} s ago", age.as_secs());
            }
        }
        words
    }
}

impl Process {
    /// None if it has ended meanwhile.
    fn read(found: FilesInUse) -> Option<Self> {
        let folder = PathBuf::from(format!("/proc/{}", found.pid));
        let stat = Stat::read(&folder)?;
        let uid = fs::metadata(&folder).ok()?.uid();
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let command = fs::read(folder.join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).trim_end_matches('\0').replace('\0', " ");
        Some(Self {
            pid: found.pid,
            start_ticks: stat.start_ticks,
            age: uptime().saturating_sub(ticks(stat.start_ticks)),
            parent: stat.parent,
            state: stat.state,
            uid,
            user: user(&passwd, uid).unwrap_or_else(|| uid.to_string()),
            // A line on a terminal is all that it may become.
            command: match command.trim() {
                "" => found.name,
                command => command.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect(),
            },
            devices: found.open,
            libraries: found.mapped,
            cpu: ticks(stat.cpu_ticks),
            step: Step::read(&folder),
        })
    }
}

impl Step {
    /// What the process of this folder in `/proc` has written.
    fn read(process: &Path) -> Option<Self> {
        let variables = fs::read(process.join("environ")).ok()?;
        let mut variables = variables.split(|byte| *byte == 0);
        let name = variables.find_map(|variable| variable.strip_prefix(b"FULMEN_PROGRESS_FILE="))?;
        let path = process.join("cwd").join(Path::new(std::ffi::OsStr::from_bytes(name)));
        // Another user has chosen the path. What is no file could keep this process waiting.
        let metadata = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        let mut text = String::new();
        File::open(path).ok()?.take(32).read_to_string(&mut text).ok()?;
        Some(Self { count: text.trim().parse().ok()?, written: metadata.modified().ok()? })
    }
}

/// What `/proc/PID/stat` says of a process.
pub(crate) struct Stat {
    pub(crate) state: char,
    pub(crate) parent: u32,
    cpu_ticks: u64,
    pub(crate) start_ticks: u64,
}

impl Stat {
    pub(crate) fn read(process: &Path) -> Option<Self> {
        let stat = fs::read_to_string(process.join("stat")).ok()?;
        // The second field is the program's name in parentheses, which may hold anything.
        let fields = stat.rsplit_once(") ")?.1.split(' ').collect::<Vec<_>>();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Self {
            state: fields.first()?.chars().next()?,
            parent: u32::try_from(number(4)?).ok()?,
            cpu_ticks: number(14)? + number(15)?,
            start_ticks: number(22)?,
        })
    }
}

fn ticks(count: u64) -> Duration {
    Duration::from_secs_f64(count as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// How long the machine has run.
fn uptime() -> Duration {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = text.split(' ').next().and_then(|seconds| seconds.parse::<f64>().ok());
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default()
}
