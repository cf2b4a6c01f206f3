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

/// The two options that all of them have, as methods.
macro_rules! outside {
    ($name:ident) => {
        /// How values between pixels are found; torchvision's default is the nearest.
        #[must_use]
        pub fn interpolation(mut self, interpolation: Interpolation) -> $name {
            self.interpolation = interpolation;
            self
        }

        /// The colour of what comes from outside the picture; black if not set.
        #[must_use]
        pub fn fill(mut self, fill: impl Into<Fill>) -> $name {
            self.fill = fill.into();
            self
        }
    };
}
use outside;
