//! [`Runtime`]: opens devices, compiles functions for them, and remembers what it compiled.
//!
//! Running a program is in `compiled`, moving values in `transfer`.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fulmen_pjrt::compile_cache::{CompileCache, SavedPrograms};
use fulmen_pjrt::diagnosis::{diagnose, explain};
use fulmen_pjrt::locate::{Platform, locate};
use fulmen_pjrt::{Client, CompileOptions, Device, LoadedExecutable, Plugin, Value};

use crate::array::DeviceSet;
use crate::disk_cache::{DiskCache, Slot};
use crate::emit::Captured;
use crate::host_reads;
use crate::lower::{Lowered, lower};
use crate::recompiles::Recompiles;
use crate::recording::check_values;
use crate::scope::here;
use crate::trace;
use crate::{
    Accelerator, AsTensor, Compiled, DeviceArray, Devices, Error, Function, Literal, Mesh, Metrics, Result, Tensor,
};

/// Seen: from 2³⁶ elements on, the compiler for CPUs counts a loop's steps with 32 bits and the process dies of a
/// division by zero.
const TOO_MANY_FOR_THE_CPU: usize = (1 << 35) + 1;

/// Devices, as a mesh, and the programs compiled for them.
///
/// All runtimes opened for one plugin share its client and what was compiled; each has [`Metrics`] of its own. (A CPU is
/// split into as many devices as are asked for, and each number of them is a client of its own.) A clone is the same
/// runtime.
///
/// ```
/// use fulmen_tensor::{Accelerator, Argument, DType, Devices, Function, Literal, Runtime, Sharding, TensorType};
///
/// let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(2))?;
/// let halves = Sharding::new([Some("data")]);
/// let sum = Function::trace("sum", &[TensorType::new(DType::F32, [4])], |x| vec![x[0].sum_all()]);
/// let sum = runtime.compile(&sum.shard_parameter(0, halves.clone()))?;
/// let x = runtime.to_devices(&Literal::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [4])?, &halves)?;
/// let outputs = sum.call(vec![Argument::Borrow(&x)])?;
/// let values = runtime.read(&outputs.arrays.iter().collect::<Vec<_>>())?.wait()?;
/// assert_eq!(values[0].to_vec::<f32>()?, [10.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone)]
pub struct Runtime {
    pub(crate) shared: Arc<Shared>,
    pub(crate) device_set: Arc<DeviceSet>,
    pub(crate) metrics: Arc<Metrics>,
    disk_cache: Arc<DiskCache>,
}

/// What all runtimes of one client have in common.
pub(crate) struct Shared {
    pub(crate) client: Client,
    options: CompileOptions,
    compiled: Mutex<HashMap<Program, Arc<LoadedExecutable>>>,
    recompiles: Recompiles,
}

/// What tells programs apart: the text without locations, and the ids of the devices.
type Program = (String, Vec<i32>);

/// A function that is to be compiled, and what [`Runtime::preload`] has already done for that.
pub struct Preloaded<'f> {
    function: &'f Function,
    ready: Option<Ready>,
}

/// What a function was lowered to for these devices, and its program if it was on disk.
struct Ready {
    device_set: Arc<DeviceSet>,
    lowered: Lowered,
    executable: Option<LoadedExecutable>,
}

impl<'f> Preloaded<'f> {
    /// The function.
    pub fn function(&self) -> &'f Function {
        self.function
    }
}

impl<'f> From<&'f Function> for Preloaded<'f> {
    fn from(function: &'f Function) -> Preloaded<'f> {
        Preloaded { function, ready: None }
    }
}

/// A plugin's file, and how many devices its client was told to have.
type Opening = (PathBuf, Option<usize>);

impl Runtime {
    /// Opens devices of this kind, with the plugin found as [`fulmen_pjrt::locate`] says. A kind that there is not a plugin
    /// for is passed over by [`Accelerator::Auto`], and an error of the others. The devices are a mesh of one axis,
    /// `data`.
    ///
    /// # Errors
    /// No plugin, no device, not these devices; the message lists what was looked at and what is there.
    pub fn open(accelerator: Accelerator, devices: &Devices) -> Result<Runtime> {
        let candidates = accelerator.candidates();
        let (platform, path) = locate_first(&candidates, |platform| locate(platform, None)).map_err(|e| {
            let e = explain(e, candidates.last().copied().unwrap_or(Platform::Cpu), None);
            Error::runtime(format!("looking for a PJRT plugin for `{accelerator}`"), e)
        })?;
        Runtime::open_plugin(&path, platform, devices)
    }

