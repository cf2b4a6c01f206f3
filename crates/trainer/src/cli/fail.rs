//! How a command ends when it does not end well: what is told, and the exit code.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::Write as _;
use std::process::ExitCode;

use fulmen_data::shorten;

use crate::say::say;

/// Why a command ended early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Wrong usage, or the help that was asked for: clap knows how to tell it.
    Usage(clap::Error),
    /// Something went wrong.
    Error(Box<dyn Error + Send + Sync>),
}

impl Failure {
    /// Tells the user, and gives the exit code.
    pub(crate) fn tell(self) -> ExitCode {
        match (&self, self.short()) {
            (_, Some(text)) => say(&text),
            // In colour. A closed terminal changes nothing.
            (Failure::Usage(error), None) => drop(error.print()),
            (Failure::Error(error), None) => say(&text(&**error)),
        }
        match self {
            Failure::Usage(error) => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)),
            Failure::Error(error) => match error.downcast_ref::<crate::Error>() {
                // What a shell says of a program that Ctrl-C has ended.
                Some(error) if error.is_interrupted() => ExitCode::from(130),
                Some(error) if error.is_option() => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            },
        }
    }

    /// What to tell where that is long: with the beginnings alone of long values.
    pub(crate) fn short(&self) -> Option<String> {
        let text = match self {
            Failure::Usage(error) if error.use_stderr() => error.render().to_string(),
            Failure::Usage(_) => return None,
            Failure::Error(error) => text(&**error),
        };
        match shorten(text.trim_end()) {
            Cow::Owned(short) => Some(short),
            Cow::Borrowed(_) => None,
        }
    }
}

/// The error and those behind it. Fulmen's own show all in one message and have nothing behind them.
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
    use std::path::Path;

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
    fn the_exit_code_tells_errors_wrong_usage_and_ctrl_c_apart() {
        let code = |failure: Failure| format!("{:?}", failure.tell());
        let expected = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(code(Failure::from("broken")), expected(1));
        assert_eq!(code(Failure::from(crate::Error::interrupted("predicting"))), expected(130));
        assert_eq!(code(Failure::from(crate::Error::option("max_epochs: 0 is not possible"))), expected(2));
        assert_eq!(code(Failure::from(crate::Error::usage("the loss must be a scalar"))), expected(1));
        let usage = clap::Command::new("x").try_get_matches_from(["x", "--y"]).unwrap_err();
        assert_eq!(code(Failure::Usage(usage)), expected(2));
        let help = clap::Command::new("x").try_get_matches_from(["x", "--help"]).unwrap_err();
        assert_eq!(code(Failure::Usage(help)), expected(0));
    }

    #[test]
    fn an_error_is_told_with_what_is_behind_it_but_nothing_twice() {
        let outer = Outer(std::io::Error::other("disk on fire"));
        assert_eq!(text(&outer), "error: the labels cannot be read\n  because: disk on fire");
        let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let whole = crate::Error::from(fulmen_data::Error::new(missing()));
        assert_eq!(text(&whole), format!("error: {whole}"));
        let whole = crate::Error::logger(Path::new("logs"), missing());
        assert_eq!(text(&whole), format!("error: {whole}"));
    }
}
