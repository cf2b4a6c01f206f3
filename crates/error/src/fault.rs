//! [`Fault`]: a mistake in a recorded expression.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// The first mistake in an expression: the operation, what is wrong, and the line of the user's
/// code. A poisoned tensor carries it until its value is requested.
#[derive(Clone, Debug)]
pub struct Fault(Arc<FaultInner>);

#[derive(Debug)]
struct FaultInner {
    operation: String,
    message: String,
    location: &'static Location<'static>,
}

impl Fault {
    #[doc(hidden)]
    pub fn new(
        operation: impl Into<String>,
        message: impl Into<String>,
        location: &'static Location<'static>,
    ) -> Fault {
        Fault(Arc::new(FaultInner {
            operation: operation.into(),
            message: message.into(),
            location,
        }))
    }

    /// The name of the operation's method.
    pub fn operation(&self) -> &str {
        &self.0.operation
    }

    /// What is wrong, with the shapes and dtypes involved.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The line of the user's code that recorded the operation.
    pub fn location(&self) -> &'static Location<'static> {
        self.0.location
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n  at {}", self.0.operation, self.0.message, self.0.location)
    }
}
