//! Real hosts for tests. Each host is a network namespace with its own process table, home
//! directory and `sshd`.

use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::Parser;
use fulmen_signals::Signal;
use tempfile::TempDir;

use super::programs::write_script;
use crate::{Arguments, Result};

/// Longer than anything that a test waits for, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The hosts `host-a`, `host-b` and so on, behind one bridge. They share all files except those in
/// their home directories, which hide no file of this machine.
pub(crate) struct Hosts {
    folder: TempDir,
    /// Begins the names of the namespaces and cables.
    prefix: String,
    hosts: Vec<Host>,
    /// The last field: the hosts leave their network before another test takes it.
    network: Network,
}

struct Host {
    namespace: String,
    /// The program `unshare`. Its child is the first process in the host's process namespace, which
    /// ends with that process.
    unshare: Child,
}

fn shell(script: &str) {
    let output = Command::new("sh").args(["-euc", script]).output().unwrap();
    assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn wait_until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !done() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// One of the networks of the addresses for benchmarks, 198.18.0.0/15, with its bridge.
struct Network {
    number: usize,
}

impl Network {
    const COUNT: usize = 512;

    /// Takes the first network from this number on that no other test has, in this process or in
    /// another one.
    fn take(first: usize) -> Network {
        let mut numbers = first..first + Network::COUNT;
        let taken = numbers.find_map(|number| Network::create(number % Network::COUNT));
        taken.expect("a free network; `ip link` shows those in use: ftest0, ftest1, …")
    }

    /// Creates the bridge; `None` if there is one. The system creates a name only once.
    fn create(number: usize) -> Option<Network> {
        let bridge = format!("ftest{number}");
        let command = ["link", "add", &bridge, "type", "bridge"];
        let output = Command::new("ip").args(command).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        if error.contains("File exists") {
            return None;
        }
        assert!(output.status.success(), "ip link add {bridge}: {error}");
        let network = Network { number };
        let net = network.addresses();
        shell(&format!("ip addr add {net}.254/24 dev {bridge}; ip link set {bridge} up"));
        Some(network)
    }

    fn bridge(&self) -> String {
        format!("ftest{}", self.number)
    }

    /// The first three numbers of the addresses.
    fn addresses(&self) -> String {
        format!("198.{}.{}", 18 + self.number / 256, self.number % 256)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", &self.bridge()]).status();
    }
}

#[test]
#[ignore = "needs root: cargo test -p fulmen-pods -- --include-ignored"]
fn two_tests_never_have_the_same_network() {
    let first = std::process::id() as usize * 16 + 15;
    let take = |_| thread::spawn(move || Network::take(first));
    let threads: Vec<_> = (0..8).map(take).collect();
    let networks: Vec<Network> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let mut addresses: Vec<String> = networks.iter().map(Network::addresses).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 8);
}

/// The peculiarities of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A home directory of its own, and a first process that reaps others.
    Machine,
    /// A first process that reaps no others, as in a container with `sleep infinity`.
    Container,
    /// A home directory that is shared with the other hosts.
    SharedHome,
}

impl Hosts {
    /// One host for each size of a home directory.
    pub(crate) fn new<const N: usize>(homes: [&str; N]) -> Hosts {
        Hosts::of_kind(Kind::Machine, homes)
    }

    pub(crate) fn of_kind<const N: usize>(kind: Kind, homes: [&str; N]) -> Hosts {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id() as usize;
        let network = Network::take(pid * 16 + count);
        let net = network.addresses();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display().to_string();
        shell(&format!(
            "ssh-keygen -q -t ed25519 -N '' -f {path}/host_key; ssh-keygen -q -t ed25519 -N '' -f {path}/client_key"
        ));
        let prefix = format!("fp{pid}b{count}");
        let mut hosts = Hosts { folder, prefix, hosts: Vec::new(), network };
        hosts.create_home();
        let key = fs::read_to_string(format!("{path}/host_key.pub")).unwrap();
        let mut config = String::new();
        let mut known = String::new();
        for (index, size) in homes.into_iter().enumerate() {
            let letter = char::from(b'a' + index as u8);
            let address = format!("{net}.{}", index + 1);
            writeln!(config, "Host host-{letter}\n  HostName {address}").unwrap();
            writeln!(known, "{address} {key}").unwrap();
            hosts.add(kind, index, &address, size);
        }
        write!(
            config,
            "Host *\n  User root\n  IdentityFile {path}/client_key\n  IdentitiesOnly yes\n  LogLevel ERROR\n  \
             UserKnownHostsFile {path}/known_hosts\n  StrictHostKeyChecking yes\n"
        )
        .unwrap();
        fs::write(hosts.folder.path().join("ssh_config"), config).unwrap();
        fs::write(hosts.folder.path().join("known_hosts"), known).unwrap();
        hosts
    }

