//! The collectives of a compiled program, with the bytes that devices exchange.

use std::collections::BTreeSet;
use std::fmt;

use super::loops::RunCounts;
use super::module::{Instruction, Module, Source};
use super::proto;

/// The kind of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CollectiveKind {
    /// Each device gets the sum (or another reduction) over all devices.
    AllReduce,
    /// Each device gets the parts of all devices.
    AllGather,
    /// Each device gets its part of the sum over all devices.
    ReduceScatter,
    /// Each device gets one part from each device.
    AllToAll,
    /// Some devices send to others, one to one.
    CollectivePermute,
    /// One device sends to all.
    CollectiveBroadcast,
}

impl CollectiveKind {
    /// The collective with this HLO opcode. The second half of an asynchronous pair
    /// (`all-reduce-done`) is not a collective.
    pub(super) fn from_opcode(opcode: &str) -> Option<CollectiveKind> {
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
    /// The kind.
    pub kind: CollectiveKind,
    /// The instruction's name.
    pub name: String,
    /// The size of the data that is reduced, gathered or sent, once, on one device, in bytes.
    pub bytes: u64,
    /// The number of devices in one group; between slices, the number of slices.
    pub group_size: usize,
    /// Whether the data goes between TPU slices, over the data center network.
    pub is_between_slices: bool,
    /// How often one execution of the program runs it.
    pub times: u64,
    /// The line of the user's code, if known.
    pub source: Option<Source>,
}

impl Collective {
    /// The data of one execution of the program on one device, in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.bytes.saturating_mul(self.times)
    }

    /// The bytes that one device sends in one execution of the program, if devices pass the data
    /// around in a ring: twice `(n - 1) / n` of the data for an all-reduce, once that for the
    /// others, and all data for a permute.
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

/// A collective between TPU slices. The devices of a slice run one program, and a `send` in it gives
/// its operand to libtpu's Megascale runtime, which runs the collective over the data center
/// network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BetweenSlices {
    pub(super) kind: CollectiveKind,
    /// The number of slices that take part.
    pub(super) slices: usize,
}

impl BetweenSlices {
    pub(super) fn read(instruction: &proto::Instruction) -> Option<BetweenSlices> {
        let attributes = &instruction.frontend_attributes.as_ref()?.map;
        let of = |name: &str| attributes.get(name).map(String::as_str);
        if instruction.opcode != "send"
            || of("_xla_host_transfer_handler_name") != Some("xla_megascale_runtime")
        {
            return None;
        }
        let kind = match of("_xla_megascale_transfer_type") {
            Some("ALL_REDUCE") => CollectiveKind::AllReduce,
            Some("ALL_GATHER") => CollectiveKind::AllGather,
            Some("REDUCE_SCATTER") => CollectiveKind::ReduceScatter,
            Some("ALL_TO_ALL") => CollectiveKind::AllToAll,
            // `ONE_TO_ONE`. All data of an unknown transfer counts as sent, too.
            _ => CollectiveKind::CollectivePermute,
        };
        Some(BetweenSlices { kind, slices: slices_in(of("_xla_megascale_target")?) })
    }
}

/// The number of slices in the largest group of a transfer. libtpu writes `{1,2}x{0:3}`, the slices
/// and the devices of each, or groups of devices such as `{{100000,200000},{100001,200001}}`, where
/// device 100000 is the first of slice 1.
fn slices_in(target: &str) -> usize {
    const DEVICES_OF_A_SLICE: u64 = 100_000;
    let numbers = |text: &str| -> BTreeSet<u64> {
        text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
    };
    if let Some((slices, _)) = target.split_once('x') {
        return numbers(slices).len();
    }
    let slices = |group: &str| {
        let devices = numbers(group).into_iter();
        devices.map(|device| device / DEVICES_OF_A_SLICE).collect::<BTreeSet<u64>>().len()
    };
    target.split('}').map(slices).max().unwrap_or_default()
}

