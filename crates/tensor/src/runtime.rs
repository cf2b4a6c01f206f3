//! [`Runtime`]: compiles functions and runs them on a device, remembers what it compiled, and counts what it did.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use fulmen_pjrt::locate::{Platform, locate};
use fulmen_pjrt::{
    Argument, Buffer, Client, CompileOptions, Device, Event, LoadedExecutable, PendingRead, Plugin, Value,
};

use crate::lower::Captured;
use crate::{Accelerator, DType, Error, Function, Literal, Metrics, Result, Tensor, TensorType};

/// Seen: from 2³⁶ elements on, the compiler for CPUs counts a loop's steps with 32 bits and the process dies of a
/// division by zero.
const TOO_MANY_FOR_THE_CPU: usize = (1 << 35) + 1;

/// A device and the programs compiled for it.
///
/// All runtimes opened for one plugin share its client and what was compiled, so values move freely between them; each
/// has [`Metrics`] of its own. A clone is the same runtime.
///
/// ```
/// use fulmen_tensor::{DType, Function, Literal, Runtime, TensorType};
///
/// let runtime = Runtime::global()?;
/// let double = Function::trace("double", &[TensorType::new(DType::F32, [2])], |x| vec![&x[0] * 2.0]);
/// let double = runtime.compile(&double)?;
/// let x = runtime.to_device(&Literal::from_slice(&[1.0f32, 2.0], [2])?)?;
/// let outputs = double.call(vec![fulmen_pjrt::Argument::Borrow(&x)])?;
/// let values = runtime.read(&outputs.buffers.iter().collect::<Vec<_>>())?.wait()?;
/// assert_eq!(values[0].to_vec::<f32>()?, [2.0, 4.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone)]
pub struct Runtime {
    shared: Arc<Shared>,
    metrics: Arc<Metrics>,
}

/// What all runtimes of one client have in common.
struct Shared {
    client: Client,
    device: Device,
    options: CompileOptions,
    /// By the program's text without locations.
    compiled: Mutex<HashMap<String, Arc<LoadedExecutable>>>,
}

impl Runtime {
    /// The first device of this kind, with the plugin found as [`fulmen_pjrt::locate`] says. A device that there is no
    /// plugin for is passed over by [`Accelerator::Auto`], and an error of the others.
    ///
    /// # Errors
    /// No plugin, no device; the message lists what was looked at.
    pub fn open(accelerator: Accelerator) -> Result<Runtime> {
        let (platform, path) = locate_first(&accelerator.candidates(), |platform| locate(platform, None))
            .map_err(|e| Error::runtime(format!("looking for a PJRT plugin for `{accelerator}`"), e))?;
        Runtime::open_plugin(&path, platform)
    }

