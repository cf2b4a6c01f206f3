//! A look at a program's text for what is known to end a plugin's process. It is no parser and judges nothing else: what
//! is merely wrong, the plugin answers with an error and the place.

use crate::abi::PJRT_Program;
use crate::error::{Error, Result};
use crate::options::CompileOptions;

/// The program as the plugin takes it. The result points into `mlir`.
pub(crate) fn as_mlir(mlir: &str) -> PJRT_Program {
    const FORMAT: &str = "mlir";
    let mut program = PJRT_Program::new();
    // The plugin only reads it; the header's struct serves for programs that come out, too.
    program.code = mlir.as_ptr().cast_mut().cast();
    program.code_size = mlir.len();
    program.format = FORMAT.as_ptr().cast();
    program.format_size = FORMAT.len();
    program
}

/// Refuses what would end the process of one plugin or another: bytecode, NUL bytes, unbounded dynamic dimensions, and
/// replica groups of more devices than the program is compiled for.
pub(crate) fn check(mlir: &str, options: &CompileOptions) -> Result<()> {
    if mlir.trim().is_empty() {
        return Err(Error::invalid("the program is empty"));
    }
    if let Some(at) = mlir.find('\0') {
        return Err(Error::invalid(format!("the program has a NUL byte at {at}; only MLIR text is taken")));
    }
    // A `&str` cannot hold the magic number itself, but it may hold what a lossy conversion made of it.
    if mlir.starts_with("ML\u{fffd}R") || mlir.starts_with("MLïR") {
        return Err(Error::invalid(
            "the program is MLIR bytecode, of which a damaged one would end the process; give it as text",
        ));
    }
    let devices = options.device_count().unwrap_or(usize::MAX) as u64;
    let mut rest = Scanner { text: mlir, at: 0 };
    while let Some(word) = rest.next_word() {
        match word {
            Word::Tensor(dims, start) => check_dims(mlir, dims, start)?,
            Word::ReplicaGroups(text, start) => check_groups(mlir, text, start, devices)?,
        }
    }
    Ok(())
}

fn check_dims(mlir: &str, dims: &str, start: usize) -> Result<()> {
    let unbounded = dims.split(',').next().is_some_and(|shape| shape.contains('?')) && !dims.contains("bounds<");
    if unbounded {
        return Err(Error::invalid(format!(
            "line {}: tensor<{dims}> has a dimension of unknown length; every dimension must be a number",
            line(mlir, start)
        )));
    }
    Ok(())
}

/// `text` is what follows `replica_groups`: ` = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>`, or another form that is left
/// to the plugin.
fn check_groups(mlir: &str, text: &str, start: usize, devices: u64) -> Result<()> {
    let Some(literal) = text.trim_start().strip_prefix('=').and_then(|text| text.trim_start().strip_prefix("dense<"))
    else {
        return Ok(());
    };
    let Some((values, after)) = literal.split_once('>') else { return Ok(()) };
    let refuse = |what: String| {
        Err(Error::invalid(format!(
            "line {}: replica_groups {what}, but the program is compiled for {devices} devices; set \
             CompileOptions::replicas or partitions to match",
            line(mlir, start)
        )))
    };
    // An id may stand in quotes as raw bytes; then only the type can be looked at.
    if !values.contains('"') {
        let ids = values.split(|c: char| !(c.is_ascii_digit() || c == '-')).filter(|id| !id.is_empty());
        // -1 fills up groups of unequal size.
        let ids = ids.filter_map(|id| id.parse::<i64>().ok()).filter(|&id| id >= 0);
        if let Some(id) = ids.max().filter(|&id| id.unsigned_abs() >= devices) {
            return refuse(format!("name device {id}"));
        }
    }
    let shape = after.trim_start().strip_prefix(':').and_then(|text| text.trim_start().strip_prefix("tensor<"));
    let groups = shape.and_then(|shape| {
        let (count, shape) = shape.split_once('x')?;
        let (size, _) = shape.split_once('x')?;
        Some((count.parse::<u64>().ok()?, size.parse::<u64>().ok()?))
    });
    match groups {
        Some((count, size)) if size > devices || (!values.contains("-1") && count.saturating_mul(size) > devices) => {
            refuse(format!("are {count} of {size} devices"))
        }
        _ => Ok(()),
    }
}

