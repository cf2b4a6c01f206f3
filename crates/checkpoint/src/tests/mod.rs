//! Tests over the whole crate.

#[cfg(feature = "cloud")]
mod cloud;
mod common;
mod damage;
mod faults;
#[cfg(feature = "cloud")]
mod keyless;
mod kills;
mod memory;
#[cfg(feature = "cloud")]
mod moto;
mod reshard;
#[cfg(feature = "cloud")]
#[allow(dead_code, unreachable_pub, reason = "some of it is for other crates")]
#[path = "../../../files/tests/it/common/s3.rs"]
mod s3;
#[cfg(feature = "cloud")]
mod servers;
mod tiered;
