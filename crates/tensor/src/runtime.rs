//! [`Runtime`]: opens devices, compiles functions for them, and keeps the compiled programs.
//!
//! Out of scope: running a program, see `compiled.rs`; moving values, see `transfer.rs`.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fulmen_pjrt::compile_cache::{CompileCache, SavedPrograms};
use fulmen_pjrt::diagnosis::{diagnose, explain};
use fulmen_pjrt::locate::{Platform, locate};
use fulmen_pjrt::{Client, CompileOptions, Device, LoadedExecutable, NamedValue, Plugin};

use crate::array::DeviceSet;
use crate::disk_cache::{DiskCache, Slot};
use crate::emit::Captured;
use crate::host_reads;
use crate::lower::{Lowered, lower};
use crate::missing_values::check_no_placeholder;
use crate::recompiles::Recompiles;
use crate::scope::current_line;
use crate::trace;
use crate::{
    Accelerator, AsTensor, Compiled, DeviceArray, Devices, Error, Function, Literal, Mesh, Metrics,
    Result, Tensor,
};

/// The compiler for CPUs counts a loop's steps with 32 bits. With 2³⁶ or more elements we observed
/// that the process dies from a division by zero.
const TOO_MANY_FOR_THE_CPU: usize = (1 << 35) + 1;

/// Opened devices as a mesh, and the programs compiled for them.
///
/// All runtimes opened for one plugin share its client and the compiled programs, but each has its
/// own [`Metrics`]. A clone is the same runtime. A CPU is split into the selected number of
/// devices, and there is one client for each number.
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

/// The state that all runtimes of one client share.
pub(crate) struct Shared {
    pub(crate) client: Client,
    options: CompileOptions,
    compiled: Mutex<HashMap<Program, Arc<LoadedExecutable>>>,
    recompiles: Recompiles,
}

/// The key of a compiled program.
#[derive(PartialEq, Eq, Hash)]
struct Program {
    /// The program's text without locations.
    text: String,
    device_ids: Vec<i32>,
}

/// A function to compile, with the results of [`Runtime::preload`] if it was called.
pub struct Preloaded<'f> {
    function: &'f Function,
    lowering: Option<PreloadedLowering>,
}

/// A lowered function for these devices, and its program if it was on disk.
struct PreloadedLowering {
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
        Preloaded { function, lowering: None }
    }
}

/// Identifies a client: the plugin's file, and the requested number of CPU devices.
type ClientKey = (PathBuf, Option<usize>);

impl Runtime {
    /// Opens devices of this kind, with the plugin that [`fulmen_pjrt::locate`] finds. The devices
    /// become a mesh with the single axis `data`. [`Accelerator::Auto`] skips kinds without a
    /// plugin; for the other accelerators a missing plugin is an error.
    ///
    /// # Errors
    /// There is no plugin, no device, or not the selected devices. The message lists where it
    /// looked and what is available.
    pub fn open(accelerator: Accelerator, devices: &Devices) -> Result<Runtime> {
        let candidates = accelerator.candidates();
        let (platform, path) = locate_first(&candidates, |platform| locate(platform, None))
            .map_err(|e| {
                let e = explain(e, candidates.last().copied().unwrap_or(Platform::Cpu), None);
                Error::runtime(format!("looking for a PJRT plugin for `{accelerator}`"), e)
            })?;
        Runtime::open_plugin(&path, platform, devices)
    }

    /// Opens devices with the plugin in this file.
    ///
    /// # Errors
    /// The file is not a plugin, or the plugin does not find the selected devices.
    pub fn open_plugin(path: &Path, platform: Platform, devices: &Devices) -> Result<Runtime> {
        static CLIENTS: Mutex<BTreeMap<ClientKey, Arc<Shared>>> = Mutex::new(BTreeMap::new());
        // By default the CPU plugin makes four devices.
        let count = if platform == Platform::Cpu { Some(devices.on_a_cpu()?) } else { None };
        let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (path.to_owned(), count);
        if let Some(shared) = clients.get(&key) {
            return Runtime::from_shared(shared.clone(), devices);
        }
        let explained = |doing: &str, e| Error::runtime(doing, explain(e, platform, Some(path)));
        let plugin = Plugin::load(path).map_err(|e| explained("loading the PJRT plugin", e))?;
        let options: Vec<_> = count
            .map(|count| ("cpu_device_count", NamedValue::Int(count as i64)))
            .into_iter()
            .collect();
        let client = plugin
            .create_client(&options)
            .map_err(|e| explained("starting the device runtime", e))?;
        let runtime = Runtime::new(client, devices)?;
        clients.insert(key, runtime.shared.clone());
        Ok(runtime)
    }

