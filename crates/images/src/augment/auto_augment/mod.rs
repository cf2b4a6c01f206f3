//! Augmentation policies: some found by search, some with nothing to search.
//!
//! Out of scope: the operations themselves (`functional`).

mod operation;
mod policy;
mod rand_augment;
mod trivial_augment;

pub use policy::{AutoAugment, AutoAugmentPolicy};
pub use rand_augment::RandAugment;
pub use trivial_augment::TrivialAugmentWide;
