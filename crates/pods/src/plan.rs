//! The plan of a run: the host, index, environment and arguments of each worker.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fulmen_durable::messages::{quantity, quote};
use fulmen_tpu::PodShape;

use crate::arguments::RunOptions;
use crate::binary::{Binary, Glibc};
use crate::libtpu::{Answer, Libtpu, LibtpuOption, Source};
use crate::parallel::{distinct_hosts, parallel_results};
use crate::providers::Providers;
use crate::ssh::{CHECK, COPY, Input, RECONNECT_INTERVAL, START, SUPERVISE, Ssh};
use crate::virtual_pod::VirtualPod;
use crate::{Error, Result};

/// The default port of process 0, as in `fulmen-coordination`.
pub(crate) const PORT: u16 = 8482;

/// The time-out of a short script on a host.
pub(crate) const SCRIPT_TIMEOUT: Duration = Duration::from_secs(60);

/// The time-out of a copy, longer than any copy takes: a slow connection is not a failure, and ssh
/// detects a dead one.
const COPY_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// What all workers of a run have in common.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) run: String,
    pub(crate) binary: Binary,
    virtual_pod: Option<VirtualPod>,
    /// If set, the program must run on TPUs.
    pub(crate) libtpu: Option<Libtpu>,
    pub(crate) ssh: Ssh,
    /// All hosts, in the order of the workers.
    hosts: Vec<String>,
    arguments: RunOptions,
    providers: Providers,
    /// Identifies this launcher, so that it ends none of another launcher's programs.
    launcher: String,
    /// The number of seconds after which a program ends if its lease is not renewed, or 0 for a
    /// program that outlives this one.
    lease: u64,
    grace: u64,
    wait_for: String,
    wait_timeout: Duration,
    /// The folder in which the program starts; empty for the home directory.
    folder: String,
}

/// A worker. Its environment contains the secret of the run, so it has no `Debug`.
#[derive(Clone)]
pub(crate) struct Worker {
    pub(crate) index: usize,
    pub(crate) host: String,
    environment: Vec<(String, String)>,
    arguments: Vec<String>,
}

/// A host, and the number of its chips to use.
pub(crate) struct HostChips {
    pub(crate) host: String,
    pub(crate) chips: usize,
}

/// A host's description of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Host {
    machine: String,
    glibc: Option<Glibc>,
    /// The address on which the host accepted the connection.
    address: String,
    chips: usize,
    /// The hashes of the files that it has a copy of.
    present: Vec<String>,
    /// A worker of this name that another launcher started and that still runs.
    running: Option<String>,
    /// How its libtpu came there.
    pub(crate) libtpu: Answer,
}

/// Why a program was not started.
pub(crate) struct StartError {
    pub(crate) reason: String,
    /// Whether the host did not answer. Other mistakes do not heal.
    pub(crate) is_unreachable: bool,
}

