//! [`ProgramKey`]: everything that determines the compiled program, as named facts.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;

use fulmen_durable::messages::quantity;
use prost::Message;

use super::entry::Header;
use crate::envelope;
use crate::error::Result;
use crate::hash;
use crate::options::CompileOptions;
use crate::topology::Topology;

/// The maximum number of differences to report.
const MAX_DIFFERENCES: usize = 3;

/// The maximum number of characters of a value in a difference.
const MAX_CHARACTERS: usize = 60;

/// The fact that covers the whole text. It differs whenever another fact about the program differs.
const TEXT: &str = "text";

/// Something that determines the compiled program.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Fact {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
    /// Whether it describes the machine instead of the program.
    #[prost(bool, tag = "3")]
    machine: bool,
}

/// Identifies a compiled program: the program's text, the compile options with their flags, the
/// plugin's file, the devices, libtpu's flags in `LIBTPU_INIT_ARGS` and, for a CPU, its features
/// and its number of threads.
#[derive(Clone, Debug)]
pub struct ProgramKey {
    program: String,
    variant: String,
    facts: Vec<Fact>,
    digest: String,
}

impl ProgramKey {
    /// The key of a program for devices, which need not be present. The first key of a process may
    /// wait until the plugin's file is hashed; see
    /// [`CompileCache::prepare`](super::CompileCache::prepare).
    ///
    /// `inputs` are the names and types of the program's inputs, for messages. If `text` has parts
    /// that do not affect the compiled program, such as locations, strip them first.
    ///
    /// # Errors
    /// The plugin's file cannot be read, or was replaced after it was loaded.
    pub fn new(
        topology: &Topology,
        program: &str,
        text: &str,
        options: &CompileOptions,
        inputs: impl IntoIterator<Item = (String, String)>,
    ) -> Result<ProgramKey> {
        let fact =
            |name: &str, value: String| Fact { name: name.to_owned(), value, machine: false };
        let mut facts: Vec<Fact> =
            inputs.into_iter().map(|(name, ty)| fact(&format!("`{name}`"), ty)).collect();
        facts.extend(
            operations(text).into_iter().map(|(name, count)| fact(name, quantity(count, "time"))),
        );
        facts.push(fact("the compile options", format!("{options:?}")));
        facts.extend(of_machine(topology)?);
        facts.push(fact(TEXT, hash::hex(&hash::of_bytes(text.as_bytes()))));
        let digest = hash::hex(&hash::of_bytes(
            &Facts { program: program.to_owned(), facts: facts.clone() }.encode_to_vec(),
        ));
        Ok(Self { program: program.to_owned(), variant: String::new(), facts, digest })
    }

    /// Distinguishes this program from others with the same name that a process needs at the same
    /// time, such as the one for another length of batches. Programs of different variants are
    /// never compared. The variant does not affect the digest.
    #[must_use]
    pub fn with_variant(mut self, variant: &str) -> ProgramKey {
        variant.clone_into(&mut self.variant);
        self
    }

    /// The program's name.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// A SHA-256 over everything that the key depends on, in hexadecimal.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    pub(super) fn variant(&self) -> &str {
        &self.variant
    }

    pub(super) fn facts(&self) -> &[Fact] {
        &self.facts
    }

    /// The differences from the most similar stored program with the same name and variant. `None`
    /// if no stored program is similar.
    pub(super) fn nearest<H: Borrow<Header>>(
        &self,
        stored: impl Iterator<Item = H>,
    ) -> Option<Vec<String>> {
        let named = stored.filter(|header| {
            let Header { program, variant, .. } = header.borrow();
            *program == self.program && *variant == self.variant
        });
        let near = named.filter(|header| self.is_near(&header.borrow().facts));
        near.map(|header| differences(&self.facts, &header.borrow().facts))
            .min_by_key(Vec::len)
            .map(shorten)
    }

    /// Whether another program is similar enough for a comparison. A program of another project is
    /// not, even if it has the same name.
    fn is_near(&self, stored: &[Fact]) -> bool {
        let own = part(&self.facts, false);
        let other = part(stored, false);
        self.facts != stored && differences(&own, &other).len() <= own.len() * 2 / 3
    }
}

