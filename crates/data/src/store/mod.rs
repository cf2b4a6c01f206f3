//! Files and folders, on a local disk and in object stores (`gs://`, `s3://`).
//!
//! Not here: what is in the files.

#[cfg(feature = "cloud")]
mod connect;
mod kept;
mod local;
mod location;
#[cfg(not(feature = "cloud"))]
mod offline;
mod open;
mod options;
mod pattern;
#[cfg(feature = "cloud")]
mod read_ahead;
#[cfg(feature = "cloud")]
mod remote;
#[cfg(feature = "cloud")]
mod retry;
#[cfg(feature = "cloud")]
mod upload;

pub(crate) use kept::KeptFile;
pub(crate) use local::{
    TEMPORARY, keep, keep_new, remove_leftovers, sync_folder, temporary, temporary_file, write_whole,
};
pub use location::Location;
pub(crate) use location::{MOST_ASKING, fingerprint_all};
#[cfg(not(feature = "cloud"))]
use offline as remote;
pub(crate) use open::{explain, fill, gunzip, open_unpacked};
pub use options::StoreOptions;
