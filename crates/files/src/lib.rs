//! Files and folders, on a local disk and in object stores (`gs://`, `s3://`). Also here is what the
//! crates that read files share: a [`Fingerprint`] of what samples depend on, and reading with several
//! threads.
//!
//! Out of scope: the content of the files.

mod checksum;

#[cfg(feature = "cloud")]
mod connect;
#[cfg(feature = "locations")]
mod decompress;
#[cfg(feature = "locations")]
mod fd_cache;
mod fingerprint;
#[allow(missing_docs, reason = "hidden: it is shared with the crates that read formats")]
mod key_parts;
#[cfg(feature = "locations")]
mod local;
#[cfg(feature = "locations")]
mod location;
#[cfg(feature = "locations")]
mod lock;
#[cfg(all(feature = "locations", not(feature = "cloud")))]
mod no_cloud;
#[cfg(feature = "locations")]
mod object_path;
#[cfg(feature = "locations")]
mod options;
mod parallel;
#[cfg(feature = "locations")]
mod parsed_location;
#[cfg(feature = "locations")]
mod pattern;
mod read;
#[cfg(feature = "cloud")]
mod read_ahead;
#[cfg(feature = "cloud")]
mod remote;
#[cfg(feature = "cloud")]
mod retry;
#[cfg(feature = "cloud")]
mod upload;

#[cfg(feature = "cloud")]
#[doc(hidden)]
pub use upload::ObjectWriter;

#[doc(hidden)]
pub use checksum::{checksum, hex};
#[doc(hidden)]
#[cfg(feature = "locations")]
pub use decompress::{explain, gunzip, open_unpacked};
#[doc(hidden)]
#[cfg(feature = "locations")]
pub use fd_cache::CachedFile;
pub use fingerprint::Fingerprint;
#[doc(inline)]
pub use fulmen_error::{Error, Result};
#[doc(hidden)]
pub use key_parts::{KeyPart, KeyParts, differences};
#[doc(hidden)]
#[cfg(feature = "locations")]
pub use local::{keep, persist_noclobber, remove_leftovers, temporary_file, write_whole, zeros};
#[cfg(feature = "locations")]
pub use location::Location;
#[doc(hidden)]
#[cfg(feature = "locations")]
pub use location::{MAX_CONCURRENT_REQUESTS, fingerprint_all};
#[doc(hidden)]
#[cfg(feature = "locations")]
pub use lock::{LOCK, Lock, lock_soon};
#[cfg(all(feature = "locations", not(feature = "cloud")))]
use no_cloud as remote;
#[cfg(feature = "locations")]
pub use options::StoreOptions;
#[doc(hidden)]
pub use parallel::{cores, in_parallel};
#[doc(hidden)]
pub use read::fill;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
