//! Passes: how a program is changed for its platform and its devices, before it is written.
//!
//! Each pass takes a [`Graph`] and returns a graph with the same results. Most of them replace single
//! operations that XLA's compiler for a platform computes slowly or wrongly (`replace.rs`). The last
//! one decides in which order the program has the axes of each value (`axis_order.rs`).
//!
//! [`PASSES`] lists all of them. `FULMEN_PASSES` turns them off by name.
//!
//! Out of scope: the meaning of operations. An operation knows no platform, and the text is written
//! from the graph as it is.

mod axis_order;
mod convolution_products;
mod fourier_layouts;
mod gradient_order;
mod kernel_calls;
mod merged_axes;
mod random_keys;
mod replace;
mod rows_of_top_k;
mod select_and_scatter;
mod single_updates;
mod switches;
mod transposed_products;

use std::sync::Arc;

use fulmen_pjrt::locate::Platform;

use crate::axis_order::AxisOrder;
use crate::graph::{Calls, Constants, Graph, Instruction};
use crate::operation::Operation;
use crate::region::Region;
use crate::{Mesh, Result, Tensor, TensorType};

/// One pass, and the programs that it changes.
struct Pass {
    /// The name in `FULMEN_PASSES`.
    name: &'static str,
    platforms: &'static [Platform],
    /// Whether it changes programs for every platform, too.
    is_portable: bool,
    change: Change,
}

enum Change {
    /// Replaces single operations.
    Operations(Rule),
    /// Replaces single operations in programs for several devices.
    OperationsOnDevices(Rule),
    /// Chooses the orders of axes.
    Axes(axis_order::Rule),
}

/// What replaces an operation with operands of these types; `None` if it stays.
type Rule = fn(&dyn Operation, &[&TensorType]) -> Option<Replacement>;

enum Replacement {
    /// An operation with the same operands and results.
    Operation(Arc<dyn Operation>),
    /// An expression, whose parameters are the operands.
    Expression(Region),
}

const EVERY_PLATFORM: &[Platform] = &[Platform::Cpu, Platform::Cuda, Platform::Tpu];
const CPU: &[Platform] = &[Platform::Cpu];
const CPU_AND_CUDA: &[Platform] = &[Platform::Cpu, Platform::Cuda];
const CUDA: &[Platform] = &[Platform::Cuda];
const TPU: &[Platform] = &[Platform::Tpu];

/// All passes, in the order in which they see an operation.
static PASSES: [Pass; 15] = [
    Pass {
        name: "updates-on-devices",
        platforms: EVERY_PLATFORM,
        is_portable: true,
        change: Change::OperationsOnDevices(single_updates::with_second_update),
    },
    Pass {
        name: "updates",
        platforms: EVERY_PLATFORM,
        is_portable: false,
        change: Change::Operations(single_updates::as_update_of_slice),
    },
    Pass {
        name: "convolution-products",
        platforms: CPU,
        is_portable: false,
        change: Change::Operations(convolution_products::as_product),
    },
    Pass {
        name: "features-last",
        platforms: CPU,
        is_portable: false,
        change: Change::Operations(convolution_products::with_features_last),
    },
    Pass {
        name: "merged-axes",
        platforms: CPU,
        is_portable: false,
        change: Change::Operations(merged_axes::rule),
    },
    Pass {
        name: "transposed-products",
        platforms: CPU,
        is_portable: false,
        change: Change::Operations(transposed_products::rule),
    },
    Pass {
        name: "selection",
        platforms: CPU,
        is_portable: false,
        change: Change::Operations(select_and_scatter::as_selection),
    },
    Pass {
        name: "padded-operand",
        platforms: CUDA,
        is_portable: false,
        change: Change::Operations(select_and_scatter::with_padded_operand),
    },
    Pass {
        name: "random-keys",
        platforms: CPU,
        is_portable: true,
        change: Change::Operations(random_keys::rule),
    },
    Pass {
        name: "fourier-layouts",
        platforms: CPU,
        is_portable: false,
        change: Change::OperationsOnDevices(fourier_layouts::rule),
    },
    Pass {
        name: "rows-of-top-k",
        platforms: CPU_AND_CUDA,
        is_portable: false,
        change: Change::OperationsOnDevices(rows_of_top_k::as_sort),
    },
    Pass {
        name: "kernels",
        platforms: TPU,
        is_portable: false,
        change: Change::Operations(kernel_calls::rule),
    },
    Pass {
        name: "gradient-order",
        platforms: TPU,
        is_portable: true,
        change: Change::Operations(gradient_order::rule),
    },
    Pass {
        name: "axis-order",
        platforms: CPU,
        is_portable: false,
        change: Change::Axes(axis_order::Rule::CommonOrder),
    },
    Pass {
        name: "product-axes",
        platforms: TPU,
        is_portable: false,
        change: Change::Axes(axis_order::Rule::ProductAxes),
    },
];

