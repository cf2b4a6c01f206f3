//! `Module` for types of fields: containers of modules, and plain settings, which hold nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fulmen_tensor::{DType, Shape, TensorType};

use crate::{Module, Visit};

/// Smart pointers visit their target.
macro_rules! pointers {
    ($($pointer:ty),*) => {$(
        impl<M: Module + ?Sized> Module for $pointer {
            fn visit(&self, visit: &mut Visit<'_>) {
                visit.flatten(&**self);
            }
        }
    )*};
}
pointers!(&M, Box<M>, Rc<M>, Arc<M>);

impl<M: Module> Module for Option<M> {
    fn visit(&self, visit: &mut Visit<'_>) {
        if let Some(module) = self {
            visit.flatten(module);
        }
    }
}

/// The elements are named `0`, `1`, …
impl<M: Module> Module for [M] {
    fn visit(&self, visit: &mut Visit<'_>) {
        for (i, module) in self.iter().enumerate() {
            visit.child(&i.to_string(), module);
        }
    }
}
impl<M: Module> Module for Vec<M> {
    fn visit(&self, visit: &mut Visit<'_>) {
        visit.flatten(self.as_slice());
    }
}
impl<M: Module, const N: usize> Module for [M; N] {
    fn visit(&self, visit: &mut Visit<'_>) {
        visit.flatten(self.as_slice());
    }
}

/// The values are named by their keys.
impl<M: Module> Module for BTreeMap<String, M> {
    fn visit(&self, visit: &mut Visit<'_>) {
        for (name, module) in self {
            visit.child(name, module);
        }
    }
}
/// The values are named by their keys, and visited in sorted order: the order of a hash map differs
/// from run to run.
impl<M: Module> Module for HashMap<String, M> {
    fn visit(&self, visit: &mut Visit<'_>) {
        let mut sorted: Vec<_> = self.iter().collect();
        sorted.sort_by_key(|(name, _)| *name);
        for (name, module) in sorted {
            visit.child(name, module);
        }
    }
}

macro_rules! tuples {
    ($(($($module:ident $index:tt),*))*) => {$(
        impl<$($module: Module),*> Module for ($($module,)*) {
            fn visit(&self, visit: &mut Visit<'_>) {
                $(visit.child(stringify!($index), &self.$index);)*
            }
        }
    )*};
}
tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
}

/// Settings hold no parameters.
macro_rules! settings {
    ($($setting:ty),* $(,)?) => {$(
        impl Module for $setting {
            fn visit(&self, _: &mut Visit<'_>) {}
        }
    )*};
}
settings!(
    (),
    bool,
    char,
    str,
    String,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    i128,
    isize,
    u8,
    u16,
    u32,
    u64,
    u128,
    usize,
    Path,
    PathBuf,
    Duration,
    DType,
    Shape,
    TensorType,
);

impl<T: ?Sized> Module for PhantomData<T> {
    fn visit(&self, _: &mut Visit<'_>) {}
}
impl<T> Module for BTreeSet<T> {
    fn visit(&self, _: &mut Visit<'_>) {}
}
impl<T> Module for HashSet<T> {
    fn visit(&self, _: &mut Visit<'_>) {}
}