    /// A runtime on devices of a client.
    ///
    /// # Errors
    /// The client does not have the selected devices.
    pub fn new(client: Client, devices: &Devices) -> Result<Runtime> {
        let options = options_for(client.platform_name());
        Runtime::from_shared(
            Arc::new(Shared {
                client,
                options,
                compiled: Mutex::default(),
                recompiles: Recompiles::default(),
            }),
            devices,
        )
    }

    fn from_shared(shared: Arc<Shared>, devices: &Devices) -> Result<Runtime> {
        let device_set = Arc::new(choose(&shared.client, devices)?);
        let disk_cache = DiskCache::from_env();
        disk_cache.prepare(&shared.client);
        Ok(Runtime { shared, device_set, metrics: Arc::default(), disk_cache })
    }

    /// The same devices with a different compile cache on disk, or with none. The default is
    /// [`CompileCache::from_env`]: `$XDG_CACHE_HOME/fulmen/compile`, unless `FULMEN_COMPILE_CACHE` is set.
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

    /// The same devices with a file of compiled programs; see [`Function::compile_for`]. Programs
    /// that are not in the file are compiled. If several processes run one program, they must all
    /// use the same file.
    ///
    /// # Errors
    /// The file cannot be read or is damaged, or its programs are for other devices, another plugin
    /// or another CPU.
    pub fn with_saved_programs(&self, file: &Path) -> Result<Runtime> {
        let saved = SavedPrograms::read(file, &self.shared.client);
        let saved = saved.map_err(|e| Error::runtime("reading compiled programs", e))?;
        Ok(Runtime { disk_cache: self.disk_cache.with_saved(saved), ..self.clone() })
    }

    /// The hexadecimal SHA-256 digest of the programs of [`Runtime::with_saved_programs`], if there
    /// are any.
    pub fn saved_programs_digest(&self) -> Option<&str> {
        self.disk_cache.saved().map(SavedPrograms::digest)
    }

    /// The same devices as another mesh, with the same metrics.
    ///
    /// # Errors
    /// The mesh has a different number of devices.
    pub fn with_mesh(&self, mesh: &Mesh) -> Result<Runtime> {
        let devices = self.device_set.devices.len();
        if mesh.num_devices() != devices {
            return Err(Error::usage(format!(
                "the mesh {mesh} has {} devices, but the runtime has {devices}; use axes whose sizes multiply to {devices}, \
                 or select other devices",
                mesh.num_devices()
            )));
        }
        let device_set = DeviceSet { mesh: mesh.clone(), ..DeviceSet::clone(&self.device_set) };
        Ok(Runtime { device_set: Arc::new(device_set), ..self.clone() })
    }

    /// The runtime of [`Tensor::eval`], on one device. The environment variable
    /// `FULMEN_ACCELERATOR` selects the accelerator; the default is [`Accelerator::Auto`]. The
    /// first call opens the runtime. After a failure, the next call tries again.
    ///
    /// # Errors
    /// As for [`Runtime::open`]. Also if the variable does not name an accelerator.
    pub fn global() -> Result<Runtime> {
        static GLOBAL: Mutex<Option<Runtime>> = Mutex::new(None);
        let mut global = GLOBAL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = &*global {
            return Ok(runtime.clone());
        }
        let accelerator = match std::env::var("FULMEN_ACCELERATOR") {
            Ok(name) => {
                name.parse().map_err(|e| Error::usage(format!("FULMEN_ACCELERATOR: {e}")))?
            }
            Err(_) => Accelerator::Auto,
        };
        Ok(global.insert(Runtime::open(accelerator, &Devices::from(1))?.on_first_device()).clone())
    }

