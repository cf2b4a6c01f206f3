//! A compiled program as computations of instructions, each with the indices of its operands and
//! its source line.

use std::collections::HashMap;
use std::fmt;

use prost::Message;

use super::collective::BetweenSlices;
use super::matrix::Product;
use super::proto;
use super::shape::Shape;
use crate::error::{self, Result};

/// A compiled program, instruction by instruction. Created by
/// [`Executable::hlo`](crate::Executable::hlo).
#[derive(Clone, Debug)]
pub struct Module {
    /// The program's name.
    pub name: String,
    /// The computations. A computation comes before its callers.
    pub computations: Vec<Computation>,
    /// The index of the entry computation.
    pub entry: usize,
    /// The number of devices that the program runs on.
    pub(super) num_devices: usize,
}

/// A list of instructions. The root is the result.
#[derive(Clone, Debug)]
pub struct Computation {
    /// Its name.
    pub name: String,
    /// The instructions. An operand comes before its users.
    pub instructions: Vec<Instruction>,
    /// The index of the root instruction, which is the result.
    pub root: usize,
}

/// One instruction.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// Its name, unique in the program.
    pub name: String,
    /// The opcode, as HLO names it: `fusion`, `convolution`, `all-reduce-start`.
    pub opcode: String,
    /// The type of the result.
    pub shape: Shape,
    /// The operands, as indices into the computation's instructions.
    pub operands: Vec<usize>,
    /// The computations that it calls, as indices into the module's computations.
    pub called: Vec<usize>,
    /// The operation's name in the program's text, if known.
    pub op_name: String,
    /// The line of the user's code, if known.
    pub source: Option<Source>,
    /// The matrix product that it computes, for `dot` and `convolution`.
    pub product: Option<Product>,
    /// The number of a `parameter`, the index of a `get-tuple-element`.
    pub(super) index: usize,
    /// The value of a `constant` that is a single integer.
    pub(super) integer: Option<i64>,
    /// The comparison of a `compare`.
    pub(super) direction: String,
    /// The trip count of a loop, if the compiler recorded it.
    pub(super) known_trip_count: Option<u64>,
    /// The number of devices in one group of a collective; 0 means all.
    pub(super) group_size: Option<usize>,
    /// The number of sending devices of a `collective-permute`.
    pub(super) senders: usize,
    /// The target of a `custom-call`.
    pub(super) target: String,
    /// The collective between slices whose data a `send` sends.
    pub(super) between_slices: Option<BetweenSlices>,
}

/// A line of the user's code.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source {
    /// The file, as the user's compiler names it.
    pub file: String,
    /// The line, counted from 1.
    pub line: u32,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

impl Module {
    /// Decodes a `HloModuleProtoWithConfig` of a program for this number of devices.
    pub(crate) fn decode(bytes: &[u8], num_devices: usize) -> Result<Module> {
        let module = proto::ModuleWithConfig::decode(bytes)
            .map_err(|error| {
                error::broken(format!("the plugin's optimized program cannot be read: {error}"))
            })?
            .hlo_module
            .ok_or_else(|| error::broken("the plugin's optimized program is empty"))?;
        Self::read(&module, num_devices)
    }

    /// Decodes a serialized `HloModuleProto` of a program for this number of devices. Other users
    /// of XLA can write one: JAX's is
    /// `compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()`.
    ///
    /// # Errors
    /// The bytes are not such a message, or the module is inconsistent.
    pub fn from_proto(bytes: &[u8], num_devices: usize) -> Result<Module> {
        let module = proto::Module::decode(bytes).map_err(|error| {
            error::broken(format!("these bytes are not an HLO module: {error}"))
        })?;
        Self::read(&module, num_devices)
    }

    pub(super) fn read(module: &proto::Module, num_devices: usize) -> Result<Module> {
        let sources = Sources(module.stack_frame_index.as_ref());
        let mut indices = HashMap::new();
        let mut computations = Vec::with_capacity(module.computations.len());
        for computation in &module.computations {
            // A computation can only call earlier ones, so there is no recursion.
            computations.push(Computation::read(computation, &indices, &sources)?);
            indices.insert(computation.id, computations.len() - 1);
        }
        let entry = *indices.get(&module.entry_computation_id).ok_or_else(|| {
            error::broken(format!(
                "the compiled program {:?} has no entry computation",
                module.name
            ))
        })?;
        Ok(Self { name: module.name.clone(), computations, entry, num_devices })
    }

    /// The entry computation.
    pub fn entry(&self) -> &Computation {
        &self.computations[self.entry]
    }

    /// The number of devices that the program runs on.
    pub fn num_devices(&self) -> usize {
        self.num_devices
    }
}

