//! The compiler's estimates of the cost and the memory of a program. This module measures nothing.

use std::collections::BTreeMap;

use crate::abi::PJRT_Executable_GetCompiledMemoryStats_Args;
use crate::named_value::NamedValue;

/// The cost of one execution. If the program is split over devices, the cost on each of them.
#[derive(Clone, Debug, PartialEq)]
pub struct CostAnalysis {
    properties: BTreeMap<String, NamedValue>,
}

impl CostAnalysis {
    pub(crate) fn new(properties: BTreeMap<String, NamedValue>) -> CostAnalysis {
        Self { properties }
    }

    /// All properties that the compiler reported.
    pub fn properties(&self) -> &BTreeMap<String, NamedValue> {
        &self.properties
    }

    fn number(&self, name: &str) -> Option<f64> {
        match self.properties.get(name)? {
            NamedValue::Float(value) => Some(f64::from(*value)),
            NamedValue::Int(value) => Some(*value as f64),
            _ => None,
        }
    }

    /// Floating-point operations.
    pub fn flops(&self) -> Option<f64> {
        self.number("flops")
    }

    /// Bytes read and written.
    pub fn bytes_accessed(&self) -> Option<f64> {
        self.number("bytes accessed")
    }

    /// The compiler's estimate of the time. The compiler subtracts one second for each part that it
    /// cannot model. A negative sum is therefore meaningless, and the result is `None`.
    pub fn optimal_seconds(&self) -> Option<f64> {
        self.number("optimal_seconds").filter(|&seconds| seconds >= 0.0)
    }
}

/// The memory that one execution needs on each device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryAnalysis {
    /// The arguments.
    pub argument_bytes: i64,
    /// The outputs.
    pub output_bytes: i64,
    /// Outputs that reuse the memory of donated arguments. They are counted in both of the above.
    pub alias_bytes: i64,
    /// The temporaries.
    pub temp_bytes: i64,
    /// The program itself.
    pub generated_code_bytes: i64,
    /// The compiler's estimate of the peak.
    pub peak_bytes: i64,
    /// Arguments in host memory.
    pub host_argument_bytes: i64,
    /// Outputs in host memory.
    pub host_output_bytes: i64,
    /// Temporaries in host memory.
    pub host_temp_bytes: i64,
}

impl MemoryAnalysis {
    /// The total device memory of one execution: arguments, outputs, temporaries and the program.
    pub fn total_bytes(&self) -> i64 {
        self.argument_bytes + self.output_bytes - self.alias_bytes
            + self.temp_bytes
            + self.generated_code_bytes
    }

    pub(crate) fn from_raw(raw: &PJRT_Executable_GetCompiledMemoryStats_Args) -> MemoryAnalysis {
        Self {
            argument_bytes: raw.argument_size_in_bytes,
            output_bytes: raw.output_size_in_bytes,
            alias_bytes: raw.alias_size_in_bytes,
            temp_bytes: raw.temp_size_in_bytes,
            generated_code_bytes: raw.generated_code_size_in_bytes,
            peak_bytes: raw.peak_memory_in_bytes,
            host_argument_bytes: raw.host_argument_size_in_bytes,
            host_output_bytes: raw.host_output_size_in_bytes,
            host_temp_bytes: raw.host_temp_size_in_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_time_is_unknown() {
        let cost = |seconds: f32| {
            let properties = [
                ("flops".to_owned(), 8.0_f32.into()),
                ("optimal_seconds".to_owned(), seconds.into()),
            ];
            CostAnalysis::new(properties.into())
        };
        assert_eq!(cost(-5.99).optimal_seconds(), None);
        assert_eq!(cost(0.25).optimal_seconds(), Some(0.25));
        assert_eq!((cost(0.0).flops(), cost(0.0).bytes_accessed()), (Some(8.0), None));
    }
}