    /// The same client, but only the first device of this process, so that nothing waits for other
    /// processes.
    fn on_first_device(self) -> Runtime {
        let devices: Vec<Device> = self.local_devices().take(1).cloned().collect();
        Runtime {
            device_set: Arc::new(DeviceSet { mesh: Mesh::data(1), devices, local: vec![0] }),
            ..self
        }
    }

    /// The PJRT client.
    pub fn client(&self) -> &Client {
        &self.shared.client
    }

    /// The devices that programs run on, including those of other processes, in the order of the
    /// mesh.
    pub fn devices(&self) -> &[Device] {
        &self.device_set.devices
    }

    /// The devices of this process, in the order of [`Runtime::devices`].
    pub fn local_devices(&self) -> impl ExactSizeIterator<Item = &Device> {
        self.device_set.local.iter().map(|&position| &self.device_set.devices[position])
    }

    /// The devices as a grid with named axes.
    pub fn mesh(&self) -> &Mesh {
        &self.device_set.mesh
    }

    /// The metrics of this runtime:
    ///
    /// - `UncachedCompile`, `CachedCompile` (in this process), `PersistentCacheHit` (on disk),
    ///   `CompileTime`, and `CreateCompileHandles` (programs compiled or loaded).
    /// - `ExecuteTime`.
    /// - `TransferToDeviceTime`, `TransferFromDeviceTime`, `InboundData` and `OutboundData`.
    /// - `CreateDataHandles` and `DestroyDataHandles`, which count buffers on devices.
    /// - A Trainer adds `InputWait`, the time in which the devices had no batch.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Compiles a function for the mesh. Reuses a program that this process compiled before, or one
    /// on disk.
    ///
    /// # Errors
    /// The function has a fault, a sharding does not fit the mesh, or the compiler fails.
    pub fn compile(&self, function: &Function) -> Result<Compiled> {
        self.compile_with(function.into(), None::<fn(Option<String>)>)
    }

