//! The peer: a process that runs a block of training steps when told to, with JAX or with this program's custom loop.
//!
//! The virtual environment of Python is made once, in the cache folder, from `peers/requirements.txt`.

use std::error::Error;
use std::io::{BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Deserialize;

/// The folder of the peers.
pub(crate) const PEERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");

/// What the peer says when it is ready.
#[derive(Debug, Deserialize)]
pub(crate) struct Ready {
    /// The versions of JAX and Python, of a peer that has them.
    pub(crate) jax: Option<String>,
    pub(crate) python: Option<String>,
    pub(crate) n_params: u64,
    pub(crate) steps_per_epoch: u64,
    /// From the start of JAX's process to the loss of its first step.
    pub(crate) cold_s: Option<f64>,
}

/// What the peer says after a block.
#[derive(Debug, Deserialize)]
pub(crate) struct Block {
    pub(crate) seconds: f64,
    pub(crate) loss: f64,
    /// The most memory that the peer has held so far.
    pub(crate) peak_bytes: u64,
}

/// A running peer.
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub(crate) ready: Ready,
}

impl Peer {
    /// Starts the JAX peer on a workload and waits until it has compiled and warmed up.
    pub(crate) fn start(python: &Path, workload: &str, devices: usize) -> Result<Peer, Box<dyn Error>> {
        Peer::with(&mut Peer::jax(python, workload, devices))
    }

    /// The same on one device, with JAX's persistent cache of compiled programs in a folder.
    pub(crate) fn start_cached(python: &Path, workload: &str, cache: &Path) -> Result<Peer, Box<dyn Error>> {
        let mut command = Peer::jax(python, workload, 1);
        command.env("JAX_COMPILATION_CACHE_DIR", cache);
        // Programs of any size and compile time are kept.
        command.env("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0");
        Peer::with(command.env("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1"))
    }

    fn jax(python: &Path, workload: &str, devices: usize) -> Command {
        let mut command = Command::new(python);
        command.arg(Path::new(PEERS).join("jax_peer.py"));
        command.args(["--workload", workload, "--devices", &devices.to_string()]);
        command
    }

    /// Starts another process of this program, which trains in a loop of its own.
    pub(crate) fn custom_loop(workload: &str, devices: usize, num_workers: usize) -> Result<Peer, Box<dyn Error>> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([crate::custom_loop::SUBCOMMAND, "--workload", workload, "--devices", &devices.to_string()]);
        Peer::with(command.args(["--num-workers", &num_workers.to_string()]))
    }

    fn with(command: &mut Command) -> Result<Peer, Box<dyn Error>> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|e| format!("{} cannot be started: {e}", command.get_program().display()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the peer has no pipes".into());
        };
        let mut output = BufReader::new(output);
        let ready = read(&mut output)?;
        Ok(Peer { child, input, output, ready })
    }

    /// Lets the peer run a block of steps while this process waits.
    pub(crate) fn block(&mut self, steps: u64) -> Result<Block, Box<dyn Error>> {
        writeln!(self.input, "block {steps}")?;
        self.input.flush()?;
        read(&mut self.output)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = writeln!(self.input, "quit");
        let _ = self.input.flush();
        let _ = self.child.wait();
    }
}

fn read<T: for<'de> Deserialize<'de>>(output: &mut impl std::io::BufRead) -> Result<T, Box<dyn Error>> {
    let mut line = String::new();
    if output.read_line(&mut line)? == 0 {
        return Err("the peer ended early; what it said stands above".into());
    }
    serde_json::from_str(&line).map_err(|e| format!("the peer said `{}`: {e}", line.trim()).into())
}

/// The folder for what is made once.
pub(crate) fn cache() -> Result<PathBuf, Box<dyn Error>> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .ok_or("neither XDG_CACHE_HOME nor HOME is set, so there is no cache folder")?;
    Ok(cache.join("fulmen"))
}

/// The Python of the JAX peer's virtual environment, which is made if it is not there.
pub(crate) fn python() -> Result<PathBuf, Box<dyn Error>> {
    python_with("requirements.txt", "bench-venv", "JAX, about 300 MB")
}

/// The Python of a virtual environment in the cache folder, with what a file beside the peers names.
pub(crate) fn python_with(requirements: &str, name: &str, what: &str) -> Result<PathBuf, Box<dyn Error>> {
    let environment = cache()?.join(name);
    let python = environment.join("bin").join("python");
    // The mark of a finished installation is what was installed, so that a changed pin installs anew.
    let requirements = Path::new(PEERS).join(requirements);
    let wanted = std::fs::read_to_string(&requirements)?;
    let done = environment.join("installed");
    if std::fs::read_to_string(&done).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    eprintln!("Making the peers' Python environment ({what}, once) in {}", environment.display());
    let run = |command: &mut Command| -> Result<(), Box<dyn Error>> {
        let status = command.stdout(Stdio::null()).status().map_err(|e| format!("{command:?}: {e}"))?;
        if status.success() { Ok(()) } else { Err(format!("{command:?} failed").into()) }
    };
    let base = interpreter()?;
    run(Command::new(&base).args(["-m", "venv", "--clear"]).arg(&environment))?;
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "-r"]).arg(requirements))?;
    std::fs::write(done, wanted)?;
    Ok(python)
}

/// The Python to make the environment with: the one that FULMEN_BENCH_PYTHON names, else the newest that runs. JAX's
/// newest versions need a newer Python than many systems have as `python3`.
fn interpreter() -> Result<String, Box<dyn Error>> {
    if let Ok(named) = std::env::var("FULMEN_BENCH_PYTHON") {
        return Ok(named);
    }
    let runs = |python: &&str| {
        let quiet = Command::new(python).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        quiet.is_ok_and(|status| status.success())
    };
    let found = ["python3.13", "python3.12", "python3"].into_iter().find(runs);
    found.map(str::to_owned).ok_or_else(|| "there is no python3; install Python 3.11 or newer with pip".into())
}