impl Computation {
    /// The line of each instruction. An instruction without a line gets the line of the first
    /// instruction that uses it.
    pub(super) fn sources(&self) -> Vec<Option<&Source>> {
        let mut sources: Vec<_> =
            self.instructions.iter().map(|instruction| instruction.source.as_ref()).collect();
        let mut users = vec![None; sources.len()];
        for (i, instruction) in self.instructions.iter().enumerate().rev() {
            sources[i] = sources[i].or(users[i]);
            instruction
                .operands
                .iter()
                .for_each(|&operand| users[operand] = sources[i].or(users[operand]));
        }
        sources
    }

    fn read(
        computation: &proto::Computation,
        computation_indices: &HashMap<i64, usize>,
        sources: &Sources<'_>,
    ) -> Result<Computation> {
        let name = &computation.name;
        let mut indices = HashMap::new();
        let mut instructions: Vec<Instruction> = Vec::with_capacity(computation.instructions.len());
        for instruction in &computation.instructions {
            let missing = |kind: &str, id: i64| {
                let user = &instruction.name;
                error::broken(format!(
                    "in the compiled program, {user} of {name} names {kind} {id}, which does not exist"
                ))
            };
            let operands = instruction
                .operand_ids
                .iter()
                .map(|id| indices.get(id).copied().ok_or_else(|| missing("operand", *id)))
                .collect::<Result<Vec<usize>>>()?;
            let called = instruction
                .called_computation_ids
                .iter()
                .map(|id| {
                    computation_indices.get(id).copied().ok_or_else(|| missing("computation", *id))
                })
                .collect::<Result<Vec<usize>>>()?;
            let operand_shapes: Vec<&Shape> =
                operands.iter().map(|&i| &instructions[i].shape).collect();
            let read =
                Instruction::read(instruction, &operand_shapes, operands.clone(), called, sources)?;
            instructions.push(read);
            indices.insert(instruction.id, instructions.len() - 1);
        }
        let root = *indices.get(&computation.root_id).ok_or_else(|| {
            error::broken(format!("the computation {name} of the compiled program has no result"))
        })?;
        Ok(Self { name: name.clone(), instructions, root })
    }

    /// The root instruction, which is the result.
    pub fn root(&self) -> &Instruction {
        &self.instructions[self.root]
    }

    /// The operands of one instruction.
    pub fn operands<'a>(
        &'a self,
        instruction: &'a Instruction,
    ) -> impl Iterator<Item = &'a Instruction> {
        instruction.operands.iter().map(|&i| &self.instructions[i])
    }
}

impl Instruction {
    fn read(
        instruction: &proto::Instruction,
        operand_shapes: &[&Shape],
        operands: Vec<usize>,
        called: Vec<usize>,
        sources: &Sources<'_>,
    ) -> Result<Instruction> {
        let shape = instruction.shape.as_ref().map_or(Ok(Shape::Opaque), Shape::read)?;
        let metadata = instruction.metadata.clone().unwrap_or_default();
        let index = match instruction.opcode.as_str() {
            "parameter" => instruction.parameter_number,
            _ => instruction.tuple_index,
        };
        Ok(Self {
            name: instruction.name.clone(),
            opcode: instruction.opcode.clone(),
            product: Product::read(instruction, operand_shapes, &shape),
            shape,
            operands,
            called,
            source: sources.find(&metadata),
            op_name: metadata.op_name,
            index: usize::try_from(index).unwrap_or(usize::MAX),
            integer: instruction.literal.as_ref().and_then(integer),
            direction: instruction.comparison_direction.clone(),
            known_trip_count: known_trip_count(&instruction.backend_config),
            group_size: group_size(instruction),
            target: instruction.custom_call_target.clone(),
            between_slices: BetweenSlices::read(instruction),
            senders: instruction
                .source_target_pairs
                .iter()
                .filter(|pair| pair.source != pair.target)
                .count(),
        })
    }
}

/// The source lines of the program, by number.
struct Sources<'a>(Option<&'a proto::StackFrameIndex>);

impl Sources<'_> {
    fn find(&self, metadata: &proto::OpMetadata) -> Option<Source> {
        if !metadata.source_file.is_empty() {
            let line = u32::try_from(metadata.source_line).unwrap_or(0);
            return Some(Source { file: metadata.source_file.clone(), line });
        }
        // Numbers start at 1; 0 means none.
        let position = |number: i32| usize::try_from(number).ok().and_then(|n| n.checked_sub(1));
        let index = self.0?;
        let frame = index.stack_frames.get(position(metadata.stack_frame_id)?)?;
        let location = index.file_locations.get(position(frame.file_location_id)?)?;
        let file = index.file_names.get(position(location.file_name_id)?)?;
        Some(Source { file: file.clone(), line: u32::try_from(location.line).unwrap_or(0) })
    }
}

