//! Augmentation policies: AutoAugment's, which were found by search, and random ones that need no
//! search.
//!
//! Out of scope: the operations themselves (`functional`).

mod operation;
mod policy;
mod rand_augment;
mod trivial_augment;

pub use policy::{AutoAugment, AutoAugmentPolicy};
pub use rand_augment::RandAugment;
pub use trivial_augment::TrivialAugmentWide;
