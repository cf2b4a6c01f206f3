//! Compile options: the number of devices, which ones, and XLA's flags. Values that are known to
//! end a plugin's process are rejected here.

use std::collections::BTreeMap;

use fulmen_durable::messages::quantity;
use prost::Message;

use crate::error::{self, Result};
use crate::named_value::NamedValue;

/// More devices than any machine has: a larger number is a mistake.
const MAX_DEVICES: usize = 1 << 20;

/// The effort of the compiler, as XLA's levels. More effort takes longer to compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// The lowest effort.
    O0,
    /// Low effort.
    O1,
    /// The default effort.
    O2,
    /// The highest effort.
    O3,
}

impl Effort {
    /// XLA's number.
    fn number(self) -> i32 {
        match self {
            Self::O0 => 9,
            Self::O1 => 19,
            Self::O2 => 29,
            Self::O3 => 39,
        }
    }
}

/// How to compile a program. The default is one device with Shardy.
///
/// ```
/// use fulmen_pjrt::CompileOptions;
/// let options = CompileOptions::new().partitions(8).override_flag("xla_cpu_prefer_vector_width", 512);
/// assert_eq!(options.device_count(), Some(8));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct CompileOptions {
    replicas: usize,
    partitions: usize,
    spmd: Option<bool>,
    shardy: bool,
    assignment: Option<Vec<Vec<i32>>>,
    optimization: Option<Effort>,
    memory_fitting: Option<Effort>,
    flags: BTreeMap<String, NamedValue>,
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl CompileOptions {
    /// One replica with one partition.
    pub fn new() -> CompileOptions {
        Self {
            replicas: 1,
            partitions: 1,
            spmd: None,
            shardy: true,
            assignment: None,
            optimization: None,
            memory_fitting: None,
            flags: BTreeMap::new(),
        }
    }

    /// The number of replicas of the program.
    pub fn replicas(mut self, replicas: usize) -> CompileOptions {
        self.replicas = replicas;
        self
    }

    /// The number of devices that each replica is split over, by its shardings.
    pub fn partitions(mut self, partitions: usize) -> CompileOptions {
        self.partitions = partitions;
        self
    }

    /// Whether XLA splits the program by its shardings. By default, it does if there are several
    /// partitions.
    pub fn spmd(mut self, spmd: bool) -> CompileOptions {
        self.spmd = Some(spmd);
        self
    }

    /// Whether Shardy reads the shardings (`sdy` operations), instead of the older GSPMD. On by
    /// default.
    pub fn shardy(mut self, shardy: bool) -> CompileOptions {
        self.shardy = shardy;
        self
    }

    /// The compiler's effort to make the program fast. By default, the compiler chooses.
    pub fn optimization(mut self, effort: Effort) -> CompileOptions {
        self.optimization = Some(effort);
        self
    }

    /// The compiler's effort to make the program fit into memory. By default, the compiler chooses.
    pub fn memory_fitting(mut self, effort: Effort) -> CompileOptions {
        self.memory_fitting = Some(effort);
        self
    }

    /// The ids of the devices to run on: one list per replica, with one device per partition.
    pub fn device_assignment(mut self, ids: impl Into<Vec<Vec<i32>>>) -> CompileOptions {
        self.assignment = Some(ids.into());
        self
    }

    /// Sets one of XLA's flags for this program only, such as `xla_cpu_prefer_vector_width`. The
    /// plugin returns an error for an unknown flag or a value with a wrong type.
    pub fn override_flag(mut self, name: &str, value: impl Into<NamedValue>) -> CompileOptions {
        self.flags.insert(name.trim_start_matches('-').to_owned(), value.into());
        self
    }

    /// Replicas times partitions; `None` if the product overflows.
    pub fn device_count(&self) -> Option<usize> {
        self.replicas.checked_mul(self.partitions).filter(|&count| count <= MAX_DEVICES)
    }

    /// Encodes the options for the plugin, if they are valid for devices with these ids. `owner`
    /// names the owner of the devices in messages.
    pub(crate) fn encode(&self, ids: &[i64], owner: &str) -> Result<Vec<u8>> {
        if self.replicas == 0 || self.partitions == 0 {
            return Err(error::invalid(format!(
                "compile options ask for {} and {}; each must be at least 1",
                quantity(self.replicas, "replica"),
                quantity(self.partitions, "partition")
            )));
        }
        let count = self.device_count().unwrap_or(usize::MAX);
        if count > ids.len() {
            return Err(error::invalid(format!(
                "compile options ask for {} times {}, but the {owner} has {}",
                quantity(self.replicas, "replica"),
                quantity(self.partitions, "partition"),
                quantity(ids.len(), "device")
            )));
        }
        if self.partitions > 1 && self.spmd == Some(false) {
            return Err(error::invalid(format!(
                "compile options ask for {} partitions without SPMD; only SPMD programs can be partitioned",
                self.partitions
            )));
        }
        let device_assignment = self
            .assignment
            .as_ref()
            .map(|rows| self.encode_assignment(rows, ids, owner))
            .transpose()?;
        let env_option_overrides = self
            .flags
            .iter()
            .map(|(name, value)| Ok((name.clone(), encode_flag(name, value)?)))
            .collect::<Result<_>>()?;
        let options = CompileOptionsProto {
            executable_build_options: Some(ExecutableBuildOptionsProto {
                num_replicas: self.replicas as i64,
                num_partitions: self.partitions as i64,
                use_spmd_partitioning: self.spmd.unwrap_or(self.partitions > 1),
                device_assignment,
                use_shardy_partitioner: self.shardy,
                optimization_level: self.optimization.map_or(0, Effort::number),
                memory_fitting_level: self.memory_fitting.map_or(0, Effort::number),
            }),
            env_option_overrides,
        };
        Ok(options.encode_to_vec())
    }

    fn encode_assignment(
        &self,
        rows: &[Vec<i32>],
        ids: &[i64],
        owner: &str,
    ) -> Result<DeviceAssignmentProto> {
        if rows.len() != self.replicas || rows.iter().any(|row| row.len() != self.partitions) {
            return Err(error::invalid(format!(
                "the device assignment has {} of {:?} devices; there must be a row for each of {}, with a \
                 device for each of {}",
                quantity(rows.len(), "row"),
                rows.iter().map(Vec::len).collect::<Vec<_>>(),
                quantity(self.replicas, "replica"),
                quantity(self.partitions, "partition")
            )));
        }
        let mut used = std::collections::BTreeSet::new();
        for &id in rows.iter().flatten() {
            if !ids.contains(&i64::from(id)) {
                return Err(error::invalid(format!(
                    "the device assignment names device {id}; the {owner}'s devices are {ids:?}"
                )));
            }
            if !used.insert(id) {
                return Err(error::invalid(format!(
                    "the device assignment names device {id} twice"
                )));
            }
        }
        Ok(DeviceAssignmentProto {
            replica_count: self.replicas as i32,
            computation_count: self.partitions as i32,
            computation_devices: (0..self.partitions)
                .map(|partition| ComputationDevice {
                    replica_device_ids: rows.iter().map(|row| i64::from(row[partition])).collect(),
                })
                .collect(),
        })
    }
}

