//! Finds the processes that hold the TPU: who started them and when, what they run, and whether
//! they make progress.
//!
//! Out of scope: ending the processes (`kill.rs`).

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use fulmen_durable::messages::{duration, public_command};
use fulmen_pjrt::diagnosis::{FilesInUse, device_files, files_in_use};
use fulmen_pjrt::locate::Platform;

use crate::LockFile;
use crate::lock_file::user;

/// Where to look for the holders of a TPU.
///
/// ```
/// use fulmen_machine::Tpu;
///
/// let holders = Tpu::local().holders();
/// for process in &holders.processes {
///     println!("{} of {}: {}", process.pid, process.user, process.command);
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Tpu {
    /// The device files of the chips.
    pub device_files: Vec<PathBuf>,
    /// The folder in which files named `libtpu.so` count, including its subfolders.
    pub libraries: PathBuf,
    /// The folder that contains `tmp/libtpu_lockfile`.
    pub root: PathBuf,
}

/// The processes that have the TPU's device files open or a `libtpu.so` mapped. This process is
/// never listed.
#[derive(Clone, Debug, Default)]
pub struct Holders {
    /// The processes, sorted by process id.
    pub processes: Vec<Process>,
    /// How many processes could not be inspected, because they belong to other users.
    pub unseen: usize,
    /// libtpu's lock file, if there is one.
    pub lock: Option<LockFile>,
}

/// A process that holds the TPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    /// The process id. The kernel may reuse it later.
    pub pid: u32,
    /// Its start time in kernel ticks. Together with the id, it identifies a process uniquely.
    pub start_ticks: u64,
    /// The time since it started.
    pub age: Duration,
    /// The process id of its parent.
    pub parent: u32,
    /// The kernel's letter for its state: `R` runs, `S` sleeps, `D` waits in the kernel, `T` is
    /// stopped, `Z` has ended except for some of its threads.
    pub state: char,
    /// The id of its user.
    pub uid: u32,
    /// The name of the user, or the id if the machine does not know a name.
    pub user: String,
    /// The command line.
    pub command: String,
    /// The device files that it has open.
    pub devices: Vec<PathBuf>,
    /// The `libtpu.so` files that it has mapped.
    pub libraries: Vec<PathBuf>,
    /// The processor time that it has used.
    pub cpu: Duration,
    /// The progress of a Fulmen training, if it writes `FULMEN_PROGRESS_FILE`.
    pub step: Option<Step>,
}

/// The content of a training's `FULMEN_PROGRESS_FILE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The number of finished steps: the first word of the file.
    pub count: u64,
    /// When the file was written.
    pub written: SystemTime,
}

/// A process, and its activity since the previous refresh.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessActivity {
    /// The current state of the process.
    pub process: Process,
    /// Processor use, 1.0 being one core. `None` at the first refresh.
    pub load: Option<f64>,
    /// Steps finished since the previous refresh. `None` if unknown.
    pub steps: Option<u64>,
    /// The time of a step, between the last two values of its progress file.
    pub step_time: Option<Duration>,
}

/// Watches the holders and compares them between refreshes.
pub struct Watch {
    tpu: Tpu,
    /// Each process at the previous refresh, by pid and start ticks.
    previous: HashMap<(u32, u64), (Instant, ProcessActivity)>,
}

impl Tpu {
    /// The TPUs of this machine.
    pub fn local() -> Tpu {
        Self { device_files: device_files(Platform::Tpu), libraries: "/".into(), root: "/".into() }
    }

    /// Inspects all processes that this user may inspect.
    pub fn holders(&self) -> Holders {
        let (used, unseen) = files_in_use(&self.device_files, "libtpu.so");
        let processes = used.into_iter().filter_map(|mut files| {
            files.mapped.retain(|library| library.starts_with(&self.libraries));
            let holds = !files.open.is_empty() || !files.mapped.is_empty();
            if holds && files.pid != std::process::id() { Process::read(files) } else { None }
        });
        Holders { processes: processes.collect(), unseen, lock: LockFile::find(&self.root) }
    }

    /// Starts to watch the holders.
    pub fn watch(self) -> Watch {
        Watch { tpu: self, previous: HashMap::new() }
    }
}

impl Watch {
    /// Inspects the holders and compares them with those of the previous refresh.
    pub fn refresh(&mut self) -> (Vec<ProcessActivity>, Holders) {
        let holders = self.tpu.holders();
        let now = Instant::now();
        let activities: Vec<ProcessActivity> = holders
            .processes
            .iter()
            .map(|process| {
                let previous = self.previous.get(&(process.pid, process.start_ticks));
                ProcessActivity::new(
                    process.clone(),
                    previous.map(|(time, activity)| (now - *time, activity)),
                )
            })
            .collect();
        self.previous = activities
            .iter()
            .map(|it| ((it.process.pid, it.process.start_ticks), (now, it.clone())))
            .collect();
        (activities, holders)
    }
}

