//! A small language of tiles for kernels, and the kernels of Fulmen.
//!
//! A [`Kernel`] is recorded once, by [`Kernel::record`], and has two forms. [`Kernel::mosaic`] is the
//! text that libtpu compiles. [`Kernel::call`] records both forms: a program for TPUs contains the
//! text, and a program for another platform a loop over the grid that computes the same.
//!
//! No TPU has run these kernels yet. libtpu compiles them for all generations.
//!
//! Out of scope: which kernel a layer uses, see `fulmen_nn`; what a platform takes, see the passes of
//! `fulmen_tensor`.

mod attention;
mod built_in;
mod call;
mod grid;
mod index;
#[cfg(test)]
mod interpreted;
mod linear_cross_entropy;
mod mosaic;
mod padding;
mod program;
mod record;
mod rms_norm;
mod rows;
mod tensors;

use fulmen_tensor::internal::Library;

pub use attention::FlashAttention;
pub use built_in::BuiltIn;
pub use index::{Condition, Index};
pub use linear_cross_entropy::{LinearCrossEntropy, LogitSums};
pub use program::Kernel;
pub use record::{Memory, Table, Tile, Tiles};
pub use rms_norm::rms_norm_residual;

/// Recorded operations have the lines of this crate's callers.
const KERNELS: Library = Library::new(file!());

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
