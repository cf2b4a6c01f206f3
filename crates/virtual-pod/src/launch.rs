//! Launches: a queue, and the thread that runs it. Launching returns at once with buffers and events
//! that follow.
//!
//! The thread runs one launch at a time, and waits for its end. A CPU plugin that gets many launches
//! with collectives at once can wait in several of them forever.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fulmen_pjrt::abi::*;
use fulmen_pjrt::api::list;
use parking_lot::Mutex;

use crate::buffer::{Array, Handle, RawBuffer, Shard, array_type, await_event, change_elements};
use crate::client::queue_of;
use crate::error::{Failure, PodError};
use crate::event::UnsetEvent;
use crate::exchange::{Agreed, Exchange, Source};
use crate::fault::Fault;
use crate::inner::Entry;
use crate::network::Peer;
use crate::pod::{Pod, Raw};
use crate::program::{Program, program_of};

/// The number of launches that may wait. A caller that is further ahead waits, as with devices.
const MAX_QUEUED: usize = 32;

/// A launch.
struct Job {
    program: Arc<Program>,
    /// For each device of this process, the arguments.
    arguments: Vec<Vec<Shard>>,
    non_donatable: Vec<i64>,
    /// The device of a program that was compiled for any one device.
    device: Option<Raw<PJRT_Device>>,
    outputs: Vec<Arc<Array>>,
    events: Vec<UnsetEvent>,
}

/// The launches of a client.
#[derive(Clone)]
pub(crate) struct Queue {
    sender: SyncSender<Job>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Queue {
    /// Finishes all launches.
    pub(crate) fn finish(self) {
        let Self { sender, thread } = self;
        drop(sender);
        let Some(thread) = thread.lock().take() else { return };
        // A callback of an event may close the client. The thread cannot wait for itself.
        if thread.thread().id() != thread::current().id() {
            let _ = thread.join();
        }
    }
}

/// Starts the thread of a client's launches.
pub(crate) fn start(pod: &Arc<Pod>, peers: Vec<Peer>) -> Result<Queue, PodError> {
    let (sender, jobs) = sync_channel(MAX_QUEUED);
    let exchange = Exchange::new(pod.clone(), peers);
    let pod = pod.clone();
    let thread = thread::Builder::new()
        .name("pod-launch".to_owned())
        .spawn(move || run(&pod, exchange, &jobs));
    let thread = thread.map_err(|error| {
        PodError::new(PJRT_Error_Code::INTERNAL, format!("starting a thread: {error}"))
    })?;
    Ok(Queue { sender, thread: Arc::new(Mutex::new(Some(thread))) })
}

fn run(pod: &Pod, mut exchange: Exchange, jobs: &Receiver<Job>) {
    let mut launches: u64 = 0;
    for job in jobs {
        let run = AssertUnwindSafe(|| job.run(pod, &mut exchange));
        let outcome = catch_unwind(run).unwrap_or_else(|payload| {
            // Dropping the payload could panic again.
            std::mem::forget(payload);
            let message =
                "a launch of the virtual pod panicked; this is a bug in fulmen-virtual-pod";
            Err(PodError::new(PJRT_Error_Code::INTERNAL, message))
        });
        launches += 1;
        at_exit::launched(launches);
        job.finish(outcome);
    }
}

/// Why a launch failed.
enum Stop {
    /// The processes no longer agree, so that no launch can follow.
    Pod(PodError),
    /// The program failed, in all processes in the same way.
    Program(PodError),
}

impl Job {
    fn run(&self, pod: &Pod, exchange: &mut Exchange) -> Result<Vec<Vec<RawBuffer>>, PodError> {
        let failure = pod.failure.lock().clone();
        let outcome = match failure {
            Some(error) => Err(Stop::Program(error)),
            None => self.launch(pod, exchange),
        };
        for shard in self.arguments.iter().flatten() {
            shard.array.dequeue();
        }
        match outcome {
            Ok(outputs) => Ok(outputs),
            Err(Stop::Program(error)) => Err(error),
            Err(Stop::Pod(error)) => {
                if pod.settings.hangs {
                    pod.hang();
                }
                *pod.failure.lock() = Some(error.clone());
                exchange.close();
                Err(error)
            }
        }
    }

