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
//! | gather and scatter along one axis, several indices in each batch of the others | that axis | wrong sums, products, extremes and derivatives |
//! | scatter | those of updates that the devices do not divide | padding is combined, too |
//! | maximum over windows with its position | those of windows or with a stride | the compiler ends the process, or refuses its own program |
//! | derivative of a maximum over windows (`select_and_scatter`) | those of windows | wrong numbers |
//! | gather and scatter | the components of an index | the compiler refuses its own program |
//! | kernel | all | the compiler does not look into it |
//! | Fourier transform | all | the CPU refuses the layout at run time; XLA gathers them anyway |
//!
//! If a slice starts at the first element of a split axis, XLA takes the slice for the whole operand
//! where it gathers the operand for another user, and refuses its own program. So the slice has a
//! copy of the operand.
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
    /// Whether the operands are copies of their own, for which the partitioner remembers nothing.
    pub(crate) are_copies: bool,
}

impl WholeAxes {
    /// The same axes of the first operand and of the result.
    pub(crate) fn of_both(axes: Vec<usize>) -> WholeAxes {
        WholeAxes { operands: vec![axes.clone()], results: vec![axes], ..WholeAxes::default() }
    }
}

/// How one operand or result must be split.
#[derive(Clone, Copy)]
pub(crate) struct Restriction<'a> {
    /// The axes that must not be split.
    axes: &'a [usize],
    /// An axis that must be split over all axes of the mesh or none.
    all_or_none: Option<usize>,
    is_copy: bool,
}

impl WholeAxes {
    /// The restriction of the operand with this number.
    pub(crate) fn of_operand(&self, number: usize) -> Restriction<'_> {
        Restriction {
            axes: self.operands.get(number).map_or(&[], Vec::as_slice),
            all_or_none: self.all_or_none.get(number).copied(),
            is_copy: self.are_copies,
        }
    }

    /// The restriction of the result with this number.
    pub(crate) fn of_result(&self, number: usize) -> Restriction<'_> {
        let axes = self.results.get(number).map_or(&[][..], Vec::as_slice);
        Restriction { axes, all_or_none: None, is_copy: false }
    }
}

/// The statement that splits a value as it must be, and the axis `all_or_none` over all axes of the
/// mesh if they divide it. XLA makes it a copy. `None` if there is nothing to split and no copy is
/// needed.
pub(crate) fn constraint(
    name: &str,
    Restriction { axes, all_or_none, is_copy }: Restriction<'_>,
    ty: &TensorType,
    mesh: &Mesh,
) -> Option<String> {
    // With one axis, all is the same as some.
    let has_several_axes = mesh.axes().iter().filter(|(_, size)| *size > 1).count() > 1;
    let all_or_none = all_or_none.filter(|_| has_several_axes);
    let restricted = axes.iter().copied().chain(all_or_none);
    if !is_copy && restricted.into_iter().all(|axis| ty.shape[axis] <= 1) {
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