impl Plan {
    pub(crate) fn new(
        arguments: &RunOptions,
        providers: Providers,
        ssh: Ssh,
        hosts: &[String],
        binary: Binary,
        virtual_pod: Option<VirtualPod>,
        libtpu: Option<Libtpu>,
    ) -> Result<Plan> {
        if let Some(min) = arguments.min_hosts {
            if min == 0 || min > hosts.len() {
                return Err(Error::usage(format!(
                    "--min-hosts {min}: expected 1 to {}, the number of hosts",
                    hosts.len()
                )));
            }
            if arguments.max_restarts == 0 {
                return Err(Error::usage("--min-hosts is for restarts: pass --max-restarts too"));
            }
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let run = match &arguments.run {
            Some(name) => name.clone(),
            None => format!("run-{now}-{}", random(2)?),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if run.is_empty() || run.starts_with(['.', '-']) || !run.chars().all(plain) {
            return Err(Error::usage(format!(
                "--run: `{run}` is not a name; use letters, digits, -, _ and ."
            )));
        }
        let lease = if arguments.detach { 0 } else { arguments.lost_timeout.as_secs() };
        let wait_for = arguments.wait_for.clone().unwrap_or_default();
        let grace = arguments.grace.as_secs();
        let wait_timeout = arguments.wait_timeout;
        let launcher = random(8)?;
        let folder = if ssh.is_local {
            let folder = std::env::current_dir().and_then(std::path::absolute);
            let folder = folder.map_err(|e| Error::new(format!("the current folder: {e}")))?;
            folder.to_string_lossy().into_owned()
        } else {
            String::new()
        };
        Ok(Plan {
            run,
            binary,
            virtual_pod,
            libtpu,
            ssh,
            hosts: hosts.to_vec(),
            arguments: arguments.clone(),
            providers,
            launcher,
            lease,
            grace,
            wait_for,
            wait_timeout,
            folder,
        })
    }

    /// The files to copy to a host, the program first. This machine needs no copies.
    fn copies(&self) -> Vec<&Binary> {
        if self.ssh.is_local {
            return Vec::new();
        }
        let plugins = self.virtual_pod.iter().flat_map(VirtualPod::files).map(|(_, file)| file);
        std::iter::once(&self.binary).chain(plugins).collect()
    }

    /// A file as the scripts name it: the hash of a copy, or a path.
    fn name_on_host(&self, file: &Binary) -> String {
        if self.ssh.is_local {
            let path = std::path::absolute(&file.path).unwrap_or_else(|_| file.path.clone());
            path.to_string_lossy().into_owned()
        } else {
            file.hash.clone()
        }
    }

    fn check_command(&self) -> String {
        let hashes: Vec<&str> = self.copies().iter().map(|file| file.hash.as_str()).collect();
        CHECK.command(&[
            hashes.join(" ").as_str(),
            &self.wait_for,
            &self.wait_timeout.as_secs().to_string(),
            &self.run,
            &self.launcher,
        ])
    }

    fn start_command(&self, worker: &Worker) -> String {
        let numbers = [worker.index, self.lease as usize, self.grace as usize]
            .map(|number| number.to_string());
        let [index, lease, grace] = &numbers;
        let supervise = SUPERVISE.text();
        let program = self.name_on_host(&self.binary);
        let plugins = self.virtual_pod.iter().flat_map(VirtualPod::files);
        let libtpu = self.libtpu.as_ref().and_then(Libtpu::path);
        let files: Vec<String> = plugins
            .map(|(variable, file)| format!("{variable}={}", self.name_on_host(file)))
            .chain(libtpu.map(|path| format!("TPU_LIBRARY_PATH={path}")))
            .collect();
        let files = files.join("\n");
        let fixed = [
            &self.run,
            index,
            &program,
            lease,
            grace,
            &self.launcher,
            &self.folder,
            &files,
            &supervise,
        ];
        START.command(&fixed.into_iter().chain(&worker.arguments).collect::<Vec<_>>())
    }

    /// Checks a host, and copies to it the files that it lacks.
    ///
    /// # Errors
    /// Why the host cannot run the program.
    pub(crate) fn prepare(&self, host: &str) -> Result<Host, String> {
        let timeout = SCRIPT_TIMEOUT
            + if self.wait_for.is_empty() { Duration::ZERO } else { self.wait_timeout };
        let answer = self.ssh.ask(host, &self.check_command(), Input::Open, timeout).result()?;
        let mut state = Host::parse(&answer);
        if let Some(worker) = &state.running {
            let run = &self.run;
            return Err(format!(
                "worker {worker} of a run named {run} is already running here; end it with `fulmen pod stop {run}`, or pass \
                 another name with --run"
            ));
        }
        let copies = self.copies();
        if let Some(reason) =
            copies.iter().find_map(|file| file.incompatibility(&state.machine, state.glibc))
        {
            return Err(reason);
        }
        for binary in copies.into_iter().filter(|file| !state.present.contains(&file.hash)) {
            let path = binary.path.display();
            let file =
                fulmen_durable::open_regular(&binary.path).map_err(|e| format!("{path}: {e}"))?;
            let copy = COPY.command(&[&binary.hash]);
            let copied = self.ssh.ask(host, &copy, Input::File(file), COPY_TIMEOUT).result();
            copied.map_err(|reason| format!("cannot copy {path}: {reason}"))?;
        }
        if let Some(libtpu) = &self.libtpu {
            state.libtpu = self.install(libtpu, host)?;
        }
        Ok(state)
    }

    /// Lets a host download libtpu, and sends it from this machine if the host cannot.
    ///
    /// # Errors
    /// Why the host has no usable libtpu.
    fn install(&self, libtpu: &Libtpu, host: &str) -> Result<Answer, String> {
        let Some(fetch) = libtpu.command(Source::Fetch) else { return Ok(Answer::default()) };
        // The host detects a download that does not move.
        let answer = self.ssh.ask(host, &fetch, Input::Text(""), COPY_TIMEOUT).result()?;
        let answer = Answer::parse(&answer);
        let (Some(reason), Some(input)) = (&answer.missing, libtpu.command(Source::Input)) else {
            return Ok(answer);
        };
        let cannot = |why: String| {
            format!(
                "it cannot download libtpu {} ({reason}), and this machine cannot send it: {why}. If the host has a libtpu, \
                 pass its path with --libtpu",
                libtpu.wheel.version
            )
        };
        let path = (self.providers.libtpu)().map_err(|error| cannot(error.to_string()))?;
        let file = fulmen_durable::open_regular(&path)
            .map_err(|error| cannot(format!("{}: {error}", path.display())))?;
        let copied =
            self.ssh.compressing().ask(host, &input, Input::File(file), COPY_TIMEOUT).result();
        let copied = Answer::parse(&copied.map_err(cannot)?);
        Ok(Answer { others: answer.others, ..copied })
    }

    /// Starts a worker's program, and returns the offset in the log at which its output begins.
    ///
    /// # Errors
    /// Why it did not start.
    pub(crate) fn start(&self, worker: &Worker, resume: bool) -> Result<u64, StartError> {
        let mut environment: String =
            worker.environment.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        if resume {
            environment += "FULMEN_RESUME=auto\n";
        }
        environment += "\n";
        let answer = self.ssh.ask(
            &worker.host,
            &self.start_command(worker),
            Input::Text(&environment),
            SCRIPT_TIMEOUT,
        );
        let started = answer.err.lines().find_map(|line| {
            crate::ssh::script_message(line)?.strip_prefix("started ")?.parse().ok()
        });
        match (answer.code, started) {
            (Some(0), Some(offset)) => Ok(offset),
            _ => {
                let is_unreachable = answer.is_unreachable();
                let unknown = || "its answer cannot be parsed".to_owned();
                let reason = answer.result().err().unwrap_or_else(unknown);
                Err(StartError { reason, is_unreachable })
            }
        }
    }

    /// The workers to start again: the current ones or, with `--min-hosts`, one for each host that
    /// answers within the time-out.
    ///
    /// # Errors
    /// Too few hosts answer.
    pub(crate) fn workers_of_restart(
        &self,
        current: Vec<Worker>,
        timeout: Duration,
        note: impl Fn(String),
    ) -> Result<Vec<Worker>> {
        let Some(min) = self.arguments.min_hosts else { return Ok(current) };
        let deadline = Instant::now() + timeout;
        let hosts = distinct_hosts(&self.hosts);
        let states = parallel_results(&hosts, |host| {
            loop {
                match self.prepare(host) {
                    Err(_) if Instant::now() < deadline => thread::sleep(RECONNECT_INTERVAL),
                    answer => return answer,
                }
            }
        });
        let mut first = None;
        let mut missing = Vec::new();
        for (host, state) in hosts.iter().zip(states) {
            match state {
                Ok(state) => drop(first.get_or_insert(state)),
                Err(reason) => missing.push((host, reason)),
            }
        }
        let answers = |host: &&String| missing.iter().all(|(missing, _)| missing != host);
        let available: Vec<String> = self.hosts.iter().filter(answers).cloned().collect();
        for (host, reason) in &missing {
            let s = timeout.as_secs();
            note(format!("[pod] {host} does not answer within {s} s: {reason}"));
        }
        match first {
            Some(first) if available.len() >= min => {
                let count = quantity(available.len(), "worker");
                note(format!("[pod] {}: {count} on {}", self.run, available.join(", ")));
                self.joint_workers(&available, &first)
            }
            _ => Err(Error::new(format!(
                "{} of {} hosts answer, but --min-hosts is {min}",
                available.len(),
                self.hosts.len()
            ))),
        }
    }

    /// The commands that [`prepare`](Plan::prepare) and [`start`](Plan::start) run.
    pub(crate) fn shell_lines(&self, workers: &[Worker]) -> Vec<String> {
        let mut lines = Vec::new();
        for host in distinct_hosts(workers.iter().map(|worker| &worker.host)) {
            let host = host.as_str();
            lines.push(self.ssh.shell_line(host, &self.check_command()));
            for file in self.copies() {
                let copy = self.ssh.shell_line(host, &COPY.command(&[&file.hash]));
                let path = quote(&file.path.to_string_lossy());
                lines.push(format!("{copy} <{path}"));
            }
            let Some(libtpu) = &self.libtpu else { continue };
            let Some(fetch) = libtpu.command(Source::Fetch) else { continue };
            lines.push(self.ssh.shell_line(host, &fetch));
            if let (LibtpuOption::Install, Some(input)) =
                (&libtpu.option, libtpu.command(Source::Input))
            {
                let version = &libtpu.wheel.version;
                lines.push(format!(
                    "# only if {host} cannot download libtpu {version}, from the copy of this machine, which `fulmen plugin \
                     install tpu` prints:"
                ));
                let copy = self.ssh.compressing().shell_line(host, &input);
                lines.push(format!("# {} </path/of/libtpu.so", copy.replace('\n', "\n# ")));
            }
        }
        for worker in workers {
            let names: Vec<&str> =
                worker.environment.iter().map(|variable| variable.0.as_str()).collect();
            lines.push(format!("# standard input: {}", names.join(", ")));
            lines.push(self.ssh.shell_line(&worker.host, &self.start_command(worker)));
        }
        lines
    }

    /// One process on each host; together they train one model.
    ///
    /// # Errors
    /// An invalid variable in `--env`; hosts without an address for the coordinator.
    pub(crate) fn joint_workers(&self, hosts: &[String], first: &Host) -> Result<Vec<Worker>> {
        let arguments = &self.arguments;
        let coordinator = match &arguments.coordinator {
            Some(address) => address.clone(),
            None if hosts.len() == 1 => "127.0.0.1:0".into(),
            None if self.ssh.is_local => free_address()?,
            None if first.address.contains(':') => format!("[{}]:{PORT}", first.address),
            None => format!("{}:{PORT}", first.address),
        };
        let user_variables = environment(&arguments.env)?;
        let worker = |(index, host): (usize, &String)| {
            let mut variables = vec![
                ("FULMEN_COORDINATOR", coordinator.clone()),
                ("FULMEN_PROCESS_ID", index.to_string()),
                ("FULMEN_NUM_PROCESSES", hosts.len().to_string()),
                ("FULMEN_HOSTS", hosts.join(",")),
            ];
            if let Some(pod) = &self.virtual_pod {
                let shape = PodShape { processes: hosts.len(), ..pod.shape };
                variables.push(("FULMEN_VIRTUAL_POD", shape.to_string()));
            }
            self.worker(index, host, &variables, &user_variables, arguments.command[1..].to_vec())
        };
        let workers: Vec<Worker> = hosts.iter().enumerate().map(worker).collect();
        self.with_secret(workers, true)
    }

    /// Independent programs, one on each chip of each host.
    ///
    /// # Errors
    /// As [`joint_workers`](Plan::joint_workers); a host without chips.
    pub(crate) fn chip_workers(&self, hosts: &[HostChips]) -> Result<Vec<Worker>> {
        let arguments = &self.arguments;
        let user_variables = environment(&arguments.env)?;
        let chips = hosts
            .iter()
            .flat_map(|HostChips { host, chips }| (0..*chips).map(move |chip| (host, chip)));
        let worker = |(index, (host, chip)): (usize, (&String, usize))| {
            let variables = [
                ("FULMEN_COORDINATOR", "127.0.0.1:0".to_owned()),
                ("FULMEN_PROCESS_ID", "0".to_owned()),
                ("FULMEN_NUM_PROCESSES", "1".to_owned()),
                ("TPU_VISIBLE_CHIPS", chip.to_string()),
                ("TPU_CHIPS_PER_PROCESS_BOUNDS", "1,1,1".to_owned()),
                ("TPU_PROCESS_BOUNDS", "1,1,1".to_owned()),
                ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1".to_owned()),
            ];
            let command = arguments.command[1..]
                .iter()
                .map(|word| word.replace("{index}", &index.to_string()));
            self.worker(index, host, &variables, &user_variables, command.collect())
        };
        let workers = chips.enumerate().map(worker).collect();
        self.with_secret(workers, false)
    }

    fn worker(
        &self,
        index: usize,
        host: &str,
        variables: &[(&str, String)],
        user_variables: &[(String, String)],
        arguments: Vec<String>,
    ) -> Worker {
        let mut environment: Vec<(String, String)> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        environment.push(("FULMEN_RUN_ID".into(), self.run.clone()));
        if self.libtpu.is_some() {
            environment.push(("FULMEN_ACCELERATOR".into(), "tpu".into()));
        }
        // The user's variables come last and take precedence.
        environment.extend_from_slice(user_variables);
        Worker { index, host: host.to_owned(), environment, arguments }
    }

    /// Gives the workers a secret: one shared by all, or a different one for each.
    fn with_secret(&self, mut workers: Vec<Worker>, shared: bool) -> Result<Vec<Worker>> {
        let common = random(32)?;
        for worker in &mut workers {
            let secret = if shared { common.clone() } else { random(32)? };
            worker.environment.insert(0, ("FULMEN_RUN_TOKEN".into(), secret));
        }
        Ok(workers)
    }
}

impl Worker {
    /// A worker that was started before.
    pub(crate) fn existing(index: usize, host: &str) -> Worker {
        Worker { index, host: host.to_owned(), environment: Vec::new(), arguments: Vec::new() }
    }
}

/// The name in messages.
impl fmt::Display for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {} ({})", self.index, self.host)
    }
}

