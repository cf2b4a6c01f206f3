//! [`Pair`]: a setting for height and width, given as one number for both or as two.

use std::fmt;

use crate::{Module, Visit};

/// A setting for height and width.
///
/// ```
/// use fulmen_nn::Pair;
/// assert_eq!(Pair::from(3), Pair { height: 3, width: 3 });
/// assert_eq!(Pair::from((3, 5)).to_string(), "3x5");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Of rows.
    pub height: usize,
    /// Of columns.
    pub width: usize,
}

impl Pair {
    pub(super) fn both(self, f: impl Fn(usize) -> bool) -> bool {
        f(self.height) && f(self.width)
    }
    pub(super) fn to_vec(self) -> Vec<usize> {
        vec![self.height, self.width]
    }
}

impl From<usize> for Pair {
    fn from(both: usize) -> Pair {
        Pair { height: both, width: both }
    }
}
impl From<(usize, usize)> for Pair {
    fn from((height, width): (usize, usize)) -> Pair {
        Pair { height, width }
    }
}
impl From<[usize; 2]> for Pair {
    fn from([height, width]: [usize; 2]) -> Pair {
        Pair { height, width }
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.height, self.width)
    }
}

impl Module for Pair {
    fn visit(&self, _: &mut Visit<'_>) {}
}