impl Module {
    /// The collectives in program order.
    pub fn collectives(&self) -> Vec<Collective> {
        let times = RunCounts::new(self);
        let mut collectives = Vec::new();
        for (i, computation) in self.computations.iter().enumerate() {
            let runs = times.runs(i);
            if runs == 0 {
                continue;
            }
            for instruction in &computation.instructions {
                if let Some(BetweenSlices { kind, slices }) = instruction.between_slices {
                    let data = computation.operands(instruction).take(1);
                    let name = instruction.name.clone();
                    let source = instruction.source.clone();
                    collectives.push(Collective {
                        kind,
                        name,
                        bytes: payload(kind, instruction, data, slices),
                        group_size: slices,
                        is_between_slices: true,
                        times: runs,
                        source,
                    });
                    continue;
                }
                let Some(mut kind) = CollectiveKind::from_opcode(&instruction.opcode) else {
                    continue;
                };
                // libtpu writes a reduce-scatter as an all-reduce in a fusion that keeps a part of
                // the result.
                if kind == CollectiveKind::AllReduce
                    && computation.name.contains("all-reduce-scatter")
                {
                    kind = CollectiveKind::ReduceScatter;
                }
                let group_size = match instruction.group_size {
                    None | Some(0) => self.num_devices(),
                    Some(size) => size,
                };
                if kind == CollectiveKind::CollectivePermute && instruction.senders == 0 {
                    continue;
                }
                let bytes =
                    payload(kind, instruction, computation.operands(instruction), group_size);
                let name = instruction.name.clone();
                let source = instruction.source.clone();
                collectives.push(Collective {
                    kind,
                    name,
                    bytes,
                    group_size,
                    is_between_slices: false,
                    times: runs,
                    source,
                });
            }
        }
        collectives
    }
}

fn payload<'a>(
    kind: CollectiveKind,
    instruction: &Instruction,
    operands: impl Iterator<Item = &'a Instruction>,
    group_size: usize,
) -> u64 {
    let operands: Vec<&Instruction> = operands.collect();
    let operand_bytes = match kind {
        // The first half of the pair also has numbers among its operands.
        CollectiveKind::CollectivePermute => {
            operands.first().map_or(0, |operand| operand.shape.bytes())
        }
        _ => operands.iter().map(|operand| operand.shape.bytes()).sum(),
    };
    match kind {
        CollectiveKind::AllGather if operands.is_empty() => instruction.shape.bytes(),
        CollectiveKind::AllGather => operand_bytes.saturating_mul(group_size as u64),
        _ => operand_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_ring() {
        let collective = |kind, group_size| Collective {
            kind,
            name: String::new(),
            bytes: 800,
            group_size,
            is_between_slices: false,
            times: 3,
            source: None,
        };
        let check = |kind, sent: f64| assert_eq!(collective(kind, 8).sent_bytes(), sent, "{kind}");
        check(CollectiveKind::AllReduce, 2.0 * 7.0 / 8.0 * 2400.0);
        check(CollectiveKind::AllGather, 7.0 / 8.0 * 2400.0);
        check(CollectiveKind::ReduceScatter, 7.0 / 8.0 * 2400.0);
        check(CollectiveKind::AllToAll, 7.0 / 8.0 * 2400.0);
        check(CollectiveKind::CollectivePermute, 2400.0);
        assert_eq!(collective(CollectiveKind::AllReduce, 1).sent_bytes(), 0.0);
    }

    #[test]
    fn the_slices_of_a_transfer_are_counted_in_every_form() {
        for (target, slices) in [
            ("{1,2,3}x{0:3}", 3),
            ("{{100000,200000},{100001,200001}}", 2),
            ("{{100000,100001,200000,200001,300000,300001}}", 3),
            ("{{100000->200000},{200000->300000},{300000->100000}}", 2),
            ("", 0),
        ] {
            assert_eq!(slices_in(target), slices, "{target}");
        }
    }

    #[test]
    fn only_a_send_to_the_megascale_runtime_is_between_slices() {
        let read = |opcode: &str, handler: &str, transfer: &str| {
            let map = [
                ("_xla_host_transfer_handler_name", handler),
                ("_xla_megascale_transfer_type", transfer),
                ("_xla_megascale_target", "{1,2}x{0:3}"),
            ];
            let map = map.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
            BetweenSlices::read(&proto::Instruction {
                opcode: opcode.into(),
                frontend_attributes: Some(proto::FrontendAttributes { map }),
                ..Default::default()
            })
        };
        let megascale = "xla_megascale_runtime";
        for (transfer, kind) in [
            ("ALL_REDUCE", CollectiveKind::AllReduce),
            ("ALL_GATHER", CollectiveKind::AllGather),
            ("REDUCE_SCATTER", CollectiveKind::ReduceScatter),
            ("ALL_TO_ALL", CollectiveKind::AllToAll),
            ("ONE_TO_ONE", CollectiveKind::CollectivePermute),
        ] {
            let expected = Some(BetweenSlices { kind, slices: 2 });
            assert_eq!(read("send", megascale, transfer), expected, "{transfer}");
        }
        assert_eq!(read("recv", megascale, "ALL_REDUCE"), None);
        assert_eq!(read("send", "tf_rendezvous", "ALL_REDUCE"), None);
    }

    #[test]
    fn the_second_half_is_not_counted() {
        let kind = CollectiveKind::from_opcode;
        assert_eq!(kind("all-gather-start"), Some(CollectiveKind::AllGather));
        assert_eq!(
            (kind("all-gather-done"), kind("copy-start"), kind("all-reduce-done")),
            (None, None, None)
        );
    }
}
