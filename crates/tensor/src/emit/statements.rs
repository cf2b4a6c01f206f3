//! The statements of a program: blocks of lines, and the table of the lines' locations.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::panic::Location;

use crate::hash::QuickMap;

/// One block of statements.
#[derive(Default)]
pub(crate) struct Body {
    pub(crate) lines: Vec<Line>,
    /// The names of the scalar constants in this block, by their statements.
    pub(super) constants: HashMap<String, String>,
}

/// A statement with its regions, or another line of a program.
pub(crate) struct Line {
    pub(super) text: String,
    /// The lines of each region of the statement, and the text that follows the region.
    pub(super) blocks: Vec<(Vec<Line>, String)>,
    /// The operation's name and the user's line.
    pub(super) location: Option<(&'static str, &'static Location<'static>)>,
}

impl Line {
    /// A line without a location.
    pub(crate) fn bare(text: String) -> Line {
        Line { text, blocks: Vec::new(), location: None }
    }

    /// A function; `head` is the text before its body.
    pub(crate) fn function(head: String, body: Body) -> Line {
        Line { text: head, blocks: vec![(body.lines, "}".to_owned())], location: None }
    }

    /// Writes the line to `out`, with a reference to its location if there is a table of locations.
    pub(crate) fn write(
        &self,
        out: &mut String,
        indent: usize,
        mut locations: Option<&mut Locations>,
    ) {
        let start = |out: &mut String| out.extend(std::iter::repeat_n(' ', indent));
        start(out);
        out.push_str(&self.text);
        for (lines, after) in &self.blocks {
            out.push('\n');
            for line in lines {
                line.write(out, indent + 2, locations.as_deref_mut());
            }
            start(out);
            out.push_str(after);
        }
        if let (Some((name, location)), Some(locations)) = (self.location, locations) {
            let _ = write!(out, " loc(#loc{})", locations.alias(name, location));
        }
        out.push('\n');
    }
}

/// The locations of a module. Each is written once, and statements refer to it by an alias.
#[derive(Default)]
pub(crate) struct Locations {
    lines: QuickMap<&'static Location<'static>, usize>,
    named: QuickMap<(&'static str, usize), usize>,
    /// The definitions of the aliases, for the end of the module.
    pub(crate) definitions: String,
}

impl Locations {
    /// The alias number of an operation's name and user line. The name is needed because Shardy's
    /// passes drop the lines of unnamed locations.
    fn alias(&mut self, name: &'static str, location: &'static Location<'static>) -> usize {
        let Locations { lines, named, definitions } = self;
        let mut next = lines.len() + named.len();
        let line = *lines.entry(location).or_insert_with(|| {
            let file = location.file().replace('\\', "\\\\").replace('"', "\\\"");
            let _ = writeln!(
                definitions,
                "#loc{next} = loc(\"{file}\":{}:{})",
                location.line(),
                location.column()
            );
            next += 1;
            next - 1
        });
        *named.entry((name, line)).or_insert_with(|| {
            let _ = writeln!(definitions, "#loc{next} = loc(\"{name}\"(#loc{line}))");
            next
        })
    }
}