    /// Like [`Runtime::compile`], and calls `announce` before the compiler runs, which may take
    /// minutes. It is not called for a program that was compiled before. Its argument says how the
    /// program differs from the most similar program on disk with the same name, if there is one.
    /// [`Compiled::compile_time`] is the compiler's time. `function` may be the result of
    /// [`Runtime::preload`].
    ///
    /// # Errors
    /// As for [`Runtime::compile`].
    pub fn compile_announced<'f>(
        &self,
        function: impl Into<Preloaded<'f>>,
        announce: impl FnOnce(Option<String>),
    ) -> Result<Compiled> {
        self.compile_with(function.into(), Some(announce))
    }

    /// Lowers a function for [`Runtime::compile_announced`], and loads its program if it is on
    /// disk. Call this on another thread to do other work in the meantime.
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
    /// The function has a fault, or a sharding does not fit the mesh.
    pub fn preload<'f>(&self, function: &'f Function) -> Result<Preloaded<'f>> {
        let _load = trace::named(|| format!("load {}", function.name()));
        let lowered = lower(function, self.mesh(), self.platform())?;
        let key = self.program(&lowered);
        let on_disk = !self.compiled().contains_key(&key)
            && self.disk_cache.may_have(self.client(), function);
        let options = self.compile_options(&key);
        let slot = on_disk
            .then(|| self.disk_cache.slot(self.client(), function, &key.text, &options))
            .flatten();
        let executable = slot.as_ref().and_then(Slot::load);
        let lowering =
            PreloadedLowering { device_set: self.device_set.clone(), lowered, executable };
        Ok(Preloaded { function, lowering: Some(lowering) })
    }

    /// The program as [`Runtime::compile`] passes it to the compiler, as StableHLO text. For the
    /// CPU, a few operations are written in another form, which is faster there;
    /// [`Function::stablehlo_for`] keeps them.
    ///
    /// ```
    /// use fulmen_tensor::{Accelerator, DType, Devices, Function, Runtime, TensorType};
    ///
    /// let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1))?;
    /// let square = Function::trace("square", &[TensorType::new(DType::F32, [2])], |x| vec![&x[0] * &x[0]]);
    /// assert!(runtime.stablehlo(&square)?.contains("stablehlo.multiply"));
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// The function has a fault, or a sharding does not fit the mesh.
    pub fn stablehlo(&self, function: &Function) -> Result<String> {
        Ok(lower(function, self.mesh(), self.platform())?.text)
    }

    /// The platform of the devices, for the lowering.
    fn platform(&self) -> Option<Platform> {
        Platform::from_name(self.client().platform_name())
    }

    /// The compiled programs of this client. Don't hold the lock while compiling, which may take
    /// minutes.
    fn compiled(&self) -> MutexGuard<'_, HashMap<Program, Arc<LoadedExecutable>>> {
        self.shared.compiled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key of a lowered function's program.
    fn program(&self, lowered: &Lowered) -> Program {
        let device_ids = self.devices().iter().map(|device| device.id()).collect();
        Program { text: lowered.key.clone(), device_ids }
    }

    /// The options that compile a program for its devices.
    fn compile_options(&self, program: &Program) -> CompileOptions {
        let device_ids = program.device_ids.clone();
        self.shared.options.clone().partitions(device_ids.len()).device_assignment([device_ids])
    }

    fn compile_with(
        &self,
        Preloaded { function, lowering }: Preloaded<'_>,
        announce: Option<impl FnOnce(Option<String>)>,
    ) -> Result<Compiled> {
        let (lowered, preloaded) =
            match lowering.filter(|lowering| lowering.device_set == self.device_set) {
                Some(lowering) => (lowering.lowered, lowering.executable),
                None => (lower(function, self.mesh(), self.platform())?, None),
            };
        check_size(function, &lowered, self.shared.client.platform_name())?;
        let key = self.program(&lowered);
        let compiled_before = self.compiled().get(&key).cloned();
        let (executable, time) = match compiled_before {
            Some(executable) => {
                self.metrics.count("CachedCompile", 1);
                (executable, None)
            }
            None => {
                let options = self.compile_options(&key);
                let (executable, time) =
                    self.load_or_compile(function, &lowered, &options, preloaded, announce)?;
                // The process keeps every program, so no handle is destroyed.
                self.metrics.count("CreateCompileHandles", 1);
                // If another thread was first, use its program.
                (self.compiled().entry(key).or_insert(Arc::new(executable)).clone(), time)
            }
        };
        let captured = lowered
            .captured
            .into_iter()
            .map(|(captured, sharding)| match captured {
                Captured::Device(array) if array.device_set() == &self.device_set => Ok(array),
                // A value on other devices is copied through the host.
                Captured::Device(array) => match self.read(&[&array])?.wait()?.first() {
                    Some(literal) => self.to_devices(literal, &sharding).map(Arc::new),
                    None => Ok(array),
                },
                Captured::Host(ty, elements) => {
                    self.bytes_to_devices(&ty, &elements, &sharding).map(Arc::new)
                }
            })
            .collect::<Result<_>>()?;
        Compiled::new(function, self, executable, captured, time)
    }

    /// Loads a program from disk, or compiles and stores it. Returns the compiler's time if it ran.
    fn load_or_compile(
        &self,
        function: &Function,
        lowered: &Lowered,
        options: &CompileOptions,
        preloaded: Option<LoadedExecutable>,
        announce: Option<impl FnOnce(Option<String>)>,
    ) -> Result<(LoadedExecutable, Option<Duration>)> {
        let _compile = trace::named(|| format!("compile {}", function.name()));
        let client = &self.shared.client;
        let slot = self.disk_cache.slot(client, function, &lowered.key, options);
        if let Some(stored) = preloaded.or_else(|| slot.as_ref()?.load()) {
            self.metrics.count("PersistentCacheHit", 1);
            return Ok((stored, None));
        }
        if let Some(announce) = announce {
            announce(slot.as_ref().and_then(Slot::nearest));
        }
        let start = Instant::now();
        let executable = client
            .compile(&lowered.text, options)
            .map_err(|e| Error::runtime(format!("compiling `{}`", function.name()), e))?;
        let time = start.elapsed();
        self.metrics.count("UncachedCompile", 1);
        self.metrics.record_time("CompileTime", time);
        if let Some(slot) = slot {
            slot.store(&executable, time);
        }
        Ok((executable, Some(time)))
    }

    /// Compiles and runs an expression, and copies its value to the host.
    ///
    /// # Errors
    /// As for [`Runtime::compile`], or the run fails.
    #[track_caller]
    pub fn eval(&self, tensor: impl AsTensor) -> Result<Literal> {
        let tensor = tensor.as_tensor();
        let mut values = self.eval_many(&[tensor])?;
        values.pop().ok_or_else(|| Error::usage("the program returned no result"))
    }

    /// Compiles and runs several expressions as one program, and copies their values to the host in
    /// one transfer. Tensors that already have a value need no program.
    ///
    /// # Errors
    /// As for [`Runtime::compile`], or the run fails.
    #[track_caller]
    pub fn eval_many(&self, tensors: &[&Tensor]) -> Result<Vec<Literal>> {
        for tensor in tensors {
            tensor.check()?;
        }
        let mut values: Vec<Option<Literal>> =
            tensors.iter().map(|tensor| tensor.host_value()).collect();
        let missing: Vec<usize> = (0..tensors.len()).filter(|&i| values[i].is_none()).collect();
        let readable = |&i: &usize| tensors[i].array().filter(|array| array.is_readable());
        let expressions: Vec<&Tensor> =
            missing.iter().filter(|i| readable(i).is_none()).map(|&i| tensors[i]).collect();
        let computed =
            if expressions.is_empty() { Vec::new() } else { self.compute(&expressions)? };
        let mut next_computed = computed.iter();
        let arrays: Vec<&DeviceArray> = missing
            .iter()
            .filter_map(|i| readable(i).map(|array| &**array).or_else(|| next_computed.next()))
            .collect();
        if !arrays.is_empty() {
            host_reads::count(current_line());
            for (&i, literal) in missing.iter().zip(self.read(&arrays)?.wait()?) {
                values[i] = Some(literal);
            }
        }
        Ok(values.into_iter().flatten().collect())
    }

    /// Compiles and runs several expressions as one program. The results stay on the devices,
    /// replicated. Values in the expressions are inputs of the program, so that the same
    /// expressions with other values are not compiled again. When a line compiles its fifth
    /// program, there is a note; see [`set_note_handler`](crate::set_note_handler).
    ///
    /// # Errors
    /// As for [`Runtime::compile`], or the run fails.
    #[track_caller]
    pub fn compute(&self, tensors: &[&Tensor]) -> Result<Vec<DeviceArray>> {
        let line = current_line();
        let results: Vec<Tensor> = tensors.iter().map(|&t| t.clone()).collect();
        check_no_placeholder(&results, line)?;
        let function = Function::new("eval", Vec::new(), results).constants_as_inputs();
        let compiled = self.compile(&function)?;
        if !compiled.was_cached() {
            self.shared.recompiles.count(line, function.results());
        }
        Ok(compiled.call(Vec::new())?.arrays)
    }
}

