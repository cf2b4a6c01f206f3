//! [`Runtime`]: opens devices, and compiles (`compile.rs`) and evaluates (`eval.rs`) on them.
//!
//! Out of scope: running a program, see `compiled.rs`; moving values, see `transfer.rs`.

mod compile;
mod eval;
mod process_programs;
mod programs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use fulmen_durable::messages::quantity;
use fulmen_pjrt::compile_cache::{CompileCache, SavedPrograms};
use fulmen_pjrt::diagnosis::{device_files, diagnose, explain};
use fulmen_pjrt::locate::{Platform, locate};
use fulmen_pjrt::{
    Client, CompileOptions, Device, KeyValueError, KeyValueStore, NamedValue, Plugin,
};

use crate::array::DeviceSet;
use crate::disk_cache::DiskCache;
use crate::recompiles::Recompiles;
use crate::{Accelerator, Devices, Error, Mesh, Metrics, Result, error, test_programs};

pub use compile::Preloaded;
pub(crate) use compile::{check_size, options_for};
use programs::{Limits, Programs};

/// Opened devices as a mesh, and the programs compiled for them.
///
/// All runtimes opened for one plugin share its client and, with the same flags, the compiled
/// programs, but each has its own [`Metrics`]. A clone is the same runtime. A CPU is split into the selected number of
/// devices, and there is one client for each number.
///
/// The 1,024 programs that were used last are kept, fewer if they are large. Older ones are compiled again when they are
/// needed; one that a [`Compiled`](crate::Compiled) holds stays.
///
/// ```
/// use fulmen_tensor::{Accelerator, Argument, DType, Devices, Function, Literal, Runtime, Sharding, TensorType};
///
/// let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(2))?;
/// let halves = Sharding::new([Some("data")]);
/// let sum = Function::trace("sum", TensorType::new(DType::F32, [4]), |x| x.sum_all());
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

/// The state that all runtimes of one client with the same flags share.
pub(crate) struct Shared {
    pub(crate) client: Client,
    options: CompileOptions,
    compiled: Mutex<Programs>,
    recompiles: Recompiles,
    /// The processes that run programs together, once this one has joined them.
    peers: Arc<OnceLock<Peers>>,
}

impl Shared {
    /// State without programs yet.
    fn new(client: Client, options: CompileOptions, limits: Limits) -> Arc<Shared> {
        let compiled = Mutex::new(Programs::new(limits));
        let recompiles = Recompiles::default();
        Arc::new(Shared { client, options, compiled, recompiles, peers: Arc::default() })
    }

    /// The same client without programs, and with these options.
    fn with_options(&self, options: CompileOptions) -> Arc<Shared> {
        Arc::new(Shared {
            client: self.client.clone(),
            options,
            compiled: Mutex::new(Programs::new(Limits::of_system())),
            recompiles: Recompiles::default(),
            peers: self.peers.clone(),
        })
    }

    /// Keeps the processes that this one has joined. The store of a later run is the same.
    fn join(&self, peers: Option<&Peers>) {
        if let Some(peers) = peers {
            self.peers.get_or_init(|| peers.clone());
        }
    }
}

/// Identifies a client: the plugin's file, and the requested number of CPU devices.
type ClientKey = (PathBuf, Option<usize>);

/// An open client.
struct OpenClient {
    shared: Arc<Shared>,
    /// Whether the client spans the processes of a run.
    has_peers: bool,
}

/// The clients of this process. There is one for each plugin, because the first client takes the
/// memory of the devices.
static CLIENTS: Mutex<BTreeMap<ClientKey, OpenClient>> = Mutex::new(BTreeMap::new());

/// The runtime of [`Runtime::global`].
static GLOBAL: Mutex<Option<Runtime>> = Mutex::new(None);

/// The processes of a run, which compute together.
#[derive(Clone)]
pub struct Peers {
    /// The index of this process.
    pub index: usize,
    /// The number of processes.
    pub count: usize,
    /// The index of this process among those of its host, and their number. On GPUs, each process
    /// takes its share of those that the host shows to it.
    pub local: (usize, usize),
    /// The store in which the plugins of the processes find each other, and the runtimes agree on
    /// programs.
    pub store: Arc<dyn PeerStore>,
}

