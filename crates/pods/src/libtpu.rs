//! [`Libtpu`]: the libtpu that a program on TPU hosts loads, and how it gets there. Out of scope: what
//! a host does for it (`scripts/libtpu.sh`).

use std::fmt;
use std::str::FromStr;

use crate::libtpu_wheel::LibtpuWheel;
use crate::ssh::LIBTPU;

/// The option `--libtpu`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum LibtpuOption {
    /// Install the version that this version of Fulmen was tested with.
    #[default]
    Install,
    /// Leave the hosts as they are. The program uses what it finds.
    None,
    /// The file at this path of each host.
    OnHost(String),
}

impl FromStr for LibtpuOption {
    type Err = String;

    fn from_str(text: &str) -> Result<LibtpuOption, String> {
        match text {
            "install" => Ok(LibtpuOption::Install),
            "none" => Ok(LibtpuOption::None),
            path if path.starts_with('/') && !path.contains(['\n', '\0']) => {
                Ok(LibtpuOption::OnHost(path.to_owned()))
            }
            other => Err(format!(
                "`{other}`: expected `install`, `none`, or the absolute path of a libtpu on the hosts"
            )),
        }
    }
}

impl fmt::Display for LibtpuOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LibtpuOption::Install => "install",
            LibtpuOption::None => "none",
            LibtpuOption::OnHost(path) => path,
        })
    }
}

/// Where the library comes from, for the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The host downloads it, or says why it cannot.
    Fetch,
    /// The host downloads it, and nobody can send it instead.
    Alone,
    /// The standard input of the script.
    Input,
}

/// The libtpu of a program that must run on TPUs.
#[derive(Clone, Debug)]
pub(crate) struct Libtpu {
    pub(crate) option: LibtpuOption,
    pub(crate) wheel: LibtpuWheel,
}

impl Libtpu {
    pub(crate) fn new(option: LibtpuOption) -> Libtpu {
        Libtpu { option, wheel: LibtpuWheel::tested() }
    }

    /// The arguments of the script, or `None` if there is nothing to do on the hosts.
    pub(crate) fn script_arguments(&self, source: Source) -> Option<Vec<String>> {
        let wheel = &self.wheel;
        let (source, given) = match (&self.option, source) {
            (LibtpuOption::None, _) => return None,
            (LibtpuOption::OnHost(path), _) => ("given", path.as_str()),
            (LibtpuOption::Install, Source::Fetch) => ("fetch", ""),
            (LibtpuOption::Install, Source::Alone) => ("alone", ""),
            (LibtpuOption::Install, Source::Input) => ("input", ""),
        };
        // A gzip file ends with the checksum and the low bits of the size.
        let size = wheel.bytes as u32;
        let trailer = wheel.crc32.to_le_bytes().into_iter().chain(size.to_le_bytes());
        let trailer: String = trailer.map(|byte| format!("\\x{byte:02x}")).collect();
        let fixed = [
            source.to_owned(),
            given.to_owned(),
            wheel.version.clone(),
            wheel.oldest_version.clone(),
            wheel.sha256.clone(),
            wheel.bytes.to_string(),
            wheel.offset.to_string(),
            wheel.compressed_bytes.to_string(),
            trailer,
        ];
        Some(fixed.into_iter().chain(wheel.pip_arguments.iter().cloned()).collect())
    }

    /// The command for a host's shell, or `None` if there is nothing to do.
    pub(crate) fn command(&self, source: Source) -> Option<String> {
        Some(LIBTPU.command(&self.script_arguments(source)?))
    }

    /// The path of the library on a host, for the script that starts programs: relative to
    /// `~/.fulmen/pods`, unless it is absolute. `None` if the program searches by itself.
    pub(crate) fn path(&self) -> Option<String> {
        match &self.option {
            LibtpuOption::Install => Some(format!("libtpu-{}/libtpu.so", self.wheel.version)),
            LibtpuOption::None => None,
            LibtpuOption::OnHost(path) => Some(path.clone()),
        }
    }
}

/// The answer of the script on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// How the library came there; empty if it is missing.
    pub(crate) state: String,
    /// Why it could not be downloaded.
    pub(crate) missing: Option<String>,
    /// Sentences about other versions on this host, which are not used.
    pub(crate) others: Vec<String>,
}

impl Answer {
    pub(crate) fn parse(text: &str) -> Answer {
        let values = |name: &'static str| {
            text.lines().filter_map(move |line| line.strip_prefix(name)?.strip_prefix('='))
        };
        Answer {
            state: values("state").next().unwrap_or_default().to_owned(),
            missing: values("missing").next().map(str::to_owned),
            others: values("other").map(str::to_owned).collect(),
        }
    }
}
