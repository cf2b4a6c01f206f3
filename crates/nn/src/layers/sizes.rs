//! [`Sizes`]: a setting for each spatial axis, given as one number for all or one for each.

use std::fmt;

use crate::{Module, Visit};

/// A setting for each of `N` spatial axes, in their order: depth, height, width, or the last of
/// them.
///
/// ```
/// use fulmen_nn::Sizes;
/// assert_eq!(Sizes::<2>::from(3), Sizes([3, 3]));
/// assert_eq!(Sizes::<2>::from((3, 5)).to_string(), "3x5");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes<const N: usize>(pub [usize; N]);

impl<const N: usize> Sizes<N> {
    pub(super) fn all(self, f: impl Fn(usize) -> bool) -> bool {
        self.0.iter().all(|&n| f(n))
    }
    pub(super) fn to_vec(self) -> Vec<usize> {
        self.0.to_vec()
    }
}

impl<const N: usize> From<usize> for Sizes<N> {
    fn from(all: usize) -> Sizes<N> {
        Sizes([all; N])
    }
}
impl<const N: usize> From<[usize; N]> for Sizes<N> {
    fn from(sizes: [usize; N]) -> Sizes<N> {
        Sizes(sizes)
    }
}
impl From<(usize, usize)> for Sizes<2> {
    fn from((height, width): (usize, usize)) -> Sizes<2> {
        Sizes([height, width])
    }
}
impl From<(usize, usize, usize)> for Sizes<3> {
    fn from((depth, height, width): (usize, usize, usize)) -> Sizes<3> {
        Sizes([depth, height, width])
    }
}

impl<const N: usize> fmt::Display for Sizes<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.map(|n| n.to_string()).join("x"))
    }
}

impl<const N: usize> Module for Sizes<N> {
    fn visit(&self, _: &mut Visit<'_>) {}
}
