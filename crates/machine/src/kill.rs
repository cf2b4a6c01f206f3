//! Ends the processes that hold the TPU and removes the lock file that they leave behind.
//!
//! Out of scope: asking the user for confirmation.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};

use crate::holders::Stat;
use crate::{Holders, LockFile, Process, Tpu};

/// How long a killed process may take to disappear.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);

/// The processes and the lock file to end and to remove.
///
/// ```
/// use fulmen_machine::{Plan, Tpu};
///
/// let plan = Plan::new(Tpu::local().holders(), &[], false);
/// for process in &plan.processes {
///     println!("would end {}", process.pid);
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Plan {
    /// The processes to end.
    pub processes: Vec<Process>,
    /// The holders that are spared, and why.
    pub spared: Vec<(Process, String)>,
    /// Requested process ids that do not hold the TPU.
    pub unknown_pids: Vec<u32>,
    /// Whether to remove the lock file once no process holds the TPU, or why another user's file
    /// stays; `None` if there is no lock file.
    pub lock: Option<Result<LockFile, String>>,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// SIGTERM ended the process.
    Ended,
    /// SIGKILL ended the process, because it did not end in time after SIGTERM.
    Killed,
    /// The process ended by itself or released the TPU, and no signal was sent. Another process may
    /// have its id now.
    Gone,
    /// The process still exists after SIGKILL: it waits in the kernel, most likely for the device.
    Stuck,
    /// The system refused to send the signal.
    Refused(String),
}

/// The result of a [`Plan`].
#[derive(Clone, Debug)]
pub struct Report {
    /// The processes of the plan.
    pub outcomes: Vec<(Process, Outcome)>,
    /// The lock file, if it was to be removed, with the result.
    pub lock: Option<(LockFile, Result<(), String>)>,
    /// The processes that hold the TPU afterwards.
    pub holders: Holders,
}

impl Report {
    /// Whether nothing visible prevents the next program from using the TPU.
    pub fn is_free(&self) -> bool {
        self.holders.processes.is_empty() && self.holders.lock.is_none()
    }
}

impl Plan {
    /// Plans to end the processes with these ids or, without ids, all holders. Without `force`, it
    /// spares processes of other users and the ancestors of this process. Under sudo, the user who
    /// called it counts as the same user.
    pub fn new(holders: Holders, pids: &[u32], force: bool) -> Plan {
        let sudo_uid = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok());
        let own_uids = [Some(geteuid().as_raw()), sudo_uid];
        let mut processes = Vec::new();
        let mut spared = Vec::new();
        let ancestors = ancestors();
        let unknown_pids = pids
            .iter()
            .copied()
            .filter(|pid| holders.processes.iter().all(|it| it.pid != *pid))
            .collect();
        for process in holders.processes {
            if !pids.is_empty() && !pids.contains(&process.pid) {
                continue;
            }
            if !force && !own_uids.contains(&Some(process.uid)) {
                let reason =
                    format!("it belongs to another user, {}; --force ends it, too", process.user);
                spared.push((process, reason));
            } else if !force && ancestors.contains(&process.pid) {
                spared.push((
                    process,
                    "this command runs inside it; --force ends it, too".to_owned(),
                ));
            } else {
                processes.push(process);
            }
        }
        let lock = holders.lock.map(|lock| {
            if force || own_uids.contains(&Some(lock.owner)) {
                return Ok(lock);
            }
            let owner = lock.owner_name.clone().unwrap_or_else(|| lock.owner.to_string());
            Err(format!(
                "{} belongs to another user, {owner}; --force removes it, too",
                lock.path.display()
            ))
        });
        Self { processes, spared, unknown_pids, lock }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.removable().is_none()
    }

    /// The lock file, if it may be removed.
    pub fn removable(&self) -> Option<&LockFile> {
        self.lock.as_ref().and_then(|lock| lock.as_ref().ok())
    }

    /// Sends SIGTERM to all processes of the plan, and SIGKILL to those that remain after `grace`.
    /// A process that has released the TPU since the plan was made is left alone. Afterwards,
    /// removes the lock file if no process holds the TPU.
    pub fn execute(&self, tpu: &Tpu, grace: Duration) -> Report {
        // Each descriptor refers to the process that has the id now. Whether it is the planned
        // process is checked only after the descriptor is open. The id therefore cannot pass to another
        // process between the check and the signal.
        let opened: Vec<_> = self.processes.iter().map(|process| open(process.pid)).collect();
        let current = tpu.holders();
        let is_same = |a: &Process, b: &Process| (a.pid, a.start_ticks) == (b.pid, b.start_ticks);
        let mut targets: Vec<Target> = Vec::new();
        for (process, opened) in self.processes.iter().zip(opened) {
            let outcome =
                match (current.processes.iter().any(|holder| is_same(holder, process)), opened) {
                    (false, _) | (_, Err(Errno::SRCH)) => Some(Outcome::Gone),
                    (true, Err(error)) => Some(refused(error)),
                    (true, Ok(fd)) => {
                        let sent = pidfd_send_signal(&fd, Signal::TERM);
                        if process.state == 'T' {
                            // A stopped process would not notice the signal.
                            let _ = pidfd_send_signal(&fd, Signal::CONT);
                        }
                        targets.push(Target {
                            process: process.clone(),
                            fd: Some(fd),
                            outcome: sent.err().map(refused),
                        });
                        continue;
                    }
                };
            targets.push(Target { process: process.clone(), fd: None, outcome });
        }
        wait(&mut targets, grace, &Outcome::Ended);
        for target in targets.iter_mut().filter(|target| target.outcome.is_none()) {
            if let Some(Err(error)) =
                target.fd.as_ref().map(|fd| pidfd_send_signal(fd, Signal::KILL))
            {
                target.outcome =
                    Some(if error == Errno::SRCH { Outcome::Ended } else { refused(error) });
            }
        }
        wait(&mut targets, KILL_TIMEOUT, &Outcome::Killed);
        let outcomes = targets
            .into_iter()
            .map(|it| (it.process, it.outcome.unwrap_or(Outcome::Stuck)))
            .collect();

        let mut holders = tpu.holders();
        // libtpu removes the file itself on an orderly exit.
        let stale_lock = holders.lock.clone().filter(|lock| {
            holders.processes.is_empty()
                && self.removable().is_some_and(|planned| planned.owner == lock.owner)
        });
        let lock = stale_lock.map(|lock| {
            let removed = lock.remove();
            (lock, removed)
        });
        if lock.is_some() {
            holders = tpu.holders();
        }
        Report { outcomes, lock, holders }
    }
}