/// The value of a constant that is a single integer.
fn integer(literal: &proto::Literal) -> Option<i64> {
    match (&literal.s32s[..], &literal.s64s[..], &literal.u32s[..], &literal.u64s[..]) {
        (&[value], [], [], []) => Some(value.into()),
        ([], &[value], [], []) => Some(value),
        ([], [], &[value], []) => Some(value.into()),
        ([], [], [], &[value]) => i64::try_from(value).ok(),
        _ => None,
    }
}

/// The compilers for CPUs and GPUs add `{"known_trip_count":{"n":"12"}}` to a loop; libtpu does
/// not.
fn known_trip_count(backend_config: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(backend_config).ok()?;
    let (_, rest) = text.split_once("\"known_trip_count\"")?;
    let (inside, _) = rest.split_once('}')?;
    let (_, number) = inside.split_once("\"n\"")?;
    let digits: String = number
        .chars()
        .skip_while(|c| !c.is_ascii_digit())
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().ok()
}

/// The number of devices in one group of a collective. `Some(0)` if the program lists no groups,
/// which means all devices.
fn group_size(instruction: &proto::Instruction) -> Option<usize> {
    if !is_collective(&instruction.opcode) {
        return None;
    }
    let largest =
        |groups: &[proto::ReplicaGroup]| groups.iter().map(|group| group.replica_ids.len()).max();
    let iota = |list: &proto::IotaDeviceList| usize::try_from(list.num_devices_per_group).ok();
    let mesh = |list: &proto::MeshAxesDeviceList| {
        let axes = &list.mesh.as_ref()?.axes;
        list.axes.iter().try_fold(1_usize, |product, axis| {
            let size = match &axis.sub_axis_info {
                Some(part) => part.size,
                None => axes.get(usize::try_from(axis.mesh_axis_index).ok()?)?.size,
            };
            product.checked_mul(usize::try_from(size).ok()?)
        })
    };
    let listed = |list: &proto::DeviceList| {
        largest(&list.replica_groups)
            .or_else(|| list.iota_replica_group_list.as_ref().and_then(iota))
    };
    let mesh_size = instruction.mesh_axes_device_list.as_ref().and_then(mesh);
    mesh_size
        .or_else(|| instruction.iota_device_list.as_ref().and_then(iota))
        .or_else(|| instruction.collective_device_list.as_ref().and_then(listed))
        .or_else(|| largest(&instruction.replica_groups))
        .or(Some(0))
}

