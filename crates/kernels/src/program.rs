//! The recorded kernel: its grid, its arrays and the statements of one step.

use fulmen_tensor::{DType, TensorType};

use crate::index::{Compare, Condition, Index};

/// A computation over tiles, repeated for each step of a grid.
///
/// It has two forms: [`Kernel::call`] and [`Kernel::mosaic`].
#[derive(Clone, Debug)]
pub struct Kernel {
    pub(crate) name: String,
    pub(crate) grid: Vec<usize>,
    /// The number of leading axes of the grid whose positions share nothing.
    pub(crate) parallel: usize,
    pub(crate) tables: Vec<Vec<i32>>,
    pub(crate) arrays: Vec<Array>,
    /// The values that the statements define, by their numbers.
    pub(crate) values: Vec<Value>,
    pub(crate) statements: Vec<Statement>,
}

/// An array in the device's memory, or memory that is kept from step to step. A step sees one block.
#[derive(Clone, Debug)]
pub(crate) struct Array {
    pub(crate) role: Role,
    pub(crate) ty: TensorType,
    pub(crate) block: Vec<usize>,
    /// For each axis, the number of the block; empty for scratch.
    pub(crate) map: Vec<Index>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Input,
    Output,
    Scratch,
}

/// A tile: two axes of a dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileType {
    pub(crate) dtype: DType,
    pub(crate) shape: [usize; 2],
}

#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) ty: TileType,
    pub(crate) operation: Operation,
}

/// The operands are numbers of values.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    /// The block of the array with this number.
    Load(usize),
    Full(f64),
    /// An integer in each element.
    Splat(Index),
    Iota(usize),
    Unary(Unary, usize),
    Binary(Binary, usize, usize),
    Compare(Compare, usize, usize),
    And(usize, usize),
    Select {
        mask: usize,
        on_true: usize,
        on_false: usize,
    },
    Convert(usize),
    Broadcast(usize),
    Reduce {
        kind: Reduction,
        axis: usize,
        of: usize,
    },
    /// The product that sums over one axis of each.
    Dot {
        left: usize,
        right: usize,
        axes: [usize; 2],
    },
    Transpose(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    Exp,
    Log,
    Tanh,
    Rsqrt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Max,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    Sum,
    Max,
}

#[derive(Clone, Debug)]
pub(crate) enum Statement {
    /// Computes the value with this number.
    Define(usize),
    Store {
        array: usize,
        value: usize,
    },
    When {
        condition: Condition,
        body: Vec<Statement>,
    },
}

impl Statement {
    /// The arrays that statements store to.
    pub(crate) fn stored(statements: &[Statement]) -> Vec<usize> {
        let mut arrays = Vec::new();
        for statement in statements {
            match statement {
                Statement::Define(_) => {}
                Statement::Store { array, .. } => arrays.push(*array),
                Statement::When { body, .. } => arrays.extend(Statement::stored(body)),
            }
        }
        arrays.sort_unstable();
        arrays.dedup();
        arrays
    }
}

impl Array {
    /// The type of the tile that a step sees.
    pub(crate) fn tile(&self) -> TileType {
        let rank = self.block.len();
        TileType { dtype: self.ty.dtype, shape: [self.block[rank - 2], self.block[rank - 1]] }
    }

    /// The number of blocks along each axis.
    pub(crate) fn blocks(&self) -> Vec<usize> {
        self.ty.shape.dims().iter().zip(&self.block).map(|(size, block)| size / block).collect()
    }
}

impl Kernel {
    pub(crate) fn with_role(&self, role: Role) -> impl Iterator<Item = (usize, &Array)> {
        self.arrays.iter().enumerate().filter(move |(_, array)| array.role == role)
    }

    /// The bytes of vector memory for the blocks, of which there are two, so that one arrives while
    /// the other is used, and for the scratch. What the values need is not counted.
    ///
    /// ```
    /// use fulmen_kernels::{Index, Kernel};
    /// use fulmen_tensor::{DType, TensorType};
    ///
    /// let ty = TensorType::new(DType::F32, [32, 128]);
    /// let double = Kernel::record("double", &[4], |k| {
    ///     let x = k.input(&ty, &[8, 128], [k.program(0), Index::from(0)]);
    ///     let y = k.output(&ty, &[8, 128], [k.program(0), Index::from(0)]);
    ///     y.store(&(x.load() * 2.0));
    /// })?;
    /// assert_eq!(double.vector_memory(), 2 * 2 * 8 * 128 * 4);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    pub fn vector_memory(&self) -> usize {
        let bytes = |array: &Array| {
            let copies = if array.role == Role::Scratch { 1 } else { 2 };
            copies * array.block.iter().product::<usize>() * array.ty.dtype.size_in_bytes()
        };
        self.arrays.iter().map(bytes).sum()
    }

    /// The number of steps.
    pub(crate) fn steps(&self) -> usize {
        self.grid.iter().product()
    }
}
