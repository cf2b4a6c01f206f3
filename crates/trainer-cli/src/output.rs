//! A command's output: results on standard output, messages on standard error.

use std::io::{self, Write as _};

use fulmen_trainer::Trainer;
use fulmen_trainer::internal::without_secrets;

/// Like [`print_line()`], in process 0 only.
pub(crate) fn print_in_process_0(
    trainer: &Trainer,
    text: impl std::fmt::Display,
) -> io::Result<()> {
    if trainer.process_index() == 0 { print_line(text) } else { Ok(()) }
}

/// Writes a line to standard output. A closed reader (`| head`) is not a failure, but a full disk
/// is one.
pub(crate) fn print_line(text: impl std::fmt::Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let text = text.to_string();
    match writeln!(stdout, "{}", without_secrets(&text)).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(e) => Err(io::Error::new(e.kind(), format!("cannot write to standard output: {e}"))),
        Ok(()) => Ok(()),
    }
}

/// Writes a line to standard error. A line that cannot be written is dropped: a closed terminal
/// must not end training.
pub(crate) fn print_message(line: &str) {
    let _ = writeln!(io::stderr(), "{}", without_secrets(line));
}