/// What the runtimes of several processes need to agree on the programs that they run together.
pub trait PeerStore: KeyValueStore {
    /// Waits until all processes call this for the same action, and compares their facts.
    ///
    /// # Errors
    /// The facts differ, or a process is lost. The message names the processes.
    fn check_consistent(
        &self,
        action: &str,
        facts: &BTreeMap<String, String>,
    ) -> Result<(), KeyValueError>;

    /// The number of earlier calls of this method in the run. All processes call it at the same
    /// points, so they get the same number.
    ///
    /// # Errors
    /// The run is over.
    fn next_turn(&self) -> Result<u64, KeyValueError>;
}

impl Runtime {
    /// Opens devices of this kind, with the plugin that [`fulmen_pjrt::locate`] finds. The devices
    /// become a mesh with the single axis `data`, or that of [`Mesh::of_slices`] if they are in
    /// several TPU slices. [`Accelerator::Auto`] opens the best device that
    /// this machine has, and never a slower one in its place.
    ///
    /// # Errors
    /// There is no plugin or no device, or the selected devices do not exist. The message lists the
    /// places that were searched and the available devices.
    pub fn open(accelerator: Accelerator, devices: &Devices) -> Result<Runtime> {
        let platform = accelerator.platform();
        let path = find_plugin(accelerator, platform)?;
        Runtime::open_for(accelerator, &path, platform, devices, None)
    }

    /// Like [`Runtime::open`], in one of several processes. If the plugin's client can
    /// [span processes](Plugin::takes_peers), it finds the others through the store of `peers`.
    /// libtpu finds them by itself, and a CPU client has no others.
    ///
    /// All processes run the same code: each program over their devices comes from process 0, which
    /// loads it from its disk or compiles it. So all processes must compile such programs in the
    /// same order.
    ///
    /// # Errors
    /// As for [`Runtime::open`]. Also if an array of this process is still on the devices that it
    /// opened without the others.
    pub fn open_with_peers(
        accelerator: Accelerator,
        devices: &Devices,
        peers: &Peers,
    ) -> Result<Runtime> {
        let platform = accelerator.platform();
        let path = find_plugin(accelerator, platform)?;
        Runtime::open_for(accelerator, &path, platform, devices, Some(peers))
    }

    /// Opens devices with the plugin in this file.
    ///
    /// # Errors
    /// The file is not a plugin, or the plugin does not find the selected devices. The plugin is for
    /// CPUs, but `platform` is not.
    pub fn open_plugin(path: &Path, platform: Platform, devices: &Devices) -> Result<Runtime> {
        let named = match platform {
            Platform::Cpu => Accelerator::Cpu,
            Platform::Cuda => Accelerator::Cuda,
            Platform::Tpu => Accelerator::Tpu,
        };
        Runtime::open_for(named, path, platform, devices, None)
    }

    fn open_for(
        accelerator: Accelerator,
        path: &Path,
        platform: Platform,
        devices: &Devices,
        peers: Option<&Peers>,
    ) -> Result<Runtime> {
        let explained = |doing: &str, e| {
            let doing = format!("{doing}{}", accelerator.selection(platform));
            let source = explain(e, platform, Some(path));
            // With peers, one of them may be the cause.
            if peers.is_some() {
                Error::runtime(doing, source)
            } else {
                error::accelerator(doing, source)
            }
        };
        let plugin = Plugin::load(path).map_err(|e| explained("loading the PJRT plugin", e))?;
        let takes_peers = plugin
            .takes_peers(platform)
            .map_err(|e| explained("reading the plugin's attributes", e))?;
        let joined = peers;
        let peers = peers.filter(|_| takes_peers);
        // By default the CPU plugin makes four devices.
        let count = if platform == Platform::Cpu && !takes_peers {
            Some(devices.cpu_device_count()?)
        } else {
            None
        };
        // `Runtime::global` takes the locks in this order too.
        let global = peers.map(|_| GLOBAL.lock().unwrap_or_else(PoisonError::into_inner));
        let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (path.to_owned(), count);
        if let Some(mut global) = global {
            close_alone(&mut global, &mut clients, &key)?;
        }
        if let Some(client) = clients.get(&key) {
            client.shared.join(joined);
            return Runtime::from_shared(client.shared.clone(), devices);
        }
        let mut options: Vec<_> = count
            .map(|count| ("cpu_device_count", NamedValue::Int(count as i64)))
            .into_iter()
            .collect();
        let opened = match peers {
            Some(peers) => {
                options.push(("node_id", NamedValue::Int(peers.index as i64)));
                options.push(("num_nodes", NamedValue::Int(peers.count as i64)));
                if platform == Platform::Cuda
                    && let Some(own) = own_gpus(peers.local, visible_gpus())?
                {
                    options.push(("visible_devices", NamedValue::IntList(own)));
                }
                plugin.create_client_with(&options, peers.store.clone())
            }
            None => plugin.create_client(&options),
        };
        let client = opened.map_err(|e| explained("starting the device runtime", e))?;
        // `FULMEN_PJRT_PLUGIN` names a plugin for any kind of device.
        if platform != Platform::Cpu && client.platform_name() == Platform::Cpu.name() {
            return Err(error::wrong_plugin(format!(
                "the plugin {} is for CPUs, expected one for `{platform}`{}",
                path.display(),
                accelerator.selection(platform)
            )));
        }
        let runtime = Runtime::new(client, devices)?;
        runtime.shared.join(joined);
        let has_peers = peers.is_some();
        clients.insert(key, OpenClient { shared: runtime.shared.clone(), has_peers });
        Ok(runtime)
    }

