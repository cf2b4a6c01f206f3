//! Checks a program's text for constructs that are known to end a plugin's process. It is not a
//! parser and checks nothing else: for other mistakes, the plugin returns an error with the
//! position.

use fulmen_durable::messages::quantity;

use crate::abi::PJRT_Program;
use crate::error::{self, Result};
use crate::options::CompileOptions;

/// A program's text with a NUL byte after it. Despite the length that plugins get, MLIR's parser looks
/// for this byte to find the end. Without it, it reads on in whatever follows, and may crash.
pub(crate) struct MlirText(Vec<u8>);

impl MlirText {
    pub(crate) fn new(mlir: &str) -> MlirText {
        let mut text = Vec::with_capacity(mlir.len() + 1);
        text.extend_from_slice(mlir.as_bytes());
        text.push(0);
        MlirText(text)
    }

    /// The program as a plugin's argument, which points into the text.
    pub(crate) fn as_program(&self) -> PJRT_Program {
        const FORMAT: &str = "mlir";
        let mut program = PJRT_Program::new();
        // The plugin only reads it; the header uses the same struct for programs that a plugin
        // returns.
        program.code = self.0.as_ptr().cast_mut().cast();
        program.code_size = self.0.len() - 1;
        program.format = FORMAT.as_ptr().cast();
        program.format_size = FORMAT.len();
        program
    }
}

/// The maximum depth of nested brackets. Plugins' parsers use the stack for each level; programs
/// have about a dozen.
const DEEPEST: usize = 256;

/// Rejects programs that would end or block the process of some plugin: bytecode, NUL bytes,
/// unbounded dynamic dimensions, deeply nested brackets, infeed and outfeed, and replica groups or
/// source-target pairs with more devices than the program is compiled for.
pub(crate) fn check(mlir: &str, options: &CompileOptions) -> Result<()> {
    if mlir.trim().is_empty() {
        return Err(error::invalid("the program is empty"));
    }
    if let Some(position) = mlir.find('\0') {
        return Err(error::invalid(format!(
            "the program has a NUL byte at {position}; only MLIR text is accepted"
        )));
    }
    // A `&str` cannot hold the magic number itself, but it may hold the result of a lossy
    // conversion.
    if mlir.starts_with("ML\u{fffd}R") || mlir.starts_with("MLïR") {
        return Err(error::invalid(
            "the program is MLIR bytecode, and damaged bytecode would end the process; pass the program as text",
        ));
    }
    let devices = options.device_count().unwrap_or(usize::MAX) as u64;
    let mut scanner = Scanner::new(mlir);
    while let Some(word) = scanner.next_word() {
        let refuse =
            |what: String| Err(error::invalid(format!("line {}: {what}", line(mlir, word.start))));
        let outcome = match word.text {
            Text::TooDeep => Err(format!(
                "brackets are nested deeper than {DEEPEST}, which could overflow the stack of the plugin's parser"
            )),
            Text::Bare("tensor") => check_dims(word.after),
            Text::Bare(name @ ("replica_groups" | "source_target_pairs"))
            | Text::Quoted(name @ ("replica_groups" | "source_target_pairs")) => {
                check_devices(name, word.after, devices)
            }
            Text::Bare(name) if is_feed(name) => Err(feed(name)),
            // In quotes, it is an operation only where an operation may appear; a location can have
            // any name.
            Text::Quoted(name)
                if is_feed(name)
                    && word.after.starts_with('(')
                    && !b"([,".contains(&word.before) =>
            {
                Err(feed(name))
            }
            Text::Bare(_) | Text::Quoted(_) => Ok(()),
        };
        if let Err(what) = outcome {
            return refuse(what);
        }
    }
    Ok(())
}

fn is_feed(name: &str) -> bool {
    name.split_once('.').is_some_and(|(dialect, name)| {
        matches!(dialect, "stablehlo" | "mhlo" | "vhlo")
            && (name.starts_with("infeed") || name.starts_with("outfeed"))
    })
}

