//! [`Error`]: why a fit, a validation or a test ended early.

use std::fmt;
use std::panic::Location;
use std::path::Path;

use fulmen_data::shorten;
use fulmen_tensor::Fault;

use crate::Signal;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a fit, a validation or a test ended early. The message says what to do next.
///
/// The kind is private; the methods report it. If the error comes from another crate of Fulmen,
/// they look at that inner error, which [`get_ref`](Error::get_ref) returns. The message is
/// complete: [`source`](std::error::Error::source) returns only what the message does not show.
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<Source>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Usage,
    Option,
    Data,
    Runtime,
    Logger,
    NotFinite {
        step: u64,
    },
    Checkpoint,
    Unreadable,
    Interrupted {
        signal: Signal,
    },
    Coordination,
    /// The kind of the source.
    Source,
}

/// An error from another crate of Fulmen, or of the system.
enum Source {
    Fulmen(fulmen_error::Error),
    Checkpoint(fulmen_checkpoint::Error),
    Data(fulmen_data::Error),
    Io(std::io::Error),
}

impl Source {
    fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        match self {
            Source::Fulmen(source) | Source::Checkpoint(source) => source,
            Source::Data(source) => source,
            Source::Io(source) => source,
        }
    }

    fn facts(&self) -> Facts<'_> {
        match self {
            Source::Fulmen(source) | Source::Checkpoint(source) => Facts {
                usage: source.is_usage(),
                runtime: source.is_runtime(),
                out_of_memory: source.is_out_of_memory(),
                disk_full: source.is_disk_full(),
                fault: source.fault(),
                location: source.location(),
            },
            Source::Data(source) => Facts {
                usage: source.is_usage(),
                runtime: source.is_runtime(),
                out_of_memory: source.is_out_of_memory(),
                disk_full: source.is_disk_full(),
                fault: source.fault(),
                location: source.location(),
            },
            Source::Io(source) => {
                Facts { disk_full: fulmen_durable::is_full(source), ..Facts::default() }
            }
        }
    }
}

/// What an error of another crate says of itself. Facts that the crate does not know are absent.
#[derive(Default)]
struct Facts<'a> {
    usage: bool,
    runtime: bool,
    out_of_memory: bool,
    disk_full: bool,
    fault: Option<&'a Fault>,
    location: Option<&'static Location<'static>>,
}

impl Error {
    pub(crate) fn usage(message: impl Into<String>) -> Error {
        Error { kind: Kind::Usage, message: message.into(), source: None }
    }

    /// An invalid option, from the command line, a file, the environment or the builder.
    pub(crate) fn option(message: impl Into<String>) -> Error {
        Error { kind: Kind::Option, message: shorten(&message.into()).into_owned(), source: None }
    }

    pub(crate) fn nothing_logged(step: &str) -> Error {
        Error::usage(format!("the module's {step} logs nothing, so there is nothing to evaluate"))
    }

    /// Reports that `what`, which one `TrainStep` made, was used with another. `method` is the
    /// method that makes it.
    pub(crate) fn of_another_step(what: &str, method: &str) -> Error {
        Error::usage(format!(
            "the {what} belongs to another TrainStep, whose weights it uses; call it on that TrainStep, or make one with \
             TrainStep::{method} on this one"
        ))
    }

    /// A tensor error, with the action that failed.
    pub(crate) fn with_action(action: impl fmt::Display, source: fulmen_tensor::Error) -> Error {
        Error {
            kind: Kind::Source,
            message: format!("{action}: {source}"),
            source: Some(Source::Fulmen(source)),
        }
    }

    /// A failure of the device, with the action that failed.
    pub(crate) fn device(action: &str, source: fulmen_tensor::Error) -> Error {
        Error {
            kind: Kind::Runtime,
            message: format!("{action}: {source}"),
            source: Some(Source::Fulmen(source)),
        }
    }

    /// A loader that broke its contract.
    pub(crate) fn data(message: impl Into<String>) -> Error {
        Error { kind: Kind::Data, message: message.into(), source: None }
    }

    pub(crate) fn logger(folder: &Path, source: std::io::Error) -> Error {
        let message = format!("a logger cannot write into {}: {source}", folder.display());
        Error { kind: Kind::Logger, message, source: Some(Source::Io(source)) }
    }

    /// A file of predictions that cannot be written.
    pub(crate) fn predictions(path: &Path, source: std::io::Error) -> Error {
        let message = format!("predictions cannot be written to {}: {source}", path.display());
        Error { kind: Kind::Source, message, source: Some(Source::Io(source)) }
    }