fn is_collective(opcode: &str) -> bool {
    super::collective::CollectiveKind::from_opcode(opcode).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_to_missing_instructions_are_errors() {
        let instruction = |id, operand_ids: &[i64], called: &[i64]| proto::Instruction {
            name: format!("i{id}"),
            opcode: "call".into(),
            id,
            operand_ids: operand_ids.to_vec(),
            called_computation_ids: called.to_vec(),
            ..Default::default()
        };
        let module = |instructions: Vec<proto::Instruction>, root_id, entry| proto::Module {
            name: "m".into(),
            computations: vec![proto::Computation {
                name: "c".into(),
                id: 7,
                root_id,
                instructions,
            }],
            entry_computation_id: entry,
            ..Default::default()
        };
        let check = |module: &proto::Module, expected: &str| {
            let error = Module::read(module, 1).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(&module(vec![instruction(1, &[2], &[])], 1, 7), "i1 of c names operand 2");
        check(&module(vec![instruction(1, &[], &[7])], 1, 7), "i1 of c names computation 7");
        check(
            &module(vec![instruction(1, &[], &[])], 5, 7),
            "computation c of the compiled program has no result",
        );
        check(&module(vec![instruction(1, &[], &[])], 1, 8), "has no entry computation");
        assert!(Module::decode(b"\xff\xff", 1).is_err() && Module::decode(b"", 1).is_err());
        let good = Module::read(&module(vec![instruction(1, &[], &[])], 1, 7), 1).unwrap();
        assert_eq!(good.entry().root().name, "i1");
        let bytes = module(vec![instruction(1, &[], &[])], 1, 7).encode_to_vec();
        assert_eq!(Module::from_proto(&bytes, 1).unwrap().entry().root().name, "i1");
        let error = Module::from_proto(b"HloModule m", 1).unwrap_err().to_string();
        assert!(error.contains("these bytes are not an HLO module"), "{error}");
    }

    #[test]
    fn added_instructions_have_the_line_of_their_first_user() {
        let instruction = |id: i64, line, operand_ids: &[i64]| proto::Instruction {
            name: format!("i{id}"),
            opcode: "negate".into(),
            id,
            operand_ids: operand_ids.to_vec(),
            metadata: Some(proto::OpMetadata {
                source_file: "a.rs".into(),
                source_line: line,
                ..Default::default()
            }),
            ..Default::default()
        };
        let mut added = [instruction(1, 0, &[]), instruction(2, 0, &[1]), instruction(5, 0, &[4])];
        added.iter_mut().for_each(|instruction| instruction.metadata = None);
        let [first, second, last] = added;
        // Lines 3 and 4 use the second instruction; nothing uses the last one.
        let instructions =
            vec![first, second, instruction(3, 3, &[2]), instruction(4, 4, &[2, 3]), last];
        let module = proto::Module {
            computations: vec![proto::Computation {
                name: "c".into(),
                id: 7,
                root_id: 5,
                instructions,
            }],
            entry_computation_id: 7,
            ..Default::default()
        };
        let module = Module::read(&module, 1).unwrap();
        let lines: Vec<_> = module
            .entry()
            .sources()
            .into_iter()
            .map(|source| source.map(|source| source.line))
            .collect();
        assert_eq!(lines, [Some(3), Some(3), Some(3), Some(4), None]);
    }

    #[test]
    fn a_source_line_is_found_in_metadata_and_in_stack_frames() {
        let index = proto::StackFrameIndex {
            file_names: vec!["a.rs".into(), "b.rs".into()],
            file_locations: vec![proto::FileLocation { file_name_id: 2, line: 31 }],
            stack_frames: vec![proto::StackFrame { file_location_id: 1 }],
        };
        let find = |file: &str, line, frame| {
            let metadata = proto::OpMetadata {
                source_file: file.into(),
                source_line: line,
                stack_frame_id: frame,
                ..Default::default()
            };
            Sources(Some(&index)).find(&metadata).map(|source| source.to_string())
        };
        assert_eq!(find("c.rs", 4, 0).as_deref(), Some("c.rs:4"));
        assert_eq!(find("", 0, 1).as_deref(), Some("b.rs:31"));
        assert_eq!((find("", 0, 0), find("", 0, 2), find("", 0, -1)), (None, None, None));
    }

    #[test]
    fn groups_are_read_in_every_form() {
        let base = proto::Instruction { opcode: "all-reduce".into(), ..Default::default() };
        let group = |n: i64| proto::ReplicaGroup { replica_ids: (0..n).collect() };
        let iota = proto::IotaDeviceList { num_replica_groups: 2, num_devices_per_group: 4 };
        let axis = |size| proto::MeshAxis { name: String::new(), size };
        let whole = |i| proto::AxisRef { mesh_axis_index: i, sub_axis_info: None };
        let part = |i, size| proto::AxisRef {
            mesh_axis_index: i,
            sub_axis_info: Some(proto::SubAxis { size }),
        };
        let mesh = proto::Mesh { axes: vec![axis(4), axis(6)] };
        let check =
            |instruction: proto::Instruction, size| assert_eq!(group_size(&instruction), size);
        check(base.clone(), Some(0));
        check(proto::Instruction { opcode: "add".into(), ..base.clone() }, None);
        check(
            proto::Instruction { replica_groups: vec![group(3), group(3)], ..base.clone() },
            Some(3),
        );
        check(proto::Instruction { iota_device_list: Some(iota.clone()), ..base.clone() }, Some(4));
        let list = |replica_groups: &[proto::ReplicaGroup],
                    iota: Option<&proto::IotaDeviceList>| proto::DeviceList {
            replica_groups: replica_groups.to_vec(),
            iota_replica_group_list: iota.cloned(),
        };
        check(
            proto::Instruction {
                collective_device_list: Some(list(&[group(2)], None)),
                ..base.clone()
            },
            Some(2),
        );
        check(
            proto::Instruction {
                collective_device_list: Some(list(&[], Some(&iota))),
                ..base.clone()
            },
            Some(4),
        );
        let over = |axes: &[proto::AxisRef]| proto::Instruction {
            mesh_axes_device_list: Some(proto::MeshAxesDeviceList {
                mesh: Some(mesh.clone()),
                axes: axes.to_vec(),
            }),
            ..base.clone()
        };
        check(over(&[whole(1)]), Some(6));
        check(over(&[whole(0), part(1, 3)]), Some(12));
        check(over(&[whole(9)]), Some(0));
    }

    #[test]
    fn a_trip_count_that_is_written_down_is_read() {
        let json = br#"{"backend":"x","known_trip_count":{"n":"12"},"known_init_step":{"init":"3","step":"1"}}"#;
        assert_eq!(known_trip_count(json), Some(12));
        assert_eq!(known_trip_count(br#"{"n":"12"}"#), None);
        assert_eq!(known_trip_count(b"\xff"), None);
    }
}