    /// Creates the place of the home directory, and the list of users that names it.
    fn create_home(&self) {
        fs::create_dir(self.home()).unwrap();
        let users = fs::read_to_string("/etc/passwd").unwrap();
        let mut list = String::new();
        let home = self.home().display().to_string();
        for user in users.lines() {
            let mut fields: Vec<&str> = user.split(':').collect();
            if fields[0] == "root" {
                fields[5] = &home;
            }
            writeln!(list, "{}", fields.join(":")).unwrap();
        }
        fs::write(self.shared("passwd"), list).unwrap();
    }

    fn add(&mut self, kind: Kind, index: usize, address: &str, size: &str) {
        let path = self.folder.path().display().to_string();
        let bridge = self.network.bridge();
        let prefix = &self.prefix;
        let namespace = format!("{prefix}n{index}");
        let veth = format!("{prefix}v{index}");
        let bin = self.bin(index);
        fs::create_dir(&bin).unwrap();
        let config = format!("{path}/sshd_config{index}");
        let text = format!(
            "ListenAddress {address}:22\nHostKey {path}/host_key\nAuthorizedKeysFile {path}/client_key.pub\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nPidFile none\nMaxStartups 200\n\
             SetEnv PATH={}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin\n",
            bin.display()
        );
        fs::write(&config, text).unwrap();
        shell(&format!(
            "ip netns add {namespace}; ip link add {veth} type veth peer name eth0 netns {namespace}
             ip link set {veth} master {bridge} up
             ip -n {namespace} addr add {address}/24 dev eth0; ip -n {namespace} link set eth0 up
             ip -n {namespace} link set lo up"
        ));
        let home = match kind {
            Kind::SharedHome => String::new(),
            _ => format!("mount -t tmpfs -o size={size} tmpfs {path}/home && "),
        };
        let server = format!("/usr/sbin/sshd -D -e -f {config} 2>>{path}/sshd.log");
        let first_process = match kind {
            Kind::Container => format!("({server} &) && exec sleep infinity"),
            _ => format!("exec {server}"),
        };
        let script = format!(
            "mount --bind {path}/passwd /etc/passwd && {home}mount -t tmpfs tmpfs /run && mkdir /run/sshd && {first_process}"
        );
        let mut command = Command::new("ip");
        command.args([
            "netns",
            "exec",
            &namespace,
            "unshare",
            "--pid",
            "--fork",
            "--mount",
            "--mount-proc",
        ]);
        command.args(["--kill-child", "sh", "-c", &script]).stdin(Stdio::null());
        let unshare = command.spawn().unwrap();
        self.hosts.push(Host { namespace, unshare });
        let address: SocketAddr = format!("{address}:22").parse().unwrap();
        wait_until("sshd listens", || {
            TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
        });
    }

