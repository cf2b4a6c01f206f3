//! [`Index`]: integers that a kernel computes from its position in the grid, and [`Condition`]s on
//! them.

use std::ops::{Add, Div, Mul, Rem, Sub};
use std::sync::Arc;

/// An integer that is known before the step of the grid runs: it is computed from the position in
/// the grid, from tables and from constants. Index maps and conditions are made of it.
///
/// Division and remainder are for operands that are not negative.
///
/// ```
/// use fulmen_kernels::Index;
///
/// let half = Index::from(7) / 2 + 1;
/// assert_eq!(half.constant(), Some(4));
/// ```
#[derive(Clone, Debug)]
pub struct Index(pub(crate) Arc<Node>);

#[derive(Debug)]
pub(crate) enum Node {
    Constant(i32),
    /// The position along an axis of the grid.
    Program(usize),
    /// An element of the table with this number.
    Table(usize, Index),
    Binary(Arithmetic, Index, Index),
}

/// An operation on two integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
}

impl Arithmetic {
    /// The result for two numbers, `None` if there is none.
    pub(crate) fn of(self, left: i32, right: i32) -> Option<i32> {
        match self {
            Arithmetic::Add => left.checked_add(right),
            Arithmetic::Sub => left.checked_sub(right),
            Arithmetic::Mul => left.checked_mul(right),
            Arithmetic::Div => left.checked_div(right),
            Arithmetic::Rem => left.checked_rem(right),
        }
    }
}

/// What computes indices: on the host, as tensors, or as text.
pub(crate) trait Evaluate {
    type Value: Clone;

    fn constant(&mut self, value: i32) -> Self::Value;
    fn program(&mut self, axis: usize) -> Self::Value;
    fn table(&mut self, table: usize, at: Self::Value) -> Self::Value;
    fn binary(&mut self, kind: Arithmetic, left: Self::Value, right: Self::Value) -> Self::Value;

    fn index(&mut self, index: &Index) -> Self::Value {
        match &*index.0 {
            Node::Constant(value) => self.constant(*value),
            Node::Program(axis) => self.program(*axis),
            Node::Table(table, at) => {
                let at = self.index(at);
                self.table(*table, at)
            }
            Node::Binary(kind, left, right) => {
                let left = self.index(left);
                let right = self.index(right);
                self.binary(*kind, left, right)
            }
        }
    }
}

impl Index {
    pub(crate) fn new(node: Node) -> Index {
        Index(Arc::new(node))
    }

    /// Whether the index is the position along an axis of the grid.
    pub(crate) fn is_program(&self, axis: usize) -> bool {
        matches!(&*self.0, Node::Program(own) if *own == axis)
    }

    /// Whether the index depends on the position along an axis of the grid.
    pub(crate) fn uses_program(&self, axis: usize) -> bool {
        match &*self.0 {
            Node::Constant(_) => false,
            Node::Program(own) => *own == axis,
            Node::Table(_, at) => at.uses_program(axis),
            Node::Binary(_, left, right) => left.uses_program(axis) || right.uses_program(axis),
        }
    }

    /// The number, if it depends on nothing.
    pub fn constant(&self) -> Option<i32> {
        match &*self.0 {
            Node::Constant(value) => Some(*value),
            Node::Program(_) | Node::Table(..) => None,
            Node::Binary(kind, left, right) => kind.of(left.constant()?, right.constant()?),
        }
    }

    /// Whether the index has this value.
    pub fn equals(&self, other: impl Into<Index>) -> Condition {
        Condition { compare: Compare::Equal, left: self.clone(), right: other.into() }
    }

    /// Whether the index is below this value.
    pub fn less_than(&self, other: impl Into<Index>) -> Condition {
        Condition { compare: Compare::Less, left: self.clone(), right: other.into() }
    }
}

impl From<i32> for Index {
    fn from(value: i32) -> Index {
        Index::new(Node::Constant(value))
    }
}

impl From<&Index> for Index {
    fn from(index: &Index) -> Index {
        index.clone()
    }
}

macro_rules! arithmetic {
    ($($kind:ident $method:ident)*) => {$(
        impl<R: Into<Index>> $kind<R> for Index {
            type Output = Index;
            fn $method(self, right: R) -> Index {
                Index::new(Node::Binary(Arithmetic::$kind, self, right.into()))
            }
        }
        impl<R: Into<Index>> $kind<R> for &Index {
            type Output = Index;
            fn $method(self, right: R) -> Index {
                self.clone().$method(right)
            }
        }
    )*};
}
arithmetic!(Add add Sub sub Mul mul Div div Rem rem);

/// A comparison of two indices, for [`Tiles::when`](crate::Tiles::when).
#[derive(Clone, Debug)]
pub struct Condition {
    pub(crate) compare: Compare,
    pub(crate) left: Index,
    pub(crate) right: Index,
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    Equal,
    Less,
    LessOrEqual,
}