    /// `what` is no longer finite after this many steps. `kept` is the last checkpoint. `in_data` is
    /// a value of the first batch that was not finite.
    pub(crate) fn not_finite(
        step: u64,
        what: &str,
        kept: Option<&Path>,
        in_data: Option<&str>,
    ) -> Error {
        let kept = last_checkpoint_text(kept);
        let message = match in_data {
            Some(in_data) => format!(
                "{what} became NaN or infinite at step {step}: {in_data}; {kept}. Correct or leave out such samples"
            ),
            None => format!(
                "{what} became NaN or infinite at step {step}; {kept}. Lower the learning rate and check the data"
            ),
        };
        Error { kind: Kind::NotFinite { step }, message, source: None }
    }

    /// Reports the first index that was out of range.
    pub(crate) fn index_out_of_range(step: u64, mistake: &str, kept: Option<&Path>) -> Error {
        let message = format!("{mistake}\n{}", last_checkpoint_text(kept));
        Error { kind: Kind::NotFinite { step }, message, source: None }
    }

    /// Reports the first operation whose result was not finite, and its line.
    pub(crate) fn anomaly(
        step: u64,
        origin: &str,
        kept: Option<&Path>,
        in_data: Option<&str>,
    ) -> Error {
        let in_data = in_data.map_or(String::new(), |in_data| format!("\n{in_data}"));
        let kept = last_checkpoint_text(kept);
        let message = format!("detect_anomaly: in step {step} {origin}{in_data}\n{kept}");
        Error { kind: Kind::NotFinite { step }, message, source: None }
    }

    pub(crate) fn checkpoint(path: &Path, message: impl fmt::Display) -> Error {
        let message = format!("checkpoint {}: {message}", path.display());
        Error { kind: Kind::Checkpoint, message, source: None }
    }

    /// A checkpoint that another process could not write, with its message. A full disk is recognized
    /// by the system's words, so that all processes do the same.
    pub(crate) fn checkpoint_elsewhere(path: &Path, message: String) -> Error {
        const FULL: [&str; 3] = ["No space left on device", "Quota exceeded", "File too large"];
        let full = FULL.iter().any(|words| message.contains(words));
        let source = full.then(|| Source::Io(std::io::ErrorKind::StorageFull.into()));
        Error { source, ..Error::checkpoint(path, message) }
    }

    /// A checkpoint that cannot be read or written; the source names it.
    pub(crate) fn checkpoint_file(source: fulmen_checkpoint::Error) -> Error {
        let message = format!("checkpoint: {source}");
        Error { kind: Kind::Checkpoint, message, source: Some(Source::Checkpoint(source)) }
    }

    /// A checkpoint that does not exist, or whose training state is invalid.
    pub(crate) fn unreadable(path: &Path, why: impl fmt::Display) -> Error {
        Error { kind: Kind::Unreadable, ..Error::checkpoint(path, why) }
    }

