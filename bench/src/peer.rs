//! The peers: processes that run a block of training steps on request. Python peers have a virtual
//! environment in the cache folder, and Rust peers are separate workspaces. One peer is this
//! program's custom loop.

use std::error::Error;
use std::io::{BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Deserialize;

use crate::hardware::Hardware;
use crate::packed::write_start;
use crate::workload::Workload;

/// The folder of the peers.
pub(crate) const PEERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");

/// The peers of training, with their names in results.
pub(crate) const NAMES: [&str; 9] = [
    "jax",
    "torch",
    "torch-compile",
    "torch_xla",
    "lightning",
    "burn",
    "candle",
    "custom-loop",
    "plain",
];

/// The peer's first answer, when it is ready.
#[derive(Debug, Deserialize)]
pub(crate) struct Ready {
    /// The versions of the library and of Python.
    pub(crate) version: String,
    pub(crate) n_params: u64,
    pub(crate) steps_per_epoch: u64,
    /// The losses of the steps of the first epoch, if all sides take the same ones.
    pub(crate) first_losses: Option<Vec<f64>>,
    /// From the start of the process to the loss of its first step, if the peer reports it.
    pub(crate) cold_s: Option<f64>,
}

/// The peer's answer after a block.
#[derive(Debug, Deserialize)]
pub(crate) struct Block {
    pub(crate) seconds: f64,
    pub(crate) loss: f64,
    /// The peak memory of the peer so far.
    pub(crate) peak_bytes: u64,
}

/// A running peer.
pub(crate) struct Peer {
    pub(crate) name: String,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The other processes of a pod, which do the same as the peer.
    others: Vec<(Child, ChildStdin)>,
    pub(crate) ready: Ready,
}

/// Rejects names that are not peers.
pub(crate) fn check(names: &[String]) -> Result<(), String> {
    match names.iter().find(|name| !NAMES.contains(&name.as_str())) {
        Some(unknown) => Err(format!("there is no peer {unknown}; there are {}", NAMES.join(", "))),
        None => Ok(()),
    }
}

impl Peer {
    /// Starts a peer on a workload, and waits until it has compiled and run its first steps. Its
    /// requirements are installed first.
    pub(crate) fn start(
        name: &str,
        workload: &str,
        hardware: Hardware,
    ) -> Result<Peer, Box<dyn Error>> {
        Peer::start_command(name, workload, command(name, workload, hardware)?)
    }

    /// Starts a peer with the files of the workload's start, if it has any. When the peer is ready,
    /// it has read them.
    fn start_command(
        name: &str,
        workload: &str,
        mut command: Command,
    ) -> Result<Peer, Box<dyn Error>> {
        let start = if name == "jax" { write_start(&Workload::find(workload)?)? } else { None };
        if let Some(start) = &start {
            command.arg("--start").arg(start.path());
        }
        Peer::spawn(name, &mut command)
    }

    /// JAX on one CPU device, with its persistent compile cache in a folder.
    pub(crate) fn start_cached(workload: &str, cache: &Path) -> Result<Peer, Box<dyn Error>> {
        let mut command = command("jax", workload, Hardware::cpu(1))?;
        command.env("JAX_COMPILATION_CACHE_DIR", cache);
        // Caches programs of any size and compile time.
        command.env("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0");
        command.env("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1");
        Peer::start_command("jax", workload, command)
    }

    /// The custom loop in several processes of a virtual pod, each with this hardware. Process 0
    /// answers.
    pub(crate) fn start_pod(
        workload: &str,
        processes: usize,
        hardware: Hardware,
    ) -> Result<Peer, Box<dyn Error>> {
        // The port is free again, and nothing else on this machine is likely to take it at once.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let command_of = |index: usize| -> Result<Command, Box<dyn Error>> {
            let mut command = command("custom-loop", workload, hardware)?;
            command
                .env("FULMEN_PJRT_PLUGIN", fulmen_virtual_pod::library()?)
                .env("FULMEN_VIRTUAL_POD", format!("{processes}x{}", hardware.devices))
                .env("FULMEN_COORDINATOR", format!("127.0.0.1:{port}"))
                .env("FULMEN_NUM_PROCESSES", processes.to_string())
                .env("FULMEN_PROCESS_ID", index.to_string());
            Ok(command)
        };
        // The others wait for process 0, which answers when it has joined them.
        let mut others = Vec::new();
        for index in 1..processes {
            let mut command = command_of(index)?;
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
            let input = child.stdin.take().ok_or("the process has no pipe")?;
            others.push((child, input));
        }
        match Peer::spawn("pod", &mut command_of(0)?) {
            Ok(mut peer) => {
                peer.others = others;
                Ok(peer)
            }
            Err(error) => {
                for (mut child, _) in others {
                    let _ = child.kill();
                    let _ = child.wait();
                }
                Err(error)
            }
        }
    }

    fn spawn(name: &str, command: &mut Command) -> Result<Peer, Box<dyn Error>> {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|e| {
                format!("{} cannot be started: {e}", command.get_program().display())
            })?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the peer has no pipes".into());
        };
        let mut output = BufReader::new(output);
        match read_answer(&mut output) {
            Ok(ready) => {
                let others = Vec::new();
                Ok(Peer { name: name.to_owned(), child, input, output, others, ready })
            }
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Runs a block of steps in the peer while this process waits.
    pub(crate) fn block(&mut self, steps: u64) -> Result<Block, Box<dyn Error>> {
        for (_, input) in &mut self.others {
            writeln!(input, "block {steps}")?;
            input.flush()?;
        }
        writeln!(self.input, "block {steps}")?;
        self.input.flush()?;
        read_answer(&mut self.output)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let inputs = self.others.iter_mut().map(|(_, input)| input);
        for input in inputs.chain([&mut self.input]) {
            let _ = writeln!(input, "quit");
            let _ = input.flush();
        }
        for (child, _) in &mut self.others {
            let _ = child.wait();
        }
        let _ = self.child.wait();
    }
}