    /// A file or folder that all hosts share.
    pub(crate) fn shared(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The home directory of a host, as the host names it.
    pub(crate) fn home(&self) -> PathBuf {
        self.shared("home")
    }

    /// The home directory of a host, as this machine sees it, by a process that runs there.
    pub(crate) fn home_of(&self, pid: u32) -> PathBuf {
        let home = self.home();
        Path::new("/proc").join(pid.to_string()).join("root").join(home.strip_prefix("/").unwrap())
    }

    /// A folder whose programs a host finds first.
    pub(crate) fn bin(&self, host: usize) -> PathBuf {
        self.shared(&format!("bin{host}"))
    }

    /// Lets a host run a shell script in place of a program.
    pub(crate) fn replace(&self, host: usize, program: &str, script: &str) {
        write_script(&self.bin(host).join(program), &format!("#!/bin/sh\n{script}\n"));
    }

    /// Gives a host device files as of four TPU chips. Its other devices stay.
    pub(crate) fn add_tpu(&self, host: usize) {
        let folder = self.shared(&format!("dev{host}")).display().to_string();
        self.run_on(host, &format!(
            "mkdir {folder}; mount -t tmpfs tmpfs {folder}; mkdir {folder}/pts {folder}/shm
             for name in null zero full random urandom tty; do touch {folder}/$name; mount --bind /dev/$name {folder}/$name; done
             mount --bind /dev/pts {folder}/pts; ln -s pts/ptmx {folder}/ptmx; ln -s /proc/self/fd {folder}/fd
             touch {folder}/accel0 {folder}/accel1 {folder}/accel2 {folder}/accel3; mount --move {folder} /dev"
        ));
    }

    /// Runs a script, without single quotes, where the files of a host are.
    pub(crate) fn run_on(&self, host: usize, script: &str) {
        let unshare = self.hosts[host].unshare.id();
        let home = self.home();
        shell(&format!(
            "HOME={} nsenter --target {unshare} --mount sh -euc '{script}'",
            home.display()
        ));
    }

    /// Connects a host, or takes it off the network.
    pub(crate) fn connect(&self, host: usize, up: bool) {
        let state = if up { "up" } else { "down" };
        shell(&format!("ip -n {} link set eth0 {state}", self.hosts[host].namespace));
    }

    /// The process ids on this machine of the processes of a host: those of `sshd`, or all others.
    /// They are separate because an `sshd` may still wait for a client that is gone.
    fn processes(&self, host: usize, of_sshd: bool) -> Vec<u32> {
        let unshare = self.hosts[host].unshare.id();
        let Ok(namespace) = fs::read_link(format!("/proc/{unshare}/ns/pid_for_children")) else {
            return Vec::new();
        };
        let entries = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let is_there = |pid: &u32| {
            fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|link| link == namespace)
        };
        let is_sshd = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sshd\n")
        };
        // The first process of a container always runs, and reaps no others.
        let is_first_or_ended = |pid: &u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
            let is_first = ids.is_some_and(|ids| ids.split_whitespace().next_back() == Some("1"));
            is_first || status.contains("State:\tZ")
        };
        entries
            .filter(is_there)
            .filter(|pid| is_sshd(pid) == of_sshd)
            .filter(|pid| of_sshd || !is_first_or_ended(pid))
            .collect()
    }

    /// Ends all connections to a host, and the commands that run in them.
    pub(crate) fn disconnect(&self, host: usize) {
        for pid in self.processes(host, true) {
            // The first process of the host is its server.
            let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if !command.contains("[listener]") {
                shell(&format!("kill -KILL {pid} || true"));
            }
        }
    }

    /// Waits until a worker on a host runs its program, and returns the program's process id.
    pub(crate) fn program(&self, host: usize) -> u32 {
        let find = || {
            let command =
                |pid: &u32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let is_program = |pid: &u32| {
                command(pid)
                    .split('\0')
                    .nth(1)
                    .is_some_and(|word| word.contains("/.fulmen/pods/bin/"))
            };
            // Processes that the program starts are in its process group, and look like it at
            // first.
            let leads = |pid: &u32| {
                let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                let group = stat
                    .rsplit(") ")
                    .next()
                    .and_then(|fields| fields.split(' ').nth(2)?.parse().ok());
                group == Some(*pid)
            };
            self.processes(host, false).into_iter().filter(is_program).find(leads)
        };
        wait_until("the program runs", || find().is_some());
        find().unwrap()
    }

    pub(crate) fn signal(&self, host: usize, signal: &str) {
        shell(&format!("kill -{signal} {}", self.program(host)));
    }

    /// Waits until something besides `sshd` runs on each host.
    pub(crate) fn wait_until_busy(&self) {
        wait_until("a process has begun", || {
            (0..self.hosts.len()).all(|host| !self.processes(host, false).is_empty())
        });
    }

    /// Waits until only `sshd` runs on each host.
    pub(crate) fn wait_until_idle(&self) {
        wait_until("no process is left", || {
            (0..self.hosts.len()).all(|host| self.processes(host, false).is_empty())
        });
    }

    /// A program that runs its first argument as a script, and ends on signals like a program of
    /// Fulmen.
    pub(crate) fn script(&self, padding: usize) -> String {
        let path = self.shared("train.sh");
        let text = r#"#!/bin/bash
trap 'echo saving; exit 130' INT
trap 'echo saving; exit 75' TERM
[ ${#FULMEN_RUN_TOKEN} = 64 ] || exit 99
me=$FULMEN_PROCESS_ID
forever() { while :; do sleep 0.05; done; }
echo "process $me of $FULMEN_NUM_PROCESSES at $FULMEN_COORDINATOR, resume ${FULMEN_RESUME-never}"
eval "$1"
"#;
        fs::write(&path, format!("{text}exit\n{}", "#".repeat(padding))).unwrap();
        path.display().to_string()
    }

    /// Runs `fulmen pod` with these arguments, on all hosts.
    pub(crate) fn pod(&self, subcommand: &str, arguments: &[&str]) -> Pod {
        let names: Vec<String> =
            (0..self.hosts.len()).map(|i| format!("host-{}", char::from(b'a' + i as u8))).collect();
        self.pod_on(&names.join(","), subcommand, arguments)
    }

    /// Runs `fulmen pod` with these arguments, on some hosts.
    pub(crate) fn pod_on(&self, hosts: &str, subcommand: &str, arguments: &[&str]) -> Pod {
        let config = self.shared("ssh_config").display().to_string();
        let all = [&[subcommand, "--hosts", hosts, "-F", &config], arguments].concat();
        let pod = parse(&all);
        let (signals, received) = channel();
        let text = SharedBuffer::default();
        let mut out = text.clone();
        let thread = thread::spawn(move || {
            crate::run(pod, super::PROVIDERS, &mut out, move || Ok(received))
        });
        Pod { thread, signals, text }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for (index, host) in self.hosts.iter_mut().enumerate() {
            let _ = host.unshare.kill();
            let _ = host.unshare.wait();
            // Undelivered packets keep a deleted namespace alive for minutes, and with it the
            // namespace's end of the cable.
            let _ = Command::new("ip")
                .args(["link", "del", &format!("{}v{index}", self.prefix)])
                .status();
            let _ = Command::new("ip").args(["netns", "del", &host.namespace]).status();
        }
        if thread::panicking() {
            eprintln!("{}", fs::read_to_string(self.shared("sshd.log")).unwrap_or_default());
        }
    }
}

pub(crate) fn parse(arguments: &[&str]) -> Arguments {
    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        pod: Arguments,
    }
    Cli::try_parse_from(["pod"].iter().chain(arguments)).unwrap().pod
}

