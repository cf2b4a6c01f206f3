//! Weights in and out, by PyTorch's names: from safetensors files, single or in shards, and from PyTorch's own.
//!
//! [`load_weights`] and [`save_weights`] are for a model and a file that name things alike. Where they do not, a
//! [`StateDict`] is read, its names are changed, and it is loaded.
//!
//! Not here: the safetensors format itself; see [`safetensors`](crate::safetensors).

mod file;
mod index;
mod load;
mod pytorch;
mod report;
mod save;
mod state_dict;

pub use load::load_weights;
pub use report::{Conflict, Conversion, LoadReport, Mismatch, Strictness};
pub use save::{save_sharded_weights, save_weights};
pub use state_dict::StateDict;
