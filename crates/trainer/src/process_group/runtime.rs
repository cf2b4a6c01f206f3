//! The devices of several processes as one runtime: what each plugin needs for it, and which have it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fulmen_coordination::{Coordination, Process};
use fulmen_pjrt::diagnosis::explain;
use fulmen_pjrt::locate::{Platform, locate};
use fulmen_pjrt::{Client, KeyValueError, KeyValueStore, Plugin, Value};
use fulmen_tensor::{Accelerator, Devices, Runtime};
use parking_lot::Mutex;

use crate::{Error, Result};

/// Opens the devices. A CUDA client is told which process it is and where the processes find each other; libtpu knows
/// from its own environment, and a CPU client has no peers.
pub(super) fn open(coordination: &Coordination, accelerator: Accelerator, devices: &Devices) -> Result<Runtime> {
    if accelerator.candidates().first() != Some(&Platform::Cuda) {
        return Ok(Runtime::open(accelerator, devices)?);
    }
    let why = |doing: &str, e, path| Error::usage(format!("{doing}: {}", explain(e, Platform::Cuda, path)));
    let path = locate(Platform::Cuda, None).map_err(|e| why("looking for the CUDA plugin", e, None))?;
    let mut open = OPEN.lock();
    if let Some((client, slot)) = open.get(&path) {
        slot.set(Some(coordination.clone()));
        return Ok(Runtime::new(client.clone(), devices)?);
    }
    let plugin = Plugin::load(&path).map_err(|e| why("loading the CUDA plugin", e, Some(&path)))?;
    let process = coordination.process();
    let options = [("node_id", Value::Int(process.index() as i64)), ("num_nodes", Value::Int(process.count() as i64))];
    let slot = Slot::default();
    slot.set(Some(coordination.clone()));
    let store = Arc::new(Store(slot.clone()));
    let client =
        plugin.create_client_with(&options, store).map_err(|e| why("starting the device runtime", e, Some(&path)))?;
    open.insert(path, (client.clone(), slot));
    Ok(Runtime::new(client, devices)?)
}

/// The clients of this process, by plugin, with the run in which each finds the others. A second client on the same
/// devices would find their memory taken.
static OPEN: Mutex<BTreeMap<PathBuf, (Client, Slot)>> = Mutex::new(BTreeMap::new());

/// The run is over, and the next one has another place to meet.
pub(super) fn leave() {
    let open = OPEN.lock();
    open.values().for_each(|(_, slot)| slot.set(None));
}

/// The run that a client is in.
#[derive(Clone, Default)]
struct Slot(Arc<Mutex<Option<Coordination>>>);

impl Slot {
    fn set(&self, run: Option<Coordination>) {
        // What was there is dropped when the lock is open again: to leave a run takes its time.
        let _before = std::mem::replace(&mut *self.0.lock(), run);
    }

    fn get(&self) -> Result<Coordination, KeyValueError> {
        let run = self.0.lock().clone();
        run.ok_or_else(|| KeyValueError::unavailable("the run in which the processes met is over"))
    }
}

/// The coordination's key-value store, as a plugin asks for it.
struct Store(Slot);

impl KeyValueStore for Store {
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, KeyValueError> {
        self.0.get()?.get(key, timeout).map_err(refusal)
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, KeyValueError> {
        self.0.get()?.try_get(key).map_err(refusal)
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), KeyValueError> {
        self.0.get()?.put(key, value).map_err(refusal)
    }
}

fn refusal(error: fulmen_coordination::Error) -> KeyValueError {
    let message = error.to_string();
    match error {
        e if e.is_timeout() => KeyValueError::timed_out(message),
        e if e.is_conflict() => KeyValueError::already_exists(message),
        e if e.is_peer_lost() || e.is_coordinator_lost() => KeyValueError::unavailable(message),
        _ => message.into(),
    }
}

/// Checks that the runtime's programs span the processes, and that the plugin counts them as the coordination does.
pub(super) fn check(process: &Process, runtime: &Runtime) -> Result<()> {
    let client = runtime.client();
    let count = process.count();
    let platform = client.platform_name();
    if platform == "cpu" {
        return Err(Error::usage(format!(
            "{count} processes have joined and agree on what to run, but the CPU plugins have no collectives across \
             processes; train in one process (devices = {count} makes as many of one CPU), or on TPUs or GPUs"
        )));
    }
    let spanned = spanned(runtime);
    if spanned != count {
        return Err(Error::usage(format!(
            "{count} processes have joined, but the plugin `{platform}` sees the devices of {}; its own settings must \
             name the same processes (for a TPU: TPU_WORKER_ID and TPU_WORKER_HOSTNAMES)",
            spanned
        )));
    }
    if client.process_index() != process.index() as i32 {
        return Err(Error::usage(format!(
            "this is {process}, but process {} for the plugin `{platform}`; give both the same order",
            client.process_index()
        )));
    }
    Ok(())
}

/// Checks that a process that has joined no other has the devices for itself. The devices of a slice of several hosts wait for
/// all of them.
pub(crate) fn check_alone(runtime: &Runtime) -> Result<()> {
    alone(runtime.client().platform_name(), spanned(runtime))
}

fn alone(platform: &str, hosts: usize) -> Result<()> {
    if hosts <= 1 {
        return Ok(());
    }
    Err(Error::usage(format!(
        "the plugin `{platform}` sees the devices of {hosts} hosts, and this process has joined no other; build the program \
         with the feature `multi-host`, start it on every host, and set FULMEN_COORDINATOR, FULMEN_PROCESS_ID, \
         FULMEN_NUM_PROCESSES and FULMEN_RUN_TOKEN"
    )))
}

/// How many processes have devices that the plugin sees.
fn spanned(runtime: &Runtime) -> usize {
    let processes = runtime.client().devices().iter().map(|device| device.process_index()).collect::<BTreeSet<i32>>();
    processes.len()
}

#[cfg(test)]
#[cfg(feature = "multi-host")]
mod tests {
    use super::*;

    #[test]
    fn devices_of_other_hosts_are_not_waited_for_alone() {
        alone("tpu", 1).unwrap();
        let error = alone("tpu", 4).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains("`tpu` sees the devices of 4 hosts"), "{error}");
        check_alone(&Runtime::open(Accelerator::Cpu, &2.into()).unwrap()).unwrap();
    }

    #[test]
    fn a_plugin_finds_the_coordinations_values() {
        let slot = Slot::default();
        let store = Store(slot.clone());
        assert!(store.try_get("cuda:gpus").is_err(), "no process has joined");
        slot.set(Some(Coordination::builder(Process::single()).join().unwrap()));
        let soon = Duration::from_millis(20);
        assert_eq!(store.try_get("cuda:gpus").unwrap(), None);
        let missing = store.get("cuda:gpus", soon).unwrap_err();
        assert_eq!(missing, KeyValueError::timed_out(missing.to_string()));
        store.put("cuda:gpus", b"\0\xff").unwrap();
        store.put("cuda:gpus", b"\0\xff").unwrap();
        assert_eq!(store.get("cuda:gpus", soon).unwrap(), b"\0\xff");
        assert_eq!(store.try_get("cuda:gpus").unwrap().unwrap(), b"\0\xff");
        let taken = store.put("cuda:gpus", b"other").unwrap_err();
        assert_eq!(taken, KeyValueError::already_exists(taken.to_string()));
        // The next run begins with nothing.
        slot.set(Some(Coordination::builder(Process::single()).join().unwrap()));
        assert_eq!(store.try_get("cuda:gpus").unwrap(), None);
    }
}
