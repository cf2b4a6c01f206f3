//! [`Values`]: the training state as a step finds it and as it leaves it.

use std::collections::HashMap;

use fulmen_tensor::Tensor;

use crate::state::Entry;
use crate::{Error, Result};

/// A value for each entry of the state, before the step and after it.
pub(super) struct Values<'a> {
    pub(super) entries: &'a [Entry],
    places: HashMap<&'a str, usize>,
    before: Vec<Tensor>,
    after: Vec<Tensor>,
}

impl<'a> Values<'a> {
    /// Placeholders for the entries that are no variables of the module. The others come with [`Values::set_module`].
    pub(super) fn new(entries: &'a [Entry]) -> Values<'a> {
        let before: Vec<Tensor> = entries.iter().map(|e| Tensor::placeholder(e.name.clone(), e.ty.clone())).collect();
        let places = entries.iter().enumerate().map(|(i, entry)| (entry.name.as_str(), i)).collect();
        Values { entries, places, after: before.clone(), before }
    }

    /// The module's own values before and after the user's step.
    pub(super) fn set_module(&mut self, before: Vec<Tensor>, after: Vec<Tensor>) {
        for (i, (before, after)) in before.into_iter().zip(after).enumerate() {
            (self.before[i], self.after[i]) = (before, after);
        }
    }

    /// The place of the entry of this name.
    pub(super) fn place(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }

    /// As [`Values::place`], for what must be there.
    pub(super) fn expect(&self, name: &str) -> Result<usize> {
        self.place(name).ok_or_else(|| Error::usage(format!("the training state has no `{name}`")))
    }

    pub(super) fn before(&self, i: usize) -> &Tensor {
        &self.before[i]
    }

    /// The value before the step of what has this name.
    pub(super) fn named(&self, name: &str) -> Option<&Tensor> {
        self.place(name).map(|i| &self.before[i])
    }

    pub(super) fn after(&self, i: usize) -> &Tensor {
        &self.after[i]
    }

    pub(super) fn set(&mut self, i: usize, value: Tensor) {
        self.after[i] = value;
    }

    /// Sets what has this name, if anything has.
    pub(super) fn set_named(&mut self, name: &str, value: Tensor) {
        if let Some(i) = self.place(name) {
            self.after[i] = value;
        }
    }

    pub(super) fn all_before(&self) -> &[Tensor] {
        &self.before
    }

    pub(super) fn all_after(&self) -> &[Tensor] {
        &self.after
    }

    /// The entries that the step changes.
    pub(super) fn changes(&self) -> Vec<usize> {
        (0..self.entries.len()).filter(|&i| !self.after[i].is(&self.before[i])).collect()
    }

    /// Each value must be right, and of the type that the next step takes.
    pub(super) fn check(&self) -> Result<()> {
        self.after.iter().enumerate().try_for_each(|(i, value)| self.check_one(i, value))
    }

    /// As [`Values::check`], for a value that is to be that of one entry.
    pub(super) fn check_one(&self, i: usize, value: &Tensor) -> Result<()> {
        value.check()?;
        let entry = &self.entries[i];
        if *value.ty() != entry.ty {
            return Err(Error::usage(format!(
                "a step would turn `{}` from {} into {}\n  at {}",
                entry.name,
                entry.ty,
                value.ty(),
                value.location()
            )));
        }
        Ok(())
    }
}
