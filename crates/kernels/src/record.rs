//! [`Tiles`]: records a kernel. Each method adds a statement, and the first mistake is kept.

use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Neg, Sub};
use std::panic::Location;
use std::rc::Rc;

use fulmen_error::{Error, Result};
use fulmen_tensor::{DType, TensorType};

use crate::grid;
use crate::index::{Compare, Condition, Index, Node};
use crate::program::{
    Array, Binary, Kernel, Operation, Reduction, Role, Statement, TileType, Unary, Value,
};

/// The kernel under construction.
struct Recorder {
    kernel: Kernel,
    /// The statements of the open [`Tiles::when`]s, the outermost first.
    open: Vec<Block>,
    /// The number of blocks so far.
    blocks: usize,
    /// For each value, the number of the block that defines it.
    defined_in: Vec<usize>,
    fault: Option<Error>,
}

/// The statements of a kernel or of a [`Tiles::when`].
struct Block {
    number: usize,
    statements: Vec<Statement>,
}

type Shared = Rc<RefCell<Recorder>>;

/// Records the statements of one step of a kernel; see [`Kernel::record`].
pub struct Tiles(Shared);

/// A table of integers, which index maps and conditions read.
#[derive(Clone, Copy, Debug)]
pub struct Table(usize);

/// An array of a kernel. A step sees one block of it: a tile.
#[derive(Clone)]
pub struct Memory {
    recorder: Shared,
    array: usize,
}

/// A value with two axes.
///
/// Operations on two tiles broadcast axes of size 1. They are like those of
/// [`Tensor`](fulmen_tensor::Tensor), but nothing is converted: both tiles have one dtype.
#[derive(Clone)]
#[must_use]
pub struct Tile {
    recorder: Shared,
    value: usize,
    ty: TileType,
}

impl Recorder {
    #[track_caller]
    fn fail(&mut self, message: String) {
        let name = &self.kernel.name;
        let error = Error::usage_at(format!("kernel `{name}`: {message}"), Location::caller());
        self.fault.get_or_insert(error);
    }

    fn push(&mut self, statement: Statement) {
        if let Some(block) = self.open.last_mut() {
            block.statements.push(statement);
        }
    }

    fn define(&mut self, ty: TileType, operation: Operation) -> usize {
        let value = self.kernel.values.len();
        self.kernel.values.push(Value { ty, operation });
        self.defined_in.push(self.open.last().map_or(0, |block| block.number));
        self.push(Statement::Define(value));
        value
    }
}

impl Kernel {
    /// Records a kernel that runs once for each step of a grid, the last axis fastest.
    ///
    /// ```
    /// use fulmen_kernels::{Index, Kernel};
    /// use fulmen_tensor::{DType, Tensor, TensorType};
    ///
    /// // Sums the rows of a matrix, eight rows in a step.
    /// let ty = TensorType::new(DType::F32, [32, 128]);
    /// let sum_ty = TensorType::new(DType::F32, [1, 128]);
    /// let sum = Kernel::record("sum_rows", &[4], |k| {
    ///     let x = k.input(&ty, &[8, 128], [k.program(0), Index::from(0)]);
    ///     let sum = k.output(&sum_ty, &[1, 128], [Index::from(0), Index::from(0)]);
    ///     let total = k.scratch(DType::F32, [1, 128]);
    ///     k.when(k.program(0).equals(0), || total.store(&k.full(DType::F32, [1, 128], 0.0)));
    ///     total.store(&(total.load() + x.load().sum(0)));
    ///     k.when(k.program(0).equals(3), || sum.store(&total.load()));
    /// })?;
    /// let x = Tensor::ones(DType::F32, [32, 128]);
    /// assert_eq!(sum.call(&[&x])[0].eval()?.to_vec::<f32>()?, [32.0; 128]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// - A shape, a dtype or a number of a block does not fit.
    /// - A block of an output is never written, or is left and visited again.
    /// - A value is used outside of the [`Tiles::when`] that computes it.
    #[track_caller]
    pub fn record(name: &str, grid: &[usize], record: impl FnOnce(&Tiles)) -> Result<Kernel> {
        let kernel = Kernel {
            name: name.to_owned(),
            grid: grid.to_vec(),
            parallel: 0,
            tables: Vec::new(),
            arrays: Vec::new(),
            values: Vec::new(),
            statements: Vec::new(),
        };
        let recorder = Rc::new(RefCell::new(Recorder {
            kernel,
            open: vec![Block { number: 0, statements: Vec::new() }],
            blocks: 1,
            defined_in: Vec::new(),
            fault: None,
        }));
        record(&Tiles(recorder.clone()));
        let mut recorder = recorder.borrow_mut();
        if let Some(fault) = recorder.fault.take() {
            return Err(fault);
        }
        let mut kernel = recorder.kernel.clone();
        kernel.statements = recorder.open.swap_remove(0).statements;
        grid::check(&kernel).map_err(|message| {
            Error::usage_at(format!("kernel `{name}`: {message}"), Location::caller())
        })?;
        Ok(kernel)
    }
}