/// The facts about the devices, the plugin and this machine that affect the compiled program.
pub(super) fn of_machine(topology: &Topology) -> Result<Vec<Fact>> {
    let mut facts = Vec::new();
    let mut fact = |name: &str, value: String| {
        facts.push(Fact { name: name.to_owned(), value, machine: true })
    };
    fact("the platform", topology.platform_name().to_owned());
    fact("the devices", devices(topology));
    fact("the plugin", topology.plugin().identity()?.to_owned());
    fact("the runtime", topology.platform_version().to_owned());
    if topology.platform_name() == "cpu" {
        let threads = std::thread::available_parallelism().map_or(0, usize::from);
        fact("the CPU's features", envelope::cpu_features());
        fact("the CPU", envelope::cpu_model());
        fact("the number of cores", threads.to_string());
    }
    if let Some(flags) = env::var_os("LIBTPU_INIT_ARGS") {
        fact("LIBTPU_INIT_ARGS", flags.to_string_lossy().into_owned());
    }
    Ok(facts)
}

/// The facts about the machine, or those about the program.
pub(super) fn part(facts: &[Fact], machine: bool) -> Vec<Fact> {
    facts.iter().filter(|fact| fact.machine == machine).cloned().collect()
}

/// The differences from a stored program, one per line.
pub(super) fn differences(current: &[Fact], stored: &[Fact]) -> Vec<String> {
    let find = |facts: &[Fact], name: &str| {
        facts.iter().find(|fact| fact.name == name).map(|fact| fact.value.clone())
    };
    let removed = stored.iter().filter(|fact| find(current, &fact.name).is_none());
    let all = current.iter().chain(removed).map(|fact| fact.name.as_str());
    let mut lines = Vec::new();
    for name in all.filter(|&name| name != TEXT) {
        let then = find(stored, name);
        let now = find(current, name);
        if then != now {
            let skipped = match (&then, &now) {
                (Some(then), Some(now)) => common_start(then, now),
                _ => 0,
            };
            let then = shortened(then, skipped);
            let now = shortened(now, skipped);
            lines.push(format!("{name}: {then} then, {now} now"));
        }
    }
    if lines.is_empty() && find(stored, TEXT) != find(current, TEXT) {
        lines.push(
            "the operations are the same, but their constants, axes, shapes or order differ"
                .to_owned(),
        );
    }
    lines
}

/// The input of the digest.
#[derive(Clone, PartialEq, Message)]
struct Facts {
    #[prost(string, tag = "1")]
    program: String,
    #[prost(message, repeated, tag = "2")]
    facts: Vec<Fact>,
}

/// The first differences, and the number of the others.
pub(super) fn shorten(mut lines: Vec<String>) -> Vec<String> {
    let more = lines.len().saturating_sub(MAX_DIFFERENCES);
    if more > 0 {
        lines.truncate(MAX_DIFFERENCES);
        lines.push(format!("and {more} more"));
    }
    lines
}

