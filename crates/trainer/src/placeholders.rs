//! [`Placeholders`]: a module while it is being traced, with placeholders in its variables.

use fulmen_nn::{TrainingMode, Visit, Visitor};
use fulmen_tensor::{Sharding, Tensor, Variable};

use crate::TrainingModule;
use crate::state::{Entry, Origin};

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
    /// What the model sees: the placeholder, gathered if it lies split between steps.
    used: Tensor,
}

impl Placeholders {
    /// Puts placeholders into the variables of the entries that have one.
    pub(crate) fn new(module: &dyn TrainingModule, entries: &[Entry]) -> Placeholders {
        let placeholder = |entry: &Entry| Tensor::placeholder(entry.name.clone(), entry.ty.clone());
        let of_module = entries.iter().filter(|entry| matches!(entry.origin, Origin::Module { .. }));
        Placeholders::with(module, entries, &of_module.map(placeholder).collect::<Vec<_>>())
    }

    /// Puts these placeholders, one for each entry that has a variable, into the variables.
    pub(crate) fn with(module: &dyn TrainingModule, entries: &[Entry], placeholders: &[Tensor]) -> Placeholders {
        let mut cells = vec![];
        let variables = entries.iter().filter_map(|entry| match &entry.origin {
            Origin::Module { variable, gathered } => Some((variable, *gathered)),
            _ => None,
        });
        for ((variable, gathered), placeholder) in variables.zip(placeholders.iter().cloned()) {
            let used = match gathered {
                true => placeholder.with_sharding(&Sharding::replicated()),
                false => placeholder.clone(),
            };
            let before = variable.get();
            variable.set(used.clone());
            cells.push(Cell { variable: variable.clone(), before, placeholder, used });
        }
        let mut modes = Modes(vec![]);
        module.visit(&mut Visit::new(&mut modes));
        Placeholders { cells, modes: modes.0 }
    }

    /// The placeholders, in the order of the entries.
    pub(crate) fn placeholders(&self) -> Vec<Tensor> {
        self.cells.iter().map(|cell| cell.placeholder.clone()).collect()
    }

    /// What the model sees of them.
    pub(crate) fn used(&self) -> Vec<Tensor> {
        self.cells.iter().map(|cell| cell.used.clone()).collect()
    }

    /// What the variables hold now; the placeholder itself where it was left alone.
    pub(crate) fn after(&self) -> Vec<Tensor> {
        let now = |cell: &Cell| {
            let value = cell.variable.get();
            if value.is(&cell.used) { cell.placeholder.clone() } else { value }
        };
        self.cells.iter().map(now).collect()
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
