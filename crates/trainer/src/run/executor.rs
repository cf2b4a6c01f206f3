//! [`Executor`]: hands compiled steps to the device, a few ahead of it, and hands on what is read back. All loops run on
//! it: it knows the other processes and the signals, and waits for nothing that they could keep from coming.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use fulmen_coordination::Halt;
use fulmen_data::DeviceBatch;
use fulmen_tensor::trace::span;
use fulmen_tensor::{DeviceArray, Done, Literal, PendingLiterals, Runtime};
use parking_lot::Mutex;

use crate::process_group::{self, ProcessGroup};
use crate::program::CompiledStep;
use crate::run::progress_file::step_finished;
use crate::state::StepState;
use crate::{Error, Result, Signal};

/// Steps queued on the device at once. Two keep it busy; the third hides a slow turn of the host.
const MOST: usize = 3;

/// Runs steps; what is read back has a `T` to tell what it is.
pub(crate) struct Executor<T> {
    runtime: Runtime,
    /// The other processes, without which a step may never finish.
    hosts: Option<Arc<ProcessGroup>>,
    /// While it lives, a signal is a request; the processes stop together.
    interrupt: Option<(fulmen_signals::Guard, Option<CurrentHalt>)>,
    /// Whether this process wants to do something between two steps, and whether all are to do it now.
    asked: Cell<bool>,
    agreed: Cell<bool>,
    /// Steps that may not have finished.
    in_flight: VecDeque<Done>,
    reads: VecDeque<Read<T>>,
}

/// What lets the processes come together after the same step, for the next time.
type CurrentHalt = Arc<Mutex<Halt>>;

/// Why processes come together that go on afterwards. It is the name of no signal.
const ACTIONS: &str = "actions";

/// Values on their way to the host.
struct Read<T> {
    what: T,
    values: PendingLiterals,
    /// Kept until the values have arrived.
    _arrays: Vec<DeviceArray>,
}

impl<T> Executor<T> {
    pub(crate) fn new(
        runtime: &Runtime,
        hosts: Option<&Arc<ProcessGroup>>,
        interrupt: Option<fulmen_signals::Guard>,
    ) -> Executor<T> {
        let (in_flight, reads) = (VecDeque::new(), VecDeque::new());
        let interrupt = interrupt.map(|guard| {
            let halt = hosts.map(|hosts| Arc::new(Mutex::new(hosts.halt())));
            if let Some(halt) = halt.clone() {
                guard.listen(move |signal| halt.lock().request(&signal.to_string()));
            }
            (guard, halt)
        });
        let (asked, agreed) = (Cell::new(false), Cell::new(false));
        Executor { runtime: runtime.clone(), hosts: hosts.cloned(), interrupt, asked, agreed, in_flight, reads }
    }

    pub(crate) fn hosts(&self) -> Option<&Arc<ProcessGroup>> {
        self.hosts.as_ref()
    }

    /// Hands a step to the device as soon as there is room, as [`CompiledStep::call`] does; says also whether it had to
    /// wait for room.
    pub(crate) fn step(
        &mut self,
        step: &CompiledStep,
        state: &mut impl StepState,
        sums: &mut Option<DeviceArray>,
        key: Option<&DeviceArray>,
        batch: &DeviceBatch,
    ) -> Result<(bool, Vec<DeviceArray>)> {
        let full = self.in_flight.len() >= MOST;
        while self.in_flight.len() >= MOST {
            self.wait_for_oldest("a step failed on the device")?;
        }
        let (outputs, done) = step.call(&self.runtime, state, sums, key, batch)?;
        self.in_flight.push_back(done);
        Ok((full, outputs))
    }

    /// Whether the device has done all that it was given.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.back().is_none_or(Done::is_ready)
    }

    /// Waits until the device has nothing left to do.
    pub(crate) fn drain(&mut self) -> Result<()> {
        while !self.in_flight.is_empty() {
            self.wait_for_oldest("a step failed on the device")?;
        }
        Ok(())
    }

    /// Waits for the first step. From then on a signal finds something to save.
    pub(crate) fn finish_first(&mut self) -> Result<()> {
        self.wait_for_oldest("the first step failed on the device")?;
        self.interrupt.iter().for_each(|(guard, _)| guard.stepped());
        Ok(())
    }

    fn wait_for_oldest(&mut self, failed: &str) -> Result<()> {
        let Some(done) = self.in_flight.pop_front() else { return Ok(()) };
        let _wait = span("wait for device");
        if let Some(hosts) = &self.hosts {
            hosts.wait_until(|| done.is_ready())?;
        }
        done.wait().map_err(|e| Error::device(failed, e))?;
        step_finished();
        Ok(())
    }

    /// Starts to read values.
    pub(crate) fn read(&mut self, what: T, arrays: Vec<DeviceArray>) -> Result<()> {
        let values = self.runtime.read(&arrays.iter().collect::<Vec<_>>())?;
        self.reads.push_back(Read { what, values, _arrays: arrays });
        Ok(())
    }

    /// How many reads are on their way.
    pub(crate) fn reading(&self) -> usize {
        self.reads.len()
    }

    /// Whether the oldest read has arrived.
    pub(crate) fn has_arrived(&self) -> bool {
        self.reads.front().is_some_and(|read| read.values.is_ready())
    }

    /// The oldest read; waits for it if it has not arrived.
    pub(crate) fn arrived(&mut self) -> Result<Option<(T, Vec<Literal>)>> {
        let Some(Read { what, values, _arrays }) = self.reads.pop_front() else { return Ok(None) };
        Ok(Some((what, process_group::arrive(self.hosts.as_ref(), values)?)))
    }

    /// Lets go what has not arrived.
    pub(crate) fn forget_reads(&mut self) {
        self.reads.clear();
    }

    /// Asks all processes to come together between two steps; [`agreed`](Executor::agreed) says when they have.
    pub(crate) fn ask(&self) {
        match &self.interrupt {
            Some((_, Some(halt))) if !self.asked.replace(true) => halt.lock().request(ACTIONS),
            Some((_, Some(_))) => {}
            _ => self.agreed.set(true),
        }
    }

    /// Whether all processes are together between the same two steps, because one of them has asked for it. RunConfig once.
    pub(crate) fn agreed(&self) -> bool {
        self.agreed.take()
    }

    /// The signal that asks for an end, to any of the processes. They end together, so all ask after the same steps.
    pub(crate) fn interrupted(&self) -> Result<Option<Signal>> {
        match &self.interrupt {
            None => Ok(None),
            Some((guard, None)) => Ok(guard.requested()),
            Some((guard, Some(halt))) => {
                let Some(hosts) = &self.hosts else { return Ok(None) };
                hosts.health()?;
                let mut halt = halt.lock();
                match halt.turn()?.as_deref() {
                    None => Ok(None),
                    Some(ACTIONS) => {
                        *halt = hosts.halt();
                        // It may have come too late for the halt before.
                        guard.requested().iter().for_each(|signal| halt.request(&signal.to_string()));
                        self.asked.set(false);
                        self.agreed.set(true);
                        Ok(None)
                    }
                    // A signal that this build does not know is not a Ctrl-C.
                    Some(name) => Ok(Some(Signal::named(name).unwrap_or(Signal::Terminate))),
                }
            }
        }
    }
}