fn feed(name: &str) -> String {
    format!(
        "{name} would wait forever, because Fulmen does not feed running programs; use arguments and results"
    )
}

/// `after` is the text after `tensor`: `<?x4xf32, #stablehlo.bounds<8, ?>>`. A `?` in the bounds is
/// for a dimension that is a number.
fn check_dims(after: &str) -> Result<(), String> {
    let Some(inside) = after.strip_prefix('<') else { return Ok(()) };
    let inside = &inside[..closing(inside)];
    let (shape, encoding) = inside.split_once(',').unwrap_or((inside, ""));
    let unknown = shape.matches('?').count();
    // A comment could hide the end of the shape.
    let commented = inside.contains("//") && inside.contains('?');
    if unknown == 0 && !commented {
        return Ok(());
    }
    let dims = shape
        .split('x')
        .map(str::trim)
        .take_while(|dim| *dim == "?" || dim.parse::<u64>().is_ok())
        .collect::<Vec<_>>();
    let bounds = encoding
        .split_once("bounds<")
        .and_then(|(_, bounds)| bounds.split_once('>'))
        .map(|(bounds, _)| bounds.split(',').map(str::trim).collect::<Vec<_>>())
        .unwrap_or_default();
    let bounded = dims
        .iter()
        .enumerate()
        .filter(|&(axis, dim)| {
            *dim == "?" && bounds.get(axis).is_some_and(|bound| bound.parse::<u64>().is_ok())
        })
        .count();
    if bounded == unknown && !commented {
        return Ok(());
    }
    let excerpt = inside.chars().take(80).collect::<String>();
    Err(format!(
        "tensor<{excerpt}> has a dimension of unknown length; every dimension must be a number"
    ))
}

/// The position where the angle bracket that was open before `text` is closed, or the end of the
/// text.
fn closing(text: &str) -> usize {
    let mut depth = 1;
    let mut before = 0;
    for (position, byte) in text.bytes().enumerate() {
        match byte {
            b'<' => depth += 1,
            b'>' if before != b'-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return position;
        }
        before = byte;
    }
    text.len()
}

/// `after` is the text after `name`: `= dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>`. Other forms are
/// left to the plugin.
fn check_devices(name: &str, after: &str, devices: u64) -> Result<(), String> {
    let literal = after
        .strip_prefix('=')
        .and_then(|text| blanks(text).strip_prefix("dense"))
        .and_then(|text| blanks(text).strip_prefix('<'));
    let Some((values, after)) = literal.and_then(|text| text.split_once('>')) else {
        return Ok(());
    };
    let refuse = |what: String| {
        Err(format!(
            "{name} {what}, but the program is compiled for {}; set CompileOptions::replicas or partitions to match",
            quantity(devices, "device")
        ))
    };
    let groups = name == "replica_groups";
    // An id may be raw bytes in quotes. Then only the type can be checked.
    if !values.contains('"') {
        let ids =
            values.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).filter_map(number);
        // -1 pads groups of unequal size.
        let wrong =
            ids.filter(|&id| id >= i128::from(devices) || (id < 0 && !(groups && id == -1)));
        if let Some(id) = wrong.max() {
            return refuse(format!("name device {id}"));
        }
    }
    let shape = blanks(after)
        .strip_prefix(':')
        .and_then(|text| blanks(text).strip_prefix("tensor"))
        .and_then(|text| blanks(text).strip_prefix('<'));
    let counts = shape.and_then(|shape| {
        let (count, shape) = shape.split_once('x')?;
        let (size, _) = shape.split_once('x')?;
        Some((count.trim().parse::<u64>().ok()?, size.trim().parse::<u64>().ok()?))
    });
    match counts {
        Some((count, size))
            if groups
                && (size > devices
                    || (!values.contains("-1") && count.saturating_mul(size) > devices)) =>
        {
            refuse(format!("are {count} of {}", quantity(size, "device")))
        }
        _ => Ok(()),
    }
}