    /// The outputs, by output and device.
    fn launch(&self, pod: &Pod, exchange: &mut Exchange) -> Result<Vec<Vec<RawBuffer>>, Stop> {
        for shard in self.arguments.iter().flatten() {
            shard.array.wait().map_err(Stop::Program)?;
        }
        let sources = self.sources();
        let mut agreed = None;
        if self.program.processes.len() > 1 {
            let result = exchange.agree(&self.program, &self.arguments, &sources);
            let result = result.map_err(Stop::Pod)?;
            for (number, output) in self.outputs.iter().enumerate() {
                let _ = output.origin.set((result.launch, number as u32));
            }
            agreed = Some(result);
        }
        self.execute(pod, &sources, agreed.as_ref()).map_err(Stop::Program)
    }

    fn finish(self, outcome: Result<Vec<Vec<RawBuffer>>, PodError>) {
        let Job { outputs, events, .. } = self;
        match outcome {
            Ok(parts) => {
                for (output, parts) in outputs.iter().zip(parts) {
                    output.resolve(Ok(parts));
                }
                events.into_iter().for_each(|event| event.set(None));
            }
            Err(error) => {
                outputs.iter().for_each(|output| output.resolve(Err(error.clone())));
                events.into_iter().for_each(|event| event.set(Some(&error)));
            }
        }
    }

    /// Where each argument comes from.
    fn sources(&self) -> Vec<Source> {
        let Some(first) = self.arguments.first() else { return Vec::new() };
        let source = |i: usize| {
            let array = &first[i].array;
            let is_one = self.arguments.iter().zip(&self.program.own).all(|(list, &position)| {
                Arc::ptr_eq(&list[i].array, array)
                    && Raw(list[i].device()) == self.program.devices[position]
            });
            let is_everywhere = array.origin.get().is_some()
                && self.program.devices.iter().all(|device| array.devices.contains(device));
            if is_one && is_everywhere { Source::Result(array.clone()) } else { Source::Host }
        };
        (0..first.len()).map(source).collect()
    }

