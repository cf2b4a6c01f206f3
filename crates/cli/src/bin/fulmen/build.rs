//! `fulmen build`: builds a program for machines with an older glibc than this one.
//!
//! `cargo zigbuild` builds it. The result is checked, because a linked library may need a newer
//! glibc.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::{Args, ValueEnum};
use fulmen_data::{Error, Result};
use fulmen_durable::NewFolder;
use fulmen_durable::messages::quote;
use fulmen_pjrt::fetch::cache_folder;
use fulmen_pods::{Glibc, required_glibc};
use serde_json::Value;

/// Builds a program for TPU VMs, whose glibc is older than that of most machines
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The machines to build for
    #[arg(long = "for", value_enum)]
    machine: Machine,
    /// Install cargo-zigbuild and zig with pip into the cache folder if they are missing: 100 MB
    #[arg(long)]
    install: bool,
    /// Print the commands without running them
    #[arg(long)]
    dry_run: bool,
    /// The arguments of `cargo build`, such as -p mnist --release
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "CARGO ARGUMENTS")]
    cargo: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Machine {
    /// x86-64 with glibc 2.31, the version in the oldest TPU VM images
    TpuVm,
}

impl Machine {
    fn target(self) -> &'static str {
        match self {
            Machine::TpuVm => "x86_64-unknown-linux-gnu",
        }
    }

    fn glibc(self) -> &'static str {
        match self {
            Machine::TpuVm => "2.31",
        }
    }
}

/// The packages for pip, with versions and hashes.
const REQUIREMENTS: &str = include_str!("zigbuild.txt");

/// The programs cargo-zigbuild and zig.
///
/// cargo-zigbuild is always told where zig is: by itself, it first asks Python for a package
/// `ziglang`, and Python would run one in the user's current folder.
#[derive(Debug)]
struct Tool {
    cargo_zigbuild: PathBuf,
    zig: PathBuf,
}

impl Tool {
    fn installed_in(folder: &Path) -> Tool {
        Tool { cargo_zigbuild: folder.join("bin/cargo-zigbuild"), zig: folder.join("ziglang/zig") }
    }

    /// Finds the installation in the cache folder, or the user's installation.
    fn find(folder: &Path) -> Option<Tool> {
        let works = |program: &Path, argument: &str| {
            let status = Command::new(program)
                .arg(argument)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            status.is_ok_and(|status| status.success())
        };
        let installed = Tool::installed_in(folder);
        if installed.cargo_zigbuild.is_file() {
            return Some(installed);
        }
        let users = Tool { cargo_zigbuild: on_path("cargo-zigbuild")?, zig: on_path("zig")? };
        let work = works(&users.cargo_zigbuild, "--version") && works(&users.zig, "version");
        work.then_some(users)
    }
}

/// The path of a program on the PATH. Folders that are relative are left out: they depend on the
/// current folder, which may be someone else's.
fn on_path(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let mut programs = std::env::split_paths(&folders)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(name));
    programs.find(|program| program.is_file())
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Arguments { machine, install, dry_run, cargo } = arguments;
    if let Some(word) = cargo
        .iter()
        .find(|word| word.to_string_lossy().starts_with("--target=") || *word == "--target")
    {
        return Err(Error::usage(format!("{}: --for sets the target", word.display())));
    }
    let folder = cache_folder().map_err(|e| Error::new(e.to_string()))?.join(install_name());
    let tool = match Tool::find(&folder) {
        Some(tool) => tool,
        None if *install => install_into(&folder, *dry_run)?,
        None if *dry_run => Tool { cargo_zigbuild: "cargo-zigbuild".into(), zig: "zig".into() },
        None => {
            return Err(Error::usage(
                "cargo-zigbuild and zig were not found; --install installs them into the cache folder, or run `pip \
                 install cargo-zigbuild ziglang` and put both on the PATH",
            ));
        }
    };
    let mut command = Command::new(&tool.cargo_zigbuild);
    command
        .arg("zigbuild")
        .args(["--target", &format!("{}.{}", machine.target(), machine.glibc())])
        .args(cargo);
    command.arg("--message-format=json-render-diagnostics");
    command.env("CARGO_ZIGBUILD_ZIG_PATH", &tool.zig);
    if *dry_run {
        outln!("{}", shell_line(&command));
        return Ok(());
    }
    let programs = build(command)?;
    if programs.is_empty() {
        return Err(Error::usage("cargo built no program; choose one with -p, --bin or --example"));
    }
    programs.iter().try_for_each(|program| check(program, *machine))
}

