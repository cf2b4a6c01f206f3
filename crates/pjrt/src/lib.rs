//! Runs StableHLO programs on CPUs, GPUs and TPUs through PJRT plugins, in safe Rust.
//!
//! ```
//! use fulmen_pjrt::{Argument, CompileOptions, ElementType, Plugin, locate::{Platform, locate}};
//!
//! let plugin = Plugin::load(locate(Platform::Cpu, None)?)?;
//! let client = plugin.create_client(&[("cpu_device_count", 1.into())])?;
//! let double = client.compile(
//!     "func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
//!        %y = stablehlo.add %x, %x : tensor<3xf32>
//!        return %y : tensor<3xf32>
//!      }",
//!     &CompileOptions::new(),
//! )?;
//! assert_eq!(double.signature().to_string(), "(f32[3]) -> (f32[3])");
//!
//! let bytes = [1.0_f32, 2.0, 3.0].map(f32::to_ne_bytes).concat();
//! let x = client.buffer_from_host(&bytes, ElementType::F32, &[3], &client.devices()[0])?;
//! let run = double.execute(vec![vec![Argument::Borrow(&x)]])?;
//! let y = run.outputs[0][0].read()?.wait()?;
//! assert_eq!(y[..], [2.0_f32, 4.0, 6.0].map(f32::to_ne_bytes).concat());
//! # Ok::<(), fulmen_pjrt::Error>(())
//! ```
//!
//! A [`Plugin`] is a shared object for one kind of device. It opens a [`Client`], whose [`Device`]s
//! hold [`Buffer`]s and run [`LoadedExecutable`]s. Execution is asynchronous: wait with an
//! [`Event`] or a [`PendingRead`]. A plugin can also compile for a [`Topology`] of devices that are
//! not present. [`hlo`] reads compiled programs, and [`diagnosis`] explains why there is no device.
//!
//! The C API trusts its caller: it reads past the end of arrays with a wrong shape, and ends the
//! process on an invalid option. This crate rejects arguments that are known to do harm with an
//! [`Error`], before the plugin sees them. If a plugin throws a C++ exception instead of returning an
//! error, the process ends with a message.
//!
//! Not checked: the targets of `stablehlo.custom_call` (a program can call any function that the
//! plugin has registered, so compile only programs that you trust like code); device ids in a program
//! beyond the number of devices; in release builds, dimensions of unknown length, infeed, outfeed and
//! very deep brackets; the content of a plugin that Fulmen did not download; invalid `mhlo.sharding` strings; the bytes
//! of a `pred` array. The first [`Plugin::load`] sets environment variables, so call it before
//! other threads use the environment. Overwriting a plugin's file while it is loaded may end the
//! process. Only [`Plugin::identity`] detects that the file was replaced.
//!
//! [`compile_cache`] keeps compiled programs on disk between starts.
//!
//! Out of scope: tensors, derivatives, models, and building programs.
#![allow(unsafe_code, reason = "this crate calls the C API of plugins")]

#[doc(hidden)]
pub mod abi;
mod analysis;
#[doc(hidden)]
pub mod api;
mod at_exit;
mod buffer;
mod callback;
mod client;
mod client_inner;
pub mod compile_cache;
mod device;
pub mod diagnosis;
mod element_type;
mod envelope;
mod environment;
mod error;
mod event;
mod executable;
mod execute;
pub mod fetch;
mod hash;
mod heap;
pub mod hlo;
mod host_buffer;
mod key_value;
mod loaded_executable;
pub mod locate;
mod named_value;
mod options;
mod plugin;
mod profile;
mod program;
mod raw_event;
mod signature;
mod topology;
mod transfer;
mod variables;

pub use analysis::{CostAnalysis, MemoryAnalysis};
pub use buffer::Buffer;
pub use client::Client;
pub use device::{Device, DeviceDescription, MemoryStats};
pub use element_type::{ArrayType, ElementType};
pub use environment::is_default_variable;
#[doc(hidden)]
pub use error::status;
pub use event::Event;
pub use executable::Executable;
pub use execute::{Argument, Execution};
#[doc(inline)]
pub use fulmen_error::{Error, Result};
pub use host_buffer::HostBuffer;
pub use key_value::{KeyValueError, KeyValueStore};
pub use loaded_executable::LoadedExecutable;
pub use named_value::NamedValue;
pub use options::{CompileOptions, Effort};
pub use plugin::{ApiVersion, Plugin};
pub use profile::Profile;
pub use signature::Signature;
pub use topology::Topology;
pub use transfer::PendingRead;
pub use variables::check_variables;
