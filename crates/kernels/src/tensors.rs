//! The form of a kernel that every platform computes: a loop over the grid, with slices.

use fulmen_tensor::{DType, Tensor, cond, scan};

use crate::index::{Arithmetic, Compare, Condition, Evaluate};
use crate::program::{
    Array, Binary, Kernel, Operation, Reduction, Role, Statement, TileType, Unary,
};

/// One step of the grid, as it is recorded.
#[derive(Clone)]
struct Step<'a> {
    kernel: &'a Kernel,
    position: Vec<Tensor>,
    tables: &'a [Tensor],
    /// The tile of each array.
    tiles: Vec<Tensor>,
    /// The values that are computed, by their numbers.
    values: Vec<Option<Tensor>>,
}

impl Evaluate for Step<'_> {
    type Value = Tensor;

    fn constant(&mut self, value: i32) -> Tensor {
        Tensor::scalar(value)
    }
    fn program(&mut self, axis: usize) -> Tensor {
        self.position[axis].clone()
    }
    fn table(&mut self, table: usize, at: Tensor) -> Tensor {
        self.tables[table].dynamic_slice(&[at], &[1]).reshape([])
    }
    fn binary(&mut self, kind: Arithmetic, left: Tensor, right: Tensor) -> Tensor {
        match kind {
            Arithmetic::Add => left + right,
            Arithmetic::Sub => left - right,
            Arithmetic::Mul => left * right,
            Arithmetic::Div => left / right,
            Arithmetic::Rem => left.remainder(right),
        }
    }
}

/// The results of a kernel for the tables and the inputs.
pub(crate) fn compute(kernel: &Kernel, tables: &[Tensor], inputs: &[Tensor]) -> Vec<Tensor> {
    // What is loaded before it is stored is NaN, as it could be anything on a TPU.
    let kept = kernel.arrays.iter().filter(|array| array.role != Role::Input);
    let init: Vec<Tensor> =
        kept.map(|array| unset(array.ty.dtype, array.ty.shape.dims())).collect();
    let steps = Tensor::arange(DType::I32, kernel.steps());
    let (mut last, ()) = scan(init, steps, |kept, step| {
        let mut number = step;
        let mut position = vec![number.clone(); kernel.grid.len()];
        for axis in (0..kernel.grid.len()).rev() {
            let size = Tensor::scalar(kernel.grid[axis] as i32);
            position[axis] = number.remainder(&size);
            number = number / size;
        }
        (run(kernel, position, tables, inputs, &kept), ())
    });
    last.truncate(kernel.with_role(Role::Output).count());
    last
}

fn unset(dtype: DType, shape: &[usize]) -> Tensor {
    Tensor::full(dtype, shape, if dtype.is_float() { f64::NAN } else { 0.0 })
}

/// One step: from the outputs and scratch before it to those after it.
fn run(
    kernel: &Kernel,
    position: Vec<Tensor>,
    tables: &[Tensor],
    inputs: &[Tensor],
    kept: &[Tensor],
) -> Vec<Tensor> {
    let values = vec![None; kernel.values.len()];
    let mut step = Step { kernel, position, tables, tiles: Vec::new(), values };
    let mut inputs = inputs.iter();
    let mut kept = kept.iter();
    let mut starts = Vec::new();
    let mut wholes = Vec::new();
    for array in &kernel.arrays {
        let source = if array.role == Role::Input { &mut inputs } else { &mut kept };
        let whole = source.next().cloned().unwrap_or_else(|| Tensor::zeros(DType::F32, []));
        let start = step.start(array);
        let tile = if array.role == Role::Scratch {
            whole.clone()
        } else {
            whole.dynamic_slice(&start, &array.block).reshape(array.tile().shape)
        };
        step.tiles.push(tile);
        starts.push(start);
        wholes.push(whole);
    }
    step.statements(&kernel.statements);
    let mut next = Vec::new();
    for (number, array) in kernel.arrays.iter().enumerate() {
        let tile = &step.tiles[number];
        match array.role {
            Role::Input => {}
            Role::Scratch => next.push(tile.clone()),
            Role::Output => {
                let block = tile.reshape(array.block.as_slice());
                next.push(wholes[number].dynamic_update_slice(block, &starts[number]));
            }
        }
    }
    next
}