impl Host {
    /// A host that was not queried.
    pub(crate) fn unqueried(host: &str) -> Host {
        let address = host.rsplit_once('@').map_or(host, |(_, name)| name);
        Host { address: address.to_owned(), ..Host::default() }
    }

    pub(crate) fn chips(&self) -> usize {
        self.chips
    }

    fn parse(answer: &str) -> Host {
        let value = |name: &str| {
            answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or("")
        };
        Host {
            machine: value("machine").into(),
            glibc: Glibc::parse(value("glibc")),
            address: value("address").into(),
            chips: value("chips").parse().unwrap_or(0),
            present: value("present").split_whitespace().map(str::to_owned).collect(),
            running: Some(value("running").to_owned()).filter(|worker| !worker.is_empty()),
            libtpu: Answer::default(),
        }
    }
}

/// The variables of `--env`.
pub(crate) fn environment(options: &[String]) -> Result<Vec<(String, String)>> {
    let variable = |text: &String| {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => match std::env::var(text) {
                Ok(value) => (text.as_str(), value),
                Err(_) => {
                    return Err(Error::usage(format!(
                        "--env {text}: this variable is not set; pass {text}=VALUE"
                    )));
                }
            },
        };
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty()
            || name.starts_with(|c: char| c.is_ascii_digit())
            || !name.chars().all(word)
        {
            return Err(Error::usage(format!("--env: `{name}` is not the name of a variable")));
        }
        if value.contains(['\n', '\0']) {
            return Err(Error::usage(format!("--env {name}: its value has more than one line")));
        }
        Ok((name.to_owned(), value))
    };
    options.iter().map(variable).collect()
}

/// An address of this machine at which nothing listens.
fn free_address() -> Result<String> {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let address = address.map_err(|e| Error::new(format!("no free port on 127.0.0.1: {e}")))?;
    Ok(address.to_string())
}

/// Random bytes in hexadecimal.
fn random(bytes: usize) -> Result<String> {
    let mut buffer = vec![0; bytes];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut buffer));
    read.map_err(|e| Error::new(format!("/dev/urandom: {e}")))?;
    Ok(buffer.iter().map(|byte| format!("{byte:02x}")).collect())
}
