//! What a command prints on standard output.

use std::io::{self, Write as _};

use crate::say::is_hushed;

/// Writes a line to standard output, unless another process of the run does. A reader that has gone (`| head`) is no
/// failure; a full disk is one.
pub(crate) fn line(text: impl std::fmt::Display) -> io::Result<()> {
    if is_hushed() {
        return Ok(());
    }
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(e) => Err(io::Error::new(e.kind(), format!("standard output cannot be written to: {e}"))),
        Ok(()) => Ok(()),
    }
}
