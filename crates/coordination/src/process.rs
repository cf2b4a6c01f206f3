//! Which process this is, how many there are, and where the coordinator listens.
//!
//! Out of scope: reading the environment (`environment.rs`).

use std::fmt;
use std::net::IpAddr;

use crate::token::Token;
use crate::{Result, error};

/// The maximum number of processes, more than any cluster has. A larger count is a mistake, and
/// must not cost memory.
const MAX_PROCESSES: usize = 1 << 16;

/// Which process this is, how many there are, and where process 0, the coordinator, listens.
///
/// ```
/// use fulmen_coordination::Process;
///
/// let process = Process::new(3, 8, "host-a:8482")?;
/// assert_eq!((process.index(), process.count(), process.coordinator()), (3, 8, "host-a:8482"));
/// assert!(!process.is_coordinator());
/// assert_eq!(process.to_string(), "process 3 of 8");
/// # Ok::<(), fulmen_coordination::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Process {
    index: usize,
    count: usize,
    coordinator: String,
    /// The index of this process among those of its host, and their number.
    local: (usize, usize),
    /// The host of each process if the environment names them, else empty.
    hosts: Vec<String>,
    run_id: String,
    token: Option<Token>,
}

impl Process {
    /// Describes process `index` of `count`, in a run whose process 0 listens at `coordinator`, a
    /// `host:port`.
    ///
    /// With port 0, process 0 lets the system choose a port, and
    /// [`Builder::on_listening`](crate::Builder::on_listening) reports the choice.
    ///
    /// # Errors
    /// The index is not below the count, the count is 0, or the address is not of the form
    /// `host:port`.
    pub fn new(index: usize, count: usize, coordinator: impl Into<String>) -> Result<Process> {
        let coordinator = coordinator.into();
        if count == 0 || count > MAX_PROCESSES {
            return Err(error::usage(format!(
                "{count} processes are not possible; expected 1 to {MAX_PROCESSES}"
            )));
        }
        if index >= count {
            return Err(error::usage(format!(
                "process index {index} of {count} processes; expected 0 to {}",
                count - 1
            )));
        }
        let (_, port) = split_address(&coordinator)?;
        if port == 0 && index != 0 {
            return Err(error::usage(format!(
                "the coordinator's address is `{coordinator}`; only process 0 can let the system choose a port; \
                 give process {index} that port"
            )));
        }
        Ok(Process {
            index,
            count,
            coordinator,
            local: (0, 1),
            hosts: Vec::new(),
            run_id: String::new(),
            token: None,
        })
    }

    /// The only process of a single-process run.
    pub fn single() -> Process {
        let coordinator = "127.0.0.1:0".into();
        Process {
            index: 0,
            count: 1,
            local: (0, 1),
            coordinator,
            hosts: Vec::new(),
            run_id: String::new(),
            token: None,
        }
    }

    /// Names the run. Processes with a different run id are refused, so a process that an earlier
    /// run left behind cannot join this one.
    pub fn with_run_id(mut self, run_id: impl Into<String>) -> Process {
        self.run_id = run_id.into();
        self
    }

    /// Gives the run a secret of at least 32 random characters, the same in all its processes. A
    /// process with a different secret, or without one, is refused.
    ///
    /// The secret is never sent over the network, and no error or `Debug` output shows it.
    ///
    /// ```
    /// use fulmen_coordination::Process;
    ///
    /// let token = "5f0c9c1be2a84f61b90b5a8f33d1f9d0"; // from `openssl rand -hex 16`, say
    /// let process = Process::new(0, 2, "host-a:8482")?.with_run_token(token)?;
    /// assert!(!format!("{process:?}").contains(token));
    /// # Ok::<(), fulmen_coordination::Error>(())
    /// ```
    ///
    /// # Errors
    /// The secret has fewer than 32 characters.
    pub fn with_run_token(mut self, token: &str) -> Result<Process> {
        self.token = Some(Token::new(token)?);
        Ok(self)
    }

    /// The hosts of all processes, for messages about one that never arrived.
    pub(crate) fn with_hosts(mut self, hosts: Vec<String>) -> Process {
        self.hosts = hosts;
        self
    }

    /// The index of this process, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The number of processes.
    pub fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn with_local(mut self, local: (usize, usize)) -> Process {
        self.local = local;
        self
    }

    /// The index of this process among those that its launcher started on this host, and their
    /// number. `(0, 1)` if no launcher says it.
    pub fn local(&self) -> (usize, usize) {
        self.local
    }

    /// The address on which process 0 listens.
    pub fn coordinator(&self) -> &str {
        &self.coordinator
    }

    /// Whether this is process 0, which serves the others and writes the files of the run.
    pub fn is_coordinator(&self) -> bool {
        self.index == 0
    }

    /// The name of the run; empty if it has none.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    pub(crate) fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// The secret of the run. Only a run on loopback works without one.
    pub(crate) fn token(&self) -> Result<Option<&Token>> {
        let (host, _) = split_address(&self.coordinator)?;
        if self.token.is_none() && !is_loopback(host) {
            return Err(error::usage(format!(
                "the coordinator's address `{}` can be reached from other machines, and the run has no token to keep \
                 other programs out; set FULMEN_RUN_TOKEN to the same secret for all its processes, 32 random characters or more \
                 (`openssl rand -hex 32` prints some)",
                self.coordinator
            )));
        }
        Ok(self.token.as_ref())
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of {}", self.index, self.count)
    }
}

/// A process that has joined, as other processes see it.
///
/// ```
/// use fulmen_coordination::{Coordination, Process};
///
/// let coordination = Coordination::builder(Process::single()).join()?;
/// let alone = &coordination.processes()[0];
/// assert_eq!((alone.index, alone.pid), (0, std::process::id()));
/// # Ok::<(), fulmen_coordination::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Its index.
    pub index: usize,
    /// Its host name.
    pub host: String,
    /// Its process id on that host.
    pub pid: u32,
}

impl fmt::Display for ProcessInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({}, pid {})", self.index, self.host, self.pid)
    }
}

pub(crate) fn host_name() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = kernel.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    match name.trim() {
        "" => "unknown host".to_owned(),
        name => name.to_owned(),
    }
}

/// Whether a coordinator on this host is reachable only from its own machine. The only name that
/// guarantees this is `localhost`.
pub(crate) fn is_loopback(host: &str) -> bool {
    host.parse().map_or(host.eq_ignore_ascii_case("localhost"), |ip: IpAddr| ip.is_loopback())
}

/// Splits `host:port` or `[v6]:port`; the host is returned without brackets.
pub(crate) fn split_address(address: &str) -> Result<(&str, u16)> {
    let wrong = || {
        error::usage(format!(
            "the coordinator's address is `{address}`; expected host:port, such as `host-a:8482` or `[fe80::1]:8482`"
        ))
    };
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let fits = match bracketed {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
        }
    };
    if fits { Ok((bracketed.unwrap_or(host), port)) } else { Err(wrong()) }
}
