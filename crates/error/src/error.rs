//! [`Error`]: the message, what is known about the cause, and how a crate above adds to both.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::Fault;
use crate::fact::{Fact, Facts};

/// Why something failed, where, and what to do next. All crates of Fulmen return this type.
///
/// The cause is private; query it with the `is_...` methods. The message is complete:
/// [`source`](std::error::Error::source) returns only what the message does not show.
/// [`get_ref`](Error::get_ref) returns the error of another library or of the user.
///
/// ```
/// use fulmen_error::Error;
///
/// let error = Error::from(std::fs::File::open("/no/such/file").unwrap_err()).context("the labels");
/// assert!(error.is_not_found() && !error.is_usage());
/// assert!(error.to_string().starts_with("the labels: No such file"));
/// ```
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone, Default)]
struct Inner {
    facts: Facts,
    /// Without one, the message is that of the source, whose code may panic.
    message: Option<String>,
    location: Option<&'static Location<'static>>,
    fault: Option<Fault>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    sample: Option<SamplePlace>,
    step: Option<u64>,
    processes: Vec<usize>,
    signal: Option<i32>,
    code: Option<&'static str>,
    details: Vec<Arc<dyn Any + Send + Sync>>,
}

/// Where in a dataset an unreadable sample is.
#[derive(Clone)]
struct SamplePlace {
    index: u64,
    origin: Option<String>,
}

/// What the crates of Fulmen make and change errors with. It is not covered by any stability promise,
/// except for `context` and `note`.
impl Error {
    /// An error with this message, of which nothing else is known.
    #[doc(hidden)]
    pub fn with_message(message: impl Into<String>) -> Error {
        Error(Arc::new(Inner { message: Some(message.into()), ..Inner::default() }))
    }

    /// An error of another library or of the user, whose message is shown.
    pub(crate) fn of_source(source: Arc<dyn StdError + Send + Sync>) -> Error {
        Error(Arc::new(Inner { source: Some(source), ..Inner::default() }))
    }

    /// An error with one fact.
    #[doc(hidden)]
    pub fn of(fact: Fact, message: impl Into<String>) -> Error {
        Error::with_message(message).with(fact)
    }

    fn inner(&mut self) -> &mut Inner {
        Arc::make_mut(&mut self.0)
    }

    /// Adds a fact.
    #[doc(hidden)]
    #[must_use]
    pub fn with(mut self, fact: Fact) -> Error {
        self.inner().facts.insert(fact);
        self
    }

    /// Removes a fact that is not one for callers of the crate above.
    #[doc(hidden)]
    #[must_use]
    pub fn without(mut self, fact: Fact) -> Error {
        self.inner().facts.remove(fact);
        self
    }

    #[doc(hidden)]
    pub fn has(&self, fact: Fact) -> bool {
        self.0.facts.has(fact)
    }

    /// Begins the message with what failed, and a colon.
    ///
    /// ```
    /// let error = fulmen_error::Error::usage("the size is 0").context("resize");
    /// assert_eq!(error.to_string(), "resize: the size is 0");
    /// ```
    #[must_use]
    pub fn context(self, what: impl fmt::Display) -> Error {
        let message = format!("{what}: {self}");
        self.reworded(message)
    }

    /// Ends the message with a text.
    ///
    /// ```
    /// let error = fulmen_error::Error::usage("the size is 0").note("; it must be at least 1");
    /// assert_eq!(error.to_string(), "the size is 0; it must be at least 1");
    /// ```
    #[must_use]
    pub fn note(self, text: impl fmt::Display) -> Error {
        let message = format!("{self}{text}");
        self.reworded(message)
    }

    /// Replaces the message.
    #[doc(hidden)]
    #[must_use]
    pub fn reworded(mut self, message: impl Into<String>) -> Error {
        self.inner().message = Some(message.into());
        self
    }

    /// Records the line of the user's code. The message stays.
    #[doc(hidden)]
    #[must_use]
    pub fn located(mut self, location: Option<&'static Location<'static>>) -> Error {
        self.inner().location = location;
        self
    }

    /// Records the error of another library. The message stays.
    #[doc(hidden)]
    #[must_use]
    pub fn caused_by(mut self, source: Arc<dyn StdError + Send + Sync>) -> Error {
        self.inner().source = Some(source);
        self
    }

    /// Records the place of the sample. The message stays.
    pub(crate) fn with_sample(mut self, index: u64, origin: Option<String>) -> Error {
        self.inner().sample = Some(SamplePlace { index, origin });
        self
    }

    /// Records the step whose result was not finite.
    #[doc(hidden)]
    #[must_use]
    pub fn with_step(mut self, step: u64) -> Error {
        self.inner().step = Some(step);
        self
    }

    /// Records the processes concerned.
    #[doc(hidden)]
    #[must_use]
    pub fn with_processes(mut self, processes: impl Into<Vec<usize>>) -> Error {
        self.inner().processes = processes.into();
        self
    }

    /// Records the signal that ended the process concerned.
    #[doc(hidden)]
    #[must_use]
    pub fn with_signal(mut self, signal: Option<i32>) -> Error {
        self.inner().signal = signal;
        self
    }

