//! [`Compiled`]: a program loaded on its devices, and [`Outputs`], the results of a call.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen_durable::messages::quantity;
use fulmen_pjrt::{Event, LoadedExecutable};
use tracing::debug_span;

use crate::array::{Argument, ShardedType};
use crate::{DeviceArray, Error, Function, Metrics, Result, Runtime, Sharding, TensorType};

/// A compiled [`Function`], with the device arrays that it captured.
#[derive(Clone)]
pub struct Compiled {
    signature: Arc<Signature>,
    metrics: Arc<Metrics>,
    executable: Arc<LoadedExecutable>,
    captured: Vec<Arc<DeviceArray>>,
    time: Option<Duration>,
}

/// The parameters and results of a program.
struct Signature {
    name: String,
    /// For each device of this process, its index in the executable's lists of arguments and
    /// outputs.
    slots: Vec<usize>,
    parameters: Vec<Arc<ShardedType>>,
    results: Vec<Arc<ShardedType>>,
    donated: Vec<bool>,
}

/// Makes each [`ShardedType`] of a program once, so that an array that one call returns and the next
/// one takes is recognized by its address.
struct ShardedTypes<'a> {
    runtime: &'a Runtime,
    made: HashMap<(TensorType, Sharding), Arc<ShardedType>>,
}

impl<'a> ShardedTypes<'a> {
    fn new(runtime: &'a Runtime) -> ShardedTypes<'a> {
        ShardedTypes { runtime, made: HashMap::new() }
    }

    fn get(&mut self, ty: &TensorType, sharding: Sharding) -> Arc<ShardedType> {
        let key = (ty.clone(), sharding);
        let make = |(ty, sharding): &(TensorType, Sharding)| ShardedType {
            ty: ty.clone(),
            sharding: sharding.clone(),
            device_set: self.runtime.device_set.clone(),
            metrics: self.runtime.metrics.clone(),
        };
        self.made.entry(key).or_insert_with_key(|key| Arc::new(make(key))).clone()
    }
}

impl Signature {
    fn new(
        name: &str,
        runtime: &Runtime,
        executable: &LoadedExecutable,
        parameters: Vec<Arc<ShardedType>>,
        results: Vec<Arc<ShardedType>>,
        donated: Vec<bool>,
    ) -> Result<Signature> {
        let slot = |device| executable.devices().iter().position(|candidate| candidate == device);
        let slots = runtime
            .local_devices()
            .map(slot)
            .collect::<Option<Vec<_>>>()
            .filter(|slots| slots.len() == executable.devices().len())
            .ok_or_else(|| {
                Error::usage(format!("`{name}` was not compiled for the devices of the runtime"))
            })?;
        let name = name.to_owned();
        Ok(Signature { name, slots, parameters, results, donated })
    }
}

/// The results of a call. The devices may still be computing them.
pub struct Outputs {
    /// The results, in order.
    pub arrays: Vec<DeviceArray>,
    /// Ready when the program has finished.
    pub completion: Completion,
}

/// The end of a run on all devices of this process.
pub struct Completion(Vec<Event>);

impl Completion {
    /// Whether the run has ended or failed, so that [`Completion::wait`] returns at once.
    pub fn is_ready(&self) -> bool {
        self.0.iter().all(|event| event.is_ready().unwrap_or(true))
    }

    /// Waits for the end of the run.
    ///
    /// # Errors
    /// The program failed on a device.
    pub fn wait(self) -> Result<()> {
        let mut result = Ok(());
        for event in self.0 {
            // Wait for all devices, so that nothing still runs after a failure.
            result = result
                .and(event.wait().map_err(|e| Error::runtime("a program failed on the device", e)));
        }
        result
    }
}

impl Compiled {
    pub(crate) fn new(
        function: &Function,
        runtime: &Runtime,
        executable: Arc<LoadedExecutable>,
        captured: Vec<Arc<DeviceArray>>,
        time: Option<Duration>,
    ) -> Result<Compiled> {
        let several = runtime.mesh().num_devices() > 1;
        let mut types = ShardedTypes::new(runtime);
        let mut signature_of = |tensors: &[crate::Tensor], shardings: &[Sharding]| -> Vec<_> {
            let sharding = |s: &Sharding| if several { s.clone() } else { s.on_one_device() };
            tensors.iter().zip(shardings).map(|(t, s)| types.get(t.ty(), sharding(s))).collect()
        };
        let parameters = signature_of(function.parameters(), function.parameter_shardings());
        let results = signature_of(function.results(), function.result_shardings());
        let donated = function.aliases().iter().map(Option::is_some).collect();
        let name = function.name();
        let signature = Signature::new(name, runtime, &executable, parameters, results, donated)?;
        Ok(Compiled {
            signature: Arc::new(signature),
            metrics: runtime.metrics.clone(),
            executable,
            captured,
            time,
        })
    }