fn encode_flag(name: &str, value: &NamedValue) -> Result<OptionOverrideProto> {
    // Plugins divide by these, and they also accept a string as a number.
    let number = match value {
        NamedValue::Int(value) => Some(*value),
        NamedValue::String(value) => value.trim().parse().ok(),
        _ => None,
    };
    if let Some(number) = number.filter(|&number| number < 1 && name.ends_with("_split_count")) {
        return Err(error::invalid(format!("the flag {name} is {number}; it must be at least 1")));
    }
    let value = match value {
        NamedValue::String(value) => override_value::Value::String(value.clone()),
        NamedValue::Bool(value) => override_value::Value::Bool(*value),
        NamedValue::Int(value) => override_value::Value::Int(*value),
        NamedValue::Float(value) => override_value::Value::Double(f64::from(*value)),
        NamedValue::IntList(_) => {
            return Err(error::invalid(format!(
                "the flag {name} cannot be a list; pass the list as a string"
            )));
        }
    };
    Ok(OptionOverrideProto { value: Some(value) })
}

// XLA's messages, with only the fields that this crate sets.

#[derive(Clone, PartialEq, Message)]
struct CompileOptionsProto {
    #[prost(message, optional, tag = "3")]
    executable_build_options: Option<ExecutableBuildOptionsProto>,
    #[prost(btree_map = "string, message", tag = "7")]
    env_option_overrides: BTreeMap<String, OptionOverrideProto>,
}

#[derive(Clone, PartialEq, Message)]
struct ExecutableBuildOptionsProto {
    #[prost(int64, tag = "4")]
    num_replicas: i64,
    #[prost(int64, tag = "5")]
    num_partitions: i64,
    #[prost(bool, tag = "6")]
    use_spmd_partitioning: bool,
    #[prost(message, optional, tag = "9")]
    device_assignment: Option<DeviceAssignmentProto>,
    #[prost(bool, tag = "19")]
    use_shardy_partitioner: bool,
    #[prost(int32, tag = "24")]
    optimization_level: i32,
    #[prost(int32, tag = "25")]
    memory_fitting_level: i32,
}