    /// A runtime on devices of a client.
    ///
    /// # Errors
    /// The client does not have the selected devices.
    pub fn new(client: Client, devices: &Devices) -> Result<Runtime> {
        let options = options_for(client.platform_name());
        Runtime::from_shared(Shared::new(client, options, Limits::of_system()), devices)
    }

    fn from_shared(shared: Arc<Shared>, devices: &Devices) -> Result<Runtime> {
        let device_set = Arc::new(choose(&shared.client, devices)?);
        let disk_cache = DiskCache::from_env();
        disk_cache.prepare(&shared.client);
        test_programs::prepare(&shared.client);
        Ok(Runtime { shared, device_set, metrics: Arc::default(), disk_cache })
    }

    /// The same devices with a different compile cache on disk, or with none. The default is
    /// [`CompileCache::from_env`]: `$XDG_CACHE_HOME/fulmen/compile`, unless `FULMEN_COMPILE_CACHE`
    /// is set.
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

    /// The same devices with one of XLA's flags set, such as `xla_cpu_prefer_vector_width`, for the
    /// programs that the runtime compiles from now on. A flag that the plugin does not know, or a
    /// value with a wrong type, is an error when a program compiles.
    ///
    /// ```
    /// use fulmen_tensor::{Accelerator, Devices, Runtime, Tensor};
    ///
    /// // Compiles faster to slower code, for a test that runs each program once.
    /// let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1))?
    ///     .with_compile_flag("xla_backend_optimization_level", 0)
    ///     .with_compile_flag("xla_llvm_disable_expensive_passes", true);
    /// assert_eq!(runtime.eval(Tensor::from_slice(&[4.0f32], [1]).sqrt())?.to_vec::<f32>()?, [2.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[must_use]
    pub fn with_compile_flag(self, name: &str, value: impl Into<NamedValue>) -> Runtime {
        // Programs that are compiled with different flags are different programs.
        let options = self.shared.options.clone().override_flag(name, value);
        Runtime { shared: self.shared.with_options(options), ..self }
    }

    /// The same devices with a file of compiled programs; see
    /// [`Function::compile_for`](crate::Function::compile_for). Programs that are not in the file
    /// are compiled. Processes that run programs together use the file of process 0.
    ///
    /// # Errors
    /// The file cannot be read or is damaged, or its programs are for other devices, another plugin
    /// or another CPU.
    pub fn with_saved_programs(&self, file: &Path) -> Result<Runtime> {
        let saved = SavedPrograms::read(file, &self.shared.client)
            .map_err(|e| Error::runtime("reading compiled programs", e))?;
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
                "the mesh {mesh} has {}, but the runtime has {devices}; use axes whose sizes multiply to {devices}, \
                 or select other devices",
                quantity(mesh.num_devices(), "device")
            )));
        }
        let device_set = DeviceSet { mesh: mesh.clone(), ..DeviceSet::clone(&self.device_set) };
        Ok(Runtime { device_set: Arc::new(device_set), ..self.clone() })
    }

    /// The runtime of [`Tensor::eval`](crate::Tensor::eval), on one device. The environment
    /// variable `FULMEN_ACCELERATOR` selects the accelerator; the default is [`Accelerator::Auto`].
    /// The first call opens the runtime. After a failure, the next call tries again.
    ///
    /// # Errors
    /// As for [`Runtime::open`]. Also if the variable does not name an accelerator.
    pub fn global() -> Result<Runtime> {
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
    /// - A Trainer adds `InputWait`, the time in which the devices had no batch, and `StepTime`, the
    ///   time of each training step.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }
}

