//! Files and folders, on a local disk and in object stores (`gs://`, `s3://`).
//!
//! Not here: what is in the files.

mod local;
mod location;
mod open;
mod options;
mod pattern;
mod remote;

pub(crate) use local::keep;
pub use location::Location;
pub(crate) use location::fingerprint_all;
pub(crate) use open::{explain, fill, gunzip, open_unpacked};
pub use options::StoreOptions;
