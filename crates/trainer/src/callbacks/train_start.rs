//! [`TrainStart`]: what is known once a fit is compiled.

use fulmen_pjrt::Device;
use fulmen_preflight::Generation;
use fulmen_tensor::Runtime;

use crate::program::{CompiledStep, StepCost};
use crate::step_config::phases::{Phases, Position};

/// What is known when a fit is compiled and its first step about to begin.
pub struct TrainStart<'a> {
    /// Where each phase that is not over begins, with its step and what that costs.
    phases: Vec<(Position, &'a CompiledStep, StepCost)>,
    runtime: &'a Runtime,
}

impl<'a> TrainStart<'a> {
    pub(crate) fn new(steps: &'a [CompiledStep], phases: &Phases, runtime: &'a Runtime) -> TrainStart<'a> {
        let begin = phases.last(steps.len()).iter().copied();
        TrainStart { phases: begin.zip(steps).map(|(at, step)| (at, step, StepCost::of(step))).collect(), runtime }
    }

    /// Floating-point operations of a step on one batch, on each device: the compiler's count, with loops as often as they
    /// run. A compiler that counts none, as that for CPUs, leaves matrix products and convolutions, which are counted here.
    /// `None` where the batches have several shapes. While parameters are frozen a step has fewer: these are those of the
    /// step that the fit begins with.
    pub fn flops(&self) -> Option<f64> {
        self.cost()?.flops
    }

    /// As [`flops`](TrainStart::flops), for each phase, with where it begins.
    pub(crate) fn flops_of_phases(&self) -> Option<Vec<(Position, f64)>> {
        self.phases.iter().map(|(begins, _, cost)| Some((*begins, cost.flops?))).collect()
    }

    /// What the step costs that the fit begins with.
    pub(crate) fn cost(&self) -> Option<&StepCost> {
        self.phases.first().map(|(.., cost)| cost)
    }

    /// The most floating-point operations a second that each device can do, in bf16, as its maker says; `None` where that
    /// is not known, as of a CPU.
    pub fn peak_flops(&self) -> Option<f64> {
        Generation::of_kind(self.runtime.devices().first()?.kind()).map(Generation::device_flops)
    }

    /// Bytes that the step needs on each device besides its arguments, by the compiler's count; of steps for several shapes
    /// the most.
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