/// An integer in MLIR syntax.
fn number(text: &str) -> Option<i128> {
    match text.strip_prefix("0x") {
        Some(digits) => i128::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The text without leading blanks and comments.
fn blanks(mut text: &str) -> &str {
    loop {
        text = text.trim_start();
        match text.strip_prefix("//") {
            Some(comment) => text = comment.find('\n').map_or("", |end| &comment[end..]),
            None => return text,
        }
    }
}

fn line(text: &str, position: usize) -> usize {
    text.as_bytes()[..position].iter().filter(|&&byte| byte == b'\n').count() + 1
}

enum Text<'a> {
    /// A name that is not a value, symbol, type, attribute or block.
    Bare(&'a str),
    /// The text between quotation marks.
    Quoted(&'a str),
    /// Not a word: brackets are nested too deep.
    TooDeep,
}

struct Word<'a> {
    text: Text<'a>,
    start: usize,
    /// The last character before the word that is not a blank.
    before: u8,
    /// The text after the word, without blanks and comments.
    after: &'a str,
}

/// Finds words outside of comments, and counts open brackets.
struct Scanner<'a> {
    text: &'a str,
    position: usize,
    before: u8,
    depth: usize,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str) -> Scanner<'a> {
        Self { text, position: 0, before: 0, depth: 0 }
    }

    fn next_word(&mut self) -> Option<Word<'a>> {
        let bytes = self.text.as_bytes();
        let length = |begin: usize, is_part: fn(u8) -> bool| {
            let rest = &bytes[begin..];
            rest.iter().position(|&byte| !is_part(byte)).unwrap_or(rest.len())
        };
        while let Some(&byte) = bytes.get(self.position) {
            let start = self.position;
            let before = self.before;
            let mut text = None;
            self.position += 1;
            match byte {
                b'"' => {
                    while let Some(&byte) = bytes.get(self.position) {
                        self.position += if byte == b'\\' { 2 } else { 1 };
                        if byte == b'"' {
                            break;
                        }
                    }
                    text =
                        self.text.get(start + 1..self.position.saturating_sub(1)).map(Text::Quoted);
                }
                b'/' if bytes.get(self.position) == Some(&b'/') => {
                    self.position += length(self.position, |byte| byte != b'\n');
                    continue;
                }
                b'%' | b'@' | b'#' | b'!' | b'^' => self.position += length(self.position, in_name),
                b'[' | b'(' | b'{' | b'<' => {
                    self.depth += 1;
                    if self.depth > DEEPEST {
                        text = Some(Text::TooDeep);
                    }
                }
                // The arrow is not a bracket.
                b'>' if bytes[..start].ends_with(b"-") => {}
                b']' | b')' | b'}' | b'>' => self.depth = self.depth.saturating_sub(1),
                b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                    self.position += length(self.position, in_name);
                    text = Some(Text::Bare(&self.text[start..self.position]));
                }
                _ => {}
            }
            if !byte.is_ascii_whitespace() {
                self.before = byte;
            }
            if let Some(text) = text {
                let after = blanks(self.text.get(self.position..).unwrap_or(""));
                return Some(Word { text, start, before, after });
            }
        }
        None
    }
}