    /// The first device of the plugin in this file.
    ///
    /// # Errors
    /// The file is no plugin, or the plugin finds no device.
    pub fn open_plugin(path: &Path, platform: Platform) -> Result<Runtime> {
        static OPEN: Mutex<BTreeMap<PathBuf, Arc<Shared>>> = Mutex::new(BTreeMap::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = open.get(path) {
            return Ok(Runtime { shared: shared.clone(), metrics: Arc::default() });
        }
        let plugin = Plugin::load(path).map_err(|e| Error::runtime("loading the PJRT plugin", e))?;
        // The CPU plugin makes four devices unless told otherwise.
        let create: &[(&str, Value)] =
            if platform == Platform::Cpu { &[("cpu_device_count", Value::Int(1))] } else { &[] };
        let client = plugin.create_client(create).map_err(|e| Error::runtime("starting the device runtime", e))?;
        let runtime = Runtime::new(client)?;
        open.insert(path.into(), runtime.shared.clone());
        Ok(runtime)
    }

    /// The first addressable device of a client.
    ///
    /// # Errors
    /// The client has none.
    pub fn new(client: Client) -> Result<Runtime> {
        let Some(device) = client.addressable_devices().first().cloned() else {
            return Err(Error::usage(format!("the platform `{}` has no device", client.platform_name())));
        };
        let options = options_for(client.platform_name());
        let shared = Shared { client, device, options, compiled: Mutex::default() };
        Ok(Runtime { shared: Arc::new(shared), metrics: Arc::default() })
    }

    /// The runtime that [`Tensor::eval`] uses: opened once (after a failure the next call tries again), for the accelerator that the environment variable
    /// `FULMEN_ACCELERATOR` names, else for [`Accelerator::Auto`].
    ///
    /// # Errors
    /// Those of [`Runtime::open`]; an unknown name in the variable.
    pub fn global() -> Result<Runtime> {
        static GLOBAL: Mutex<Option<Runtime>> = Mutex::new(None);
        let mut global = GLOBAL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = &*global {
            return Ok(runtime.clone());
        }
        let accelerator = match std::env::var("FULMEN_ACCELERATOR") {
            Ok(name) => name.parse().map_err(|e| Error::usage(format!("FULMEN_ACCELERATOR: {e}")))?,
            Err(_) => Accelerator::Auto,
        };
        Ok(global.insert(Runtime::open(accelerator)?).clone())
    }

    /// The PJRT client.
    pub fn client(&self) -> &Client {
        &self.shared.client
    }

    /// The device that programs run on.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// What this runtime has done so far: `UncachedCompile`, `CachedCompile`, `CompileTime`, `ExecuteTime`,
    /// `TransferToDeviceTime`, `TransferFromDeviceTime`, `InboundData` and `OutboundData`.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Compiles a function, or finds it among those compiled before.
    ///
    /// # Errors
    /// The first fault in the function; whatever the compiler reports.
    pub fn compile(&self, function: &Function) -> Result<Compiled> {
        let lowered = function.lower()?;
        if let Some((ty, location)) = &lowered.largest {
            if self.shared.client.platform_name() == "cpu" && ty.shape.num_elements() >= TOO_MANY_FOR_THE_CPU {
                return Err(Error::usage(format!(
                    "compiling `{}`: {ty} has more elements than the CPU's compiler counts, 2^35\n  recorded at \
                     {location}",
                    function.name()
                )));
            }
        }
        // The lock is not held while compiling, which may take minutes.
        let cache = || self.shared.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        let known = cache().get(&lowered.key).cloned();
        let cached = known.is_some();
        let executable = match known {
            Some(executable) => {
                self.metrics.count("CachedCompile", 1);
                executable
            }
            None => {
                let start = Instant::now();
                let made = self.shared.client.compile(&lowered.text, &self.shared.options);
                let made = made.map_err(|e| Error::runtime(format!("compiling `{}`", function.name()), e))?;
                self.metrics.count("UncachedCompile", 1);
                self.metrics.record_time("CompileTime", start.elapsed());
                let executable = Arc::new(made);
                // Another thread may have been first; its program is as good.
                cache().entry(lowered.key).or_insert(executable).clone()
            }
        };
        let captured = lowered
            .captured
            .into_iter()
            .map(|captured| match captured {
                Captured::Device(buffer) => self.bring_here(buffer),
                Captured::Host(ty, elements) => self.bytes_to_device(&ty, &elements).map(Arc::new),
            })
            .collect::<Result<_>>()?;
        Ok(Compiled {
            name: function.name().to_owned(),
            metrics: self.metrics.clone(),
            executable,
            captured,
            cached,
            donated: function.aliases().iter().map(Option::is_some).collect(),
        })
    }

    /// Compiles and runs an expression and brings its value to the host.
    ///
    /// # Errors
    /// Those of [`Runtime::compile`] and of running.
    pub fn eval(&self, tensor: &Tensor) -> Result<Literal> {
        let mut values = self.eval_many(&[tensor])?;
        values.pop().ok_or_else(|| Error::usage("the program gave no result"))
    }

    /// Compiles and runs several expressions as one program and brings their values to the host in one transfer.
    ///
    /// # Errors
    /// Those of [`Runtime::compile`] and of running.
    pub fn eval_many(&self, tensors: &[&Tensor]) -> Result<Vec<Literal>> {
        let buffers = self.compute(tensors)?;
        self.read(&buffers.iter().collect::<Vec<_>>())?.wait()
    }

    /// Compiles and runs several expressions as one program; the values stay on the device.
    ///
    /// # Errors
    /// Those of [`Runtime::compile`] and of running.
    pub fn compute(&self, tensors: &[&Tensor]) -> Result<Vec<Buffer>> {
        let results = tensors.iter().map(|&t| t.clone()).collect();
        Ok(self.compile(&Function::new("eval", vec![], results))?.call(vec![])?.buffers)
    }

    /// Copies a value to the device.
    ///
    /// # Errors
    /// Out of memory, mostly.
    pub fn to_device(&self, literal: &Literal) -> Result<Buffer> {
        self.bytes_to_device(literal.ty(), literal.bytes())
    }

    /// A value of another client goes by way of the host.
    fn bring_here(&self, buffer: Arc<Buffer>) -> Result<Arc<Buffer>> {
        if *buffer.device() == self.shared.device {
            return Ok(buffer);
        }
        match self.read(&[&buffer])?.wait()?.first() {
            Some(literal) => self.to_device(literal).map(Arc::new),
            None => Ok(buffer),
        }
    }

    fn bytes_to_device(&self, ty: &TensorType, bytes: &[u8]) -> Result<Buffer> {
        let start = Instant::now();
        let buffer = self
            .shared
            .client
            .buffer_from_host(bytes, ty.dtype.element_type(), &ty.shape, &self.shared.device)
            .map_err(|e| Error::runtime(format!("copying {ty} to the device"), e))?;
        self.metrics.record_time("TransferToDeviceTime", start.elapsed());
        self.metrics.record_bytes("OutboundData", bytes.len());
        Ok(buffer)
    }

    /// Starts to copy values to the host, all of them as one transfer, and does not wait for them.
    ///
    /// # Errors
    /// A buffer of a type that tensors do not have; one that was donated.
    pub fn read(&self, buffers: &[&Buffer]) -> Result<PendingLiterals> {
        let start = Instant::now();
        let reads = buffers
            .iter()
            .map(|buffer| {
                let dtype = DType::from_element_type(buffer.element_type()).ok_or_else(|| {
                    Error::usage(format!("no tensor has the element type {:?}", buffer.element_type()))
                })?;
                let read = buffer.read().map_err(|e| Error::runtime("copying a value to the host", e))?;
                Ok((TensorType::new(dtype, buffer.dims()), read))
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(PendingLiterals { reads, start, metrics: self.metrics.clone() })
    }
}

/// The first of `candidates` that has a plugin, with the plugin's file; the last one's error if none has. An error that
/// says something else than "there is none" stands at once.
fn locate_first(
    candidates: &[Platform],
    locate: impl Fn(Platform) -> fulmen_pjrt::Result<PathBuf>,
) -> fulmen_pjrt::Result<(Platform, PathBuf)> {
    let (last, before) = match candidates {
        [before @ .., last] => (*last, before),
        [] => (Platform::Cpu, &[][..]),
    };
    for &platform in before {
        match locate(platform) {
            Err(e) if e.is_not_found() => {}
            found => return found.map(|path| (platform, path)),
        }
    }
    locate(last).map(|path| (last, path))
}

/// The compiler flags of a platform.
fn options_for(platform: &str) -> CompileOptions {
    let mut options = CompileOptions::new();
    if platform == "cpu" {
        // XLA's fast minimum and maximum lose NaNs: a loss that is NaN would look healthy after a relu or a max.
        options = options.override_flag("xla_cpu_enable_fast_min_max", Value::Bool(false));
        // Seen on CPUs with AVX-512: elementwise code up to 1.8 × faster at full width.
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx512f") {
            options = options.override_flag("xla_cpu_prefer_vector_width", Value::Int(512));
        }
    }
    options
}

/// Values on their way to the host. Dropping it waits for the device to be done with the host's memory.
pub struct PendingLiterals {
    reads: Vec<(TensorType, PendingRead)>,
    start: Instant,
    metrics: Arc<Metrics>,
}

impl PendingLiterals {
    /// Whether all values have arrived, or failed to, so that [`PendingLiterals::wait`] returns at once.
    pub fn is_ready(&self) -> bool {
        self.reads.iter().all(|(_, read)| read.is_ready().unwrap_or(true))
    }

    /// Waits for the values.
    ///
    /// # Errors
    /// A program that failed on the device.
    pub fn wait(self) -> Result<Vec<Literal>> {
        let mut bytes = 0;
        let literals = self
            .reads
            .into_iter()
            .map(|(ty, read)| {
                let data = read.wait().map_err(|e| Error::runtime(format!("copying {ty} to the host"), e))?;
                bytes += ty.size_in_bytes();
                Ok(Literal::from_host_buffer(ty, data))
            })
            .collect::<Result<Vec<_>>>()?;
        self.metrics.record_time("TransferFromDeviceTime", self.start.elapsed());
        self.metrics.record_bytes("InboundData", bytes);
        Ok(literals)
    }
}

/// A compiled [`Function`], with the device values it captured.
#[derive(Clone)]
pub struct Compiled {
    name: String,
    metrics: Arc<Metrics>,
    executable: Arc<LoadedExecutable>,
    captured: Vec<Arc<Buffer>>,
    cached: bool,
    donated: Vec<bool>,
}

/// What a call gives back at once, while the device may still be computing.
pub struct Outputs {
    /// The results, in order.
    pub buffers: Vec<Buffer>,
    /// Becomes ready when the program has finished.
    pub done: Event,
}

impl Compiled {
    /// Runs the program. It returns as soon as the work is queued.
    ///
    /// # Errors
    /// Arguments that do not fit the parameters in number, type, device or donation; a failed launch.
    pub fn call(&self, arguments: Vec<Argument<'_>>) -> Result<Outputs> {
        if arguments.len() != self.donated.len() {
            let message =
                format!("`{}` takes {} arguments and was given {}", self.name, self.donated.len(), arguments.len());
            return Err(Error::usage(message));
        }
        let start = Instant::now();
        let mut all = arguments;
        all.extend(self.captured.iter().map(|buffer| Argument::Borrow(buffer)));
        let doing = || format!("running `{}`", self.name);
        let mut execution = self.executable.execute(vec![all]).map_err(|e| Error::runtime(doing(), e))?;
        let (Some(buffers), Some(done)) = (execution.outputs.pop(), execution.done.pop()) else {
            return Err(Error::usage(format!("{}: the plugin gave no outputs", doing())));
        };
        let metrics = self.metrics.clone();
        done.on_ready(move |_| metrics.record_time("ExecuteTime", start.elapsed()))
            .map_err(|e| Error::runtime(doing(), e))?;
        Ok(Outputs { buffers, done })
    }

    /// Which parameters are donated: their buffers are given away by a call.
    pub fn donated(&self) -> &[bool] {
        &self.donated
    }

    /// Whether the program was found among those compiled before; two threads that ask for a new program at once may
    /// both compile it.
    pub fn was_cached(&self) -> bool {
        self.cached
    }

    /// The loaded executable, for its cost and memory analysis.
    pub fn executable(&self) -> &LoadedExecutable {
        &self.executable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_platform_without_a_plugin_is_passed_over_unless_it_is_the_last() {
        let file = PathBuf::from("plugin.so");
        let missing = || locate(Platform::Cpu, Some(Path::new("no/such/plugin.so"))).map(drop).unwrap_err();
        assert!(missing().is_not_found());
        let only = |there: Platform| {
            let file = file.clone();
            move |platform| if platform == there { Ok(file.clone()) } else { Err(missing()) }
        };
        let all = [Platform::Tpu, Platform::Cuda, Platform::Cpu];
        assert_eq!(locate_first(&all, only(Platform::Cpu)).unwrap(), (Platform::Cpu, file.clone()));
        assert_eq!(locate_first(&all, only(Platform::Tpu)).unwrap(), (Platform::Tpu, file.clone()));
        assert!(locate_first(&[Platform::Cuda], only(Platform::Cpu)).unwrap_err().is_not_found());
        assert_eq!(Accelerator::Auto.candidates().last(), Some(&Platform::Cpu));
        assert_eq!(Accelerator::Cuda.candidates(), [Platform::Cuda]);
    }
}
