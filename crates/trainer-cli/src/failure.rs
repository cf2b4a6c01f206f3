//! How a command ends after a failure: the message and the exit code.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::Write as _;
use std::process::ExitCode;

use fulmen_data::shorten;
use fulmen_trainer::{Error as TrainerError, Signal};

use crate::output::print_message;

/// Why a command ended early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Wrong usage, or a request for help. clap prints it.
    Usage(clap::Error),
    /// An invalid option or value.
    Option(String),
    /// Any other error.
    Error(Box<dyn Error + Send + Sync>),
}

impl Failure {
    /// Prints the failure, and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        match (&self, self.short()) {
            (_, Some(text)) => print_message(&text),
            // This prints in color. Ignore a closed terminal.
            (Failure::Usage(error), None) => drop(error.print()),
            (Failure::Option(why), None) => print_message(&format!("error: {why}")),
            (Failure::Error(error), None) => print_message(&text(&**error)),
        }
        match self {
            Failure::Usage(error) => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)),
            Failure::Option(_) => ExitCode::from(2),
            Failure::Error(error) => match error.downcast_ref::<TrainerError>() {
                Some(error) if error.is_option() => ExitCode::from(2),
                // As after SIGTERM: the run is not complete, and may be started again.
                Some(error) if error.is_peer_silent() => {
                    ExitCode::from(Signal::Terminate.exit_code())
                }
                error => match error.and_then(TrainerError::signal).and_then(Signal::from_number) {
                    Some(signal) => ExitCode::from(signal.exit_code()),
                    None => ExitCode::FAILURE,
                },
            },
        }
    }

    /// A version of the message with long values shortened, if the message is long.
    pub(crate) fn short(&self) -> Option<String> {
        let text = match self {
            Failure::Usage(error) if error.use_stderr() => error.render().to_string(),
            Failure::Usage(_) => return None,
            Failure::Option(why) => format!("error: {why}"),
            Failure::Error(error) => text(&**error),
        };
        match shorten(text.trim_end()) {
            Cow::Owned(short) => Some(short),
            Cow::Borrowed(_) => None,
        }
    }
}

/// The error and its sources. Fulmen's errors have complete messages and no further sources.
fn text(error: &(dyn Error + Send + Sync)) -> String {
    let mut text = format!("error: {error}");
    let mut source = error.source();
    while let Some(error) = source {
        let _ = write!(text, "\n  because: {error}");
        source = error.source();
    }
    text
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Error(error.into())
    }
}

#[cfg(test)]
mod tests {
    use fulmen_trainer::Trainer;

    use super::*;

    #[derive(Debug)]
    struct Outer(std::io::Error);

    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("the labels cannot be read")
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn the_exit_code_tells_errors_and_wrong_usage_apart() {
        let code = |failure: Failure| format!("{:?}", failure.report());
        let expected = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(code(Failure::from("broken")), expected(1));
        assert_eq!(code(Failure::Option("there is no option `x`".into())), expected(2));
        let option_failure =
            |builder: fulmen_trainer::TrainerBuilder| Failure::from(builder.options().unwrap_err());
        assert_eq!(code(option_failure(Trainer::builder().max_epochs(0))), expected(2));
        assert_eq!(code(option_failure(Trainer::builder().hyperparameters(1))), expected(1));
        let usage = clap::Command::new("x").try_get_matches_from(["x", "--y"]).unwrap_err();
        assert_eq!(code(Failure::Usage(usage)), expected(2));
        let help = clap::Command::new("x").try_get_matches_from(["x", "--help"]).unwrap_err();
        assert_eq!(code(Failure::Usage(help)), expected(0));
    }

    #[test]
    fn an_error_shows_its_sources_without_repetition() {
        let outer = Outer(std::io::Error::other("disk on fire"));
        assert_eq!(text(&outer), "error: the labels cannot be read\n  because: disk on fire");
        let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let whole = TrainerError::new(missing());
        assert_eq!(text(&whole), format!("error: {whole}"));
    }
}