impl Tiles {
    /// The position along an axis of the grid.
    #[track_caller]
    pub fn program(&self, axis: usize) -> Index {
        let mut recorder = self.0.borrow_mut();
        let axes = recorder.kernel.grid.len();
        if axis >= axes {
            recorder.fail(format!("the grid has {axes} axes, but program({axis}) was asked for"));
            return Index::from(0);
        }
        Index::new(Node::Program(axis))
    }

    /// Declares that the steps along the first `axes` axes of the grid share neither scratch nor
    /// blocks of outputs, so that two cores may share them.
    pub fn parallel(&self, axes: usize) {
        self.0.borrow_mut().kernel.parallel = axes;
    }

    /// A table for index maps and conditions.
    pub fn table(&self, elements: &[i32]) -> Table {
        let tables = &mut self.0.borrow_mut().kernel.tables;
        tables.push(elements.to_vec());
        Table(tables.len() - 1)
    }

    #[track_caller]
    fn array(&self, role: Role, ty: &TensorType, block: &[usize], map: Vec<Index>) -> Memory {
        let mut recorder = self.0.borrow_mut();
        let dims = ty.shape.dims();
        let rank = dims.len();
        let mut block = block.to_vec();
        let has_map = role == Role::Scratch || map.len() == rank;
        let is_tile =
            block.len() == rank && rank >= 2 && block[..rank - 2].iter().all(|&size| size == 1);
        let divides =
            is_tile && dims.iter().zip(&block).all(|(d, b)| *b > 0 && d.is_multiple_of(*b));
        if !has_map || !divides {
            recorder.fail(format!(
                "a block {block:?} with {} indices does not fit {ty}; a block has a size and an index for each axis, at \
                 least two, all but the last two sizes are 1, and each divides that of the array",
                map.len()
            ));
            block = vec![1; rank.max(2)];
        }
        recorder.kernel.arrays.push(Array { role, ty: ty.clone(), block, map });
        let array = recorder.kernel.arrays.len() - 1;
        Memory { recorder: self.0.clone(), array }
    }

    /// An input of type `ty`. A step sees the block with these numbers along each axis. All but the
    /// last two sizes of the block are 1, and its tile has the last two axes.
    #[track_caller]
    pub fn input(
        &self,
        ty: &TensorType,
        block: &[usize],
        map: impl IntoIterator<Item = Index>,
    ) -> Memory {
        self.array(Role::Input, ty, block, map.into_iter().collect())
    }

    /// An output, like [`Tiles::input`]. Each block must be visited in steps that follow each other.
    /// It must be stored before it is loaded.
    #[track_caller]
    pub fn output(
        &self,
        ty: &TensorType,
        block: &[usize],
        map: impl IntoIterator<Item = Index>,
    ) -> Memory {
        self.array(Role::Output, ty, block, map.into_iter().collect())
    }

    /// Memory that is kept from step to step. It must be stored before it is loaded.
    #[track_caller]
    pub fn scratch(&self, dtype: DType, shape: [usize; 2]) -> Memory {
        self.array(Role::Scratch, &TensorType::new(dtype, shape), &shape, Vec::new())
    }

