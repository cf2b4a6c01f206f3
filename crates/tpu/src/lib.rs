//! Facts about TPUs: generations, the names and hosts of slices, list prices.
//!
//! ```
//! use fulmen_tpu::{Generation, Slice};
//!
//! let slice: Slice = "v5litepod-8".parse()?;
//! assert_eq!((slice.name(), slice.num_chips(), slice.host().vcpus), ("v5e:2x4", 8, 224));
//! assert_eq!(Generation::find("trillium"), Generation::find("v6e"));
//! # Ok::<(), fulmen_tpu::Error>(())
//! ```
//!
//! Out of scope: devices, programs and networks. Nothing here was measured.

mod generations;
mod pod_shape;
#[cfg(feature = "prices")]
mod prices;
mod slice;

#[doc(inline)]
pub use fulmen_error::{Error, Result};
pub use generations::{Generation, Host};
pub use pod_shape::PodShape;
#[cfg(feature = "prices")]
pub use prices::{Price, Prices};
pub use slice::Slice;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
