//! The constructors that several crates use. A crate has its own in its `error.rs`.

use std::any::Any;
use std::error::Error as StdError;
use std::io;
use std::panic::Location;
use std::path::Path;
use std::sync::Arc;

use crate::fact::Fact;
use crate::{Error, shorten};

impl Error {
    /// An error of your own code, for example of a dataset: any error type, or just a message. An
    /// error of Fulmen stays what it is.
    ///
    /// ```
    /// let error = fulmen_error::Error::new("the archive has no entry 17.png");
    /// assert_eq!(error.to_string(), "the archive has no entry 17.png");
    /// ```
    pub fn new(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        match source.into().downcast::<Error>() {
            Ok(error) => *error,
            Err(source) => {
                let source: Arc<dyn StdError + Send + Sync> = source.into();
                let error = Error::of_source(source.clone());
                match source.downcast_ref::<io::Error>() {
                    Some(cause) => error.with_facts_of(cause),
                    None => error,
                }
            }
        }
    }

    /// A mistake in a program: options or arguments that are invalid or do not fit together. The
    /// message should say what was given and what is expected.
    ///
    /// ```
    /// assert!(fulmen_error::Error::usage("the batch size is 0").is_usage());
    /// ```
    pub fn usage(message: impl Into<String>) -> Error {
        Error::of(Fact::Usage, short(message))
    }

    /// A mistake in the line `location` of a program. Return it from `Optimizer::check` of your own
    /// optimizer.
    ///
    /// ```
    /// use std::panic::Location;
    ///
    /// let error = fulmen_error::Error::usage_at("the rate is -1", Location::caller());
    /// assert!(error.is_usage() && error.to_string().starts_with("the rate is -1\n  at "));
    /// ```
    pub fn usage_at(message: impl Into<String>, location: &'static Location<'static>) -> Error {
        let message = format!("{}\n  at {location}", message.into());
        Error::of(Fact::Usage, message).located(Some(location))
    }

    /// A field whose name, dtype or size differs from the declaration.
    pub fn field(message: impl Into<String>) -> Error {
        Error::of(Fact::Field, short(message))
    }

    /// A label outside the classes.
    pub fn label(message: impl Into<String>) -> Error {
        Error::of(Fact::Label, short(message))
    }

    /// A file that exists but cannot be used.
    pub fn file(path: &Path, message: impl Into<String>) -> Error {
        Error::of(Fact::File, short(format!("{}: {}", path.display(), message.into())))
    }

    /// A file operation that failed.
    pub fn io(path: &Path, doing: &str, source: io::Error) -> Error {
        let message = short(format!("{}: {doing}: {source}", path.display()));
        Error::of_io(message, source).with(Fact::File)
    }

    /// Invalid bytes of a file whose name is not known at this point.
    pub fn content(message: impl Into<String>) -> Error {
        Error::of(Fact::File, short(message))
    }

    /// A file that does not exist. The message names it.
    pub fn missing(message: impl Into<String>) -> Error {
        Error::of(Fact::File, short(message)).with(Fact::NotFound)
    }

    /// A panic in the user's code or in a library.
    pub fn panic(message: impl Into<String>) -> Error {
        Error::of(Fact::Panic, short(message))
    }

    /// A failure of the device, its plugin or a host allocation while `doing` something. A mistake in
    /// an expression stays a mistake.
    pub fn runtime(
        doing: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Error {
        let error = Error::new(source).without(Fact::Rejected).context(short(doing));
        if error.has(Fact::Usage) { error } else { error.with(Fact::Runtime) }
    }

    /// A failure of the operating system. The message shows it.
    #[doc(hidden)]
    pub fn of_io(message: impl Into<String>, source: io::Error) -> Error {
        let error = Error::of(Fact::Io, message).with_facts_of(&source);
        error.caused_by(Arc::new(source))
    }

    fn with_facts_of(self, source: &io::Error) -> Error {
        if fulmen_durable::is_full(source) {
            self.with(Fact::DiskFull)
        } else if source.kind() == io::ErrorKind::NotFound {
            self.with(Fact::NotFound)
        } else {
            self
        }
    }

    /// Adds the index of the sample in the loader's dataset, and its origin.
    #[doc(hidden)]
    #[must_use]
    pub fn at_sample(self, index: u64, origin: Option<String>) -> Error {
        let message = self.to_string();
        // A message about a file already names the position: it reads `file: place: …` where the
        // origin is `file, place`.
        let named = |origin: &str| {
            message.contains(origin) || message.starts_with(&origin.replacen(", ", ": ", 1))
        };
        let place = match &origin {
            Some(origin) if !named(origin) => format!("sample {index} ({origin})"),
            _ => format!("sample {index}"),
        };
        let error = self.reworded(short(format!("{place}: {message}")));
        error.with_sample(index, origin).with(Fact::Data)
    }
}

fn short(message: impl Into<String>) -> String {
    shorten(&message.into()).into_owned()
}

impl From<io::Error> for Error {
    fn from(source: io::Error) -> Error {
        Error::new(source)
    }
}

/// The error for a panic in foreign code, with its message if it has one.
#[doc(hidden)]
pub fn panicked(doing: &str, payload: Box<dyn Any + Send>) -> Error {
    let message = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(no message)".to_owned());
    // The payload is leaked: if its own drop panicked, the thread that catches it would end.
    std::mem::forget(payload);
    Error::panic(format!("{doing}: {message}"))
}
