//! [`Output`]: captures what a program writes while a screen is shown, including the output of C
//! libraries and child processes. The output goes through a pipe, is reported line by line, and is
//! written to the terminal at the end.

use std::fs::File;
use std::io::{self, IsTerminal as _, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use console::strip_ansi_codes;
use rustix::stdio::{dup2_stderr, dup2_stdout};

/// The maximum number of bytes kept for the terminal; temporarily twice as many.
const MAX_CAPTURED: usize = 1 << 20;
/// The maximum number of bytes of a reported line.
const MAX_LINE: usize = 1000;
/// This byte in the pipe ends the capture, once the release was requested.
const END: u8 = 0;

/// Standard error, and standard output if it is a terminal, while they are redirected to a pipe.
#[derive(Debug)]
pub(crate) struct Output {
    stderr: OwnedFd,
    stdout: Option<OwnedFd>,
    pipe: PipeWriter,
    released: Arc<AtomicBool>,
    flushed: Receiver<()>,
}

impl Output {
    /// Redirects standard error, and standard output if it is a terminal, to a pipe.
    pub(crate) fn capture(on_line: impl FnMut(String) + Send + 'static) -> io::Result<Output> {
        let (reader, pipe) = io::pipe()?;
        let stderr = io::stderr().as_fd().try_clone_to_owned()?;
        let stdout = io::stdout()
            .is_terminal()
            .then(|| io::stdout().as_fd().try_clone_to_owned())
            .transpose()?;
        let (sender, flushed) = mpsc::channel();
        let released = Arc::new(AtomicBool::new(false));
        let terminal = File::from(stderr.try_clone()?);
        let thread_released = released.clone();
        thread::Builder::new()
            .name("fulmen-output".into())
            .spawn(move || forward_output(reader, terminal, &thread_released, &sender, on_line))?;
        let output = Output { stderr, stdout, pipe, released, flushed };
        // Output that was buffered before goes to the original file.
        let _ = io::stdout().flush();
        let redirected = match &output.stdout {
            Some(_) => dup2_stdout(&output.pipe).and_then(|()| dup2_stderr(&output.pipe)),
            None => dup2_stderr(&output.pipe),
        };
        match redirected {
            Ok(()) => Ok(output),
            Err(error) => {
                output.release();
                Err(error.into())
            }
        }
    }

    /// Redirects the output to the terminal again, after the terminal has received the captured
    /// output.
    pub(crate) fn release(mut self) {
        self.released.store(true, Ordering::SeqCst);
        self.flush_pipe();
        let _ = dup2_stderr(&self.stderr);
        if let Some(stdout) = &self.stdout {
            let _ = dup2_stdout(stdout);
        }
        self.flush_pipe();
    }

    /// Waits until the terminal has received the content of the pipe. An error means that the
    /// reader has ended.
    fn flush_pipe(&mut self) {
        if self.pipe.write_all(&[END]).is_ok() {
            let _ = self.flushed.recv();
        }
    }
}

/// Reads the pipe until it is closed. If a child process has it open, this is after the release.
/// After the release, all output goes to the terminal immediately.
fn forward_output(
    mut pipe: PipeReader,
    mut terminal: File,
    released: &AtomicBool,
    flushed: &Sender<()>,
    on_line: impl FnMut(String),
) {
    let mut captured = Some(CapturedText { bytes: Vec::new(), line: Vec::new(), on_line });
    let mut buffer = [0; 8192];
    loop {
        let read = match pipe.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => &buffer[..read],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let is_released = released.load(Ordering::SeqCst);
        for piece in read.split_inclusive(|byte| is_released && *byte == END) {
            let text = piece.strip_suffix(&[END]).filter(|_| is_released);
            match &mut captured {
                Some(captured) => captured.add(text.unwrap_or(piece)),
                None => drop(terminal.write_all(text.unwrap_or(piece))),
            }
            if text.is_some() {
                if let Some(captured) = captured.take() {
                    let _ = terminal.write_all(&captured.bytes);
                }
                let _ = flushed.send(());
            }
        }
    }
}

/// The captured output, and the line that has not ended yet.
struct CapturedText<F> {
    bytes: Vec<u8>,
    line: Vec<u8>,
    on_line: F,
}

impl<F: FnMut(String)> CapturedText<F> {
    fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > 2 * MAX_CAPTURED {
            let start = self.bytes.len() - MAX_CAPTURED;
            let line_start = self.bytes[start..]
                .iter()
                .position(|byte| *byte == b'\n')
                .map_or(start, |offset| start + offset + 1);
            drop(self.bytes.splice(..line_start, *b"(earlier lines are left out)\n"));
        }
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let room = MAX_LINE.saturating_sub(self.line.len());
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            if text.len() < piece.len() {
                let line = plain(&std::mem::take(&mut self.line));
                (self.on_line)(line);
            }
        }
    }
}