    /// Whether a checkpoint cannot be read, so the caller should try an earlier one.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.kind == Kind::Unreadable || matches!(self.source, Some(Source::Checkpoint(_)))
    }

    /// Whether a checkpoint, or its folder, is not there.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(&self.source, Some(Source::Checkpoint(source)) if source.is_not_found())
    }

    /// The same error with more about it at the end of the message.
    pub(crate) fn with_note(mut self, note: &str) -> Error {
        self.message.push_str(note);
        self
    }

    /// After a failed write, adds the checkpoint to resume from to the message.
    pub(crate) fn with_last_checkpoint(mut self, checkpoint: Option<&Path>) -> Error {
        match checkpoint {
            Some(path) => {
                let path = path.display();
                self.message.push_str(&format!(
                    ". The last whole checkpoint is {path}; resume from it with ckpt_path"
                ));
            }
            None => self.message.push_str(". No checkpoint was saved before"),
        }
        self
    }

    /// Reports that a signal ended an action that cannot be resumed.
    pub(crate) fn interrupted(action: &str, signal: Signal) -> Error {
        let message = format!("{action} was interrupted by {signal}");
        Error { kind: Kind::Interrupted { signal }, message, source: None }
    }

    /// Whether Ctrl-C, SIGTERM or SIGHUP ended the run. An interrupted fit is not an error; see its
    /// [summary](crate::FitSummary::interrupted).
    pub fn is_interrupted(&self) -> bool {
        self.signal().is_some()
    }

    /// The signal that ended the run, if one did. Another process may have got it, before its first
    /// step or outside of a fit.
    pub fn signal(&self) -> Option<Signal> {
        match (&self.kind, &self.source) {
            (Kind::Interrupted { signal }, _) => Some(*signal),
            (_, Some(Source::Fulmen(source))) => peer_signal(source),
            _ => None,
        }
    }

    /// The step, counted from 1, whose loss or result was NaN or infinite, if that ended the fit
    /// (see [`detect_nan`](crate::Options::detect_nan) and
    /// [`detect_anomaly`](crate::Options::detect_anomaly)), or that used an index out of range, such
    /// as a label outside the classes.
    pub fn not_finite_step(&self) -> Option<u64> {
        match self.kind {
            Kind::NotFinite { step } => Some(step),
            _ => None,
        }
    }

    /// Whether a checkpoint could not be written or read.
    pub fn is_checkpoint(&self) -> bool {
        matches!(self.kind, Kind::Checkpoint | Kind::Unreadable)
    }

    /// Whether the data set or its loader failed.
    pub fn is_data(&self) -> bool {
        self.kind == Kind::Data
    }

    /// Whether the plugin or the device rejected a call or failed.
    pub fn is_runtime(&self) -> bool {
        self.kind == Kind::Runtime || self.facts().runtime
    }

    /// Whether there was not enough memory, on the host or on the device.
    pub fn is_out_of_memory(&self) -> bool {
        self.facts().out_of_memory
    }

    /// Whether a disk has no room, for example for a checkpoint, a log or a plugin.
    pub fn is_disk_full(&self) -> bool {
        self.facts().disk_full
    }

    /// The mistake in a recorded step, such as shapes that do not match, if this error is about
    /// one.
    pub fn fault(&self) -> Option<&Fault> {
        self.facts().fault
    }

    /// The line of the user's code that caused the error, if known.
    pub fn location(&self) -> Option<&'static Location<'static>> {
        self.facts().location
    }

    fn facts(&self) -> Facts<'_> {
        self.source.as_ref().map(Source::facts).unwrap_or_default()
    }

    /// The indices of the processes that are missing, gone, or run something else, if this error is
    /// about processes.
    pub fn processes(&self) -> &[usize] {
        match &self.source {
            Some(Source::Fulmen(source)) => source.processes(),
            _ => &[],
        }
    }

    /// The error from another crate of Fulmen, if this error wraps one.
    pub fn get_ref(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        self.source.as_ref().map(Source::as_error)
    }

    /// Whether a logger could not start to write.
    pub fn is_logger(&self) -> bool {
        self.kind == Kind::Logger
    }

    /// Whether the processes of a run could not connect, differ in what they run, or lost one of
    /// them. [`processes`](Error::processes) lists the processes concerned.
    pub fn is_coordination(&self) -> bool {
        self.kind == Kind::Coordination
    }

    /// Whether a process of the run no longer answers: it was killed or stopped, or its host is not
    /// reachable. Then [`is_coordination`](Error::is_coordination) is true too, and the same run,
    /// started again, may succeed. So a program with a command line exits with code 75.
    pub fn is_peer_silent(&self) -> bool {
        matches!(&self.source, Some(Source::Fulmen(source)) if source.is_peer_silent())
    }

    /// Whether the mistake is in the program, an argument or an option.
    pub fn is_usage(&self) -> bool {
        matches!(self.kind, Kind::Usage | Kind::Option) || self.facts().usage
    }

    /// Whether the mistake is in how the program was started, not in its code: an invalid option or
    /// environment variable. Then [`is_usage`](Error::is_usage) is true too.
    ///
    /// ```
    /// use fulmen_trainer::Trainer;
    /// let error = Trainer::builder().max_epochs(0).options().unwrap_err();
    /// assert!(error.is_option() && error.is_usage());
    /// ```
    pub fn is_option(&self) -> bool {
        self.kind == Kind::Option || self.kind == Kind::Coordination && self.facts().usage
    }
}

/// The signal that ended the process that an error names. This process ends with the same exit code.
pub(crate) fn peer_signal(error: &fulmen_coordination::Error) -> Option<Signal> {
    error.signal().and_then(Signal::from_number)
}

