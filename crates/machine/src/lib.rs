//! What stands between a training and the devices of a machine. The commands `fulmen doctor`, `ps` and `kill` are made of it.
//!
//! Not here: opening devices; command lines.

pub mod doctor;
mod lock_file;

pub use lock_file::LockFile;