/// How many characters of two different values to skip, so that an excerpt shows their first
/// difference, with the word before it.
fn common_start(then: &str, now: &str) -> usize {
    if then.chars().count().max(now.chars().count()) <= MAX_CHARACTERS {
        return 0;
    }
    let common: Vec<char> =
        then.chars().zip(now.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
    let start = common.len().saturating_sub(MAX_CHARACTERS / 2);
    let word = common[start..].iter().position(|c| !c.is_alphanumeric() && *c != '_');
    if start == 0 { 0 } else { start + word.map_or(0, |separator| separator + 1) }
}

/// At most [`MAX_CHARACTERS`] of a value after its first `skipped` characters.
fn shortened(value: Option<String>, skipped: usize) -> String {
    let Some(value) = value else { return "none".to_owned() };
    let before = if skipped == 0 { "" } else { "…" };
    let after = if value.chars().count() > skipped + MAX_CHARACTERS { "…" } else { "" };
    let excerpt: String = value.chars().skip(skipped).take(MAX_CHARACTERS).collect();
    format!("{before}{excerpt}{after}")
}

/// The prefix of an entry's file name.
pub(super) fn file_start(program: &str) -> String {
    let clean = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    format!("{}-", program.chars().take(40).map(clean).collect::<String>())
}

/// Counts each StableHLO operation in a program's text.
fn operations(text: &str) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for (start, _) in text.match_indices("stablehlo.") {
        let rest = &text[start + "stablehlo.".len()..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        *counts.entry(&text[start..start + "stablehlo.".len() + end]).or_default() += 1;
    }
    counts
}

fn devices(topology: &Topology) -> String {
    let mut text = String::new();
    for device in topology.devices() {
        let coordinates =
            device.coordinates().map_or_else(String::new, |xyz| format!(" at {xyz:?}"));
        let core = device.core_on_chip().map_or_else(String::new, |core| format!(" core {core}"));
        let slice = match device.slice_index() {
            None | Some(0) => String::new(),
            Some(slice) => format!(" slice {slice}"),
        };
        let comma = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{comma}{} {}{coordinates}{core}{slice}", device.kind(), device.id());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(facts: &[(&str, &str)]) -> ProgramKey {
        let facts = facts
            .iter()
            .map(|(name, value)| Fact {
                name: (*name).into(),
                value: (*value).into(),
                machine: false,
            })
            .collect();
        let program = "step".into();
        let variant = String::new();
        let digest = String::new();
        ProgramKey { program, variant, facts, digest }
    }

    #[test]
    fn differences_name_what_changed_and_come_before_the_text() {
        let old = key(&[
            ("`batch.image`", "u8[32]"),
            ("stablehlo.add", "2 times"),
            ("the CPU", "a"),
            (TEXT, "1"),
        ]);
        let new = key(&[
            ("`batch.image`", "u8[64]"),
            ("stablehlo.sine", "1 time"),
            ("the CPU", "a"),
            (TEXT, "2"),
        ]);
        assert_eq!(
            differences(&new.facts, &old.facts),
            [
                "`batch.image`: u8[32] then, u8[64] now",
                "stablehlo.sine: none then, 1 time now",
                "stablehlo.add: 2 times then, none now"
            ]
        );
        assert_eq!(differences(&new.facts, &new.facts), Vec::<String>::new());
        let other = differences(
            &key(&[("a", "1"), (TEXT, "2")]).facts,
            &key(&[("a", "1"), (TEXT, "1")]).facts,
        );
        assert_eq!(
            other,
            ["the operations are the same, but their constants, axes, shapes or order differ"]
        );
        let many: Vec<(String, String)> =
            (0..9).map(|i| (i.to_string(), "x".repeat(100))).collect();
        let many: Vec<(&str, &str)> =
            many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let many = key(&many);
        let all = differences(&many.facts, &[]);
        let machine = Fact { name: "the CPU".into(), value: "b".into(), machine: true };
        let elsewhere = [&many.facts[..], std::slice::from_ref(&machine)].concat();
        let of_others = [machine];
        assert!(
            many.is_near(&many.facts[..3])
                && !many.is_near(&many.facts[..2])
                && !many.is_near(&many.facts)
        );
        assert!(many.is_near(&elsewhere) && !many.is_near(&of_others));
        let lines = shorten(all);
        assert_eq!((lines.len(), lines[3].as_str()), (4, "and 6 more"));
        assert_eq!(lines[0].chars().count(), "0: none then, ".len() + 61 + " now".len());
    }

    #[test]
    fn of_long_values_the_first_difference_is_shown() {
        let options = |devices: u32, last: &str| {
            format!(
                "CompileOptions {{ {}, num_replicas: {devices}, {last} }}",
                "unset: None, ".repeat(9)
            )
        };
        let check = |now: &str, then: &str, expected: &str| {
            let now = key(&[("the options", now)]);
            let then = key(&[("the options", then)]);
            assert_eq!(differences(&now.facts, &then.facts), [expected]);
        };
        check(
            &options(8, "a"),
            &options(4, "a"),
            "the options: …unset: None, , num_replicas: 4, a } then, …unset: None, , num_replicas: 8, a } now",
        );
        let long = options(4, &"é".repeat(99));
        assert!(!long.is_char_boundary(long.len() - 3));
        let [line] = differences(
            &key(&[("the options", &options(8, "a"))]).facts,
            &key(&[("the options", &long)]).facts,
        )
        .try_into()
        .unwrap();
        assert!(line.contains("num_replicas: 4, ééé") && line.contains("é… then, …"), "{line}");
    }

    #[test]
    fn operations_are_counted() {
        let text = "%1 = stablehlo.add %0, %0 : tensor<f32>\n stablehlo.add(stablehlo.dot_general";
        assert_eq!(
            operations(text).into_iter().collect::<Vec<_>>(),
            [("stablehlo.add", 2), ("stablehlo.dot_general", 1)]
        );
    }
}