/// Names the last checkpoint, for messages.
fn last_checkpoint_text(kept: Option<&Path>) -> String {
    match kept {
        Some(path) => format!("the last checkpoint before it is {}", path.display()),
        None => "no checkpoint had been saved before".to_owned(),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Prints the message, so that `fn main() -> Result<(), Box<dyn std::error::Error>>` shows it.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.get_ref()?.source()
    }
}

/// An error of another crate, except of data.
impl From<fulmen_error::Error> for Error {
    fn from(source: fulmen_error::Error) -> Error {
        let kind = if source.is_coordination() {
            Kind::Coordination
        } else if source.is_devices() {
            Kind::Option
        } else {
            Kind::Source
        };
        Error { kind, message: source.to_string(), source: Some(Source::Fulmen(source)) }
    }
}

impl From<fulmen_data::Error> for Error {
    fn from(source: fulmen_data::Error) -> Error {
        Error { kind: Kind::Data, message: source.to_string(), source: Some(Source::Data(source)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_memory_is_recognized_through_every_crate() {
        let short = || fulmen_pjrt::HostBuffer::zeroed(1 << 60).unwrap_err();
        let tensor = || fulmen_tensor::Error::runtime("running a program", short());
        for error in [
            Error::from(fulmen_preflight::Error::runtime("compiling", short())),
            Error::from(tensor()),
            Error::with_action("setting up", tensor()),
            Error::device("a step failed on the device", tensor()),
            Error::from(fulmen_nn::Error::from(tensor())),
            Error::from(fulmen_data::Error::runtime("allocating a batch", short())),
            Error::from(
                fulmen_data::Error::runtime("moving x to the device", tensor()).at_sample(3, None),
            ),
        ] {
            assert!(error.is_out_of_memory() && error.is_runtime() && !error.is_usage(), "{error}");
            assert!(
                error.location().is_none() && std::error::Error::source(&error).is_none(),
                "{error}"
            );
        }
    }

    /// A product of shapes that do not fit, and its line.
    fn faulty() -> (fulmen_tensor::Error, u32) {
        let matrix = fulmen_tensor::Tensor::zeros(fulmen_tensor::DType::F32, [2, 3]);
        let line = line!() + 1;
        let product = matrix.matmul(&matrix);
        (product.check().unwrap_err(), line)
    }

    #[test]
    fn a_mistake_of_the_user_is_recognized_through_every_crate() {
        for error in [
            Error::from(fulmen_tensor::Literal::from_slice(&[1.0f32], [2]).unwrap_err()),
            Error::from(faulty().0),
            Error::with_action("setting up", faulty().0),
            Error::from(fulmen_nn::Error::from(faulty().0)),
            Error::from(fulmen_nn::Error::usage_at("the rate is -1", Location::caller())),
            Error::from(fulmen_data::Error::usage("the batch size is 0")),
            Error::from(fulmen_data::Error::usage("the size is 0").at_sample(3, None)),
            Error::from(fulmen_data::Error::new(faulty().0)),
            Error::from(fulmen_data::Error::runtime("stacking x", faulty().0)),
            Error::from(fulmen_coordination::Process::new(8, 8, "host-a:8482").unwrap_err()),
            Error::from(fulmen_preflight::Gpu::find("voodoo2").unwrap_err()),
            Error::checkpoint_file(fulmen_checkpoint::open_store("").err().unwrap()),
        ] {
            assert!(error.is_usage(), "{error}");
            assert!(
                !error.is_runtime() && !error.is_out_of_memory() && !error.is_disk_full(),
                "{error}"
            );
        }
    }

    #[test]
    fn a_fault_and_its_line_are_known_through_every_crate() {
        for wrap in [
            |source| Error::from(source),
            |source| Error::with_action("setting up", source),
            |source| Error::from(fulmen_nn::Error::from(source)),
            |source| Error::from(fulmen_data::Error::new(source).at_sample(3, None)),
        ] {
            let (source, line) = faulty();
            let error: Error = wrap(source);
            assert_eq!(error.fault().unwrap().operation(), "matmul", "{error}");
            assert_eq!(error.location().unwrap().line(), line, "{error}");
        }
    }

    #[test]
    fn a_full_disk_is_recognized_behind_a_checkpoint_and_a_logger() {
        let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
        assert!(Error::logger(Path::new("logs"), full()).is_disk_full());
        assert!(
            Error::from(fulmen_data::Error::io(Path::new("x"), "writing", full())).is_disk_full()
        );
        assert!(!Error::usage("disk full").is_disk_full());
    }
}
