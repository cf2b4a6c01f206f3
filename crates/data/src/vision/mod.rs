//! Images with labels in IDX files: MNIST and its relatives.
//!
//! Not here: images in other formats (`fulmen-images`).

mod classification;
mod idx;

pub use classification::{IdxClassification, Mnist, Split};
pub use idx::IdxFile;
