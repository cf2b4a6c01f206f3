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
//! A [`Plugin`] is a shared object that knows one kind of device. It opens a [`Client`], whose [`Device`]s hold
//! [`Buffer`]s and run [`LoadedExecutable`]s. Work is asynchronous: an [`Event`] or a [`PendingRead`] is how one waits.
//! A plugin can also compile for a [`Topology`] of devices that are elsewhere; [`hlo`] reads what it made of a program,
//! and [`diagnosis`] says why there is no device.
//!
//! The C API trusts its caller: it reads past arrays of a wrong shape, and ends the process on a wrong option. This crate
//! refuses what is known to do harm, with an [`Error`], before the plugin sees it. A plugin that throws a C++ exception instead of giving
//! an error ends the process, with a message.
//!
//! Not checked: the targets of `stablehlo.custom_call` (a program can call any function that the plugin has registered, so
//! compile only programs that you trust as much as code); device ids in other forms than dense numbers, such as raw bytes
//! or named attributes; garbage in `mhlo.sharding` strings; the bytes of a `pred` array. The first [`Plugin::load`] sets
//! environment variables and should come before other threads use the environment. A plugin's file that is overwritten
//! while it is loaded may end the process; one that was replaced is only noticed by [`Plugin::identity`].
//!
//! [`compile_cache`] keeps compiled programs on disk from one start to the next.
//!
//! This crate knows nothing of tensors, derivatives or models, and builds no programs.
#![allow(unsafe_code, reason = "the C API of plugins is called here")]

mod abi;
mod analysis;
mod api;
mod buffer;
mod callback;
mod client;
mod client_inner;
pub mod compile_cache;
mod device;
pub mod diagnosis;
mod element_type;
mod elf;
mod envelope;
mod environment;
mod error;
mod event;
mod executable;
mod execute;
pub mod fetch;
mod hash;
pub mod hlo;
mod host_buffer;
#[cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod imports;
mod key_value;
#[cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod large_blocks;
mod loaded;
pub mod locate;
mod options;
mod plugin;
mod profile;
mod program;
mod raw_event;
mod signature;
mod starting;
mod topology;
mod transfer;
mod value;

pub use analysis::{CostAnalysis, MemoryAnalysis};
pub use buffer::Buffer;
pub use client::Client;
pub use device::{Device, DeviceDescription, MemoryStats};
pub use element_type::{ArrayType, ElementType};
pub use error::{Error, Result};
pub use event::Event;
pub use executable::Executable;
pub use execute::{Argument, Execution};
pub use host_buffer::HostBuffer;
pub use key_value::{KeyValueError, KeyValueStore};
pub use loaded::LoadedExecutable;
pub use options::{CompileOptions, Effort};
pub use plugin::{ApiVersion, Plugin};
pub use profile::Profile;
pub use signature::Signature;
pub use topology::Topology;
pub use transfer::PendingRead;
pub use value::Value;
