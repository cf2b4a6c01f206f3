//! What a command tells: its results on standard output, the rest on standard error.

use std::io::{self, Write as _};

use fulmen_trainer::Trainer;

/// As [`line()`], in the process that tells what there is to tell once a run.
pub(crate) fn line_of(trainer: &Trainer, text: impl std::fmt::Display) -> io::Result<()> {
    if trainer.process_index() == 0 { line(text) } else { Ok(()) }
}

/// Writes a line to standard output. A reader that has gone (`| head`) is not a failure; a full disk is.
pub(crate) fn line(text: impl std::fmt::Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(e) => Err(io::Error::new(e.kind(), format!("standard output cannot be written to: {e}"))),
        Ok(()) => Ok(()),
    }
}

/// Writes a line to standard error. One that cannot be written is let go: a closed terminal must not end training.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
