//! How a module lists its contents: a [`Visit`] walks down the names and calls a [`Visitor`] for
//! each parameter, buffer, mode and random stream.

use crate::{Buffer, Module, Parameter, RandomStream, TrainingMode};

/// Receives everything that a module holds, with its dotted name. The default methods do nothing.
///
/// ```
/// use fulmen_nn::{Linear, Module, Parameter, Visit, Visitor};
///
/// struct Largest(String, usize);
/// impl Visitor for Largest {
///     fn parameter(&mut self, name: &str, parameter: &Parameter) {
///         let elements = parameter.ty().shape.num_elements();
///         if elements > self.1 {
///             *self = Largest(name.into(), elements);
///         }
///     }
/// }
///
/// let model = vec![Linear::new(4, 8), Linear::new(8, 3)];
/// let mut largest = Largest(String::new(), 0);
/// model.visit(&mut Visit::new(&mut largest));
/// assert_eq!(largest.0, "0.weight");
/// ```
pub trait Visitor {
    /// A part, before its contents, with the name of its type from [`std::any::type_name`].
    /// Parameters and buffers are parts too; the model itself is not.
    fn part(&mut self, name: &str, type_name: &'static str) {
        let _ = (name, type_name);
    }
    /// A parameter; a shared one is visited once for each of its names.
    fn parameter(&mut self, name: &str, parameter: &Parameter) {
        let _ = (name, parameter);
    }
    /// A buffer; a shared one is visited once for each of its names.
    fn buffer(&mut self, name: &str, buffer: &Buffer) {
        let _ = (name, buffer);
    }
    /// The train/eval switch of a layer that needs one.
    fn mode(&mut self, name: &str, mode: &TrainingMode) {
        let _ = (name, mode);
    }
    /// The source of a layer's random numbers.
    fn random_stream(&mut self, name: &str, stream: &RandomStream) {
        let _ = (name, stream);
    }
}

/// The path from the model down to one of its parts: the names so far, and the visitor.
pub struct Visit<'a> {
    path: String,
    visitor: &'a mut dyn Visitor,
}

impl<'a> Visit<'a> {
    /// Starts at the whole model.
    pub fn new(visitor: &'a mut dyn Visitor) -> Visit<'a> {
        Visit { path: String::new(), visitor }
    }

    /// The dotted name of the current part; empty for the model.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Visits a part under its name.
    pub fn child<M: Module + ?Sized>(&mut self, name: &str, module: &M) {
        let outer = self.path.len();
        if outer > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        self.visitor.part(&self.path, std::any::type_name::<M>());
        module.visit(self);
        self.path.truncate(outer);
    }

    /// Visits the contents of a part as if they were in this module.
    pub fn flatten<M: Module + ?Sized>(&mut self, module: &M) {
        module.visit(self);
    }

    /// Like `flatten`, but the parameter `from` is called `to`.
    pub(crate) fn flatten_renamed<M: Module + ?Sized>(&mut self, module: &M, from: &str, to: &str) {
        struct Rename<'v> {
            visitor: &'v mut dyn Visitor,
            from: String,
            to: String,
        }
        impl Visitor for Rename<'_> {
            fn part(&mut self, name: &str, type_name: &'static str) {
                self.visitor.part(name, type_name);
            }
            fn parameter(&mut self, name: &str, parameter: &Parameter) {
                self.visitor.parameter(if name == self.from { &self.to } else { name }, parameter);
            }
            fn buffer(&mut self, name: &str, buffer: &Buffer) {
                self.visitor.buffer(name, buffer);
            }
            fn mode(&mut self, name: &str, mode: &TrainingMode) {
                self.visitor.mode(name, mode);
            }
            fn random_stream(&mut self, name: &str, stream: &RandomStream) {
                self.visitor.random_stream(name, stream);
            }
        }
        let outer = if self.path.is_empty() { String::new() } else { format!("{}.", self.path) };
        let from = format!("{outer}{from}");
        let to = format!("{outer}{to}");
        let mut rename = Rename { visitor: &mut *self.visitor, from, to };
        module.visit(&mut Visit { path: self.path.clone(), visitor: &mut rename });
    }
}

impl Module for Parameter {
    fn visit(&self, visit: &mut Visit<'_>) {
        visit.visitor.parameter(&visit.path, self);
    }
}

impl Module for Buffer {
    fn visit(&self, visit: &mut Visit<'_>) {
        visit.visitor.buffer(&visit.path, self);
    }
}

impl Module for TrainingMode {
    fn visit(&self, visit: &mut Visit<'_>) {
        visit.visitor.mode(&visit.path, self);
    }
}

impl Module for RandomStream {
    fn visit(&self, visit: &mut Visit<'_>) {
        visit.visitor.random_stream(&visit.path, self);
    }
}