#[derive(Clone, Default)]
pub(crate) struct SharedBuffer {
    bytes: Arc<Mutex<Vec<u8>>>,
    /// Whether writing blocks.
    is_blocked: Arc<AtomicBool>,
}

impl std::io::Write for SharedBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        while self.is_blocked.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(20));
        }
        self.bytes.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A running `fulmen pod`.
pub(crate) struct Pod {
    thread: JoinHandle<Result<u8>>,
    pub(crate) signals: Sender<Signal>,
    text: SharedBuffer,
}

impl Pod {
    fn text(&self) -> String {
        String::from_utf8(self.text.bytes.lock().unwrap().clone()).unwrap()
    }

    /// Begins or ends to read the output. It blocks while nobody reads it.
    pub(crate) fn reads(&self, reads: bool) {
        self.text.is_blocked.store(!reads, Ordering::Relaxed);
    }

    /// Waits until a text was printed this many times.
    pub(crate) fn prints(&self, text: &str, times: usize) {
        wait_until(text, || {
            let printed = self.text();
            assert!(
                !self.thread.is_finished() || printed.matches(text).count() >= times,
                "it ended without `{text}`:\n{printed}"
            );
            printed.matches(text).count() >= times
        });
    }

    /// Waits until the command ends. Returns the exit code or the error, and the output.
    pub(crate) fn end(self) -> (Result<u8>, String) {
        let began = Instant::now();
        while !self.thread.is_finished() {
            assert!(began.elapsed() < TIMEOUT, "it does not end:\n{}", self.text());
            thread::sleep(Duration::from_millis(20));
        }
        let text = self.text();
        (self.thread.join().unwrap(), text)
    }

    /// Like [`end`](Pod::end), and checks the exit code.
    pub(crate) fn ends_with(self, code: u8) -> String {
        let (ended, text) = self.end();
        assert_eq!(ended.as_ref().ok(), Some(&code), "{ended:?}\n{text}");
        text
    }
}

/// The secret that a process was given, from its environment.
pub(crate) fn secret_of(pid: u32) -> String {
    let environment = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    let secret =
        environment.split('\0').find_map(|variable| variable.strip_prefix("FULMEN_RUN_TOKEN="));
    secret.unwrap().to_owned()
}

/// Whether the arguments of any process of this machine contain a text.
pub(crate) fn is_an_argument(text: &str) -> bool {
    let entries = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok());
    entries.into_iter().any(|line| String::from_utf8_lossy(&line).contains(text))
}

/// Whether any file below a folder contains a text.
pub(crate) fn is_in_a_file(folder: &Path, text: &str) -> bool {
    let output = Command::new("grep").args(["-rqF", text]).arg(folder).status().unwrap();
    output.success()
}