fn in_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_$.".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(mlir: &str, expected: &str) {
        let error = check(mlir, &CompileOptions::new()).unwrap_err();
        assert!(error.is_usage());
        assert!(error.to_string().contains(expected), "{error}");
    }

    #[test]
    fn programs_that_end_a_process_are_refused() {
        refused(" \n", "the program is empty");
        refused("module {\0}", "NUL byte at 8");
        refused(&String::from_utf8_lossy(b"ML\xefR\x01StableHLO"), "bytecode");
        refused(
            "module {\n func.func @main(%a: tensor<?xf32>)",
            "line 2: tensor<?xf32> has a dimension",
        );
        refused("(%a: tensor<2x?x3xf32>)", "unknown length");
        refused("tensor<?", "unknown length");
        let groups = "replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>";
        refused(groups, "name device 3, but the program is compiled for 1 device;");
        refused("replica_groups = dense<0> : tensor<1x8xi64>", "are 1 of 8 devices");
        refused("replica_groups = dense<\"0x00\"> : tensor<2x4xi64>", "are 2 of 4 devices");
    }

    #[test]
    fn pairs_of_other_devices_are_refused() {
        let pairs = "\n<{source_target_pairs = dense<[[0, 7], [7, 0]]> : tensor<2x2xi64>}>";
        refused(
            pairs,
            "line 2: source_target_pairs name device 7, but the program is compiled for 1 device;",
        );
        refused("{\"source_target_pairs\" // x\n = dense <[[0, 0x1]]>}", "name device 1");
        refused("source_target_pairs = dense<[[-1, 0]]> : tensor<1x2xi64>", "name device -1");
        check(pairs, &CompileOptions::new().replicas(8)).unwrap();
        // The plugin checks that there are no more pairs than twice the devices.
        check("source_target_pairs = dense<[[0, 0]]> : tensor<1x2xi64>", &CompileOptions::new())
            .unwrap();
    }

    #[test]
    fn each_dynamic_dimension_needs_a_bound() {
        for dims in [
            "?x?xf32, #stablehlo.bounds<4, ?>",
            "?xf32, #stablehlo.bounds<?>",
            "?x4xf32, #stablehlo.bounds<?, 4>",
        ] {
            refused(&format!("tensor<{dims}>"), "unknown length");
        }
        for text in [
            "tensor <?xf32>",
            "tensor\n// a comment\n< ? x f32>",
            "tensor<// ,\n?xf32>",
            "tensor<?xf32, #b>",
        ] {
            refused(text, "unknown length");
        }
        let one = CompileOptions::new();
        check("tensor<?x4x?xf32, #stablehlo.bounds<8, ?, 2>>", &one).unwrap();
        check("%tensor < ? tensor_x<?> \"tensor\"<?>", &one).unwrap();
    }

    #[test]
    fn infeed_and_outfeed_are_refused() {
        refused("%0 = stablehlo.infeed %t", "stablehlo.infeed would wait forever");
        refused("{\n \"stablehlo.outfeed\"(%a, %t)", "line 2: stablehlo.outfeed would wait");
        refused("%0 = \"mhlo.infeed\" // x\n (%t)", "mhlo.infeed would wait");
        let one = CompileOptions::new();
        check("@stablehlo.infeed // stablehlo.infeed\n my.infeed stablehlo.in loc(\"stablehlo.infeed\"(#loc1))", &one)
            .unwrap();
    }

    #[test]
    fn brackets_too_deep_are_refused() {
        for (open, close) in [("[", "]"), ("(", ")"), ("{", "}"), ("tuple<", ">"), ("[(", ")]")] {
            let nested = |pairs: usize| format!("\n{}{}", open.repeat(pairs), close.repeat(pairs));
            let most = if open.len() == 2 { DEEPEST / 2 } else { DEEPEST };
            check(&nested(most).repeat(3), &CompileOptions::new()).unwrap();
            refused(&nested(most + 1), "line 2: brackets are nested deeper than 256");
            refused(&nested(100_000), "nested deeper");
        }
        check(&"() -> () \"<<[[((\" // <<[[\n".repeat(500), &CompileOptions::new()).unwrap();
    }

    #[test]
    fn valid_programs_are_accepted() {
        let four = CompileOptions::new().replicas(2).partitions(2);
        check("replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>", &four).unwrap();
        check("replica_groups = dense<[[0, 1, 2], [3, -1, -1]]> : tensor<2x3xi64>", &four).unwrap();
        let one = CompileOptions::new();
        check("replica_groups = #mesh, x", &one).unwrap();
        check("loc(\"tensor<?xf32> \\\" tensor<?>\") // tensor<?xf32>\n tensor<2x3xf32>", &one)
            .unwrap();
        check("tensor<?xf32, #stablehlo.bounds<4>>", &one).unwrap();
        check("\"an open string tensor<?", &one).unwrap();
        check("größe tensor<4xf32>", &one).unwrap();
    }
}
