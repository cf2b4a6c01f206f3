//! [`Hooks`] calls the hooks of a run: first the callbacks' hooks, in the order of the callbacks,
//! then the module's.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::callbacks::callback::Callback;
use crate::hooks::{
    CheckpointFile, EvaluationProgress, FitStart, ProgramOutput, Progress, hook_table,
};
use crate::{Actions, Error, FitSummary, LogPoint, TrainingModule};

/// The callbacks of a Trainer. Clones share them.
#[derive(Clone)]
pub(crate) struct Callbacks(Arc<Mutex<Vec<Box<dyn Callback>>>>);

impl From<Vec<Box<dyn Callback>>> for Callbacks {
    fn from(callbacks: Vec<Box<dyn Callback>>) -> Callbacks {
        Callbacks(Arc::new(Mutex::new(callbacks)))
    }
}

impl Callbacks {
    pub(crate) fn each(&self, call: impl FnMut(&mut Box<dyn Callback>)) {
        self.0.lock().iter_mut().for_each(call);
    }

    /// Calls the closure for each callback with a unique name: `Name`, `Name#2`, …
    pub(crate) fn each_named(&self, mut call: impl FnMut(String, &mut Box<dyn Callback>)) {
        let mut counts: BTreeMap<&'static str, usize> = BTreeMap::new();
        self.each(|callback| {
            let name = callback.name();
            let count = counts.entry(name).or_default();
            *count += 1;
            call(if *count == 1 { name.to_owned() } else { format!("{name}#{count}") }, callback);
        });
    }

    /// Combines the callbacks with the hooks of a module.
    pub(crate) fn with<'a>(&self, module: &'a dyn TrainingModule) -> Hooks<'a> {
        Hooks { callbacks: self.clone(), module }
    }
}

/// The callbacks and the module of a run.
#[derive(Clone)]
pub(crate) struct Hooks<'a> {
    pub(crate) callbacks: Callbacks,
    pub(crate) module: &'a dyn TrainingModule,
}

macro_rules! call_all {
    ($($(#[$doc:meta])* $hook:ident($($arg:ident: $ty:ty),*);)*) => {
        impl Hooks<'_> {$(
            pub(crate) fn $hook(&self, $($arg: $ty),*) {
                self.callbacks.each(|callback| callback.$hook($($arg),*));
                self.module.$hook($($arg),*);
            }
        )*}
    };
}

hook_table!(call_all);