/// The passes of one program.
pub(crate) struct Pipeline {
    rules: Vec<Rule>,
    axes: Option<axis_order::Rule>,
}

/// What a program expects of the orders of axes.
pub(crate) struct Orders<'a> {
    /// The order in which a leaf has its axes; `None` for the tensor's own.
    pub(crate) of_leaf: &'a dyn Fn(&Instruction) -> Option<AxisOrder>,
    /// The order of each result.
    pub(crate) of_results: Vec<Option<AxisOrder>>,
}

impl Pipeline {
    /// The passes of a program for this platform, or for every platform, and these devices, except
    /// for those that `FULMEN_PASSES` turns off.
    ///
    /// # Errors
    /// `FULMEN_PASSES` names a pass that does not exist.
    pub(crate) fn new(platform: Option<Platform>, mesh: &Mesh) -> Result<Pipeline> {
        Ok(Pipeline::with(platform, mesh, switches::from_environment()?))
    }

    /// The passes whose names `is_on` accepts.
    fn with(
        platform: Option<Platform>,
        mesh: &Mesh,
        is_on: impl Fn(&'static str) -> bool,
    ) -> Pipeline {
        let mut pipeline = Pipeline { rules: Vec::new(), axes: None };
        for pass in &PASSES {
            let is_for_platform = match platform {
                Some(platform) => pass.platforms.contains(&platform),
                None => pass.is_portable,
            };
            if !is_for_platform || !is_on(pass.name) {
                continue;
            }
            match pass.change {
                Change::Operations(rule) => pipeline.rules.push(rule),
                Change::OperationsOnDevices(rule) if mesh.num_devices() > 1 => {
                    pipeline.rules.push(rule);
                }
                Change::OperationsOnDevices(_) => {}
                Change::Axes(rule) => pipeline.axes = Some(rule),
            }
        }
        // After all others, so that nothing but a pass asks for an order of gradients.
        pipeline.rules.push(gradient_order::without_hint);
        pipeline
    }

    /// The graph of a program that computes `results`. The types of its values have the axes in the
    /// program's order.
    ///
    /// # Errors
    /// A result is poisoned.
    pub(crate) fn graph(
        &self,
        results: &[Tensor],
        constants: Constants,
        orders: &Orders<'_>,
    ) -> Result<Graph> {
        // Only the main function can take captured values as arguments.
        let calls = if constants == Constants::AsInputs { Calls::Inlined } else { Calls::Kept };
        let recorded = Graph::new(results, constants, calls)?;
        let replaced = replace::run(&recorded, &self.rules)?;
        Ok(axis_order::run(&replaced, self.axes, results, orders))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Function;
    use crate::lower::lower_with;

    /// The texts of one function.
    pub(super) struct Texts {
        /// With all passes.
        pub(super) with: String,
        /// Without one of them.
        pub(super) without: String,
    }

    /// The text of a function for one device of a platform, with all passes.
    pub(super) fn text(function: &Function, platform: Option<Platform>) -> Result<String> {
        let mesh = Mesh::data(1);
        let pipeline = Pipeline::with(platform, &mesh, |_| true);
        Ok(lower_with(function, &mesh, pipeline)?.key)
    }

    /// The texts of a function for `devices` devices of a platform, with and without the pass `name`.
    pub(super) fn texts(
        function: &Function,
        devices: usize,
        platform: Platform,
        name: &str,
    ) -> Result<Texts> {
        assert!(PASSES.iter().any(|pass| pass.name == name), "{name} is not a pass");
        let mesh = Mesh::data(devices);
        let lowered = |is_on: &dyn Fn(&'static str) -> bool| -> Result<String> {
            let pipeline = Pipeline::with(Some(platform), &mesh, is_on);
            Ok(lower_with(function, &mesh, pipeline)?.key)
        };
        Ok(Texts { with: lowered(&|_| true)?, without: lowered(&|other| other != name)? })
    }

    /// The number of statements of a kind in a text.
    pub(super) fn count(text: &str, statement: &str) -> usize {
        text.matches(&format!("stablehlo.{statement}")).count()
    }
}