    /// Opens devices of the plugin in this file.
    ///
    /// # Errors
    /// The file is not a plugin, or the plugin does not find these devices.
    pub fn open_plugin(path: &Path, platform: Platform, devices: &Devices) -> Result<Runtime> {
        static OPEN: Mutex<BTreeMap<Opening, Arc<Shared>>> = Mutex::new(BTreeMap::new());
        // The CPU plugin makes four devices unless told otherwise.
        let count = if platform == Platform::Cpu { Some(devices.on_a_cpu()?) } else { None };
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let opening = (path.to_owned(), count);
        if let Some(shared) = open.get(&opening) {
            return Runtime::of(shared.clone(), devices);
        }
        let why = |doing: &str, e| Error::runtime(doing, explain(e, platform, Some(path)));
        let plugin = Plugin::load(path).map_err(|e| why("loading the PJRT plugin", e))?;
        let create: Vec<_> = count.map(|count| ("cpu_device_count", Value::Int(count as i64))).into_iter().collect();
        let client = plugin.create_client(&create).map_err(|e| why("starting the device runtime", e))?;
        let runtime = Runtime::new(client, devices)?;
        open.insert(opening, runtime.shared.clone());
        Ok(runtime)
    }

    /// A runtime on devices of a client.
    ///
    /// # Errors
    /// The client has not these devices.
    pub fn new(client: Client, devices: &Devices) -> Result<Runtime> {
        let options = options_for(client.platform_name());
        Runtime::of(
            Arc::new(Shared { client, options, compiled: Mutex::default(), recompiles: Recompiles::default() }),
            devices,
        )
    }

    fn of(shared: Arc<Shared>, devices: &Devices) -> Result<Runtime> {
        let device_set = Arc::new(choose(&shared.client, devices)?);
        let disk_cache = DiskCache::from_env();
        disk_cache.prepare(&shared.client);
        Ok(Runtime { shared, device_set, metrics: Arc::default(), disk_cache })
    }