    /// Records statements that run only in steps for which the condition holds. Values that they
    /// compute cannot be used outside.
    pub fn when(&self, condition: Condition, record: impl FnOnce()) {
        {
            let recorder = &mut *self.0.borrow_mut();
            recorder.open.push(Block { number: recorder.blocks, statements: Vec::new() });
            recorder.blocks += 1;
        }
        record();
        let mut recorder = self.0.borrow_mut();
        let body = recorder.open.pop().map_or(Vec::new(), |block| block.statements);
        recorder.push(Statement::When { condition, body });
    }

    fn value(&self, ty: TileType, operation: Operation) -> Tile {
        let value = self.0.borrow_mut().define(ty, operation);
        Tile { recorder: self.0.clone(), value, ty }
    }

    /// A tile of one number.
    pub fn full(&self, dtype: DType, shape: [usize; 2], value: f64) -> Tile {
        self.value(TileType { dtype, shape }, Operation::Full(value))
    }

    /// The position of each element along an axis, plus `start`: i32.
    pub fn iota(&self, shape: [usize; 2], axis: usize, start: impl Into<Index>) -> Tile {
        let ty = TileType { dtype: DType::I32, shape };
        if axis > 1 {
            self.0.borrow_mut().fail(format!("a tile has two axes, so iota() has no axis {axis}"));
        }
        let positions = self.value(ty, Operation::Iota(axis.min(1)));
        let start = self.value(ty, Operation::Splat(start.into()));
        positions + start
    }
}

impl Table {
    /// The element at a position.
    pub fn at(self, position: impl Into<Index>) -> Index {
        Index::new(Node::Table(self.0, position.into()))
    }
}

impl Memory {
    /// The tile that the memory holds now.
    pub fn load(&self) -> Tile {
        let ty = self.recorder.borrow().kernel.arrays[self.array].tile();
        let value = self.recorder.borrow_mut().define(ty, Operation::Load(self.array));
        Tile { recorder: self.recorder.clone(), value, ty }
    }

    /// Replaces the tile by another of the same shape and dtype.
    #[track_caller]
    pub fn store(&self, tile: &Tile) {
        let mut recorder = self.recorder.borrow_mut();
        let array = &recorder.kernel.arrays[self.array];
        let expected = array.tile();
        if array.role == Role::Input {
            recorder.fail("an input cannot be stored to".into());
        } else if expected != tile.ty {
            recorder.fail(format!("{} cannot be stored as {}", tile.ty, expected));
        }
        tile.check(&mut recorder);
        recorder.push(Statement::Store { array: self.array, value: tile.value });
    }
}

impl std::fmt::Display for TileType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[{}, {}]", self.dtype.name(), self.shape[0], self.shape[1])
    }
}

