//! Labeled images in IDX files: MNIST and similar datasets.
//!
//! Out of scope: images in other formats (`fulmen-images`).

mod classification;
mod idx;

pub use classification::{IdxClassification, Mnist, Split};
pub use idx::IdxFile;
