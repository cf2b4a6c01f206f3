//! [`Scope`]: how what is recorded finds the user's line.
//!
//! Each node of an expression, and each [`Fault`], carries a line of the user's code. `#[track_caller]` tells a public
//! function that line, and nothing else needs to know it:
//!
//! 1. A public function has `#[track_caller]` and opens a scope as its first act, with [`Tensor::record`](crate::Tensor::record) or with
//!    `let _scope = Scope::open();`. (Where it does nothing but call one other function that has `#[track_caller]`, there
//!    is nothing to open.)
//! 2. **The outermost scope wins.** While a scope is open, all that this thread records carries its line: in helpers, in
//!    closures, through trait objects. A scope that is opened within it changes nothing.
//! 3. **The user's own code leaves the scope.** A function that calls a closure of its user (the body of a loop, a branch,
//!    a step) runs it with [`Scope::leave`] in force: what is recorded there carries its own lines.
//! 4. A derivative rule records under [`Scope::at`] the line of the node that it differentiates.
//!
//! A scope is a value of this thread that is put back when its guard is dropped, by a panic too. To open one writes a
//! thread-local of a few words.
//!
//! # Mistakes
//!
//! Within [`Tensor::record`](crate::Tensor::record) an input that is poisoned ([`Tensor::live`](crate::Tensor::live)) and a shape that does not fit are `?`. The
//! error type is [`Refusal`]: either a [`Fault`] of an earlier line, which is passed on as it is, or a message, which
//! becomes a fault of this function at the user's line. So a shape rule gives a plain `Result<_, String>` and knows no
//! name and no line.
//!
//! # Libraries
//!
//! A library of layers has one difficulty more: it calls layers through trait objects, which do not tell their caller's
//! line, and those layers are its own or its user's. So it names its source folder once, as a [`Library`], and opens its
//! scopes with that. After [`Scope::leave`], lines in that folder, and in this crate's, still map to the line of the
//! scope that was left; only other lines, the user's, stay as they are.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;

use crate::Fault;

type Line = &'static Location<'static>;

/// What this thread records for.
#[derive(Clone, Copy)]
struct State {
    /// The line of the open scope.
    line: Option<Line>,
    /// The line of the scope that was left last: that of this crate's and of the library's code where none is open.
    left: Option<Line>,
    /// The library that opened the last scope.
    library: Option<Library>,
}

thread_local! {
    static STATE: Cell<State> = const { Cell::new(State { line: None, left: None, library: None }) };
}

/// The line that what is recorded here carries: that of the open scope, or the caller's.
#[track_caller]
pub(crate) fn here() -> Line {
    STATE.get().resolve(Location::caller())
}

impl State {
    fn resolve(self, caller: Line) -> Line {
        let own = || Library::new(file!()).has(caller) || self.library.is_some_and(|library| library.has(caller));
        self.line.or(self.left.filter(|_| own())).unwrap_or(caller)
    }
}

/// A guard: while it lives, what this thread records carries one line. See rules 1 to 4 of the module `scope`:
///
/// - [`Scope::open`] at the start of a public function with `#[track_caller]`; the outermost wins.
/// - [`Scope::leave`] around a user's closure.
/// - [`Scope::at`] where the line is known already.
///
/// ```
/// use fulmen_tensor::{Scope, Tensor};
///
/// #[track_caller]
/// fn gelu_all(inputs: &[Tensor]) -> Vec<Tensor> {
///     let _scope = Scope::open();
///     inputs.iter().map(|x| x * x.sigmoid()).collect() // a closure, and no line of its own
/// }
///
/// let (outputs, line) = (gelu_all(&[Tensor::scalar(1.0f32)]), line!());
/// assert_eq!(outputs[0].location().line(), line);
/// ```
#[must_use = "the scope ends where the guard is dropped"]
pub struct Scope {
    before: State,
    /// It has to be dropped by the thread that made it.
    _thread: PhantomData<*const ()>,
}

impl Scope {
    fn set(state: State) -> Scope {
        Scope { before: STATE.replace(state), _thread: PhantomData }
    }

    /// Opens a scope for the caller's line, unless one is open.
    #[track_caller]
    pub fn open() -> Scope {
        let before = STATE.get();
        if before.line.is_some() {
            return Scope { before, _thread: PhantomData };
        }
        Scope::set(State { line: Some(before.resolve(Location::caller())), ..before })
    }

    /// Opens a scope for a line that was remembered, whichever is open.
    pub fn at(line: &'static Location<'static>) -> Scope {
        Scope::set(State { line: Some(line), ..STATE.get() })
    }