impl ProcessActivity {
    fn new(process: Process, previous: Option<(Duration, &Self)>) -> ProcessActivity {
        let Some((time, previous)) = previous else {
            return Self { process, load: None, steps: None, step_time: None };
        };
        let load = process.cpu.saturating_sub(previous.process.cpu).as_secs_f64()
            / time.as_secs_f64().max(1e-3);
        let steps = process.step.zip(previous.process.step).map(|(current, previous)| {
            // A second fit in the same process starts from a lower step.
            let time = current.written.duration_since(previous.written).unwrap_or_default();
            (current.count.saturating_sub(previous.count), time)
        });
        let step_time = match steps {
            Some((count, time)) if count > 0 => Some(time.div_f64(count as f64)),
            _ => previous.step_time,
        };
        Self { process, load: Some(load), steps: steps.map(|(count, _)| count), step_time }
    }

    /// The activity of the process in a few words.
    pub fn progress(&self) -> String {
        let Self { process, load, steps, step_time } = self;
        let mut words = match (process.state, steps, load) {
            ('T' | 't', ..) => "stopped: waits for SIGCONT".to_owned(),
            ('Z', ..) => "its main thread has ended, other threads have not".to_owned(),
            (_, Some(1..), _) => "trains".to_owned(),
            (_, _, Some(load)) if *load >= 0.005 => {
                format!("uses {:.0} % of a processor", load * 100.0)
            }
            ('D', _, Some(_)) => "waits in the kernel, uses no processor".to_owned(),
            (_, _, Some(_)) => "uses no processor".to_owned(),
            (_, _, None) => "just seen".to_owned(),
        };
        if let Some(step) = process.step {
            words += &format!("; step {}", step.count);
            if let Some(time) = step_time {
                words += &format!(", {} a step", duration(time.as_secs_f64()));
            }
            if let Ok(age) = step.written.elapsed()
                && age >= Duration::from_secs(5)
            {
                words += &format!(", the last one {} ago", duration(age.as_secs_f64()));
            }
        }
        words
    }
}

impl Process {
    /// Reads a process; `None` if it has ended in the meantime.
    fn read(files: FilesInUse) -> Option<Process> {
        let folder = PathBuf::from(format!("/proc/{}", files.pid));
        let stat = Stat::read(&folder)?;
        let uid = fs::metadata(&folder).ok()?.uid();
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let arguments = fs::read(folder.join("cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments);
        let arguments = arguments.trim_end_matches('\0').split('\0').map(str::to_owned);
        let command = public_command(arguments).join(" ");
        Some(Self {
            pid: files.pid,
            start_ticks: stat.start_ticks,
            age: uptime().saturating_sub(ticks(stat.start_ticks)),
            parent: stat.parent,
            state: stat.state,
            uid,
            user: user(&passwd, uid).unwrap_or_else(|| uid.to_string()),
            // Remove control characters, because the command is shown as one line on a terminal.
            command: match command.trim() {
                "" => files.name,
                command => command
                    .chars()
                    .map(|letter| if letter.is_control() { ' ' } else { letter })
                    .collect(),
            },
            devices: files.open,
            libraries: files.mapped,
            cpu: ticks(stat.cpu_ticks),
            step: Step::read(&folder),
        })
    }
}

impl Step {
    /// The progress file of the process with this folder in `/proc`.
    fn read(process: &Path) -> Option<Step> {
        let environment = fs::read(process.join("environ")).ok()?;
        let name = environment
            .split(|byte| *byte == 0)
            .find_map(|variable| variable.strip_prefix(b"FULMEN_PROGRESS_FILE="))?;
        let path = process.join("cwd").join(Path::new(std::ffi::OsStr::from_bytes(name)));
        // The path comes from another user. Anything other than a regular file could block this
        // process.
        let metadata = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        let mut text = String::new();
        File::open(path).ok()?.take(32).read_to_string(&mut text).ok()?;
        Some(Self {
            count: text.split_whitespace().next()?.parse().ok()?,
            written: metadata.modified().ok()?,
        })
    }
}

/// The fields of `/proc/PID/stat`.
pub(crate) struct Stat {
    pub(crate) state: char,
    pub(crate) parent: u32,
    cpu_ticks: u64,
    pub(crate) start_ticks: u64,
}

impl Stat {
    pub(crate) fn read(process: &Path) -> Option<Stat> {
        let stat = fs::read_to_string(process.join("stat")).ok()?;
        // The second field is the program name in parentheses, which may contain anything.
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

/// The uptime of the machine.
fn uptime() -> Duration {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = text.split(' ').next().and_then(|seconds| seconds.parse::<f64>().ok());
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default()
}
