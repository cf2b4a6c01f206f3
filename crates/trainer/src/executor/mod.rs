//! [`Executor`]: enqueues compiled steps on the device, a few ahead, and returns the values that
//! are read back. All loops use it. While it waits, it watches the other processes and the signals,
//! so that neither can block it forever.

pub(crate) mod fit_read;
pub(crate) mod progress_file;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use fulmen_coordination::Halt;
use fulmen_data::DeviceBatch;
use fulmen_tensor::{Completion, DeviceArray, Literal, PendingLiterals, Runtime};
use parking_lot::Mutex;
use tracing::debug_span;

use crate::executor::progress_file::step_finished;
use crate::process_group::{self, ProcessGroup};
use crate::program::CompiledStep;
use crate::state::StepState;
use crate::{Result, Signal, error};

/// The maximum number of steps that are enqueued on the device at once. Two steps keep the device
/// busy; the third covers a delay of the host.
const MAX_IN_FLIGHT: usize = 3;

/// Runs steps. Each read has a label `T`, which describes its values.
pub(crate) struct Executor<T> {
    runtime: Runtime,
    /// The other processes. If one of them fails, a step may never finish.
    process_group: Option<Arc<ProcessGroup>>,
    interrupt: Option<Interrupt>,
    /// Whether this process has requested actions between two steps.
    actions_requested: Cell<bool>,
    /// Whether all processes are to run their actions now.
    actions_due: Cell<bool>,
    /// Steps that may not have finished.
    in_flight: VecDeque<Completion>,
    reads: VecDeque<Read<T>>,
}

/// How a signal ends the loop.
struct Interrupt {
    /// While the guard exists, a signal doesn't end the process but requests the loop to end.
    guard: fulmen_signals::Guard,
    /// The next halt, by which all processes stop after the same step, if there are several
    /// processes.
    halt: Option<Arc<Mutex<Halt>>>,
}

/// The reason of a halt after which the processes continue. No signal has this name.
const ACTIONS: &str = "actions";

/// Values on their way to the host.
struct Read<T> {
    label: T,
    values: PendingLiterals,
    /// Kept until the values have arrived.
    _arrays: Vec<DeviceArray>,
}

impl<T> Executor<T> {
    pub(crate) fn new(
        runtime: &Runtime,
        process_group: Option<&Arc<ProcessGroup>>,
        interrupt: Option<fulmen_signals::Guard>,
    ) -> Executor<T> {
        let in_flight = VecDeque::new();
        let reads = VecDeque::new();
        let interrupt = interrupt.map(|guard| {
            let halt =
                process_group.map(|process_group| Arc::new(Mutex::new(process_group.halt())));
            if let Some(halt) = halt.clone() {
                guard.listen(move |signal| halt.lock().request(&signal.to_string()));
            }
            Interrupt { guard, halt }
        });
        let actions_requested = Cell::new(false);
        let actions_due = Cell::new(false);
        Executor {
            runtime: runtime.clone(),
            process_group: process_group.cloned(),
            interrupt,
            actions_requested,
            actions_due,
            in_flight,
            reads,
        }
    }

    pub(crate) fn process_group(&self) -> Option<&Arc<ProcessGroup>> {
        self.process_group.as_ref()
    }

    /// Enqueues a step on the device with [`CompiledStep::call`] as soon as there is room. Returns
    /// whether it had to wait for room, and the outputs.
    pub(crate) fn step(
        &mut self,
        step: &CompiledStep,
        state: &mut impl StepState,
        sums: &mut Option<DeviceArray>,
        key: Option<&DeviceArray>,
        batch: &DeviceBatch,
    ) -> Result<(bool, Vec<DeviceArray>)> {
        let full = self.in_flight.len() >= MAX_IN_FLIGHT;
        while self.in_flight.len() >= MAX_IN_FLIGHT {
            self.wait_for_oldest("a step failed on the device")?;
        }
        let (outputs, done) = step.call(&self.runtime, state, sums, key, batch)?;
        self.in_flight.push_back(done);
        Ok((full, outputs))
    }

