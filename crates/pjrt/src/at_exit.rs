//! The end of a process while a CPU's devices still compute: it waits for them. Otherwise, the exit
//! handlers of the plugin would destroy objects that its threads still use, which can crash the
//! process.
//!
//! A program that reads one of several devices, and ends, comes to this point often. An execution
//! on one device is not waited for: its results are read before.

use std::mem;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::callback;
use crate::client_inner::ClientInner;

/// A process that is to end must not hang because of an execution that never ends.
const PATIENCE: Duration = Duration::from_secs(5);

/// The open clients.
static CLIENTS: Mutex<Vec<Weak<ClientInner>>> = Mutex::new(Vec::new());

/// Makes the end of the process wait for the launches of this client. Closing a client waits by
/// itself.
pub(crate) fn wait_for(client: &Arc<ClientInner>) {
    let mut clients = CLIENTS.lock();
    clients.retain(|client| client.strong_count() > 0);
    clients.push(Arc::downgrade(client));
}

/// Call this after a launch with its number, from 1.
///
/// Handlers run in the reverse order of their registration, and a plugin registers some when it
/// first runs code. So a handler of ours must come after them, but not one for each launch.
pub(crate) fn launched(number: i32) {
    if number.count_ones() == 1 {
        // SAFETY: the function has no arguments, does not unwind, and is never unloaded.
        unsafe { libc::atexit(at_exit) };
    }
}

extern "C" fn at_exit() {
    // A thread of the plugin cannot wait for itself. A process that exits does not wait for a thread
    // that holds a lock.
    if callback::is_inside() {
        return;
    }
    let Some(clients) = CLIENTS.try_lock() else { return };
    let end = Instant::now() + PATIENCE;
    for client in clients.iter().filter_map(Weak::upgrade) {
        while client.is_computing() && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        // The last owner would close it.
        mem::forget(client);
    }
}
