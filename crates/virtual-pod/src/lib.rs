//! A PJRT plugin that makes several processes on CPUs look like the hosts of one pod.
//!
//! Each process opens a CPU client with the devices of all processes, shows only its own as
//! addressable, and runs every program whole. Before a launch, the processes exchange the values
//! that came from a host, such as batches. Of the results of earlier programs, each process has its
//! own copy. A program with collectives over all devices therefore runs unchanged, and its results
//! are those of one process with as many devices, bit for bit.
//!
//! ```no_run
//! use std::sync::Arc;
//! use fulmen_pjrt::{KeyValueStore, Plugin};
//!
//! // In each of four processes, with the variable FULMEN_VIRTUAL_POD=4x2:
//! fn open(process: i64, store: Arc<dyn KeyValueStore>) -> Result<(), Box<dyn std::error::Error>> {
//!     let plugin = Plugin::load(fulmen_virtual_pod::library()?)?;
//!     let options = [("node_id", process.into()), ("num_nodes", 4.into())];
//!     let client = plugin.create_client_with(&options, store)?;
//!     assert_eq!(client.devices().len(), 8);
//!     assert_eq!(client.addressable_devices().len(), 2);
//!     Ok(())
//! }
//! ```
//!
//! | variable | meaning |
//! | --- | --- |
//! | `FULMEN_VIRTUAL_POD` | processes and devices of each, such as `4x2` (required); `2*2x2` is two slices of `2x2` |
//! | `FULMEN_VIRTUAL_POD_PLATFORM` | the platform's name; default `cpu` |
//! | `FULMEN_VIRTUAL_POD_DEVICE_KIND` | the kind of the devices; default `cpu` |
//! | `FULMEN_VIRTUAL_POD_MISMATCH` | `error` (default): a mistake is an error. `hang`: the launch waits forever, as on devices |
//! | `FULMEN_VIRTUAL_POD_FAULT` | for tests, a broken device: `flip-bit`, `low-precision`, `drop-donation`, `swap-devices`, `reorder-devices`, `early-event`, `lost-event`, `abort` or `out-of-memory`, with `:PROGRAM` only of programs of this name |
//! | `FULMEN_VIRTUAL_POD_HOST` | the host name or address at which others reach this process; by default the address that reaches `FULMEN_COORDINATOR`, or loopback |
//! | `FULMEN_VIRTUAL_POD_CPU_PLUGIN` | the plugin that computes; by default the one that `fulmen_pjrt` finds |
//!
//! With real devices, a launch that is not the same in all processes waits forever. This plugin
//! compares the launches first. If the programs, their order or the origin of an argument (the host
//! or an earlier result) differ, the results of the launch are an error that names the processes,
//! the launch and the program. It also names a process that is lost.
//!
//! The processes find each other through the key-value callbacks of `PJRT_Client_Create`, with the
//! options `node_id` and `num_nodes`, as those of the CUDA plugin do. They exchange values over TCP.
//! Both ends of a connection prove that they have a secret that process 0 put into the store.
//! Values are not encrypted.
//!
//! A launch over several processes costs as much as one process with all devices, in each of them.
//! The pod cannot show the speed of interconnects, the order in which devices reduce, or libtpu.
//!
//! With several slices, the devices have the attribute `slice_index`, as libtpu's have.
//!
//! Out of scope: collectives between processes with a different CPU (their results could differ),
//! views of memory that is not the plugin's, host callbacks, extensions of the C API.
#![allow(unsafe_code, reason = "this crate implements and calls the C API of plugins")]

mod buffer;
mod client;
mod device;
mod error;
mod event;
mod exchange;
mod fault;
mod inner;
mod launch;
mod live;
mod named_values;
mod network;
mod plugin;
mod pod;
mod program;
mod serialized;
mod settings;
mod store;

pub use settings::cpu_plugin;

use std::io;
use std::path::{Path, PathBuf};

use fulmen_pjrt::abi::PJRT_Api;

/// The functions of this plugin: the only entry point of the shared object.
#[allow(non_snake_case, reason = "the name is that of the C API")]
#[unsafe(no_mangle)]
pub extern "C" fn GetPjrtApi() -> *const PJRT_Api {
    plugin::table()
}

/// The number of objects (buffers, programs, clients, errors, events) that are alive in the plugin.
/// For tests: it is 0 once a caller has destroyed everything.
#[doc(hidden)]
#[unsafe(no_mangle)]
pub extern "C" fn fulmen_virtual_pod_live_objects() -> usize {
    live::count() + error::count() + event::count()
}

/// The name of the plugin's file.
pub const FILE: &str = "libfulmen_virtual_pod.so";

/// The plugin's file, which Cargo builds with each program that depends on this crate. It is in the
/// folder `deps` next to the running program, in the program's folder, or in `../lib`.
///
/// # Errors
/// The file is in none of these places.
pub fn library() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folder = program.parent().unwrap_or(&program);
    let places =
        [folder.join("deps").join(FILE), folder.join(FILE), folder.join("../lib").join(FILE)];
    places.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        let places = places.each_ref().map(|path| path.display().to_string()).join(", ");
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("the virtual pod's plugin was not found; looked at {places}. `cargo build -p fulmen-virtual-pod` builds it"),
        )
    })
}

/// The folder with the source of this crate, on the machine that built it.
pub fn source() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