impl Tensor {
    /// Compiles and runs this expression on [`Runtime::global`], and copies the value to the host.
    ///
    /// # Errors
    /// - The expression is poisoned.
    /// - It depends on a placeholder, such as an input of a step that is being recorded.
    /// - The runtime fails.
    #[track_caller]
    pub fn eval(&self) -> Result<Literal> {
        // Report mistakes before looking for a device.
        self.check()?;
        check_no_placeholder(std::slice::from_ref(self), current_line())?;
        Runtime::global()?.eval(self)
    }
}

/// The selected devices of each process, as a mesh with one axis.
fn choose(client: &Client, devices: &Devices) -> Result<DeviceSet> {
    let local_devices = client.addressable_devices();
    // There is nothing to diagnose for a CPU.
    let platform =
        Platform::from_name(client.platform_name()).filter(|&platform| platform != Platform::Cpu);
    let diagnosis =
        || platform.map_or_else(String::new, |platform| format!("\n{}", diagnose(platform)));
    if local_devices.is_empty() {
        let name = client.platform_name();
        return Err(Error::usage(format!("the platform `{name}` has no devices{}", diagnosis())));
    }
    let names = || {
        local_devices.iter().map(Device::to_string).collect::<Vec<_>>().join(", ") + &diagnosis()
    };
    let chosen = devices.choose(local_devices.len(), names)?;
    let mut processes: Vec<i32> =
        client.devices().iter().map(|device| device.process_index()).collect();
    processes.sort_unstable();
    processes.dedup();
    let mut all: Vec<Device> = Vec::new();
    for process in processes {
        let process_devices: Vec<_> =
            client.devices().iter().filter(|d| d.process_index() == process).collect();
        for &index in &chosen {
            let Some(&device) = process_devices.get(index) else {
                return Err(Error::usage(format!(
                    "devices: {devices} is not possible: process {process} has only {} devices",
                    process_devices.len()
                )));
            };
            all.push(device.clone());
        }
    }
    let local = (0..all.len()).filter(|&i| all[i].is_addressable()).collect();
    Ok(DeviceSet { mesh: Mesh::data(all.len()), devices: all, local })
}

