//! [`Placeholders`]: a module while it is being traced, with placeholders in its variables.

use fulmen_nn::{Module, TrainingMode, Visit, Visitor};
use fulmen_tensor::{Sharding, Tensor, Variable};

use crate::state::{Entry, EntryId, Origin};

/// Placeholders in a module's variables. Dropped, also by a panic in a user's step, it puts the values back.
pub(crate) struct Placeholders {
    cells: Vec<Cell>,
    /// The module's modes as the user left them.
    modes: Vec<(TrainingMode, bool)>,
}

struct Cell {
    variable: Variable,
    before: Tensor,
    placeholder: Tensor,
    /// Its sharding between steps, if it is sharded.
    parts: Option<Sharding>,
    /// The placeholder or a later value.
    value: Tensor,
    /// What the model sees of it: the value, gathered if it is sharded.
    used: Tensor,
}

impl Cell {
    /// Lets the model see a value from now on.
    fn show(&mut self, value: &Tensor) {
        self.value = value.clone();
        self.used = match &self.parts {
            Some(parts) => value.all_gather(parts),
            None => value.clone(),
        };
        self.variable.set(self.used.clone());
    }
}

impl Placeholders {
    /// Puts placeholders into the variables of the entries that have one.
    pub(crate) fn new(module: &dyn Module, entries: &[Entry]) -> Placeholders {
        let placeholder = |entry: &Entry| Tensor::placeholder(entry.name.clone(), entry.ty.clone());
        let of_module = entries.iter().filter(|entry| matches!(entry.origin, Origin::Module { .. }));
        Placeholders::with(module, entries, &of_module.map(placeholder).collect::<Vec<_>>())
    }

    /// Puts these placeholders, one for each entry that has a variable, into the variables.
    pub(crate) fn with(module: &dyn Module, entries: &[Entry], placeholders: &[Tensor]) -> Placeholders {
        let mut cells = vec![];
        let variables = entries.iter().filter_map(|entry| match &entry.origin {
            Origin::Module { variable, gathered } => Some((variable, gathered.then(|| entry.sharding.clone()))),
            _ => None,
        });
        for ((variable, parts), placeholder) in variables.zip(placeholders) {
            let [value, used] = [(); 2].map(|()| placeholder.clone());
            let (variable, before) = (variable.clone(), variable.get());
            let mut cell = Cell { variable, before, placeholder: placeholder.clone(), parts, value, used };
            cell.show(placeholder);
            cells.push(cell);
        }
        let mut modes = Modes(vec![]);
        module.visit(&mut Visit::new(&mut modes));
        Placeholders { cells, modes: modes.0 }
    }

    /// The placeholders, in the order of the entries.
    pub(crate) fn placeholders(&self) -> Vec<Tensor> {
        self.cells.iter().map(|cell| cell.placeholder.clone()).collect()
    }

    /// What the model sees one of them as, before it is gathered: what its gradient is with respect to.
    pub(crate) fn value(&self, id: EntryId) -> &Tensor {
        &self.cells[id.index()].value
    }

    /// Lets the model see a value from now on, which gradients end at.
    pub(crate) fn show(&mut self, id: EntryId, value: &Tensor) {
        self.cells[id.index()].show(&value.detach());
    }

    /// Gathers again those of these values that are sharded: in a branch, so that only what runs it gathers. Gives what the model
    /// saw before, and the values of that.
    pub(crate) fn gather_again(&mut self, values: &[Tensor]) -> Vec<[Tensor; 2]> {
        let before = self.cells.iter().map(|cell| [cell.value.clone(), cell.used.clone()]).collect();
        let split = self.cells.iter_mut().zip(values).filter(|(cell, _)| cell.parts.is_some());
        split.for_each(|(cell, value)| cell.show(&value.detach()));
        before
    }

    /// Lets the model see again what it saw before.
    pub(crate) fn show_again(&mut self, before: Vec<[Tensor; 2]>) {
        for (cell, [value, used]) in self.cells.iter_mut().zip(before) {
            cell.variable.set(used.clone());
            (cell.value, cell.used) = (value, used);
        }
    }

    /// For each variable what the model itself has put into it since it was shown or collected.
    pub(crate) fn collect(&mut self) -> Vec<Option<Tensor>> {
        let changed = |cell: &mut Cell| {
            let value = cell.variable.get();
            (!value.is(&cell.used)).then(|| {
                (cell.value, cell.used) = (value.clone(), value.clone());
                value
            })
        };
        self.cells.iter_mut().map(changed).collect()
    }
}

impl Drop for Placeholders {
    fn drop(&mut self) {
        for cell in &self.cells {
            cell.variable.set(cell.before.clone());
        }
        for (mode, training) in &self.modes {
            mode.set_training(*training);
        }
    }
}

/// Collects a module's modes.
struct Modes(Vec<(TrainingMode, bool)>);

impl Visitor for Modes {
    fn mode(&mut self, _: &str, mode: &TrainingMode) {
        self.0.push((mode.clone(), mode.is_training()));
    }
}