    /// Whether the device has finished all enqueued steps.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.back().is_none_or(Completion::is_ready)
    }

    /// Waits until the device has finished all enqueued steps.
    pub(crate) fn drain(&mut self) -> Result<()> {
        while !self.in_flight.is_empty() {
            self.wait_for_oldest("a step failed on the device")?;
        }
        Ok(())
    }

    /// Waits for the first step. After it, there is something to save when a signal arrives.
    pub(crate) fn finish_first(&mut self) -> Result<()> {
        self.wait_for_oldest("the first step failed on the device")?;
        self.interrupt.iter().for_each(|interrupt| interrupt.guard.stepped());
        Ok(())
    }

    fn wait_for_oldest(&mut self, message: &str) -> Result<()> {
        let Some(done) = self.in_flight.pop_front() else { return Ok(()) };
        let _wait = debug_span!("wait for device").entered();
        if let Some(process_group) = &self.process_group {
            process_group.wait_until(|| done.is_ready())?;
        }
        done.wait().map_err(|e| error::device(message, e))?;
        step_finished();
        Ok(())
    }

    /// Starts to read values.
    pub(crate) fn read(&mut self, label: T, arrays: Vec<DeviceArray>) -> Result<()> {
        let values = self.runtime.read(&arrays.iter().collect::<Vec<_>>())?;
        self.reads.push_back(Read { label, values, _arrays: arrays });
        Ok(())
    }

    /// The number of reads that were not returned yet.
    pub(crate) fn pending_reads(&self) -> usize {
        self.reads.len()
    }

    /// Whether the oldest read has arrived.
    pub(crate) fn is_read_ready(&self) -> bool {
        self.reads.front().is_some_and(|read| read.values.is_ready())
    }

    /// Returns the oldest read. Waits if its values have not arrived.
    pub(crate) fn next_read(&mut self) -> Result<Option<(T, Vec<Literal>)>> {
        let Some(Read { label, values, _arrays }) = self.reads.pop_front() else { return Ok(None) };
        Ok(Some((label, process_group::wait_for_literals(self.process_group.as_ref(), values)?)))
    }

    /// Drops all reads that were not returned yet.
    pub(crate) fn forget_reads(&mut self) {
        self.reads.clear();
    }

    /// Asks all processes to run their actions between the same two steps.
    /// [`take_actions_due`](Executor::take_actions_due) returns true when they are there.
    pub(crate) fn request_actions(&self) {
        match &self.interrupt {
            Some(Interrupt { halt: Some(halt), .. }) if !self.actions_requested.replace(true) => {
                halt.lock().request(ACTIONS)
            }
            Some(Interrupt { halt: Some(_), .. }) => {}
            _ => self.actions_due.set(true),
        }
    }

    /// Whether all processes are between the same two steps because one of them requested actions.
    /// True once per request.
    pub(crate) fn take_actions_due(&self) -> bool {
        self.actions_due.take()
    }

    /// The signal that any of the processes got and that must end the loop. All processes call this
    /// after the same steps, so that they end together.
    pub(crate) fn interrupt_signal(&self) -> Result<Option<Signal>> {
        match &self.interrupt {
            None => Ok(None),
            Some(Interrupt { guard, halt: None }) => Ok(guard.requested()),
            Some(Interrupt { guard, halt: Some(halt) }) => {
                let Some(process_group) = &self.process_group else { return Ok(None) };
                process_group.health()?;
                let mut halt = halt.lock();
                match halt.poll()?.as_deref() {
                    None => Ok(None),
                    Some(ACTIONS) => {
                        *halt = process_group.halt();
                        // A signal may have come too late for the previous halt.
                        guard
                            .requested()
                            .iter()
                            .for_each(|signal| halt.request(&signal.to_string()));
                        self.actions_requested.set(false);
                        self.actions_due.set(true);
                        Ok(None)
                    }
                    // Treat a signal that this build doesn't know as a request to terminate.
                    Some(name) => Ok(Some(Signal::from_name(name).unwrap_or(Signal::Terminate))),
                }
            }
        }
    }
}
