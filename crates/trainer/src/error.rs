//! Why a fit, a validation or a test ended early: the errors of the loop. Each message says what to do
//! next.

use std::fmt;
use std::io;
use std::path::Path;

use fulmen_error::{Error, Fact, shorten};

use crate::Signal;

/// An invalid option, from the command line, a file, the environment or the builder.
pub(crate) fn option(message: impl Into<String>) -> Error {
    Error::of(Fact::Option, shorten(&message.into()))
}

pub(crate) fn nothing_logged(step: &str) -> Error {
    Error::usage(format!("the module's {step} logs nothing, so there is nothing to evaluate"))
}

/// Reports that `what`, which one `TrainStep` made, was used with another. `method` is the method that
/// makes it.
pub(crate) fn of_another_step(what: &str, method: &str) -> Error {
    Error::usage(format!(
        "the {what} belongs to another TrainStep, whose weights it uses; call it on that TrainStep, or make one with \
         TrainStep::{method} on this one"
    ))
}

/// A failure of the device, with the action that failed.
pub(crate) fn device(action: &str, source: Error) -> Error {
    source.context(action).with(Fact::Runtime)
}

/// A loader that broke its contract.
pub(crate) fn data(message: impl Into<String>) -> Error {
    Error::of(Fact::Data, message)
}

pub(crate) fn logger(folder: &Path, source: io::Error) -> Error {
    let message = format!("a logger cannot write into {}: {source}", folder.display());
    Error::of_io(message, source).with(Fact::Logger)
}

/// A file of predictions that cannot be written.
pub(crate) fn predictions(path: &Path, source: io::Error) -> Error {
    Error::of_io(format!("predictions cannot be written to {}: {source}", path.display()), source)
}

/// `what` is no longer finite after this many steps. `kept` is the last checkpoint. `in_data` is a
/// value of the first batch that was not finite.
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
    Error::with_message(message).with_step(step)
}

/// Reports the first index that was out of range.
pub(crate) fn index_out_of_range(step: u64, mistake: &str, kept: Option<&Path>) -> Error {
    Error::with_message(format!("{mistake}\n{}", last_checkpoint_text(kept))).with_step(step)
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
    Error::with_message(message).with_step(step)
}

pub(crate) fn checkpoint(path: &Path, message: impl fmt::Display) -> Error {
    Error::of(Fact::Checkpoint, format!("checkpoint {}: {message}", path.display()))
}

/// A checkpoint that another process could not write, with its message. A full disk is recognized by
/// the system's words, so that all processes do the same.
pub(crate) fn checkpoint_elsewhere(path: &Path, message: &str) -> Error {
    const FULL: [&str; 3] = ["No space left on device", "Quota exceeded", "File too large"];
    let error = checkpoint(path, message);
    let full = FULL.iter().any(|words| message.contains(words));
    if full { error.with(Fact::DiskFull) } else { error }
}

/// A checkpoint that cannot be read or written; the source names it.
pub(crate) fn checkpoint_file(source: Error) -> Error {
    source.context("checkpoint").with(Fact::Checkpoint).with(Fact::Unreadable)
}

/// A checkpoint that does not exist, or whose training state is invalid.
pub(crate) fn unreadable(path: &Path, why: impl fmt::Display) -> Error {
    checkpoint(path, why).with(Fact::Unreadable)
}

/// After a failed write, adds the checkpoint to resume from to the message.
pub(crate) fn with_last_checkpoint(error: Error, checkpoint: Option<&Path>) -> Error {
    match checkpoint {
        Some(path) => error.note(format_args!(
            ". The last whole checkpoint is {}; resume from it with ckpt_path",
            path.display()
        )),
        None => error.note(". No checkpoint was saved before"),
    }
}

/// Reports that a signal ended an action that cannot be resumed.
pub(crate) fn interrupted(action: &str, signal: Signal) -> Error {
    let error = Error::with_message(format!("{action} was interrupted by {signal}"));
    error.with_signal(Some(signal.number()))
}

/// The signal that ended the process that an error names. This process ends with the same exit code.
pub(crate) fn peer_signal(error: &Error) -> Option<Signal> {
    error.signal().and_then(Signal::from_number)
}

