//! Policies of augmentation that were found by search, and those that need none.
//!
//! Not here: the operations themselves (`functional`).

mod operation;
mod policy;
mod rand_augment;
mod trivial_augment;

pub use policy::{AutoAugment, AutoAugmentPolicy};
pub use rand_augment::RandAugment;
pub use trivial_augment::TrivialAugmentWide;