#[derive(Clone, PartialEq, Message)]
struct DeviceAssignmentProto {
    #[prost(int32, tag = "1")]
    replica_count: i32,
    #[prost(int32, tag = "2")]
    computation_count: i32,
    #[prost(message, repeated, tag = "3")]
    computation_devices: Vec<ComputationDevice>,
}

#[derive(Clone, PartialEq, Message)]
struct ComputationDevice {
    #[prost(int64, repeated, tag = "1")]
    replica_device_ids: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct OptionOverrideProto {
    #[prost(oneof = "override_value::Value", tags = "1, 2, 3, 4")]
    value: Option<override_value::Value>,
}

mod override_value {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(super) enum Value {
        #[prost(string, tag = "1")]
        String(String),
        #[prost(bool, tag = "2")]
        Bool(bool),
        #[prost(int64, tag = "3")]
        Int(i64),
        #[prost(double, tag = "4")]
        Double(f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_options_are_the_bytes_known_to_work() {
        let bytes = CompileOptions::new().shardy(false).encode(&[0], "client").unwrap();
        assert_eq!(bytes, [0x1a, 4, 0x20, 1, 0x28, 1]);
    }

    #[test]
    fn a_false_or_zero_flag_is_still_written() {
        let options = CompileOptions::new().override_flag("--a", false).override_flag("b", 0);
        let decoded =
            CompileOptionsProto::decode(&options.encode(&[0], "client").unwrap()[..]).unwrap();
        let flags = decoded.env_option_overrides;
        assert_eq!(flags["a"].value, Some(override_value::Value::Bool(false)));
        assert_eq!(flags["b"].value, Some(override_value::Value::Int(0)));
    }

    #[test]
    fn the_assignment_is_transposed() {
        let options = CompileOptions::new()
            .replicas(2)
            .partitions(3)
            .device_assignment([vec![0, 1, 2], vec![3, 4, 5]]);
        let bytes = options.encode(&[0, 1, 2, 3, 4, 5], "client").unwrap();
        let build =
            CompileOptionsProto::decode(&bytes[..]).unwrap().executable_build_options.unwrap();
        assert!(build.use_spmd_partitioning && build.use_shardy_partitioner);
        assert_eq!(
            (build.optimization_level, build.memory_fitting_level),
            (0, 0),
            "the compiler chooses"
        );
        let devices = build.device_assignment.unwrap().computation_devices;
        assert_eq!(
            devices.iter().map(|d| d.replica_device_ids.clone()).collect::<Vec<_>>(),
            [[0, 3], [1, 4], [2, 5]]
        );
    }

    #[test]
    fn effort_has_the_compilers_numbers() {
        let options = CompileOptions::new().optimization(Effort::O1).memory_fitting(Effort::O3);
        let bytes = options.encode(&[0], "client").unwrap();
        let build =
            CompileOptionsProto::decode(&bytes[..]).unwrap().executable_build_options.unwrap();
        assert_eq!((build.optimization_level, build.memory_fitting_level), (19, 39));
    }

    #[test]
    fn invalid_options_are_refused() {
        let check = |options: CompileOptions, expected: &str| {
            let error = options.encode(&[0, 1], "client").unwrap_err();
            assert!(error.is_usage());
            assert!(error.to_string().contains(expected), "{error}");
        };
        let new = CompileOptions::new;
        check(new().replicas(0), "0 replicas and 1 partition; each must be at least 1");
        check(new().partitions(0), "1 replica and 0 partitions");
        check(new().replicas(3), "3 replicas times 1 partition, but the client has 2 devices");
        check(new().replicas(usize::MAX).partitions(2), "but the client has 2 devices");
        check(new().partitions(2).spmd(false), "2 partitions without SPMD");
        check(new().device_assignment([vec![0], vec![1]]), "2 rows of [1, 1] devices");
        check(
            new().device_assignment([vec![7]]),
            "names device 7; the client's devices are [0, 1]",
        );
        check(new().replicas(2).device_assignment([vec![1], vec![1]]), "device 1 twice");
        check(new().override_flag("xla_a", vec![1_i64]), "the flag xla_a cannot be a list");
        let flag = "--xla_cpu_parallel_codegen_split_count";
        check(
            new().override_flag(flag, 0),
            "xla_cpu_parallel_codegen_split_count is 0; it must be at least 1",
        );
        check(new().override_flag(flag, "-3"), "split_count is -3");
        new().override_flag(flag, 1).encode(&[0], "client").unwrap();
    }
}
