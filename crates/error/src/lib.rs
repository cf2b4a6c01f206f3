//! The error of all crates of Fulmen: [`Error`], its [`Result`], and [`Fault`], a mistake in a
//! recorded expression.
//!
//! ```
//! use fulmen_error::Error;
//!
//! let error = Error::usage("the batch size is 0").context("the test set");
//! assert!(error.is_usage() && !error.is_file());
//! assert_eq!(error.to_string(), "the test set: the batch size is 0");
//! ```
//!
//! A crate that finds a mistake makes the error, with the [`Fact`]s that it knows. A crate above adds
//! what it was doing ([`Error::context`]) and maybe a fact. All predicates are in `predicates.rs`.
//!
//! Out of scope: the wording of messages. Each is written where the mistake is detected.

mod constructors;
mod error;
mod fact;
mod fault;
mod predicates;
mod shorten;

#[doc(hidden)]
pub use constructors::panicked;
pub use error::Error;
#[doc(hidden)]
pub use fact::Fact;
pub use fault::Fault;
#[doc(hidden)]
pub use shorten::shorten;

/// The result type of all crates of Fulmen.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