/// A process of the plan, its descriptor and how it ended.
struct Target {
    process: Process,
    fd: Option<OwnedFd>,
    outcome: Option<Outcome>,
}

fn open(pid: u32) -> Result<OwnedFd, Errno> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    pidfd_open(pid, PidfdFlags::empty())
}

fn refused(error: Errno) -> Outcome {
    Outcome::Refused(match error {
        Errno::PERM => "it belongs to another user; run this command with sudo".to_owned(),
        Errno::NOSYS => "this kernel has no pidfd_open; Linux 5.3 or newer is needed".to_owned(),
        error => error.to_string(),
    })
}

/// Waits until processes without an outcome have ended, and gives them `ended_outcome`.
fn wait(targets: &mut [Target], time: Duration, ended_outcome: &Outcome) {
    let deadline = Instant::now() + time;
    loop {
        let mut waiting: Vec<_> = targets
            .iter_mut()
            .filter(|target| target.outcome.is_none())
            .filter_map(|target| Some((target.fd.as_ref()?, &mut target.outcome)))
            .collect();
        let remaining = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: remaining.as_secs() as i64,
            tv_nsec: i64::from(remaining.subsec_nanos()),
        };
        let mut fds: Vec<_> =
            waiting.iter().map(|(fd, _)| PollFd::new(*fd, PollFlags::IN)).collect();
        if fds.is_empty() {
            return;
        }
        // The descriptor of a process becomes readable once all its threads have ended, even before
        // its parent has reaped it.
        let ended = poll(&mut fds, Some(&timeout));
        let ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (_, outcome) in
            waiting.iter_mut().zip(ready).filter(|(_, ready)| *ready).map(|(waiting, _)| waiting)
        {
            **outcome = Some(ended_outcome.clone());
        }
        if remaining.is_zero() || matches!(ended, Err(error) if error != Errno::INTR) {
            return;
        }
    }
}

/// The ancestors of this process.
fn ancestors() -> Vec<u32> {
    let parent = |pid: &u32| {
        Stat::read(Path::new(&format!("/proc/{pid}")))
            .map(|stat| stat.parent)
            .filter(|pid| *pid > 0)
    };
    std::iter::successors(Some(std::process::id()), parent).skip(1).collect()
}