    /// The same devices with another cache of compiled programs on disk, or with none. Without this call it is
    /// [`CompileCache::from_env`]'s: in `$XDG_CACHE_HOME/fulmen/compile`, unless `FULMEN_COMPILE_CACHE` is set.
    ///
    /// ```
    /// use fulmen_pjrt::compile_cache::CompileCache;
    /// use fulmen_tensor::{Accelerator, Devices, Runtime, Tensor};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let cache = CompileCache::new(folder.path(), 1 << 30);
    /// let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1))?.with_compile_cache(cache.clone());
    /// runtime.eval(Tensor::from_slice(&[3.0f32], [1]).sqrt())?;
    /// assert_eq!(cache.entries().unwrap()[0].program.as_deref(), Some("eval"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_compile_cache(self, cache: impl Into<Option<CompileCache>>) -> Runtime {
        let disk_cache = DiskCache::new(cache.into(), self.disk_cache.saved().cloned());
        disk_cache.prepare(&self.shared.client);
        Runtime { disk_cache, ..self }
    }

    /// The same devices, which take programs from a file before they compile them: see [`Function::compile_for`]. A program
    /// that the file does not have is compiled. Where several processes run one program, all take the same file.
    ///
    /// # Errors
    /// The file cannot be read; it is damaged; its programs are for other devices, another plugin or another CPU.
    pub fn with_saved_programs(&self, file: &Path) -> Result<Runtime> {
        let saved = SavedPrograms::read(file, &self.shared.client);
        let saved = saved.map_err(|e| Error::runtime("reading compiled programs", e))?;
        Ok(Runtime { disk_cache: self.disk_cache.with_saved(saved), ..self.clone() })
    }

    /// A SHA-256 over the programs of [`Runtime::with_saved_programs`], in hexadecimal, if there are any.
    pub fn saved_programs_digest(&self) -> Option<&str> {
        self.disk_cache.saved().map(SavedPrograms::digest)
    }

    /// The same devices in the order of another mesh; counted in the same metrics.
    ///
    /// # Errors
    /// The mesh has another number of devices.
    pub fn with_mesh(&self, mesh: &Mesh) -> Result<Runtime> {
        let devices = self.device_set.devices.len();
        if mesh.num_devices() != devices {
            return Err(Error::usage(format!(
                "the mesh {mesh} is of {} devices, and there are {devices}; make the product of its axes {devices}, or \
                 choose other devices",
                mesh.num_devices()
            )));
        }
        let device_set = DeviceSet { mesh: mesh.clone(), ..DeviceSet::clone(&self.device_set) };
        Ok(Runtime { device_set: Arc::new(device_set), ..self.clone() })
    }

    /// The runtime that [`Tensor::eval`] uses, on one device: opened once (after a failure the next call tries again), for
    /// the accelerator that the environment variable `FULMEN_ACCELERATOR` names, else for [`Accelerator::Auto`].
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
        Ok(global.insert(Runtime::open(accelerator, &Devices::from(1))?.here()).clone())
    }

    /// The same client on the first device of this process alone, so that nothing waits for other processes.
    fn here(self) -> Runtime {
        let devices: Vec<Device> = self.local_devices().take(1).cloned().collect();
        Runtime { device_set: Arc::new(DeviceSet { mesh: Mesh::data(1), devices, local: vec![0] }), ..self }
    }

    /// The PJRT client.
    pub fn client(&self) -> &Client {
        &self.shared.client
    }

    /// The devices that programs run on, those of other processes too, in the order of the mesh.
    pub fn devices(&self) -> &[Device] {
        &self.device_set.devices
    }

    /// Those of [`Runtime::devices`] that this process feeds.
    pub fn local_devices(&self) -> impl ExactSizeIterator<Item = &Device> {
        self.device_set.local.iter().map(|&position| &self.device_set.devices[position])
    }

    /// The devices as a grid with named axes.
    pub fn mesh(&self) -> &Mesh {
        &self.device_set.mesh
    }

    /// What this runtime has done so far: `UncachedCompile`, `CachedCompile` (in this process), `PersistentCacheHit` (on
    /// disk), `CreateCompileHandles` (programs compiled or loaded), `CompileTime`, `ExecuteTime`, `TransferToDeviceTime`,
    /// `TransferFromDeviceTime`, `InboundData`, `OutboundData`, and of buffers on devices `CreateDataHandles` and
    /// `DestroyDataHandles`. A Trainer adds `InputWait`, the time in which the devices had no batch.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Compiles a function for the mesh, or finds it among those compiled before, in this process or, on disk, in an earlier
    /// one.
    ///
    /// # Errors
    /// The first fault in the function; a sharding that the mesh does not fit; whatever the compiler reports.
    pub fn compile(&self, function: &Function) -> Result<Compiled> {
        self.compile_with(function.into(), None::<fn(Option<String>)>)
    }

    /// As [`Runtime::compile`], and calls `announce` before the compiler begins, which may take minutes; not for a program
    /// that was compiled before. It is told how the program differs from the most similar one of its name on disk, if there
    /// is one. [`Compiled::compile_time`] says how long it took. The function may be one that [`Runtime::preload`] was
    /// called with.
    ///
    /// # Errors
    /// Those of [`Runtime::compile`].
    pub fn compile_announced<'f>(
        &self,
        function: impl Into<Preloaded<'f>>,
        announce: impl FnOnce(Option<String>),
    ) -> Result<Compiled> {
        self.compile_with(function.into(), Some(announce))
    }

    /// Lowers a function for [`Runtime::compile_announced`], and loads its program from disk if it is there. Both take one
    /// thread; a caller that has something else to do meanwhile calls this on another.
    ///
    /// ```
    /// use fulmen_tensor::{Accelerator, DType, Devices, Function, Runtime, TensorType};
    ///
    /// let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1))?;
    /// let square = Function::trace("square", &[TensorType::new(DType::F32, [2])], |x| vec![&x[0] * &x[0]]);
    /// let preloaded = runtime.preload(&square)?;
    /// let compiled = runtime.compile_announced(preloaded, |_| println!("compiling"))?;
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Runtime::compile`], except the compiler's.
    pub fn preload<'f>(&self, function: &'f Function) -> Result<Preloaded<'f>> {
        let _load = trace::named(|| format!("load {}", function.name()));
        let lowered = lower(function, self.mesh())?;
        let key = self.program(&lowered);
        let on_disk = !self.compiled().contains_key(&key) && self.disk_cache.may_have(self.client(), function);
        let options = self.compile_options(&key);
        let slot = on_disk.then(|| self.disk_cache.slot(self.client(), function, &key.0, &options)).flatten();
        let executable = slot.as_ref().and_then(Slot::load);
        Ok(Preloaded { function, ready: Some(Ready { device_set: self.device_set.clone(), lowered, executable }) })
    }

    /// The programs of this client, compiled before. The lock is not held while compiling, which may take minutes.
    fn compiled(&self) -> MutexGuard<'_, HashMap<Program, Arc<LoadedExecutable>>> {
        self.shared.compiled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What tells the program of this text, without locations, from others.
    fn program(&self, lowered: &Lowered) -> Program {
        (lowered.key.clone(), self.devices().iter().map(|device| device.id()).collect())
    }

    /// How a program is compiled for its devices.
    fn compile_options(&self, (_, ids): &Program) -> CompileOptions {
        self.shared.options.clone().partitions(ids.len()).device_assignment([ids.clone()])
    }

    fn compile_with(
        &self,
        Preloaded { function, ready }: Preloaded<'_>,
        announce: Option<impl FnOnce(Option<String>)>,
    ) -> Result<Compiled> {
        let (lowered, preloaded) = match ready.filter(|ready| ready.device_set == self.device_set) {
            Some(ready) => (ready.lowered, ready.executable),
            None => (lower(function, self.mesh())?, None),
        };
        check_size(function, &lowered, self.shared.client.platform_name())?;
        let key = self.program(&lowered);
        let known = self.compiled().get(&key).cloned();
        let (executable, time) = match known {
            Some(executable) => {
                self.metrics.count("CachedCompile", 1);
                (executable, None)
            }
            None => {
                let options = self.compile_options(&key);
                let texts = (&*lowered.text, &*key.0);
                let (made, time) = self.load_or_compile(function, texts, &options, preloaded, announce)?;
                // It is kept as long as the process, so none is destroyed.
                self.metrics.count("CreateCompileHandles", 1);
                // Another thread may have been first; its program is as good.
                (self.compiled().entry(key).or_insert(Arc::new(made)).clone(), time)
            }
        };
        let captured = lowered
            .captured
            .into_iter()
            .map(|(captured, sharding)| match captured {
                Captured::Device(array) if array.device_set() == &self.device_set => Ok(array),
                // A value of other devices goes by way of the host.
                Captured::Device(array) => match self.read(&[&array])?.wait()?.first() {
                    Some(literal) => self.to_devices(literal, &sharding).map(Arc::new),
                    None => Ok(array),
                },
                Captured::Host(ty, elements) => self.bytes_to_devices(&ty, &elements, &sharding).map(Arc::new),
            })
            .collect::<Result<_>>()?;
        Compiled::new(function, self, executable, captured, time)
    }

    /// Loads a program from disk, or compiles it and keeps it there. The text is given with locations and without. The time
    /// is the compiler's, if it was needed.
    fn load_or_compile(
        &self,
        function: &Function,
        (text, without_locations): (&str, &str),
        options: &CompileOptions,
        preloaded: Option<LoadedExecutable>,
        announce: Option<impl FnOnce(Option<String>)>,
    ) -> Result<(LoadedExecutable, Option<Duration>)> {
        let _compile = trace::named(|| format!("compile {}", function.name()));
        let client = &self.shared.client;
        let slot = self.disk_cache.slot(client, function, without_locations, options);
        if let Some(stored) = preloaded.or_else(|| slot.as_ref()?.load()) {
            self.metrics.count("PersistentCacheHit", 1);
            return Ok((stored, None));
        }
        if let Some(announce) = announce {
            announce(slot.as_ref().and_then(Slot::nearest));
        }
        let start = Instant::now();
        let made = client.compile(text, options);
        let made = made.map_err(|e| Error::runtime(format!("compiling `{}`", function.name()), e))?;
        let time = start.elapsed();
        self.metrics.count("UncachedCompile", 1);
        self.metrics.record_time("CompileTime", time);
        if let Some(slot) = slot {
            slot.store(&made, time);
        }
        Ok((made, Some(time)))
    }

    /// Compiles and runs an expression and brings its value to the host.
    ///
    /// # Errors
    /// Those of [`Runtime::compile`] and of running.
    #[track_caller]
    pub fn eval(&self, tensor: impl AsTensor) -> Result<Literal> {
        let tensor = tensor.as_tensor();
        let mut values = self.eval_many(&[tensor])?;
        values.pop().ok_or_else(|| Error::usage("the program gave no result"))
    }

    /// Compiles and runs several expressions as one program and brings their values to the host in one transfer. What is
    /// a value already needs no program.
    ///
    /// # Errors
    /// Those of [`Runtime::compile`] and of running.
    #[track_caller]
    pub fn eval_many(&self, tensors: &[&Tensor]) -> Result<Vec<Literal>> {
        for tensor in tensors {
            tensor.check()?;
        }
        let mut values: Vec<Option<Literal>> = tensors.iter().map(|tensor| tensor.given()).collect();
        let open: Vec<usize> = (0..tensors.len()).filter(|&i| values[i].is_none()).collect();
        let there = |&i: &usize| tensors[i].array().filter(|array| array.is_readable());
        let expressions: Vec<&Tensor> = open.iter().filter(|i| there(i).is_none()).map(|&i| tensors[i]).collect();
        let computed = if expressions.is_empty() { vec![] } else { self.compute(&expressions)? };
        let mut computed_next = computed.iter();
        let arrays: Vec<&DeviceArray> =
            open.iter().filter_map(|i| there(i).map(|array| &**array).or_else(|| computed_next.next())).collect();
        if !arrays.is_empty() {
            host_reads::count(here());
            for (&i, literal) in open.iter().zip(self.read(&arrays)?.wait()?) {
                values[i] = Some(literal);
            }
        }
        Ok(values.into_iter().flatten().collect())
    }

    /// Compiles and runs several expressions as one program; every device has the whole values. Values that the
    /// expressions were given are inputs of the program, so that the same expressions of other values are not compiled
    /// again. A line that compiles its fifth program is told of; see [`set_note_handler`](crate::set_note_handler).
    ///
    /// # Errors
    /// Those of [`Runtime::compile`] and of running.
    #[track_caller]
    pub fn compute(&self, tensors: &[&Tensor]) -> Result<Vec<DeviceArray>> {
        let line = here();
        let results: Vec<Tensor> = tensors.iter().map(|&t| t.clone()).collect();
        check_values(&results, line)?;
        let function = Function::new("eval", vec![], results).constants_as_inputs();
        let compiled = self.compile(&function)?;
        if !compiled.was_cached() {
            self.shared.recompiles.count(line, function.results());
        }
        Ok(compiled.call(vec![])?.arrays)
    }
}

impl Tensor {
    /// Compiles and runs this expression on the default [`Runtime`] and brings the value to the host.
    ///
    /// # Errors
    /// The fault, if the expression is poisoned; a placeholder without a value, as all inputs of a step are while it is
    /// recorded; whatever the runtime reports.
    #[track_caller]
    pub fn eval(&self) -> Result<Literal> {
        // Before a device is looked for.
        self.check()?;
        check_values(std::slice::from_ref(self), here())?;
        Runtime::global()?.eval(self)
    }
}

/// The chosen devices of each process as a mesh of one axis.
fn choose(client: &Client, devices: &Devices) -> Result<DeviceSet> {
    let here = client.addressable_devices();
    // Of a CPU there is nothing more to know.
    let platform = Platform::from_name(client.platform_name()).filter(|&platform| platform != Platform::Cpu);
    let why = || platform.map_or_else(String::new, |platform| format!("\n{}", diagnose(platform)));
    if here.is_empty() {
        return Err(Error::usage(format!("the platform `{}` has no device{}", client.platform_name(), why())));
    }
    let names = || here.iter().map(Device::to_string).collect::<Vec<_>>().join(", ") + &why();
    let chosen = devices.choose(here.len(), names)?;
    let mut processes: Vec<i32> = client.devices().iter().map(|device| device.process_index()).collect();
    processes.sort_unstable();
    processes.dedup();
    let mut all: Vec<Device> = vec![];
    for process in processes {
        let of_process: Vec<_> = client.devices().iter().filter(|d| d.process_index() == process).collect();
        for &index in &chosen {
            let Some(&device) = of_process.get(index) else {
                return Err(Error::usage(format!(
                    "devices: {devices} is not possible: process {process} has only {} devices",
                    of_process.len()
                )));
            };
            all.push(device.clone());
        }
    }
    let local = (0..all.len()).filter(|&i| all[i].is_addressable()).collect();
    Ok(DeviceSet { mesh: Mesh::data(all.len()), devices: all, local })
}

/// The first of `candidates` that has a plugin, with the plugin's file; the last one's error if none has. An error that
/// says something else than "there is none" is returned at once.
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

/// Refuses what would end the process of a CPU's plugin.
pub(crate) fn check_size(function: &Function, lowered: &Lowered, platform: &str) -> Result<()> {
    match &lowered.largest {
        Some((ty, location)) if platform == "cpu" && ty.shape.num_elements() >= TOO_MANY_FOR_THE_CPU => {
            Err(Error::usage(format!(
                "compiling `{}`: {ty} has more elements than the CPU's compiler counts, 2^35\n  recorded at {location}",
                function.name()
            )))
        }
        _ => Ok(()),
    }
}

/// The compiler flags of a platform.
pub(crate) fn options_for(platform: &str) -> CompileOptions {
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