    /// Leaves the open scope, if there is one: what is recorded now carries lines of its own. For calling a user's code.
    pub fn leave() -> Scope {
        let state = STATE.get();
        Scope::set(State { line: None, left: state.line.or(state.left), ..state })
    }

    /// Runs a user's code, as [`Scope::leave`].
    pub(crate) fn outside<T>(code: impl FnOnce() -> T) -> T {
        let _outside = Scope::leave();
        code()
    }

    /// The line that is recorded for: that of the open scope, or the caller's. For what is remembered until later.
    #[track_caller]
    pub fn line() -> &'static Location<'static> {
        here()
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        STATE.set(self.before);
    }
}

/// A library that records for its users, by its source folder; see the module `scope`.
///
/// ```
/// use fulmen_tensor::{Library, Scope, Tensor};
///
/// const LAYERS: Library = Library::new(file!());
///
/// #[track_caller]
/// fn call(layer: &dyn Fn(&Tensor) -> Tensor, x: &Tensor) -> Tensor {
///     let _scope = LAYERS.open();
///     let _user = Scope::leave();
///     layer(x)
/// }
///
/// let x = Tensor::scalar(1.0f32);
/// // This closure is in a file of the library, so that what it records carries the line of the call.
/// let layer = |x: &Tensor| x.exp();
/// let (y, line) = (call(&layer, &x), line!());
/// assert_eq!(y.location().line(), line);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Library {
    root: &'static str,
}

impl Library {
    /// A library whose sources are next to the file `root`, or in folders there: `Library::new(file!())` in its `lib.rs`.
    pub const fn new(root: &'static str) -> Library {
        Library { root }
    }

    /// Whether a line is the library's own.
    fn has(self, line: Line) -> bool {
        let folder = self.root.rfind(['/', '\\']).map_or(self.root, |end| &self.root[..=end]);
        line.file().starts_with(folder)
    }

    /// As [`Scope::open`], for a function of the library.
    #[track_caller]
    pub fn open(self) -> Scope {
        self.at(here())
    }

    /// As [`Scope::at`], for a function of the library.
    pub fn at(self, line: &'static Location<'static>) -> Scope {
        Scope::set(State { line: Some(line), library: Some(self), ..STATE.get() })
    }

    /// As [`Tensor::record`](crate::Tensor::record), for a function of the library.
    #[track_caller]
    pub fn record<T: FromFault>(self, name: impl fmt::Display, body: impl FnOnce() -> Result<T, Refusal>) -> T {
        let _scope = self.open();
        finish(name, body())
    }
}

/// The result of a function, in whose scope this is called.
pub(crate) fn finish<T: FromFault>(name: impl fmt::Display, result: Result<T, Refusal>) -> T {
    match result {
        Ok(result) => result,
        Err(Refusal::Fault(fault)) => T::from_fault(fault),
        Err(Refusal::Message(message)) => T::from_fault(Fault::new(name.to_string(), message, here())),
    }
}

/// Why a function records nothing: what ends the body of [`Tensor::record`](crate::Tensor::record).
#[derive(Clone, Debug)]
pub enum Refusal {
    /// A mistake that was made before, at a line that it names.
    Fault(Fault),
    /// What is wrong here, and what was expected.
    Message(String),
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Refusal {
        Refusal::Fault(fault)
    }
}

impl From<String> for Refusal {
    fn from(message: String) -> Refusal {
        Refusal::Message(message)
    }
}

impl From<&str> for Refusal {
    fn from(message: &str) -> Refusal {
        Refusal::Message(message.to_owned())
    }
}

/// What a function that records can give: tensors, and what is made of them.
pub trait FromFault {
    /// The result, all of it poisoned with this fault.
    fn from_fault(fault: Fault) -> Self;
}

impl<T: FromFault, const N: usize> FromFault for [T; N] {
    fn from_fault(fault: Fault) -> [T; N] {
        std::array::from_fn(|_| T::from_fault(fault.clone()))
    }
}

impl<A: FromFault, B: FromFault> FromFault for (A, B) {
    fn from_fault(fault: Fault) -> (A, B) {
        (A::from_fault(fault.clone()), B::from_fault(fault))
    }
}

impl<A: FromFault, B: FromFault, C: FromFault> FromFault for (A, B, C) {
    fn from_fault(fault: Fault) -> (A, B, C) {
        (A::from_fault(fault.clone()), B::from_fault(fault.clone()), C::from_fault(fault))
    }
}
