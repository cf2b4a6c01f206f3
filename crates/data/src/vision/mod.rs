//! The sets of pictures with labels that everyone has: MNIST's IDX files, CIFAR's, folders by class.
//!
//! Not here: decoding and augmentation (`images`), and the archives as they are published (`prepare`).

#[cfg(feature = "images")]
mod cifar;
mod classification;
mod idx;
#[cfg(feature = "images")]
mod image_folder;
#[cfg(feature = "images")]
mod presize;

#[cfg(feature = "images")]
pub use cifar::Cifar;
pub use classification::{IdxClassification, Mnist, Split};
pub use idx::IdxFile;
#[cfg(feature = "images")]
pub use image_folder::ImageFolder;
#[cfg(feature = "images")]
pub use presize::Presize;
