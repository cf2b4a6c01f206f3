//! [`TrainStart`]: what is known once a fit is compiled.

use fulmen_pjrt::Device;
use fulmen_preflight::Generation;
use fulmen_tensor::Runtime;

use crate::program::CompiledStep;
use crate::setting::phases::{Phases, Position};

/// What is known when a fit is compiled and its first step about to begin.
pub struct TrainStart<'a> {
    /// Where each phase that is not over begins, with its step.
    phases: Vec<(Position, &'a CompiledStep)>,
    runtime: &'a Runtime,
}

impl<'a> TrainStart<'a> {
    pub(crate) fn new(steps: &'a [CompiledStep], phases: &Phases, runtime: &'a Runtime) -> TrainStart<'a> {
        TrainStart { phases: phases.last(steps.len()).iter().copied().zip(steps).collect(), runtime }
    }

    /// Floating-point operations of a step on one batch, on each device: the compiler's count, with loops as often as they
    /// run. A compiler that counts none, as that for CPUs, leaves matrix products and convolutions, which are counted here.
    /// `None` where the batches have several shapes. While parameters are frozen a step has fewer: these are those of the
    /// step that the fit begins with.
    pub fn flops(&self) -> Option<f64> {
        self.phases.first().and_then(|(_, step)| flops(step))
    }

    /// As [`flops`](TrainStart::flops), for each phase, with where it begins.
    pub(crate) fn flops_of_phases(&self) -> Option<Vec<(Position, f64)>> {
        self.phases.iter().map(|&(begins, step)| Some((begins, flops(step)?))).collect()
    }

    /// The most floating-point operations a second that each device can do, in bf16, as its maker says; `None` where that
    /// is not known, as of a CPU.
    pub fn peak_flops(&self) -> Option<f64> {
        Generation::of_kind(self.runtime.devices().first()?.kind()).map(Generation::device_flops)
    }

    /// Bytes that the step needs on each device besides its arguments, by the compiler's count; of steps for several shapes
    /// the most.
    pub(crate) fn temporary_bytes(&self) -> Option<u64> {
        let programs = self.phases.iter().flat_map(|(_, step)| step.programs());
        let bytes = programs.filter_map(|program| program.executable().memory_analysis().ok());
        bytes.filter_map(|memory| u64::try_from(memory.temp_bytes).ok()).max()
    }

    /// The devices of this process.
    pub(crate) fn local_devices(&self) -> Vec<Device> {
        self.runtime.local_devices().cloned().collect()
    }
}

fn flops(step: &CompiledStep) -> Option<f64> {
    let [program] = step.programs() else { return None };
    let program = program.executable();
    let module = program.hlo().ok()?;
    match program.cost_analysis() {
        Ok(cost) => Some(cost.flops()? + module.cost_of_further_runs().flops),
        Err(_) => Some(module.products().iter().map(|p| p.product.flops * p.times as f64).sum()),
    }
}