impl Tile {
    /// The sizes of the axes.
    pub fn shape(&self) -> [usize; 2] {
        self.ty.shape
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// Remembers a mistake, if the tile was computed in a [`Tiles::when`] that is closed.
    #[track_caller]
    fn check(&self, recorder: &mut Recorder) {
        let block = recorder.defined_in[self.value];
        if recorder.open.iter().all(|open| open.number != block) {
            recorder
                .fail("a value is used outside of the when() that computes it; store it".into());
        }
    }

    #[track_caller]
    fn derive(&self, ty: TileType, operands: &[&Tile], operation: Operation) -> Tile {
        let mut recorder = self.recorder.borrow_mut();
        for operand in operands {
            operand.check(&mut recorder);
        }
        let value = recorder.define(ty, operation);
        Tile { recorder: self.recorder.clone(), value, ty }
    }

    #[track_caller]
    fn fail(&self, message: String) {
        self.recorder.borrow_mut().fail(message);
    }

    /// The tile with axes of size 1 repeated.
    #[track_caller]
    pub fn broadcast(&self, shape: [usize; 2]) -> Tile {
        if self.ty.shape == shape {
            return self.clone();
        }
        if (0..2).any(|axis| self.ty.shape[axis] != shape[axis] && self.ty.shape[axis] != 1) {
            self.fail(format!("{} does not broadcast to {shape:?}", self.ty));
        }
        let ty = TileType { shape, ..self.ty };
        self.derive(ty, &[self], Operation::Broadcast(self.value))
    }

    /// Both tiles with one shape.
    #[track_caller]
    fn together(&self, other: &Tile) -> [Tile; 2] {
        if self.ty.dtype != other.ty.dtype {
            self.fail(format!("the dtypes of {} and {} differ; use to_dtype()", self.ty, other.ty));
        }
        let shape = [0, 1].map(|axis| self.ty.shape[axis].max(other.ty.shape[axis]));
        [self.broadcast(shape), other.broadcast(shape)]
    }

    #[track_caller]
    fn binary(&self, kind: Binary, other: &Tile) -> Tile {
        let [left, right] = self.together(other);
        left.derive(left.ty, &[&left, &right], Operation::Binary(kind, left.value, right.value))
    }

    #[track_caller]
    fn number(&self, value: f64) -> Tile {
        self.derive(self.ty, &[], Operation::Full(value))
    }

    #[track_caller]
    fn compare(&self, compare: Compare, other: &Tile) -> Tile {
        let [left, right] = self.together(other);
        let ty = TileType { dtype: DType::Bool, ..left.ty };
        left.derive(ty, &[&left, &right], Operation::Compare(compare, left.value, right.value))
    }

    #[track_caller]
    fn unary(&self, kind: Unary) -> Tile {
        if !self.ty.dtype.is_float() {
            self.fail(format!("{} is not a tile of floating-point numbers", self.ty));
        }
        self.derive(self.ty, &[self], Operation::Unary(kind, self.value))
    }

    #[track_caller]
    fn reduce(&self, kind: Reduction, axis: usize) -> Tile {
        let mut shape = self.ty.shape;
        match shape.get_mut(axis) {
            Some(size) => *size = 1,
            None => self.fail(format!("a tile has two axes, so there is no axis {axis}")),
        }
        let ty = TileType { shape, ..self.ty };
        self.derive(ty, &[self], Operation::Reduce { kind, axis: axis.min(1), of: self.value })
    }

    /// `eˣ`.
    #[track_caller]
    pub fn exp(&self) -> Tile {
        self.unary(Unary::Exp)
    }

    /// The natural logarithm.
    #[track_caller]
    pub fn log(&self) -> Tile {
        self.unary(Unary::Log)
    }

    /// The hyperbolic tangent.
    #[track_caller]
    pub fn tanh(&self) -> Tile {
        self.unary(Unary::Tanh)
    }

    /// `1/√x`.
    #[track_caller]
    pub fn rsqrt(&self) -> Tile {
        self.unary(Unary::Rsqrt)
    }

    /// The larger element of both tiles.
    #[track_caller]
    pub fn maximum(&self, other: &Tile) -> Tile {
        self.binary(Binary::Max, other)
    }

    /// Where both tiles are equal.
    #[track_caller]
    pub fn eq(&self, other: &Tile) -> Tile {
        self.compare(Compare::Equal, other)
    }

    /// Where this tile is smaller.
    #[track_caller]
    pub fn lt(&self, other: &Tile) -> Tile {
        self.compare(Compare::Less, other)
    }

    /// Where this tile is not larger.
    #[track_caller]
    pub fn le(&self, other: &Tile) -> Tile {
        self.compare(Compare::LessOrEqual, other)
    }

    /// Where both masks are true.
    #[track_caller]
    pub fn and(&self, other: &Tile) -> Tile {
        let [left, right] = self.together(other);
        if left.ty.dtype != DType::Bool {
            self.fail(format!("and() joins masks, not {}", self.ty));
        }
        left.derive(left.ty, &[&left, &right], Operation::And(left.value, right.value))
    }

    /// The elements of `on_true` where this mask is true, and those of `on_false` elsewhere.
    #[track_caller]
    pub fn select(&self, on_true: &Tile, on_false: &Tile) -> Tile {
        let [on_true, on_false] = on_true.together(on_false);
        if self.ty.dtype != DType::Bool || self.ty.shape != on_true.ty.shape {
            self.fail(format!("{} is not a mask for {}", self.ty, on_true.ty));
        }
        let operation = Operation::Select {
            mask: self.value,
            on_true: on_true.value,
            on_false: on_false.value,
        };
        self.derive(on_true.ty, &[self, &on_true, &on_false], operation)
    }

    /// The tile in another floating-point dtype.
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> Tile {
        if self.ty.dtype == dtype {
            return self.clone();
        }
        if !self.ty.dtype.is_float() || !dtype.is_float() {
            self.fail(format!("{} cannot become {}", self.ty, dtype.name()));
        }
        let ty = TileType { dtype, ..self.ty };
        self.derive(ty, &[self], Operation::Convert(self.value))
    }

    /// The sum along an axis, which keeps the size 1.
    #[track_caller]
    pub fn sum(&self, axis: usize) -> Tile {
        self.reduce(Reduction::Sum, axis)
    }

    /// The largest element along an axis, which keeps the size 1.
    #[track_caller]
    pub fn max(&self, axis: usize) -> Tile {
        self.reduce(Reduction::Max, axis)
    }

    /// The tile with its axes exchanged.
    #[track_caller]
    pub fn transpose(&self) -> Tile {
        let [rows, columns] = self.ty.shape;
        let ty = TileType { shape: [columns, rows], ..self.ty };
        self.derive(ty, &[self], Operation::Transpose(self.value))
    }

    /// The product that sums over the axis `axes[0]` of this tile and `axes[1]` of the other, in the
    /// dtype `sum`, which is that of the tiles or wider. `dot(b, [1, 0], …)` is the product of two
    /// matrices.
    #[track_caller]
    pub fn dot(&self, other: &Tile, axes: [usize; 2], sum: DType) -> Tile {
        if axes.iter().any(|&axis| axis > 1)
            || self.ty.dtype != other.ty.dtype
            || !self.ty.dtype.is_float()
            || self.ty.shape[axes[0].min(1)] != other.ty.shape[axes[1].min(1)]
        {
            self.fail(format!("no product of {} and {} over the axes {axes:?}", self.ty, other.ty));
        }
        let [left, right] = axes.map(|axis| 1 - axis.min(1));
        let shape = [self.ty.shape[left], other.ty.shape[right]];
        let operation = Operation::Dot {
            left: self.value,
            right: other.value,
            axes: axes.map(|axis| axis.min(1)),
        };
        self.derive(TileType { dtype: sum, shape }, &[self, other], operation)
    }
}

macro_rules! operators {
    ($($kind:ident $method:ident)*) => {$(
        impl $kind<&Tile> for &Tile {
            type Output = Tile;
            #[track_caller]
            fn $method(self, right: &Tile) -> Tile {
                self.binary(Binary::$kind, right)
            }
        }
        impl $kind<Tile> for &Tile {
            type Output = Tile;
            #[track_caller]
            fn $method(self, right: Tile) -> Tile {
                self.binary(Binary::$kind, &right)
            }
        }
        impl $kind<&Tile> for Tile {
            type Output = Tile;
            #[track_caller]
            fn $method(self, right: &Tile) -> Tile {
                self.binary(Binary::$kind, right)
            }
        }
        impl $kind<Tile> for Tile {
            type Output = Tile;
            #[track_caller]
            fn $method(self, right: Tile) -> Tile {
                self.binary(Binary::$kind, &right)
            }
        }
        impl $kind<f64> for &Tile {
            type Output = Tile;
            #[track_caller]
            fn $method(self, right: f64) -> Tile {
                self.binary(Binary::$kind, &self.number(right))
            }
        }
        impl $kind<f64> for Tile {
            type Output = Tile;
            #[track_caller]
            fn $method(self, right: f64) -> Tile {
                (&self).$method(right)
            }
        }
    )*};
}
operators!(Add add Sub sub Mul mul Div div);

impl Neg for &Tile {
    type Output = Tile;
    #[track_caller]
    fn neg(self) -> Tile {
        self * -1.0
    }
}
