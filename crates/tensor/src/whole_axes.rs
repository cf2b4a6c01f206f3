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
//! | grouped convolution | those with groups, unless the devices divide the groups | wrong numbers, or the compiler ends the process |
//! | slice with a stride | those with a stride | the compiler refuses its own program |
//! | pad between elements | those with interior padding | the compiler ends the process |
//! | gather and scatter | the components of an index | the compiler refuses its own program |
//! | Fourier transform | transformed | the CPU refuses the layout at run time |
//!
//! The gradient of a grouped convolution's kernel is a product over the batch. If the batch is split
//! over some axes of the mesh, XLA adds the parts of all devices, so the gradient is too large by the
//! number of devices that have the same part. It is right if the batch is split over all axes or none.
//!
//! jaxlib compiles the same texts to the same numbers and errors. The random programs of the tests
//! (`tests/it/sharded_programs`) found them.

use crate::{Mesh, TensorType};

/// For each operand and result of an operation, the axes that must not be split. Missing entries
/// are empty.
#[derive(Default)]
pub(crate) struct WholeAxes {
    pub(crate) operands: Vec<Vec<usize>>,
    pub(crate) results: Vec<Vec<usize>>,
    /// For each operand, an axis that must be split over all axes of the mesh or none.
    pub(crate) all_or_none: Vec<usize>,
}

impl WholeAxes {
    /// The same axes of the first operand and of the result.
    pub(crate) fn of_both(axes: Vec<usize>) -> WholeAxes {
        WholeAxes { operands: vec![axes.clone()], results: vec![axes], ..WholeAxes::default() }
    }
}

/// The statement that keeps these axes of a value whole, and splits the axis `all_or_none` over all
/// axes of the mesh if they divide it. `None` if there is nothing to split.
pub(crate) fn constraint(
    name: &str,
    axes: &[usize],
    all_or_none: Option<usize>,
    ty: &TensorType,
    mesh: &Mesh,
) -> Option<String> {
    // With one axis, all is the same as some.
    let has_several_axes = mesh.axes().iter().filter(|(_, size)| *size > 1).count() > 1;
    let all_or_none = all_or_none.filter(|_| has_several_axes);
    let restricted = axes.iter().copied().chain(all_or_none);
    if restricted.into_iter().all(|axis| ty.shape[axis] <= 1) {
        return None;
    }
    let names: Vec<String> = mesh.axes().iter().map(|(name, _)| format!("{name:?}")).collect();
    let axis = |axis: usize| {
        if axes.contains(&axis) {
            "{}".to_owned()
        } else if all_or_none != Some(axis) {
            "{?}".to_owned()
        } else if ty.shape[axis].is_multiple_of(mesh.num_devices()) {
            format!("{{{}}}", names.join(", "))
        } else {
            "{}".to_owned()
        }
    };
    let axes: Vec<String> = (0..ty.shape.rank()).map(axis).collect();
    let sharding = format!("<@mesh, [{}]>", axes.join(", "));
    Some(format!("sdy.sharding_constraint {name} {sharding} : {}", ty.stablehlo()))
}