impl Step<'_> {
    /// The first element of the block that the step sees.
    fn start(&mut self, array: &Array) -> Vec<Tensor> {
        let map = array.map.iter().zip(&array.block);
        map.map(|(index, &size)| self.index(index) * Tensor::scalar(size as i32)).collect()
    }

    fn statements(&mut self, statements: &[Statement]) {
        for statement in statements {
            match statement {
                Statement::Define(value) => self.values[*value] = Some(self.compute(*value)),
                Statement::Store { array, value } => self.tiles[*array] = self.value(*value),
                Statement::When { condition, body } => self.when(condition, body),
            }
        }
    }

    fn when(&mut self, condition: &Condition, body: &[Statement]) {
        let stored = Statement::stored(body);
        let before: Vec<Tensor> = stored.iter().map(|&array| self.tiles[array].clone()).collect();
        let left = self.index(&condition.left);
        let right = self.index(&condition.right);
        let holds = compare(condition.compare, &left, &right);
        let run = |tiles: Vec<Tensor>| {
            let mut inner = self.clone();
            for (&array, tile) in stored.iter().zip(tiles) {
                inner.tiles[array] = tile;
            }
            inner.statements(body);
            stored.iter().map(|&array| inner.tiles[array].clone()).collect()
        };
        let after = cond(&holds, before, run, |tiles| tiles);
        for (&array, tile) in stored.iter().zip(after) {
            self.tiles[array] = tile;
        }
    }

    /// A value that was computed before.
    fn value(&self, number: usize) -> Tensor {
        let message = "a value is used before it is computed";
        self.values[number].clone().unwrap_or_else(|| Tensor::poison("kernel", message))
    }

    fn compute(&mut self, number: usize) -> Tensor {
        let TileType { dtype, shape } = self.kernel.values[number].ty;
        match &self.kernel.values[number].operation {
            Operation::Load(array) => self.tiles[*array].clone(),
            Operation::Full(value) => Tensor::full(dtype, shape, *value),
            Operation::Splat(index) => self.index(index).broadcast_to(shape),
            Operation::Iota(axis) => Tensor::iota(dtype, shape, *axis as isize),
            Operation::Unary(kind, x) => unary(*kind, &self.value(*x)),
            Operation::Binary(kind, left, right) => {
                binary(*kind, &self.value(*left), &self.value(*right))
            }
            Operation::Compare(kind, left, right) => {
                compare(*kind, &self.value(*left), &self.value(*right))
            }
            Operation::And(left, right) => self.value(*left).and(&self.value(*right)),
            Operation::Select { mask, on_true, on_false } => {
                self.value(*mask).select(&self.value(*on_true), &self.value(*on_false))
            }
            Operation::Convert(x) => self.value(*x).to_dtype(dtype),
            Operation::Broadcast(x) => self.value(*x).broadcast_to(shape),
            Operation::Reduce { kind: Reduction::Sum, axis, of } => {
                self.value(*of).sum_keepdim(*axis as isize)
            }
            Operation::Reduce { kind: Reduction::Max, axis, of } => {
                self.value(*of).max_keepdim(*axis as isize)
            }
            Operation::Dot { left, right, axes } => {
                // A product is computed in the dtype of its operands, which are wide here.
                let left = self.value(*left).to_dtype(dtype);
                let right = self.value(*right).to_dtype(dtype);
                left.tensordot(&right, (axes[0] as isize, axes[1] as isize))
            }
            Operation::Transpose(x) => self.value(*x).t(),
        }
    }
}

fn unary(kind: Unary, x: &Tensor) -> Tensor {
    match kind {
        Unary::Exp => x.exp(),
        Unary::Log => x.log(),
        Unary::Tanh => x.tanh(),
        Unary::Rsqrt => x.rsqrt(),
    }
}

fn binary(kind: Binary, left: &Tensor, right: &Tensor) -> Tensor {
    match kind {
        Binary::Add => left + right,
        Binary::Sub => left - right,
        Binary::Mul => left * right,
        Binary::Div => left / right,
        Binary::Max => left.maximum(right),
    }
}

fn compare(kind: Compare, left: &Tensor, right: &Tensor) -> Tensor {
    match kind {
        Compare::Equal => left.eq(right),
        Compare::Less => left.lt(right),
        Compare::LessOrEqual => left.le(right),
    }
}
