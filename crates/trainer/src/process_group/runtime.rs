//! Opens the devices of several processes as one runtime, and checks that the plugin supports this.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fulmen_coordination::{Coordination, Process};
use fulmen_pjrt::{KeyValueError, KeyValueStore};
use fulmen_tensor::{Accelerator, Devices, PeerStore, Peers, Runtime};
use parking_lot::Mutex;

use super::NO_TIMEOUT;
use crate::{Error, Result};

/// Opens the devices. A client that spans the processes gets the index of its process and a
/// key-value store to find the others. libtpu reads its own environment variables, and a CPU client
/// has no peers.
pub(super) fn open(
    coordination: &Coordination,
    programs: &Arc<AtomicU64>,
    accelerator: Accelerator,
    devices: &Devices,
) -> Result<Runtime> {
    RUN.set(Some(Run { coordination: coordination.clone(), turns: programs.clone() }));
    let process = coordination.process();
    let peers = Peers {
        index: process.index(),
        count: process.count(),
        local: process.local(),
        store: Arc::new(Store(&RUN)),
    };
    Runtime::open_with_peers(accelerator, devices, &peers)
}

/// The run in which the clients of this process find their peers. A client stays open after a run.
static RUN: Slot = Slot(Mutex::new(None));

/// Removes the run when it is over. The next run has its own coordination.
pub(super) fn leave() {
    RUN.set(None);
}

/// A run, and the number of programs on which its processes have agreed.
#[derive(Clone)]
struct Run {
    coordination: Coordination,
    turns: Arc<AtomicU64>,
}

/// The run that a client is in.
struct Slot(Mutex<Option<Run>>);

impl Slot {
    fn set(&self, run: Option<Run>) {
        // Leaving a run takes time, so the old run is dropped after the lock is released.
        let _before = std::mem::replace(&mut *self.0.lock(), run);
    }

    fn run(&self) -> Result<Run, KeyValueError> {
        let run = self.0.lock().clone();
        run.ok_or_else(|| KeyValueError::unavailable("the run in which the processes met is over"))
    }

    fn get(&self) -> Result<Coordination, KeyValueError> {
        Ok(self.run()?.coordination)
    }
}

/// The coordination's key-value store, with the interface for plugins.
struct Store<'a>(&'a Slot);

impl KeyValueStore for Store<'_> {
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, KeyValueError> {
        self.0.get()?.get(key, timeout).map_err(key_value_error)
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, KeyValueError> {
        self.0.get()?.try_get(key).map_err(key_value_error)
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), KeyValueError> {
        self.0.get()?.put(key, value).map_err(key_value_error)
    }
}

impl PeerStore for Store<'_> {
    fn check_consistent(
        &self,
        action: &str,
        facts: &BTreeMap<String, String>,
    ) -> Result<(), KeyValueError> {
        self.0.get()?.check_consistent(action, facts, NO_TIMEOUT).map_err(key_value_error)
    }

    fn next_turn(&self) -> Result<u64, KeyValueError> {
        Ok(self.0.run()?.turns.fetch_add(1, Ordering::Relaxed))
    }
}

fn key_value_error(error: fulmen_coordination::Error) -> KeyValueError {
    let message = error.to_string();
    match error {
        e if e.is_timeout() => KeyValueError::timed_out(message),
        e if e.is_conflict() => KeyValueError::already_exists(message),
        e if e.is_peer_lost() || e.is_coordinator_lost() => KeyValueError::unavailable(message),
        _ => message.into(),
    }
}

/// Checks that the runtime's programs span the processes, and that the plugin counts them as the
/// coordination does.
pub(super) fn check(process: &Process, runtime: &Runtime) -> Result<()> {
    let client = runtime.client();
    let count = process.count();
    let platform = client.platform_name();
    let spanned = count_visible_processes(runtime);
    if platform == "cpu" && spanned != count {
        return Err(Error::usage(format!(
            "{count} processes have joined and agree on what to run, but CPU plugins have no collectives across processes; \
             train in one process (devices = {count} splits one CPU into {count} devices), each process alone \
             (FULMEN_NUM_PROCESSES=1), or on TPUs or GPUs"
        )));
    }
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

/// Checks that a process without others has only devices of its own host. A slice of several hosts
/// computes only if all hosts take part.
pub(crate) fn check_alone(runtime: &Runtime) -> Result<()> {
    check_one_host(runtime.client().platform_name(), count_visible_processes(runtime))
}

fn check_one_host(platform: &str, hosts: usize) -> Result<()> {
    if hosts <= 1 {
        return Ok(());
    }
    Err(Error::usage(format!(
        "the plugin `{platform}` sees the devices of {hosts} hosts, but this process has joined no other; build the program \
         with the feature `multi-host`, start it on each host, and set FULMEN_COORDINATOR, FULMEN_PROCESS_ID, \
         FULMEN_NUM_PROCESSES and FULMEN_RUN_TOKEN"
    )))
}

/// The number of processes whose devices the plugin sees.
fn count_visible_processes(runtime: &Runtime) -> usize {
    let processes = runtime
        .client()
        .devices()
        .iter()
        .map(|device| device.process_index())
        .collect::<BTreeSet<i32>>();
    processes.len()
}

#[cfg(test)]
#[cfg(feature = "multi-host")]
mod tests {
    use super::*;

    #[test]
    fn devices_of_other_hosts_are_an_error_in_a_single_process() {
        check_one_host("tpu", 1).unwrap();
        let error = check_one_host("tpu", 4).unwrap_err();
        assert!(
            error.is_usage() && error.to_string().contains("`tpu` sees the devices of 4 hosts"),
            "{error}"
        );
        check_alone(&Runtime::open(Accelerator::Cpu, &2.into()).unwrap()).unwrap();
    }

    #[test]
    fn a_plugin_finds_the_coordinations_values() {
        let run = || Run {
            coordination: Coordination::builder(Process::single()).join().unwrap(),
            turns: Arc::default(),
        };
        let slot = Slot(Mutex::new(None));
        let store = Store(&slot);
        assert!(store.try_get("cuda:gpus").is_err(), "no process has joined");
        slot.set(Some(run()));
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
        assert_eq!((store.next_turn().unwrap(), store.next_turn().unwrap()), (0, 1));
        // The next run begins with nothing.
        slot.set(Some(run()));
        assert_eq!(store.try_get("cuda:gpus").unwrap(), None);
        assert_eq!(store.next_turn().unwrap(), 0);
    }
}
