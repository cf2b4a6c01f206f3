//! The text of a program for a plugin, and the checks of it. They are not a parser: for most mistakes,
//! the plugin returns an error with the position.

use crate::abi::PJRT_Program;
use crate::error::{self, Result};

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

/// Rejects what is not text. In debug builds, it also rejects constructs that are known to end or
/// block the process of some plugin. Tensors and layers write none of them, so a release build does
/// not look for them.
pub(crate) fn check(mlir: &str) -> Result<()> {
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
    if cfg!(debug_assertions)
        && let Some(construct) = harmful_construct(mlir)
    {
        return Err(error::invalid(construct));
    }
    Ok(())
}

/// The maximum depth of nested brackets. Plugins' parsers use the stack for each level; programs
/// have about a dozen.
const DEEPEST: usize = 256;

/// Describes a construct that may end or block the process of some plugin.
fn harmful_construct(mlir: &str) -> Option<String> {
    let code = without_comments_and_strings(mlir);
    let mut depth = 0_usize;
    // The arrow is not a bracket.
    for byte in code.replace("->", "").bytes() {
        match byte {
            b'[' | b'(' | b'{' | b'<' => depth += 1,
            b']' | b')' | b'}' | b'>' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEEPEST {
            return Some(format!(
                "brackets are nested deeper than {DEEPEST}, which could overflow the stack of the plugin's parser"
            ));
        }
    }
    let mut types = code.split("tensor<").skip(1).filter_map(|rest| rest.split('>').next());
    if let Some(ty) = types.find(|ty| ty.contains('?') && !ty.contains("bounds<")) {
        return Some(format!(
            "tensor<{ty}> has a dimension of unknown length; every dimension must be a number"
        ));
    }
    let mut feeds = ["stablehlo.infeed", "stablehlo.outfeed"].into_iter();
    let feed = feeds.find(|feed| code.contains(feed) || mlir.contains(&format!("\"{feed}\"(")))?;
    Some(format!(
        "{feed} would wait forever, because Fulmen does not feed running programs; use arguments and results"
    ))
}

/// The text outside of comments and quotation marks.
fn without_comments_and_strings(mlir: &str) -> String {
    let mut code = String::with_capacity(mlir.len());
    let mut rest = mlir;
    while let Some(position) = rest.find(['"', '/']) {
        let (before, special) = rest.split_at(position);
        code.push_str(before);
        rest = if special.starts_with("//") {
            special.find('\n').map_or("", |end| &special[end..])
        } else if let Some(text) = special.strip_prefix('/') {
            text
        } else {
            after_string(&special[1..])
        };
    }
    code + rest
}

/// The text after the quotation mark that closes the string at the beginning.
fn after_string(text: &str) -> &str {
    let mut escaped = false;
    for (position, byte) in text.bytes().enumerate() {
        match byte {
            b'"' if !escaped => return &text[position + 1..],
            _ => escaped = byte == b'\\' && !escaped,
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(mlir: &str, expected: &str) {
        let error = check(mlir).unwrap_err();
        assert!(error.is_usage());
        assert!(error.to_string().contains(expected), "{error}");
    }

    #[test]
    fn what_is_not_text_is_refused() {
        refused(" \n", "the program is empty");
        refused("module {\0}", "NUL byte at 8");
        refused(&String::from_utf8_lossy(b"ML\xefR\x01StableHLO"), "bytecode");
    }

    #[test]
    fn each_dynamic_dimension_needs_a_bound() {
        refused("func.func @main(%a: tensor<?xf32>)", "tensor<?xf32> has a dimension");
        refused("(%a: tensor<2x?x3xf32>)", "unknown length");
        refused("tensor<?", "unknown length");
        check("tensor<?x4x?xf32, #stablehlo.bounds<8, ?, 2>>").unwrap();
        check("loc(\"tensor<?xf32> \\\" tensor<?>\") // tensor<?xf32>\n tensor<2x3xf32>").unwrap();
        check("\"an open string tensor<?").unwrap();
        check("größe / tensor<4xf32>").unwrap();
    }

    #[test]
    fn infeed_and_outfeed_are_refused() {
        refused("%0 = stablehlo.infeed %t", "stablehlo.infeed would wait forever");
        refused("{\n \"stablehlo.outfeed\"(%a, %t)", "stablehlo.outfeed would wait");
        check("// stablehlo.infeed\n stablehlo.in loc(\"stablehlo.infeed\")").unwrap();
    }

    #[test]
    fn brackets_too_deep_are_refused() {
        for (open, close) in [("[", "]"), ("(", ")"), ("{", "}"), ("tuple<", ">"), ("[(", ")]")] {
            let nested = |pairs: usize| format!("\n{}{}", open.repeat(pairs), close.repeat(pairs));
            let most = if open.len() == 2 { DEEPEST / 2 } else { DEEPEST };
            check(&nested(most).repeat(3)).unwrap();
            refused(&nested(most + 1), "brackets are nested deeper than 256");
        }
        check(&"() -> () \"<<[[((\" // <<[[\n".repeat(500)).unwrap();
    }
}
