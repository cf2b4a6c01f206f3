//! [`TrainStart`]: what is known once a fit is compiled.

use fulmen_pjrt::{Device, Executable};
use fulmen_preflight::Generation;
use fulmen_tensor::Runtime;

use crate::program::CompiledStep;

/// What is known when a fit is compiled and its first step about to begin.
pub struct TrainStart<'a> {
    step: &'a CompiledStep,
    runtime: &'a Runtime,
}

impl<'a> TrainStart<'a> {
    pub(crate) fn new(step: &'a CompiledStep, runtime: &'a Runtime) -> TrainStart<'a> {
        TrainStart { step, runtime }
    }

    /// Floating-point operations of a step on one batch, on each device: the compiler's count, with loops as often as they
    /// run. A compiler that counts none, as that for CPUs, leaves matrix products and convolutions, which are counted here.
    /// `None` where the batches have several shapes.
    pub fn flops(&self) -> Option<f64> {
        let [program] = self.step.programs() else { return None };
        flops(program.executable())
    }

    /// The most floating-point operations a second that each device can do, in bf16, as its maker says; `None` where that
    /// is not known, as of a CPU.
    pub fn peak_flops(&self) -> Option<f64> {
        Generation::of_kind(self.runtime.devices().first()?.kind()).map(Generation::device_flops)
    }

    /// The devices of this process.
    pub(crate) fn local_devices(&self) -> Vec<Device> {
        self.runtime.local_devices().cloned().collect()
    }
}

fn flops(program: &Executable) -> Option<f64> {
    let module = program.hlo().ok()?;
    match program.cost_analysis() {
        Ok(cost) => Some(cost.flops()? + module.cost_of_further_runs().flops),
        Err(_) => Some(module.products().iter().map(|p| p.product.flops * p.times as f64).sum()),
    }
}