/// A line as a terminal would show it: without colors and without overwritten text.
fn plain(line: &[u8]) -> String {
    let colored = String::from_utf8_lossy(line);
    let text = strip_ansi_codes(&colored);
    let last = text.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default();
    last.replace('\t', "    ").chars().filter(|char| !char.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_reported_when_complete_and_as_it_would_appear() {
        let mut lines = Vec::new();
        let mut captured =
            CapturedText { bytes: Vec::new(), line: Vec::new(), on_line: |line| lines.push(line) };
        let text = "step \x1b[1;32m1\x1b[0m\n 10 %\r 20 %\r\n\tin\x07dented\n\u{fffd}";
        // The text is added byte by byte, not only at the ends of lines.
        text.as_bytes().iter().for_each(|byte| captured.add(&[*byte]));
        captured.add(&[b'x'; 5000]);
        captured.add(b"\nno end");
        assert_eq!(captured.bytes, [text.as_bytes(), &[b'x'; 5000], b"\nno end"].concat());
        assert_eq!(lines[..3], ["step 1", " 20 %", "    indented"]);
        assert_eq!((lines.len(), lines[3].len()), (4, MAX_LINE));
    }

    #[test]
    fn the_latest_lines_are_kept() {
        let mut captured = CapturedText { bytes: Vec::new(), line: Vec::new(), on_line: |_| {} };
        for number in 0..400_000 {
            captured.add(format!("line {number}\n").as_bytes());
            assert!(captured.bytes.len() <= 2 * MAX_CAPTURED);
        }
        let text = String::from_utf8(captured.bytes).unwrap();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("(earlier lines are left out)"));
        let first: u32 =
            lines.next().and_then(|line| line.strip_prefix("line ")).unwrap().parse().unwrap();
        let rest: Vec<String> = (first..400_000).map(|number| format!("line {number}")).collect();
        assert!(text.len() >= MAX_CAPTURED && lines.eq(rest[1..].iter().map(String::as_str)));
    }

    #[test]
    fn captured_output_reaches_the_terminal_before_later_output() {
        let (reader, mut pipe) = io::pipe().unwrap();
        let (mut shown, terminal) = io::pipe().unwrap();
        let (sender, flushed) = mpsc::channel();
        let released = Arc::new(AtomicBool::new(false));
        let thread_released = released.clone();
        let terminal = File::from(OwnedFd::from(terminal));
        let reading = thread::spawn(move || {
            forward_output(reader, terminal, &thread_released, &sender, |_| {})
        });
        pipe.write_all(b"a\0b\n").unwrap();
        released.store(true, Ordering::SeqCst);
        pipe.write_all(b"c\n\0").unwrap();
        flushed.recv().unwrap();
        pipe.write_all(b"d\n\0").unwrap();
        flushed.recv().unwrap();
        pipe.write_all(b"of a child\n").unwrap();
        drop(pipe);
        reading.join().unwrap();
        let mut text = String::new();
        shown.read_to_string(&mut text).unwrap();
        assert_eq!(text.replace('\0', ""), "ab\nc\nd\nof a child\n");
    }
}