    /// Runs the program with the CPU plugin, and waits for its end.
    fn execute(
        &self,
        pod: &Pod,
        sources: &[Source],
        agreed: Option<&Agreed>,
    ) -> Result<Vec<Vec<RawBuffer>>, PodError> {
        let fault = pod.settings.fault.as_ref().filter(|fault| fault.is_of(&self.program.name));
        if let Some(fault) = fault {
            fault.before()?;
        }
        let devices = match self.device {
            Some(device) => vec![device],
            None => self.program.devices.clone(),
        };
        // The number of devices of each process so far.
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        let mut lists: Vec<Vec<*mut PJRT_Buffer>> = Vec::new();
        for &device in &devices {
            let process = pod.process_of(device).unwrap_or(pod.process);
            let count = counts.entry(process).or_default();
            let index = *count;
            *count += 1;
            let argument = |(i, source): (usize, &Source)| match source {
                Source::Result(array) => {
                    let position = array.devices.iter().position(|&known| known == device);
                    Ok(array.wait()?[position.ok_or_else(|| missing(i))?].raw())
                }
                Source::Host if process == pod.process => self.arguments[index][i].wait(),
                Source::Host => agreed
                    .and_then(|agreed| agreed.value(process, i, index))
                    .map(RawBuffer::raw)
                    .ok_or_else(|| missing(i)),
            };
            lists.push(sources.iter().enumerate().map(argument).collect::<Result<_, _>>()?);
        }
        let outputs = self.outputs.len();
        let mut results = vec![vec![std::ptr::null_mut::<PJRT_Buffer>(); outputs]; devices.len()];
        let mut events = vec![std::ptr::null_mut::<PJRT_Event>(); devices.len()];
        let inputs: Vec<*const *mut PJRT_Buffer> = lists.iter().map(Vec::as_ptr).collect();
        let places: Vec<*mut *mut PJRT_Buffer> = results.iter_mut().map(Vec::as_mut_ptr).collect();
        let mut options = PJRT_ExecuteOptions::new();
        options.launch_id = pod.next_launch_id();
        let mut non_donatable = self.non_donatable.clone();
        if fault.is_some_and(Fault::drops_donations) {
            non_donatable = (0..sources.len() as i64).collect();
        }
        options.non_donatable_input_indices = non_donatable.as_ptr();
        options.num_non_donatable_input_indices = non_donatable.len();
        let mut args = PJRT_LoadedExecutable_Execute_Args::new();
        args.executable = self.program.raw();
        args.options = &mut options;
        args.argument_lists = inputs.as_ptr();
        args.num_devices = devices.len();
        args.num_args = sources.len();
        args.output_lists = places.as_ptr();
        args.device_complete_events = events.as_mut_ptr();
        args.execute_device = self.device.map_or(std::ptr::null_mut(), |device| device.0);

        // Held until the program has ended.
        let _running = at_exit::RUNNING.lock();
        // SAFETY: the lists have the lengths that the program and the number of devices require, and
        // outlive the call. Each buffer is alive and on its device: the caller's own by contract,
        // those of other processes were put there.
        unsafe { pod.inner.call(&mut args) }?;
        let mut outcome = Ok(());
        for event in events {
            outcome = outcome.and(await_event(pod.inner, event));
        }
        // Takes ownership of everything first, so that nothing leaks.
        let mut by_output: Vec<Vec<RawBuffer>> = (0..outputs).map(|_| Vec::new()).collect();
        for raw in results.into_iter().flat_map(|list| list.into_iter().enumerate()) {
            match RawBuffer::new(&self.program.pod, raw.1) {
                Ok(buffer) => by_output[raw.0].push(buffer),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome?;
        if let Some(fault) = fault {
            spoil(fault, &mut by_output)?;
            self.change_events(fault, pod);
        }
        Ok(by_output)
    }

    /// Makes the results of a program that has ended ready too early, or never.
    fn change_events(&self, fault: &Fault, pod: &Pod) {
        if let Some(time) = fault.early() {
            let end = Instant::now() + time;
            self.outputs.iter().for_each(|output| output.unwritten_until.set(end).unwrap_or(()));
        }
        if fault.loses_events() {
            pod.hang();
        }
    }
}

/// `PJRT_Buffer_Type_F32`.
const F32: i32 = 11;

/// Makes the results of a program that has ended wrong, by output and device.
fn spoil(fault: &Fault, results: &mut [Vec<RawBuffer>]) -> Result<(), PodError> {
    for (output, parts) in results.iter_mut().enumerate() {
        if fault.swaps_devices() && parts.len() > 1 {
            parts.swap(0, 1);
        }
        for part in parts.iter() {
            let is_f32 = array_type(part)?.0 == F32;
            if let Some(change) = fault.change(output, is_f32) {
                change_elements(part, change)?;
            }
        }
    }
    Ok(())
}

fn missing(argument: usize) -> PodError {
    let message = format!("virtual pod: argument {argument} is missing on a device");
    PodError::new(PJRT_Error_Code::INTERNAL, message)
}

impl Entry for PJRT_LoadedExecutable_Execute_Args {
    unsafe fn run(&mut self) -> Result<(), Failure> {
        let program = program_of(self.executable)?;
        let pod = &program.pod;
        if let Some(error) = &*pod.failure.lock() {
            return Err(error.clone().into());
        }
        // SAFETY: the caller's options, if there are any.
        let options = unsafe { self.options.as_ref() };
        let is_plain = |options: &PJRT_ExecuteOptions| {
            options.num_send_ops == 0 && options.num_recv_ops == 0 && options.context.is_null()
        };
        if !options.is_none_or(is_plain) {
            let message =
                "a virtual pod runs no programs with host callbacks or an execute context";
            return Err(PodError::new(PJRT_Error_Code::UNIMPLEMENTED, message).into());
        }
        let device = (!self.execute_device.is_null()).then_some(Raw(self.execute_device));
        if let Some(device) = device {
            pod.check_device(device.0)?;
        }
        let own = if device.is_some() { 1 } else { program.own.len() };
        if self.num_devices != own || own == 0 {
            return Err(PodError::invalid(format!(
                "`{}` runs on {own} devices of process {}, but arguments were given for {}",
                program.name, pod.process, self.num_devices
            ))
            .into());
        }
        let mut arguments = vec![Vec::new(); own];
        // SAFETY: the caller's lists have these lengths, and contain buffers of this plugin.
        unsafe {
            for (shards, &start) in
                arguments.iter_mut().zip(list(self.argument_lists, self.num_devices))
            {
                for &raw in list(start, self.num_args) {
                    shards.push(Handle::of(raw)?.shard().clone());
                }
            }
        }
        if arguments.iter().any(|shards: &Vec<Shard>| shards.len() != self.num_args) {
            return Err(PodError::invalid("a list of arguments is null").into());
        }
        let non_donatable = options.map_or_else(Vec::new, |options| {
            // SAFETY: the caller's list has this length.
            unsafe {
                list(options.non_donatable_input_indices, options.num_non_donatable_input_indices)
            }
            .to_vec()
        });
        let queue = queue_of(pod.raw.0)?;
        let devices = device.map_or_else(|| program.devices.clone(), |device| vec![device]);
        let outputs: Vec<Arc<Array>> =
            (0..program.num_outputs).map(|_| Array::pending(pod, devices.clone())).collect();
        let mut events = Vec::new();
        if !self.device_complete_events.is_null() {
            for _ in 0..own {
                events.push(UnsetEvent::new(pod.inner)?);
            }
        }

        // From here on nothing fails, so that the caller gets all or nothing.
        let positions = if device.is_some() { vec![0] } else { program.own.clone() };
        for (i, position) in positions.into_iter().enumerate() {
            for (number, array) in outputs.iter().enumerate() {
                let shard = Shard { array: array.clone(), index: position };
                // SAFETY: the caller's lists have room for the outputs of each device.
                unsafe { *(*self.output_lists.add(i)).add(number) = Handle::give(shard) };
            }
            if let Some(event) = events.get(i) {
                // SAFETY: the caller's list has room for an event of each device.
                unsafe { *self.device_complete_events.add(i) = event.raw() };
            }
        }
        for shard in arguments.iter().flatten() {
            shard.array.enqueue();
        }
        let program = program.clone();
        let job = Job { program, arguments, non_donatable, device, outputs, events };
        if let Err(rejected) = queue.sender.send(job) {
            // The thread has panicked. The outputs and events of the job say so.
            let error =
                PodError::new(PJRT_Error_Code::INTERNAL, "virtual pod: launches have ended");
            rejected.0.finish(Err(error));
        }
        Ok(())
    }
}

/// The end of the process while a program runs. The exit handlers of the CPU plugin would destroy
/// objects that its threads still use, so the end waits for the program.
mod at_exit {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Held while the CPU plugin runs a program.
    pub(super) static RUNNING: Mutex<()> = Mutex::new(());

    /// A process that is to end must not hang because of a program that never ends.
    const PATIENCE: Duration = Duration::from_secs(5);

    /// Handlers run in the reverse order of their registration, and the plugin registers some when
    /// it first runs code. So a handler must come after them, but not one for each launch.
    pub(super) fn launched(number: u64) {
        if number.count_ones() == 1 {
            // SAFETY: the function has no arguments, does not unwind, and is never unloaded.
            unsafe { libc::atexit(handler) };
        }
    }

    extern "C" fn handler() {
        static ENDING: AtomicBool = AtomicBool::new(false);
        hold(&RUNNING, &ENDING, PATIENCE);
    }

    /// The first handler takes the lock, and never releases it, so that no other program starts.
    fn hold(running: &Mutex<()>, ending: &AtomicBool, patience: Duration) {
        if !ending.swap(true, Ordering::Relaxed) {
            std::mem::forget(running.try_lock_for(patience));
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn only_the_first_handler_waits_for_the_program() {
            let running = Mutex::new(());
            let ending = AtomicBool::new(false);
            let program = running.lock();
            hold(&running, &ending, Duration::from_millis(1));
            drop(program);
            hold(&running, &ending, Duration::from_millis(1));
            assert!(!running.is_locked(), "the second handler waited too");

            let ending = AtomicBool::new(false);
            hold(&running, &ending, Duration::from_millis(1));
            assert!(running.is_locked(), "another program could start");
        }
    }
}