/// The peers that can be started, and the reasons why the others cannot.
pub(crate) fn start_all(
    names: &[String],
    workload: &str,
    hardware: Hardware,
) -> (Vec<Peer>, Vec<(String, String)>) {
    let mut peers = Vec::new();
    let mut missing = Vec::new();
    for name in names {
        match Peer::start(name, workload, hardware) {
            Ok(peer) => peers.push(peer),
            Err(why) => missing.push((name.clone(), why.to_string())),
        }
    }
    (peers, missing)
}

/// The command that runs a peer.
fn command(name: &str, workload: &str, hardware: Hardware) -> Result<Command, Box<dyn Error>> {
    let mut command = match name {
        "jax" => script("jax_peer.py", &python()?),
        "torch" | "torch-compile" | "torch_xla" | "lightning" => {
            let mut command = script("torch_peer.py", &torch_python()?);
            command.args(["--way", name]);
            command
        }
        "burn" | "candle" => Command::new(build(name)?),
        "custom-loop" | "plain" => {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg(crate::custom_loop::SUBCOMMAND);
            command
        }
        _ => return Err(format!("there is no peer {name}; there are {}", NAMES.join(", ")).into()),
    };
    let workload = match (name, workload) {
        ("plain", "W6") => "W6-plain",
        ("plain", _) => return Err("only W6 has attention in blocks".into()),
        _ => workload,
    };
    command.args(["--workload", workload]);
    hardware.add_to(&mut command);
    Ok(command)
}

fn script(name: &str, python: &Path) -> Command {
    let mut command = Command::new(python);
    command.arg(Path::new(PEERS).join(name));
    command
}

/// Builds a peer that is written in Rust, and returns the path of its program.
fn build(name: &str) -> Result<PathBuf, Box<dyn Error>> {
    let target = cache_folder()?.join(format!("bench-{name}"));
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--release", "--quiet", "--manifest-path"]);
    command.arg(Path::new(PEERS).join(name).join("Cargo.toml")).arg("--target-dir").arg(&target);
    run(&mut command)?;
    Ok(target.join("release").join(format!("{name}-peer")))
}

/// Reads a line of JSON.
fn read_answer<T: for<'de> Deserialize<'de>>(
    output: &mut impl std::io::BufRead,
) -> Result<T, Box<dyn Error>> {
    let mut line = String::new();
    if output.read_line(&mut line)? == 0 {
        return Err("the peer ended early; see its output above".into());
    }
    serde_json::from_str(&line)
        .map_err(|e| format!("the peer's output `{}` is not valid: {e}", line.trim()).into())
}

