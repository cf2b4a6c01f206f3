//! [`TrainStart`]: what is known about a fit when its programs are compiled.

use fulmen_pjrt::Device;
use fulmen_preflight::Generation;
use fulmen_tensor::Runtime;

use crate::position::BatchPosition;
use crate::program::{CompiledStep, StepCost};
use crate::step_config::phases::Phases;

/// What is known about a fit when its programs are compiled, before the first step.
pub struct TrainStart<'a> {
    /// The beginning of each phase that is not over, with its step and the step's cost.
    phases: Vec<(BatchPosition, &'a CompiledStep, StepCost)>,
    runtime: &'a Runtime,
}

impl<'a> TrainStart<'a> {
    pub(crate) fn new(
        steps: &'a [CompiledStep],
        phases: &Phases,
        runtime: &'a Runtime,
    ) -> TrainStart<'a> {
        let starts = phases.last_starts(steps.len()).iter().copied();
        TrainStart {
            phases: starts
                .zip(steps)
                .map(|(start, step)| (start, step, StepCost::of(step)))
                .collect(),
            runtime,
        }
    }

    /// Returns the floating-point operations of a step on one batch, on each device.
    ///
    /// The compiler counts them, and the body of a loop counts once for each iteration. Compilers
    /// for CPUs report no count; the value then includes only matrix products and convolutions. It
    /// is `None` if batches have several shapes. While parameters are frozen, a step has fewer
    /// operations; the value is for the step that the fit begins with.
    pub fn flops(&self) -> Option<f64> {
        self.cost()?.flops
    }

    /// Like [`flops`](TrainStart::flops), for each phase, with its beginning.
    pub(crate) fn flops_of_phases(&self) -> Option<Vec<(BatchPosition, f64)>> {
        self.phases.iter().map(|(start, _, cost)| Some((*start, cost.flops?))).collect()
    }

    /// The cost of the step that the fit begins with.
    pub(crate) fn cost(&self) -> Option<&StepCost> {
        self.phases.first().map(|(.., cost)| cost)
    }

    /// Returns each device's peak in bf16, in floating-point operations per second, as its vendor
    /// publishes it. `None` if the peak is not known, as for a CPU.
    pub fn peak_flops(&self) -> Option<f64> {
        Generation::of_kind(self.runtime.devices().first()?.kind()).map(Generation::device_flops)
    }

    /// The bytes that the step needs on each device in addition to its arguments, as the compiler
    /// reports them. With steps for several shapes, the largest value.
    pub(crate) fn temporary_bytes(&self) -> Option<u64> {
        let programs = self.phases.iter().flat_map(|(_, step, _)| step.programs());
        let bytes = programs.filter_map(|program| program.executable().memory_analysis().ok());
        bytes.filter_map(|memory| u64::try_from(memory.temp_bytes).ok()).max()
    }

    /// The devices of this process.
    pub(crate) fn local_devices(&self) -> Vec<Device> {
        self.runtime.local_devices().cloned().collect()
    }
}
