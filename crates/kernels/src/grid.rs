//! Checks a kernel over its whole grid, on the host: which blocks its steps see.

use std::collections::HashSet;

use crate::index::{Arithmetic, Evaluate, Index};
use crate::program::{Array, Kernel, Operation, Role, Statement};

/// Computes indices on the host, at one position of the grid. `None` if there is no such number.
struct OnHost<'a> {
    kernel: &'a Kernel,
    position: Vec<usize>,
}

impl Evaluate for OnHost<'_> {
    type Value = Option<i32>;

    fn constant(&mut self, value: i32) -> Option<i32> {
        Some(value)
    }
    fn program(&mut self, axis: usize) -> Option<i32> {
        i32::try_from(*self.position.get(axis)?).ok()
    }
    fn table(&mut self, table: usize, at: Option<i32>) -> Option<i32> {
        let at = usize::try_from(at?).ok()?;
        self.kernel.tables.get(table)?.get(at).copied()
    }
    fn binary(&mut self, kind: Arithmetic, left: Option<i32>, right: Option<i32>) -> Option<i32> {
        kind.of(left?, right?)
    }
}

/// The blocks of an output that were visited.
#[derive(Default)]
struct Visited {
    blocks: HashSet<Vec<usize>>,
    last: Vec<usize>,
}

/// Checks that each step sees blocks that exist, and that each block of an output is visited, in
/// steps that follow each other. The error is a message.
pub(crate) fn check(kernel: &Kernel) -> Result<(), String> {
    let steps = kernel.grid.iter().try_fold(1usize, |steps, &size| steps.checked_mul(size));
    if steps.is_none_or(|steps| steps == 0 || i32::try_from(steps).is_err()) {
        return Err(format!(
            "a grid of {:?} has no steps, or more than an i32 can count",
            kernel.grid
        ));
    }
    if kernel.parallel > kernel.grid.len() {
        return Err(format!("{} axes are parallel, but the grid has fewer", kernel.parallel));
    }
    if kernel.with_role(Role::Output).count() == 0 {
        return Err("there is no output".into());
    }
    let conditions = kernel.step_indices();
    let shifts: Vec<bool> =
        (0..kernel.grid.len()).map(|axis| is_shift(kernel, &conditions, axis)).collect();
    let mut visited: Vec<Visited> = kernel.arrays.iter().map(|_| Visited::default()).collect();
    for position in positions(&kernel.grid, &shifts) {
        let mut host = OnHost { kernel, position };
        for index in &conditions {
            if host.index(index).is_none() {
                return Err(format!("an index has no value at {:?} of the grid", host.position));
            }
        }
        for (number, array) in kernel.arrays.iter().enumerate() {
            if array.role == Role::Scratch {
                continue;
            }
            let block = block_at(array, &mut host)?;
            if array.role == Role::Output {
                visited[number].visit(block, &host.position)?;
            }
        }
    }
    let shifted = kernel.grid.iter().zip(&shifts).filter(|(_, is_shift)| **is_shift);
    let shifted: usize = shifted.map(|(size, _)| size).product();
    for (number, array) in kernel.with_role(Role::Output) {
        let all: usize = array.blocks().iter().product();
        let seen = visited[number].blocks.len() * shifted;
        if seen != all {
            return Err(format!(
                "only {seen} of the {all} blocks of an output {} are written",
                array.ty
            ));
        }
    }
    Ok(())
}

/// Whether the steps along an axis of the grid differ in one thing only: the position is the number of
/// the block along one axis of each output, and of the inputs that depend on it. Then the check of
/// one position holds for all, such as all sequences of a batch.
fn is_shift(kernel: &Kernel, conditions: &[Index], axis: usize) -> bool {
    let fits = |array: &Array| {
        let using = array.map.iter().filter(|index| index.uses_program(axis)).count();
        let equal = array.map.iter().filter(|index| index.is_program(axis)).count();
        let is_enough = match array.role {
            Role::Output => equal == 1,
            Role::Input | Role::Scratch => equal <= 1,
        };
        using == equal && is_enough
    };
    !conditions.iter().any(|index| index.uses_program(axis)) && kernel.arrays.iter().all(fits)
}

/// The positions to check, in the order of the steps: along a shift only the last one, whose blocks
/// exist only if those of the others do.
fn positions(grid: &[usize], shifts: &[bool]) -> impl Iterator<Item = Vec<usize>> {
    let checked: Vec<usize> =
        grid.iter().zip(shifts).map(|(&size, &is_shift)| if is_shift { 1 } else { size }).collect();
    let count = checked.iter().product();
    (0..count).map(move |mut step| {
        let mut position = vec![0; grid.len()];
        for axis in (0..grid.len()).rev() {
            position[axis] = if shifts[axis] { grid[axis] - 1 } else { step % checked[axis] };
            step /= checked[axis];
        }
        position
    })
}

/// The number of the block that a step sees.
fn block_at(array: &Array, host: &mut OnHost<'_>) -> Result<Vec<usize>, String> {
    let mut block = Vec::with_capacity(array.map.len());
    for (index, count) in array.map.iter().zip(array.blocks()) {
        let value = host.index(index);
        let number = value.and_then(|value| usize::try_from(value).ok());
        let Some(number) = number.filter(|&number| number < count) else {
            let value = value.map_or("no number".into(), |value| value.to_string());
            return Err(format!(
                "the index map of {} gives {value} at {:?} of the grid; the array has {count} blocks there",
                array.ty, host.position
            ));
        };
        block.push(number);
    }
    Ok(block)
}

impl Visited {
    fn visit(&mut self, block: Vec<usize>, position: &[usize]) -> Result<(), String> {
        if self.last == block {
            return Ok(());
        }
        if !self.blocks.insert(block.clone()) {
            return Err(format!(
                "the block {block:?} of an output is left and visited again at {position:?} of the grid; what it held \
                 is lost"
            ));
        }
        self.last = block;
        Ok(())
    }
}

impl Kernel {
    /// The indices in the statements of a step.
    pub(crate) fn step_indices(&self) -> Vec<Index> {
        let mut all = Vec::new();
        indices(self, &self.statements, &mut all);
        all
    }
}

/// Collects the indices in statements.
fn indices(kernel: &Kernel, statements: &[Statement], all: &mut Vec<Index>) {
    for statement in statements {
        match statement {
            Statement::Define(value) => {
                if let Operation::Splat(index) = &kernel.values[*value].operation {
                    all.push(index.clone());
                }
            }
            Statement::Store { .. } => {}
            Statement::When { condition, body } => {
                all.extend([condition.left.clone(), condition.right.clone()]);
                indices(kernel, body, all);
            }
        }
    }
}
