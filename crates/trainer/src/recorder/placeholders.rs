//! [`Placeholders`]: puts placeholders into a module's variables while it is traced.

use fulmen_nn::{Module, SavedModes};
use fulmen_tensor::{Sharding, Tensor, Variable};

use crate::state::{Entry, EntryId, Origin};

/// Placeholders in a module's variables. Dropping this restores the values, even after a panic in a
/// user's step.
pub(crate) struct Placeholders {
    cells: Vec<Cell>,
    /// The module's modes before tracing.
    _modes: SavedModes,
}

struct Cell {
    entry: Entry,
    /// The values of the entry's variables before tracing.
    before: Vec<Tensor>,
    placeholder: Tensor,
    /// The placeholder or a later value.
    value: Tensor,
    /// The value of each variable: `value` or a row of it, gathered if it is sharded.
    used: Vec<Tensor>,
}

impl Cell {
    /// Sets the variables to a value.
    fn set(&mut self, value: &Tensor) {
        let mut used = self.entry.split(value);
        if let Some(gathered) = self.gathered() {
            let parts = self.entry.row_sharding();
            used.iter_mut().for_each(|part| *part = part.all_gather_to(&parts, gathered));
        }
        self.set_current_value(CellValue { value: value.clone(), used });
    }

    fn current_value(&self) -> CellValue {
        CellValue { value: self.value.clone(), used: self.used.clone() }
    }

    fn set_current_value(&mut self, CellValue { value, used }: CellValue) {
        self.entry
            .variables()
            .iter()
            .zip(&used)
            .for_each(|(variable, used)| variable.set(used.clone()));
        (self.value, self.used) = (value, used);
    }

    /// The sharding to which the value is gathered before it is used.
    fn gathered(&self) -> Option<&Sharding> {
        match &self.entry.origin {
            Origin::Module { gathered, .. } => gathered.as_ref(),
            _ => None,
        }
    }
}

/// The value of a cell, and the values of its variables.
pub(super) struct CellValue {
    value: Tensor,
    used: Vec<Tensor>,
}

impl Placeholders {
    /// Puts placeholders into the variables of the entries that have one.
    pub(crate) fn new(module: &dyn Module, entries: &[Entry]) -> Placeholders {
        let placeholder = |entry: &Entry| Tensor::placeholder(entry.name.clone(), entry.ty.clone());
        let with_variables = entries.iter().filter(|entry| !entry.variables().is_empty());
        Placeholders::with(module, entries, &with_variables.map(placeholder).collect::<Vec<_>>())
    }

    /// Puts these placeholders, one for each entry that has a variable, into the variables.
    pub(crate) fn with(
        module: &dyn Module,
        entries: &[Entry],
        placeholders: &[Tensor],
    ) -> Placeholders {
        let mut cells = Vec::new();
        let with_variables = entries.iter().filter(|entry| !entry.variables().is_empty());
        for (entry, placeholder) in with_variables.zip(placeholders) {
            let before = entry.variables().iter().map(Variable::get).collect();
            let mut cell = Cell {
                entry: entry.clone(),
                before,
                placeholder: placeholder.clone(),
                value: placeholder.clone(),
                used: Vec::new(),
            };
            cell.set(&cell.placeholder.clone());
            cells.push(cell);
        }
        Placeholders { cells, _modes: SavedModes::of(module) }
    }

    /// The placeholders, in the order of the entries.
    pub(crate) fn placeholders(&self) -> Vec<Tensor> {
        self.cells.iter().map(|cell| cell.placeholder.clone()).collect()
    }

    /// The current value of an entry, before it is gathered. Gradients are computed with respect to
    /// this value.
    pub(crate) fn value(&self, id: EntryId) -> &Tensor {
        &self.cells[id.index()].value
    }

    /// Sets the variables of an entry to a value. Gradients stop there.
    pub(crate) fn set(&mut self, id: EntryId, value: &Tensor) {
        self.cells[id.index()].set(&value.detach());
    }

    /// Gathers the sharded values among these again. Within a branch, only a step that takes the
    /// branch then gathers them. Returns the previous values.
    pub(super) fn regather(&mut self, values: &[Tensor]) -> Vec<CellValue> {
        let before = self.cells.iter().map(Cell::current_value).collect();
        let split = self.cells.iter_mut().zip(values).filter(|(cell, _)| cell.gathered().is_some());
        split.for_each(|(cell, value)| cell.set(&value.detach()));
        before
    }

    /// Restores the previous values.
    pub(super) fn restore(&mut self, before: Vec<CellValue>) {
        self.cells.iter_mut().zip(before).for_each(|(cell, before)| cell.set_current_value(before));
    }

    /// For each entry, the value that the model itself wrote to its variables since the last call
    /// of `set` or `collect`.
    pub(crate) fn collect(&mut self) -> Vec<Option<Tensor>> {
        let changed = |cell: &mut Cell| {
            let now: Vec<Tensor> = cell.entry.variables().iter().map(Variable::get).collect();
            now.iter().zip(&cell.used).any(|(now, used)| !now.is(used)).then(|| {
                (cell.value, cell.used) = (cell.entry.stack(&now), now);
                cell.value.clone()
            })
        };
        self.cells.iter_mut().map(changed).collect()
    }
}

impl Drop for Placeholders {
    fn drop(&mut self) {
        for cell in &self.cells {
            cell.entry
                .variables()
                .iter()
                .zip(&cell.before)
                .for_each(|(variable, before)| variable.set(before.clone()));
        }
    }
}