    /// Records the name of a plugin's status code.
    #[doc(hidden)]
    #[must_use]
    pub fn with_code(mut self, code: &'static str) -> Error {
        self.inner().code = Some(code);
        self
    }

    /// Attaches a value for callers who know its type: see [`detail`](Error::detail).
    #[doc(hidden)]
    #[must_use]
    pub fn with_detail(mut self, detail: impl Any + Send + Sync) -> Error {
        self.inner().details.push(Arc::new(detail));
        self
    }
}

/// What the error is about.
impl Error {
    /// The mistake in a recorded expression, such as shapes that do not match, if the error is about
    /// one.
    pub fn fault(&self) -> Option<&Fault> {
        self.0.fault.as_ref()
    }

    /// The line of the user's code that caused the error, if it is known.
    pub fn location(&self) -> Option<&'static Location<'static>> {
        self.0.location
    }

    /// The error of another library, of the operating system or of the user that is behind this one.
    ///
    /// ```
    /// use std::num::ParseIntError;
    ///
    /// let error = fulmen_error::Error::new("x".parse::<u8>().unwrap_err());
    /// assert!(error.get_ref().is_some_and(|inner| inner.is::<ParseIntError>()));
    /// ```
    pub fn get_ref(&self) -> Option<&(dyn StdError + Send + Sync + 'static)> {
        self.0.source.as_deref()
    }

    /// The index of the unreadable sample in the loader's dataset.
    pub fn sample_index(&self) -> Option<usize> {
        self.index().and_then(|index| usize::try_from(index).ok())
    }

    #[doc(hidden)]
    pub fn index(&self) -> Option<u64> {
        self.0.sample.as_ref().map(|sample| sample.index)
    }

    /// Where the unreadable sample comes from, if its dataset says so: a file and a position in it.
    pub fn origin(&self) -> Option<&str> {
        self.0.sample.as_ref()?.origin.as_deref()
    }

    /// The step, counted from 1, whose loss or result was NaN or infinite, or that used an index out
    /// of range, such as a label outside the classes, if that ended the fit.
    pub fn not_finite_step(&self) -> Option<u64> {
        self.0.step
    }

    /// The indices of the processes concerned: those that are missing, lost, or that differ.
    pub fn processes(&self) -> &[usize] {
        &self.0.processes
    }

    /// The number of the signal that ended the run or the process concerned, such as 15 for SIGTERM,
    /// if that process could report it before it ended.
    pub fn signal(&self) -> Option<i32> {
        self.0.signal
    }

    /// The name of the plugin's status code (`INVALID_ARGUMENT`), if the error came from a plugin.
    pub fn code(&self) -> Option<&'static str> {
        self.0.code
    }

    /// What a crate attached to the error, such as the `LoadReport` of weights that do not fit a
    /// model.
    pub fn detail<T: Any>(&self) -> Option<&T> {
        self.0.details.iter().find_map(|detail| (**detail).downcast_ref())
    }
}

/// Errors are equal if they say the same.
impl PartialEq for Error {
    fn eq(&self, other: &Error) -> bool {
        let same_cause = self.0.facts == other.0.facts && self.to_string() == other.to_string();
        same_cause && self.0.processes == other.0.processes && self.0.signal == other.0.signal
    }
}

impl Eq for Error {}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        let error = Error::of(Fact::Usage, fault.to_string()).located(Some(fault.location()));
        let mut error = error;
        error.inner().fault = Some(fault);
        error
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0.message, &self.0.source) {
            (Some(message), _) => f.write_str(message),
            (None, Some(source)) => source.fmt(f),
            (None, None) => Ok(()),
        }
    }
}

/// Prints the message, because `fn main() -> Result<(), Box<dyn std::error::Error>>` prints errors
/// with `Debug`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref()?.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_pointer_wide_and_its_clones_are_independent() {
        assert_eq!(size_of::<Result<(), Error>>(), size_of::<usize>());
        let first = Error::usage("the size is 0");
        let second = first.clone().context("resize").with(Fact::Data);
        assert_eq!((first.to_string(), first.is_data()), ("the size is 0".to_owned(), false));
        assert_eq!(
            (second.to_string(), second.is_data()),
            ("resize: the size is 0".to_owned(), true)
        );
        assert_ne!(first, second);
    }

    #[test]
    fn a_detail_is_found_by_its_type_behind_every_context() {
        let error = Error::usage("x").with_detail(7u16).with_detail("text").context("y");
        assert_eq!(error.detail::<u16>(), Some(&7));
        assert_eq!(error.detail::<&str>(), Some(&"text"));
        assert_eq!(error.detail::<u32>(), None);
    }

    #[test]
    fn the_source_is_what_the_message_does_not_show() {
        #[derive(Debug)]
        struct Outer(std::num::ParseIntError);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("outer")
            }
        }
        impl StdError for Outer {
            fn source(&self) -> Option<&(dyn StdError + 'static)> {
                Some(&self.0)
            }
        }
        let cause = "x".parse::<u8>().unwrap_err();
        let error = Error::new(Outer(cause.clone())).context("reading");
        assert_eq!(error.to_string(), "reading: outer");
        assert_eq!(error.source().unwrap().to_string(), cause.to_string());
        assert!(Error::new(error).get_ref().unwrap().is::<Outer>());
    }
}