/// The folder for results that are computed once.
pub(crate) fn cache_folder() -> Result<PathBuf, Box<dyn Error>> {
    let folder = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .ok_or("neither XDG_CACHE_HOME nor HOME is set, so there is no cache folder")?;
    Ok(folder.join("fulmen"))
}

/// The Python of the JAX peer's virtual environment, which is created if it does not exist.
pub(crate) fn python() -> Result<PathBuf, Box<dyn Error>> {
    python_with("jax_requirements.txt", "bench-venv", "JAX, about 300 MB", 13)
}

/// The Python of the PyTorch peers' virtual environment. The pinned versions were tested with
/// Python 3.12.
fn torch_python() -> Result<PathBuf, Box<dyn Error>> {
    python_with(
        "torch_requirements.txt",
        "bench-torch-venv",
        "PyTorch, torch_xla and Lightning, several GB",
        12,
    )
}

/// The Python of a virtual environment in the cache folder, with the packages of a requirements
/// file in the peers' folder. It is based on the newest Python up to 3.`newest`. If
/// FULMEN_BENCH_PEERS_PYTHON names a Python, that one is used, and nothing is installed.
pub(crate) fn python_with(
    requirements: &str,
    name: &str,
    what: &str,
    newest: u32,
) -> Result<PathBuf, Box<dyn Error>> {
    if let Some(prepared) = std::env::var_os("FULMEN_BENCH_PEERS_PYTHON") {
        return Ok(prepared.into());
    }
    let environment = cache_folder()?.join(name);
    let python = environment.join("bin").join("python");
    // A finished installation is marked with a copy of its requirements, so that a changed pin
    // installs again.
    let requirements = Path::new(PEERS).join(requirements);
    let packages = std::fs::read_to_string(&requirements)?;
    let marker = environment.join("installed");
    if std::fs::read_to_string(&marker).is_ok_and(|installed| installed == packages) {
        return Ok(python);
    }
    eprintln!("Making the peers' Python environment ({what}, once) in {}", environment.display());
    let base = interpreter(newest)?;
    run(Command::new(&base).args(["-m", "venv", "--clear"]).arg(&environment))?;
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "-r"]).arg(requirements))?;
    std::fs::write(marker, packages)?;
    Ok(python)
}

fn run(command: &mut Command) -> Result<(), Box<dyn Error>> {
    let status = command.stdout(Stdio::null()).status().map_err(|e| format!("{command:?}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed").into()) }
}

/// The Python for a new environment: that of FULMEN_BENCH_PYTHON, otherwise the newest one up to
/// 3.`newest` of the system or pyenv, otherwise `python3`. JAX's newest versions need a newer
/// Python than the `python3` of many systems.
fn interpreter(newest: u32) -> Result<PathBuf, Box<dyn Error>> {
    if let Some(named) = std::env::var_os("FULMEN_BENCH_PYTHON") {
        return Ok(named.into());
    }
    let starts = |python: &PathBuf| {
        Command::new(python)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    let pyenv = pyenv_versions();
    let of_version = |minor: u32| {
        let prefix = format!("3.{minor}.");
        let has_prefix = |folder: &PathBuf| {
            folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
        };
        let installed = pyenv
            .iter()
            .filter(|folder| has_prefix(folder))
            .map(|folder| folder.join("bin").join("python"));
        std::iter::once(PathBuf::from(format!("python3.{minor}")))
            .chain(installed.collect::<Vec<_>>())
    };
    (10..=newest)
        .rev()
        .flat_map(of_version)
        .chain([PathBuf::from("python3")])
        .find(starts)
        .ok_or_else(|| "there is no python3; install Python 3.11 or newer with pip".into())
}

/// The folders of the versions that pyenv has installed.
fn pyenv_versions() -> Vec<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".pyenv"));
    let root = std::env::var_os("PYENV_ROOT").map(PathBuf::from).or_else(home);
    let entries = root.and_then(|root| std::fs::read_dir(root.join("versions")).ok());
    entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_peer_is_refused() {
        assert_eq!(check(&NAMES.map(String::from)), Ok(()));
        assert!(
            check(&["keras".to_owned()])
                .unwrap_err()
                .starts_with("there is no peer keras; there are jax, torch")
        );
    }

    #[test]
    fn every_requirements_file_exists() {
        for name in ["jax", "torch", "data", "curves"] {
            assert!(Path::new(PEERS).join(format!("{name}_requirements.txt")).is_file(), "{name}");
        }
    }
}