fn find_plugin(accelerator: Accelerator, platform: Platform) -> Result<PathBuf> {
    locate(platform, None).map_err(|e| {
        let selection = accelerator.selection(platform);
        let doing = format!("looking for a PJRT plugin for `{platform}`{selection}");
        error::accelerator(doing, explain(e, platform, None))
    })
}

/// The number of GPUs that CUDA shows to this process.
fn visible_gpus() -> usize {
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(list) if !list.trim().is_empty() => list.split(',').count(),
        _ => device_files(Platform::Cuda).len(),
    }
}

/// The numbers of the GPUs of a process; `None` for all that it sees. A process that sees only one
/// got it from its launcher, or is on a host with one.
fn own_gpus((index, processes): (usize, usize), visible: usize) -> Result<Option<Vec<i64>>> {
    if processes <= 1 || visible <= 1 {
        return Ok(None);
    }
    if !visible.is_multiple_of(processes) {
        return Err(Error::usage(format!(
            "{} on this host cannot share {} equally; start as many processes as GPUs, or set CUDA_VISIBLE_DEVICES",
            quantity(processes, "process"),
            quantity(visible, "GPU")
        )));
    }
    let share = visible / processes;
    Ok(Some((index * share..(index + 1) * share).map(|gpu| gpu as i64).collect()))
}

/// Closes a client that [`Tensor::eval`](crate::Tensor::eval) opened before this process joined
/// others. A second client of the plugin would find no memory.
fn close_alone(
    global: &mut Option<Runtime>,
    clients: &mut BTreeMap<ClientKey, OpenClient>,
    key: &ClientKey,
) -> Result<()> {
    let Some(client) = clients.get(key).filter(|client| !client.has_peers) else { return Ok(()) };
    if global.as_ref().is_some_and(|runtime| Arc::ptr_eq(&runtime.shared, &client.shared)) {
        *global = None;
    }
    if Arc::strong_count(&client.shared) == 1 {
        clients.remove(key);
        return Ok(());
    }
    Err(Error::usage(
        "this process opened its devices before it joined the other processes, and still uses them; build the Trainer \
         before you open a Runtime",
    ))
}

/// The selected devices of each process, as the default mesh. Devices are in the order of slices,
/// then of processes, then of their ids, as JAX's are.
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
    let place = |device: &Device| (device.slice_index().unwrap_or(0), device.process_index());
    let processes: BTreeSet<(i64, i32)> = client.devices().iter().map(place).collect();
    let mut all: Vec<Device> = Vec::new();
    let mut sizes: BTreeMap<i64, usize> = BTreeMap::new();
    for (slice, process) in processes {
        let mut process_devices: Vec<_> =
            client.devices().iter().filter(|d| place(d) == (slice, process)).collect();
        process_devices.sort_by_key(|device| device.id());
        *sizes.entry(slice).or_default() += chosen.len();
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
    let mut different_sizes: Vec<usize> = sizes.values().copied().collect();
    different_sizes.dedup();
    let mesh = match different_sizes[..] {
        [size] => Mesh::of_slices(sizes.len(), size)?,
        _ => Mesh::data(all.len()),
    };
    Ok(DeviceSet { mesh, devices: all, local })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_a_host_share_its_gpus() {
        let own = |local, visible| own_gpus(local, visible).unwrap();
        assert_eq!((own((0, 4), 4), own((3, 4), 4)), (Some(vec![0]), Some(vec![3])));
        assert_eq!(own((1, 2), 8), Some(vec![4, 5, 6, 7]));
        assert_eq!(own((0, 1), 8), None, "one process has all");
        assert_eq!(own((3, 4), 1), None, "the launcher gave it one");
        assert_eq!(own((0, 2), 0), None, "the plugin says that there are none");
        let error = own_gpus((0, 3), 4).unwrap_err();
        let expected = "3 processes on this host cannot share 4 GPUs equally";
        assert!(error.is_usage() && error.to_string().contains(expected), "{error}");
    }
}