    /// A program that was compiled from text for one device.
    pub(crate) fn from_text(
        name: &str,
        runtime: &Runtime,
        executable: LoadedExecutable,
        parameters: &[TensorType],
        results: &[TensorType],
        time: Duration,
    ) -> Result<Compiled> {
        let mut types = ShardedTypes::new(runtime);
        let mut replicated = |tensors: &[TensorType]| {
            tensors.iter().map(|ty| types.get(ty, Sharding::replicated())).collect()
        };
        let donated = executable.signature().donated.clone();
        let parameters = replicated(parameters);
        let results = replicated(results);
        let signature = Signature::new(name, runtime, &executable, parameters, results, donated)?;
        Ok(Compiled {
            signature: Arc::new(signature),
            metrics: runtime.metrics.clone(),
            executable: Arc::new(executable),
            captured: Vec::new(),
            time: Some(time),
        })
    }

    /// Runs the program. Returns as soon as the work is queued.
    ///
    /// # Errors
    /// The arguments do not match the parameters in number, type, sharding, devices or donation, or
    /// the launch fails.
    pub fn call(&self, arguments: Vec<Argument<'_>>) -> Result<Outputs> {
        self.check(&arguments)?;
        let signature = &*self.signature;
        let _launch = debug_span!("launch", program = &*signature.name).entered();
        let start = Instant::now();
        // It has no parent, because it ends later: when the devices have run the program.
        let on_devices = debug_span!(target: "fulmen::devices", parent: None, "program", program = &*signature.name);
        let total = arguments.len() + self.captured.len();
        let mut lists: Vec<Vec<_>> =
            signature.slots.iter().map(|_| Vec::with_capacity(total)).collect();
        for argument in arguments {
            match argument {
                Argument::Donate(array) => {
                    for (&slot, shard) in signature.slots.iter().zip(array.into_shards()) {
                        lists[slot].push(fulmen_pjrt::Argument::Donate(shard));
                    }
                }
                Argument::Borrow(array) => {
                    for (&slot, shard) in signature.slots.iter().zip(array.shards()) {
                        lists[slot].push(fulmen_pjrt::Argument::Borrow(shard));
                    }
                }
            }
        }
        for array in &self.captured {
            for (&slot, shard) in signature.slots.iter().zip(array.shards()) {
                lists[slot].push(fulmen_pjrt::Argument::Borrow(shard));
            }
        }
        let doing = || format!("running `{}`", signature.name);
        let execution = self.executable.execute(lists).map_err(|e| Error::runtime(doing(), e))?;
        let metrics = self.metrics.clone();
        if let Some(first) = execution.device_complete_events.first() {
            first
                .on_ready(move |_| {
                    metrics.record_time("ExecuteTime", start.elapsed());
                    drop(on_devices);
                })
                .map_err(|e| Error::runtime(doing(), e))?;
        }
        let mut outputs: Vec<_> = execution.outputs.into_iter().map(Vec::into_iter).collect();
        let mut arrays = Vec::with_capacity(signature.results.len());
        for sharded_type in &signature.results {
            let shards: Vec<_> =
                signature.slots.iter().filter_map(|&slot| outputs[slot].next()).collect();
            if shards.len() != signature.slots.len() {
                return Err(Error::usage(format!(
                    "{}: the plugin returned too few outputs",
                    doing()
                )));
            }
            arrays.push(DeviceArray::new(sharded_type.clone(), shards));
        }
        Ok(Outputs { arrays, completion: Completion(execution.device_complete_events) })
    }

    fn check(&self, arguments: &[Argument<'_>]) -> Result<()> {
        let signature = &*self.signature;
        let wrong = |message: String| Err(Error::usage(format!("`{}`: {message}", signature.name)));
        if arguments.len() != signature.parameters.len() {
            return Err(Error::usage(format!(
                "`{}` takes {}, but got {}",
                signature.name,
                quantity(signature.parameters.len(), "argument"),
                arguments.len()
            )));
        }
        for (i, (argument, expected)) in arguments.iter().zip(&signature.parameters).enumerate() {
            let array = argument.array();
            let actual = array.sharded_type();
            if Arc::ptr_eq(actual, expected) {
                continue;
            }
            let ShardedType { ty, sharding, .. } = &**expected;
            if &actual.ty != ty {
                return wrong(format!("argument {i} must be {ty}, but is {}", actual.ty));
            }
            if &actual.sharding != sharding {
                return wrong(format!(
                    "argument {i}, {ty}, must have the sharding {sharding}, but has {}",
                    actual.sharding
                ));
            }
            if !actual.has_devices_of(expected) {
                return wrong(format!(
                    "argument {i}, {array:?}, is not on the devices of the program"
                ));
            }
        }
        Ok(())
    }

    /// Whether each parameter is donated: a call gives its memory to the program.
    pub fn donated(&self) -> &[bool] {
        &self.signature.donated
    }

    /// Whether the program was already compiled, in this process or on disk. If two threads need
    /// the same new program at once, both may compile it.
    pub fn was_cached(&self) -> bool {
        self.time.is_none()
    }

    /// The time that the compiler took; `None` if the program was already compiled.
    pub fn compile_time(&self) -> Option<Duration> {
        self.time
    }

    /// The loaded executable, for its cost and memory analysis.
    pub fn executable(&self) -> &LoadedExecutable {
        &self.executable
    }
}