/// The first of `candidates` with a plugin, and the plugin's file. If none has a plugin, returns
/// the last one's error. Returns at once on an error other than a missing plugin.
fn locate_first(
    candidates: &[Platform],
    locate: impl Fn(Platform) -> fulmen_pjrt::Result<PathBuf>,
) -> fulmen_pjrt::Result<(Platform, PathBuf)> {
    let (last, others) = match candidates {
        [others @ .., last] => (*last, others),
        [] => (Platform::Cpu, &[][..]),
    };
    for &platform in others {
        match locate(platform) {
            Err(e) if e.is_not_found() => {}
            result => return result.map(|path| (platform, path)),
        }
    }
    locate(last).map(|path| (last, path))
}

/// Refuses programs that would crash the CPU plugin, and the process with it.
pub(crate) fn check_size(function: &Function, lowered: &Lowered, platform: &str) -> Result<()> {
    match &lowered.largest {
        Some((ty, location))
            if platform == "cpu" && ty.shape.num_elements() >= TOO_MANY_FOR_THE_CPU =>
        {
            Err(Error::usage(format!(
                "compiling `{}`: {ty} has more elements than the CPU's compiler supports, 2^35\n  recorded at {location}",
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
        // XLA's fast minimum and maximum drop NaNs, so a relu or a max would hide a NaN in the
        // loss.
        options = options.override_flag("xla_cpu_enable_fast_min_max", NamedValue::Bool(false));
        // XLA's default computes each value as soon as its operands are known, so that independent
        // operations can run at the same time. Patches of activations for the backward pass then
        // wait in memory from the forward pass on: 486 MB of temporaries for ResNet-18 at 32 × 32,
        // instead of 188.
        options =
            options.override_flag("xla_cpu_scheduler_type", "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED");
        // Measured on CPUs with AVX-512: elementwise code is up to 1.8 × faster at full width.
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx512f") {
            options = options.override_flag("xla_cpu_prefer_vector_width", NamedValue::Int(512));
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_platform_without_a_plugin_is_skipped_unless_it_is_the_last() {
        let file = PathBuf::from("plugin.so");
        let missing =
            || locate(Platform::Cpu, Some(Path::new("no/such/plugin.so"))).map(drop).unwrap_err();
        assert!(missing().is_not_found());
        let only = |available: Platform| {
            let file = file.clone();
            move |platform| if platform == available { Ok(file.clone()) } else { Err(missing()) }
        };
        let all = [Platform::Tpu, Platform::Cuda, Platform::Cpu];
        assert_eq!(locate_first(&all, only(Platform::Cpu)).unwrap(), (Platform::Cpu, file.clone()));
        assert_eq!(locate_first(&all, only(Platform::Tpu)).unwrap(), (Platform::Tpu, file.clone()));
        assert!(locate_first(&[Platform::Cuda], only(Platform::Cpu)).unwrap_err().is_not_found());
        assert_eq!(Accelerator::Auto.candidates().last(), Some(&Platform::Cpu));
        assert_eq!(Accelerator::Cuda.candidates(), [Platform::Cuda]);
    }
}
