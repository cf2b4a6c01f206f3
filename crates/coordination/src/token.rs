//! The secret of a run. The coordinator admits only processes that have it.
//!
//! Out of scope: the proof that a process has the secret (`network/handshake.rs`).

use std::fmt;
use std::sync::Arc;

use crate::{Result, error};

/// The minimum length of a token. A shorter one could be guessed from a recorded handshake.
const MIN_LENGTH: usize = 32;

/// The secret of a run. Errors and `Debug` output never show it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(Arc<str>);

impl Token {
    pub(crate) fn new(secret: &str) -> Result<Token> {
        let secret = secret.trim();
        if secret.len() < MIN_LENGTH {
            return Err(error::usage(format!(
                "the token of the run has {} characters; expected at least {MIN_LENGTH}, drawn at random (`openssl rand -hex \
                 32` prints some)",
                secret.chars().count()
            )));
        }
        Ok(Token(secret.into()))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}
