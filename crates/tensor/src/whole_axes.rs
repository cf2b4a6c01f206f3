//! [`WholeAxes`]: the axes of operands and results that every device must hold whole, because XLA's
//! partitioner computes the operation wrongly, or fails, if they are split.
//!
//! Sharding propagation splits any value that fits. For these axes, a program for several devices
//! has a sharding constraint which says that they are not split; the other axes stay open. The
//! constraint changes nothing where they were not split before.
//!
//! | operation | axes | what happens if they are split |
//! | --- | --- | --- |
//! | convolution | spatial | wrong numbers, often a multiple of the right ones |
//! | slice with a stride | those with a stride | the compiler refuses its own program |
//! | pad between elements | those with interior padding | the compiler ends the process |
//! | gather and scatter | the components of an index | the compiler refuses its own program |
//! | Fourier transform | transformed | the CPU refuses the layout at run time |
//!
//! jaxlib compiles the same texts to the same numbers and errors. The random programs of the tests
//! (`tests/it/sharded_programs`) found them.

use crate::TensorType;

/// For each operand and result of an operation, the axes that must not be split. Missing entries
/// are empty.
#[derive(Default)]
pub(crate) struct WholeAxes {
    pub(crate) operands: Vec<Vec<usize>>,
    pub(crate) results: Vec<Vec<usize>>,
}

impl WholeAxes {
    /// The same axes of the first operand and of the result.
    pub(crate) fn of_both(axes: Vec<usize>) -> WholeAxes {
        WholeAxes { operands: vec![axes.clone()], results: vec![axes] }
    }
}

/// The statement that keeps these axes of a value whole. `None` if there is nothing to split.
pub(crate) fn constraint(name: &str, axes: &[usize], ty: &TensorType) -> Option<String> {
    if axes.iter().all(|&axis| ty.shape[axis] <= 1) {
        return None;
    }
    let axis = |axis: usize| if axes.contains(&axis) { "{}" } else { "{?}" };
    let axes: Vec<&str> = (0..ty.shape.rank()).map(axis).collect();
    let sharding = format!("<@mesh, [{}]>", axes.join(", "));
    Some(format!("sdy.sharding_constraint {name} {sharding} : {}", ty.stablehlo()))
}
