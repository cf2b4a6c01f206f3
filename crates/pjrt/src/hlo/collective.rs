//! What devices send each other: the collectives of a compiled program, with their bytes.

use std::fmt;

use super::loops::Times;
use super::module::{Instruction, Module, Source};

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CollectiveKind {
    /// Each device ends with the sum (or the like) of all.
    AllReduce,
    /// Each device ends with the parts of all.
    AllGather,
    /// Each device ends with its part of the sum of all.
    ReduceScatter,
    /// Each device ends with a part of each.
    AllToAll,
    /// Some devices send to others, one to one.
    CollectivePermute,
    /// One device sends to all.
    CollectiveBroadcast,
}

impl CollectiveKind {
    /// From HLO's name of an instruction. The second half of one in two halves (`all-reduce-done`) is none.
    pub(super) fn from_opcode(opcode: &str) -> Option<Self> {
        Some(match opcode.strip_suffix("-start").unwrap_or(opcode) {
            "all-reduce" => Self::AllReduce,
            "all-gather" => Self::AllGather,
            "reduce-scatter" => Self::ReduceScatter,
            "all-to-all" | "ragged-all-to-all" => Self::AllToAll,
            "collective-permute" => Self::CollectivePermute,
            "collective-broadcast" => Self::CollectiveBroadcast,
            _ => return None,
        })
    }

    /// HLO's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::AllGather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllToAll => "all-to-all",
            Self::CollectivePermute => "collective-permute",
            Self::CollectiveBroadcast => "collective-broadcast",
        }
    }
}

impl fmt::Display for CollectiveKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One collective of a compiled program.
#[derive(Clone, Debug, PartialEq)]
pub struct Collective {
    /// Which.
    pub kind: CollectiveKind,
    /// The instruction's name.
    pub name: String,
    /// How much it is about, once, on one device: what is reduced, gathered or sent, at its full size.
    pub bytes: u64,
    /// How many devices take part in one group.
    pub group_size: usize,
    /// How often a run of the program executes it.
    pub times: u64,
    /// The line of the user's code, where it is known.
    pub source: Option<Source>,
}

impl Collective {
    /// What a run of the program puts through it on one device.
    pub fn total_bytes(&self) -> u64 {
        self.bytes.saturating_mul(self.times)
    }

    /// What one device sends in a run of the program, if devices pass the data around in a ring: twice
    /// `(n - 1) / n` of it for an all-reduce, once that for the others, all of it for a permute.
    pub fn sent_bytes(&self) -> f64 {
        let n = self.group_size.max(1) as f64;
        let share = match self.kind {
            CollectiveKind::AllReduce => 2.0 * (n - 1.0) / n,
            CollectiveKind::CollectivePermute | CollectiveKind::CollectiveBroadcast => 1.0,
            _ => (n - 1.0) / n,
        };
        share * self.total_bytes() as f64
    }
}

impl Module {
    /// The collectives, in the order of the program.
    pub fn collectives(&self) -> Vec<Collective> {
        let times = Times::of(self);
        let mut found = vec![];
        for (i, computation) in self.computations.iter().enumerate() {
            let runs = times.runs(i);
            if runs == 0 {
                continue;
            }
            for instruction in &computation.instructions {
                let Some(mut kind) = CollectiveKind::from_opcode(&instruction.opcode) else { continue };
                // libtpu writes a reduce-scatter as an all-reduce in a fusion that keeps a part of it.
                if kind == CollectiveKind::AllReduce && computation.name.contains("all-reduce-scatter") {
                    kind = CollectiveKind::ReduceScatter;
                }
                let group_size = match instruction.group_size {
                    None | Some(0) => self.num_devices(),
                    Some(size) => size,
                };
                if kind == CollectiveKind::CollectivePermute && instruction.senders == 0 {
                    continue;
                }
                let bytes = payload(kind, instruction, computation.operands(instruction), group_size);
                let (name, source) = (instruction.name.clone(), instruction.source.clone());
                found.push(Collective { kind, name, bytes, group_size, times: runs, source });
            }
        }
        found
    }
}

fn payload<'a>(
    kind: CollectiveKind,
    instruction: &Instruction,
    operands: impl Iterator<Item = &'a Instruction>,
    group_size: usize,
) -> u64 {
    let operands: Vec<&Instruction> = operands.collect();
    let non_null = match kind {
        // Its first half also has numbers among its operands.
        CollectiveKind::CollectivePermute => operands.first().map_or(0, |operand| operand.shape.bytes()),
        _ => operands.iter().map(|operand| operand.shape.bytes()).sum(),
    };
    match kind {
        CollectiveKind::AllGather if operands.is_empty() => instruction.shape.bytes(),
        CollectiveKind::AllGather => non_null.saturating_mul(group_size as u64),
        _ => non_null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_ring() {
        let collective =
            |kind, group_size| Collective { kind, name: String::new(), bytes: 800, group_size, times: 3, source: None };
        let check = |kind, sent: f64| assert_eq!(collective(kind, 8).sent_bytes(), sent, "{kind}");
        check(CollectiveKind::AllReduce, 2.0 * 7.0 / 8.0 * 2400.0);
        check(CollectiveKind::AllGather, 7.0 / 8.0 * 2400.0);
        check(CollectiveKind::ReduceScatter, 7.0 / 8.0 * 2400.0);
        check(CollectiveKind::AllToAll, 7.0 / 8.0 * 2400.0);
        check(CollectiveKind::CollectivePermute, 2400.0);
        assert_eq!(collective(CollectiveKind::AllReduce, 1).sent_bytes(), 0.0);
    }

    #[test]
    fn the_second_half_is_not_counted() {
        let kind = CollectiveKind::from_opcode;
        assert_eq!(kind("all-gather-start"), Some(CollectiveKind::AllGather));
        assert_eq!((kind("all-gather-done"), kind("copy-start"), kind("all-reduce-done")), (None, None, None));
    }
}
