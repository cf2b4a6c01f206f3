//! Loading and saving weights by PyTorch's names: safetensors files, single or sharded, and
//! PyTorch's own files.
//!
//! [`load_weights`] and [`save_weights`] work if model and file use the same names. Otherwise, read
//! a [`StateDict`], rename, and load it.
//!
//! Out of scope: the safetensors format itself; see [`safetensors`](crate::safetensors).

mod file;
mod index;
mod load;
#[cfg_attr(not(feature = "pytorch"), path = "no_pytorch.rs")]
mod pytorch;
mod report;
mod save;
mod state_dict;

pub use load::load_weights;
pub use report::{Conflict, Conversion, LoadReport, Mismatch, Strictness};
pub(crate) use save::{new_folder, save_values, values_of};
pub use save::{save_sharded_tensors, save_sharded_weights, save_tensors, save_weights};
pub use state_dict::StateDict;
