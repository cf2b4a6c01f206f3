//! [`Lines`]: splits a stream of bytes into lines of limited length.

use std::io::BufRead;

/// The longest part of a line in memory. A longer line comes in several parts.
const LIMIT: usize = 16 << 10;

/// A part of a stream that can be printed as a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) text: String,
    /// Its length in the stream, with the bytes that end it.
    pub(crate) bytes: u64,
    /// Whether the next line overwrites it on a terminal, as progress bars do: it ends with a
    /// carriage return.
    pub(crate) is_overwritten: bool,
}

/// The lines of a stream. A line ends with a newline, a carriage return or both, or is cut at
/// [`LIMIT`] bytes.
pub(crate) struct Lines<R> {
    input: R,
    /// The line that has begun. It may end with a carriage return.
    begun: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(input: R) -> Lines<R> {
        Lines { input, begun: Vec::new() }
    }

    /// The text after the last line, once the stream has ended.
    pub(crate) fn rest(self) -> Option<Line> {
        let bytes = self.begun.len() as u64;
        let text = String::from_utf8_lossy(&self.begun);
        let text = text.trim_end_matches('\r');
        (!text.is_empty()).then(|| Line { text: text.to_owned(), bytes, is_overwritten: false })
    }

    fn ended(&mut self, is_overwritten: bool) -> Line {
        let bytes = self.begun.len() as u64;
        let text = String::from_utf8_lossy(&self.begun);
        let text = text.trim_end_matches(['\n', '\r']).to_owned();
        self.begun.clear();
        Line { text, bytes, is_overwritten }
    }

    /// The first [`LIMIT`] bytes, without a character that is cut off.
    fn cut(&mut self) -> Line {
        let mut rest = Vec::new();
        if let Err(error) = std::str::from_utf8(&self.begun)
            && error.error_len().is_none()
        {
            rest = self.begun.split_off(error.valid_up_to());
        }
        let line = self.ended(false);
        self.begun = rest;
        line
    }
}

impl<R: BufRead> Iterator for Lines<R> {
    type Item = Line;

    fn next(&mut self) -> Option<Line> {
        loop {
            let buffer = self.input.fill_buf().ok()?;
            let first = *buffer.first()?;
            if self.begun.last() == Some(&b'\r') && first != b'\n' {
                return Some(self.ended(true));
            }
            let space = LIMIT.saturating_sub(self.begun.len()).max(1);
            let part = &buffer[..buffer.len().min(space)];
            let end = part.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let taken = end.map_or(part.len(), |end| end + 1);
            self.begun.extend_from_slice(&part[..taken]);
            self.input.consume(taken);
            match self.begun.last() {
                Some(b'\n') => return Some(self.ended(false)),
                // The next byte decides whether this is the end of a line.
                Some(b'\r') => {}
                _ if self.begun.len() >= LIMIT => return Some(self.cut()),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    /// Reads with a buffer of one byte, and with a large one.
    fn check(text: &str, expected: &[(&str, u64, bool)], rest: &str) {
        for capacity in [1, 1 << 20] {
            let mut lines = Lines::new(BufReader::with_capacity(capacity, text.as_bytes()));
            let found: Vec<Line> = lines.by_ref().collect();
            let expected: Vec<Line> = expected
                .iter()
                .map(|&(text, bytes, is_overwritten)| Line {
                    text: text.into(),
                    bytes,
                    is_overwritten,
                })
                .collect();
            assert_eq!(found, expected);
            assert_eq!(lines.rest().map_or(String::new(), |line| line.text), rest);
        }
    }

    #[test]
    fn lines_end_with_newlines_and_carriage_returns() {
        check(
            "one\ntwo\r\n\nthree",
            &[("one", 4, false), ("two", 5, false), ("", 1, false)],
            "three",
        );
        check(
            "\r10 %\r20 %\r\ndone\r",
            &[("", 1, true), ("10 %", 5, true), ("20 %", 6, false)],
            "done",
        );
    }

    #[test]
    fn a_line_without_end_comes_in_parts_that_keep_characters_whole() {
        let text = format!("a{}", "é".repeat(LIMIT));
        let mut lines = Lines::new(text.as_bytes());
        let parts: Vec<Line> = lines.by_ref().collect();
        assert!(parts.len() >= 2, "{}", parts.len());
        assert!(parts.iter().all(|part| part.text.len() <= LIMIT), "{}", parts.len());
        let mut joined: String = parts.iter().map(|part| part.text.as_str()).collect();
        joined += &lines.rest().map_or(String::new(), |line| line.text);
        assert_eq!(joined, text);
    }
}