fn line(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count() + 1
}

enum Word<'a> {
    /// What stands between `tensor<` and its `>`.
    Tensor(&'a str, usize),
    /// What follows `replica_groups`.
    ReplicaGroups(&'a str, usize),
}

/// Finds words outside of strings and comments.
struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    fn next_word(&mut self) -> Option<Word<'a>> {
        let bytes = self.text.as_bytes();
        while let Some(&byte) = bytes.get(self.at) {
            let rest = &bytes[self.at..];
            match byte {
                b'"' => {
                    self.at += 1;
                    while let Some(&byte) = bytes.get(self.at) {
                        self.at += if byte == b'\\' { 2 } else { 1 };
                        if byte == b'"' {
                            break;
                        }
                    }
                }
                b'/' if rest.starts_with(b"//") => {
                    self.at += rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
                }
                b't' if rest.starts_with(b"tensor<") => {
                    let start = self.at;
                    self.at += "tensor<".len();
                    // An encoding may hold angle brackets of its own.
                    let mut depth = 1;
                    let inside = &bytes[self.at..];
                    let end = inside.iter().position(|&byte| {
                        depth += i32::from(byte == b'<') - i32::from(byte == b'>');
                        depth == 0
                    });
                    let end = self.at + end.unwrap_or(inside.len());
                    return Some(Word::Tensor(&self.text[self.at..end], start));
                }
                b'r' if rest.starts_with(b"replica_groups") => {
                    let start = self.at;
                    self.at += "replica_groups".len();
                    return Some(Word::ReplicaGroups(&self.text[self.at..], start));
                }
                _ => self.at += 1,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(mlir: &str, expected: &str) {
        let error = check(mlir, &CompileOptions::new()).unwrap_err();
        assert!(error.is_invalid_argument());
        assert!(error.to_string().contains(expected), "{error}");
    }

    #[test]
    fn what_ends_a_process_is_refused() {
        refused(" \n", "the program is empty");
        refused("module {\0}", "NUL byte at 8");
        refused(&String::from_utf8_lossy(b"ML\xefR\x01StableHLO"), "bytecode");
        refused("module {\n func.func @main(%a: tensor<?xf32>)", "line 2: tensor<?xf32> has a dimension");
        refused("(%a: tensor<2x?x3xf32>)", "unknown length");
        refused("tensor<?", "unknown length");
        let groups = "replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>";
        refused(groups, "name device 3, but the program is compiled for 1 devices");
        refused("replica_groups = dense<0> : tensor<1x8xi64>", "are 1 of 8 devices");
        refused("replica_groups = dense<\"0x00\"> : tensor<2x4xi64>", "are 2 of 4 devices");
    }

    #[test]
    fn what_is_well_is_let_through() {
        let four = CompileOptions::new().replicas(2).partitions(2);
        check("replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>", &four).unwrap();
        check("replica_groups = dense<[[0, 1, 2], [3, -1, -1]]> : tensor<2x3xi64>", &four).unwrap();
        let one = CompileOptions::new();
        check("replica_groups = #mesh, x", &one).unwrap();
        check("loc(\"tensor<?xf32> \\\" tensor<?>\") // tensor<?xf32>\n tensor<2x3xf32>", &one).unwrap();
        check("tensor<?xf32, #stablehlo.bounds<4>>", &one).unwrap();
        check("\"an open string tensor<?", &one).unwrap();
        check("größe tensor<4xf32>", &one).unwrap();
    }
}
