//! [`Carry`]: the values that go from one run of a loop's body to the next.

use fulmen_durable::messages::quantity;

use crate::tree::label;
use crate::{Tensor, Tree};

/// A carry: its tensors with their names.
pub(super) struct Carry {
    pub(super) tensors: Vec<Tensor>,
    names: Vec<String>,
}

impl Carry {
    pub(super) fn of(tree: &impl Tree) -> Carry {
        Carry { tensors: tree.flatten(), names: tree.names() }
    }

    /// Checks that a body returns a carry of the same tensors and types as this one.
    pub(super) fn same(&self, after: &Carry) -> Result<(), String> {
        if after.tensors.len() != self.tensors.len() {
            return Err(format!(
                "the carry enters the body as {} and leaves it as {}; the number must stay the same",
                quantity(self.tensors.len(), "tensor"),
                after.tensors.len()
            ));
        }
        if after.names != self.names {
            return Err(format!(
                "the carry enters the body as {} and leaves it as {}; its tensors must stay the same",
                self.names.join(", "),
                after.names.join(", ")
            ));
        }
        for (i, (before, after)) in self.tensors.iter().zip(&after.tensors).enumerate() {
            if before.ty() != after.ty() {
                return Err(format!(
                    "{} enters the body as {} and leaves it as {}; its type must stay the same",
                    label("carry", &self.names[i]),
                    before.ty(),
                    after.ty()
                ));
            }
        }
        Ok(())
    }
}
