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
    gathered: bool,
    /// What the model sees: the placeholder or a later value, gathered if it lies split between steps.
    used: Tensor,
}

impl Cell {
    /// Lets the model see a value from now on.
    fn show(&mut self, value: &Tensor) {
        self.used = match self.gathered {
            true => value.with_sharding(&Sharding::replicated()),
            false => value.clone(),
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
            Origin::Module { variable, gathered } => Some((variable, *gathered)),
            _ => None,
        });
        for ((variable, gathered), placeholder) in variables.zip(placeholders.iter().cloned()) {
            let (variable, before, used) = (variable.clone(), variable.get(), placeholder.clone());
            let mut cell = Cell { variable, before, placeholder, gathered, used };
            cell.show(&cell.placeholder.clone());
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

    /// What the model sees of one of them.
    pub(crate) fn used(&self, id: EntryId) -> &Tensor {
        &self.cells[id.index()].used
    }

    /// Lets the model see a value from now on, which gradients end at.
    pub(crate) fn show(&mut self, id: EntryId, value: &Tensor) {
        self.cells[id.index()].show(&value.detach());
    }

    /// Gathers again what lies split, of these values: in a branch, so that only what runs it gathers. Gives what the model
    /// saw before.
    pub(crate) fn gather_again(&mut self, values: &[Tensor]) -> Vec<Tensor> {
        let before = self.cells.iter().map(|cell| cell.used.clone()).collect();
        self.cells.iter_mut().zip(values).filter(|(cell, _)| cell.gathered).for_each(|(cell, value)| cell.show(value));
        before
    }

    /// Lets the model see again what it saw before.
    pub(crate) fn show_again(&mut self, used: Vec<Tensor>) {
        for (cell, used) in self.cells.iter_mut().zip(used) {
            cell.variable.set(used.clone());
            cell.used = used;
        }
    }

    /// For each variable what the model itself has put into it since it was shown or collected.
    pub(crate) fn collect(&mut self) -> Vec<Option<Tensor>> {
        let changed = |cell: &mut Cell| {
            let value = cell.variable.get();
            (!value.is(&cell.used)).then(|| {
                cell.used = value.clone();
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