/// Runs cargo, and returns the built programs.
fn build(mut command: Command) -> Result<Vec<PathBuf>> {
    let error = |reason: String| Error::new(format!("cargo-zigbuild: {reason}"));
    let output = command.stderr(Stdio::inherit()).output().map_err(|e| error(e.to_string()))?;
    if !output.status.success() {
        return Err(error(format!("{}; its own messages are above", output.status)));
    }
    let messages = output.stdout.split(|&byte| byte == b'\n');
    let programs = messages.filter_map(|line| {
        let message: Value = serde_json::from_slice(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    });
    Ok(programs.collect())
}

/// Rejects a program that needs a newer glibc than the machine has.
fn check(program: &Path, machine: Machine) -> Result<()> {
    let path = program.display();
    let available = machine.glibc();
    let needs = required_glibc(program).map_err(|e| Error::new(e.to_string()))?;
    match needs {
        Some((needed, symbol)) if Some(needed) > Glibc::parse(available) => {
            Err(Error::new(format!(
                "{path} needs glibc {needed} for {symbol}, and TPU VMs may have {available}; it links a library that was \
             built for this machine: build that library from source"
            )))
        }
        Some((needed, symbol)) => {
            outln!("{path}: needs glibc {needed} ({symbol}); TPU VMs have {available} or newer");
            Ok(())
        }
        None => {
            outln!("{path}: needs no glibc");
            Ok(())
        }
    }
}

/// The name of the folder in the cache folder, which has the versions.
fn install_name() -> String {
    let versions =
        REQUIREMENTS.split_whitespace().filter_map(|word| Some(word.split_once("==")?.1));
    format!("zigbuild-{}", versions.collect::<Vec<_>>().join("-"))
}

/// Installs both programs, or neither.
fn install_into(folder: &Path, dry_run: bool) -> Result<Tool> {
    let error =
        |e: std::io::Error| Error::new(format!("cannot install into {}: {e}", folder.display()));
    let pip = |requirements: &Path, target: &Path| {
        let mut pip = Command::new("python3");
        pip.args([
            "-m",
            "pip",
            "install",
            "--require-hashes",
            "--no-deps",
            "--disable-pip-version-check",
            "--quiet",
        ]);
        pip.arg("--target").arg(target).arg("--requirement").arg(requirements);
        // With `-m`, Python would run a pip.py in the user's current folder.
        pip.current_dir(target);
        pip
    };
    if dry_run {
        outln!("{}", shell_line(&pip(Path::new("REQUIREMENTS"), folder)));
        return Ok(Tool::installed_in(folder));
    }
    fs::create_dir_all(folder.parent().unwrap_or(folder)).map_err(error)?;
    let new = NewFolder::create(folder).map_err(error)?;
    let requirements = new.path().join("requirements.txt");
    fs::write(&requirements, REQUIREMENTS).map_err(error)?;
    let status = pip(&requirements, new.path())
        .status()
        .map_err(|e| Error::new(format!("python3 -m pip: {e}")))?;
    if !status.success() {
        return Err(Error::new(format!("pip failed ({status}); nothing was left behind")));
    }
    new.keep().map_err(error)?;
    Ok(Tool::installed_in(folder))
}

/// A command in shell syntax.
fn shell_line(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(name, value)| {
        Some(format!("{}={}", name.to_string_lossy(), quote(&value?.to_string_lossy())))
    });
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    variables.chain(words.map(|word| quote(&word.to_string_lossy()))).collect::<Vec<_>>().join(" ")
}