/// Names the last checkpoint, for messages.
fn last_checkpoint_text(kept: Option<&Path>) -> String {
    match kept {
        Some(path) => format!("the last checkpoint before it is {}", path.display()),
        None => "no checkpoint had been saved before".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::panic::Location;

    use super::*;

    #[test]
    fn out_of_memory_is_recognized_through_every_crate() {
        let short = || fulmen_pjrt::HostBuffer::zeroed(1 << 60).unwrap_err();
        let tensor = || Error::runtime("running a program", short());
        for error in [
            Error::runtime("compiling", short()),
            tensor(),
            tensor().context("setting up"),
            device("a step failed on the device", tensor()),
            Error::runtime("allocating a batch", short()),
            Error::runtime("moving x to the device", tensor()).at_sample(3, None),
        ] {
            assert!(error.is_out_of_memory() && error.is_runtime() && !error.is_usage(), "{error}");
            assert!(
                error.location().is_none() && std::error::Error::source(&error).is_none(),
                "{error}"
            );
        }
    }

    /// A product of shapes that do not fit, and its line.
    fn faulty() -> (Error, u32) {
        let matrix = fulmen_tensor::Tensor::zeros(fulmen_tensor::DType::F32, [2, 3]);
        let line = line!() + 1;
        let product = matrix.matmul(&matrix);
        (product.check().unwrap_err(), line)
    }

    #[test]
    fn a_mistake_of_the_user_is_recognized_through_every_crate() {
        for error in [
            fulmen_tensor::Literal::from_slice(&[1.0f32], [2]).unwrap_err(),
            faulty().0,
            faulty().0.context("setting up"),
            Error::usage_at("the rate is -1", Location::caller()),
            Error::usage("the batch size is 0"),
            Error::usage("the size is 0").at_sample(3, None),
            Error::new(faulty().0),
            Error::runtime("stacking x", faulty().0),
            fulmen_coordination::Process::new(8, 8, "host-a:8482").unwrap_err(),
            fulmen_preflight::Gpu::find("voodoo2").unwrap_err(),
            checkpoint_file(fulmen_checkpoint::open_store("").err().unwrap()),
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
            |source| source,
            |source: Error| source.context("setting up"),
            |source| Error::new(source).at_sample(3, None),
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
        assert!(logger(Path::new("logs"), full()).is_disk_full());
        assert!(Error::io(Path::new("x"), "writing", full()).is_disk_full());
        assert!(!Error::usage("disk full").is_disk_full());
    }

    /// A dataset whose samples cannot be read.
    struct Broken;

    impl fulmen_data::Dataset for Broken {
        fn len(&self) -> usize {
            4
        }
        fn fields(&self) -> Vec<fulmen_data::Field> {
            vec![fulmen_data::Field::new("x", fulmen_tensor::DType::F32, [])]
        }
        fn read(&self, _: usize, _: &mut fulmen_data::Sample<'_>) -> Result<(), Error> {
            Err(Error::new("a hole"))
        }
    }

    #[test]
    fn the_part_that_failed_is_known_without_a_conversion() {
        let builder = || fulmen_data::DataLoader::builder(Broken).num_workers(0);
        let refused = builder().batch_size(0).build().map(drop).unwrap_err();
        assert!(refused.is_data() && refused.is_usage(), "{refused}");
        let loader = builder().batch_size(2).build().unwrap();
        let unread = loader.epoch(0).next().unwrap().map(drop).unwrap_err();
        assert!(unread.is_data() && unread.sample_index() == Some(0), "{unread}");

        let process = fulmen_coordination::Process::new(8, 8, "host-a:8482").unwrap_err();
        assert!(process.is_coordination() && process.is_option() && !process.is_data());
        let saved = checkpoint_file(fulmen_checkpoint::open_store("").err().unwrap());
        assert!(saved.is_checkpoint() && saved.is_unreadable() && !saved.is_coordination());
        let written = logger(Path::new("logs"), std::io::ErrorKind::NotFound.into());
        assert!(written.is_logger() && written.is_not_found() && !written.is_checkpoint());
        let ended = interrupted("the test", Signal::Terminate);
        assert!(ended.is_interrupted() && peer_signal(&ended) == Some(Signal::Terminate));
    }
}
