//! [`Scope`]: gives each recorded node the line of the user's code.
//!
//! Each node of an expression, and each [`Fault`], has a line of the user's code. `#[track_caller]`
//! gives a public function that line, and the rest of the code follows four rules:
//!
//! 1. A public function has `#[track_caller]` and first opens a scope, with
//!    [`Tensor::record`](crate::Tensor::record) or with `let _scope = Scope::open();`. A function
//!    that only calls one other function with `#[track_caller]` needs no scope.
//! 2. **The outermost scope wins.** While a scope is open, everything that this thread records has
//!    its line: in helpers, in closures, through trait objects. Opening another scope within it has
//!    no effect.
//! 3. **The user's code runs outside the scope.** A function that calls a user's closure (a loop
//!    body, a branch, a step) runs it under [`Scope::leave`], so that the nodes recorded there have
//!    their own lines.
//! 4. A derivative rule records under [`Scope::at`] with the line of the node that it
//!    differentiates.
//!
//! The state of a scope is thread-local. Dropping the guard restores the previous state, even
//! during a panic. Opening a scope only writes a few words.
//!
//! # Mistakes
//!
//! Within [`Tensor::record`](crate::Tensor::record), `?` returns on a poisoned input
//! ([`Tensor::live`](crate::Tensor::live)) and on a failed shape rule. The error type is
//! [`Refusal`]. It is either the [`Fault`] of an earlier line, which is passed on, or a message,
//! which becomes a fault of this function at the user's line. So a shape rule returns a plain
//! `Result<_, String>`, without a name or a line.
//!
//! # Libraries
//!
//! A library of layers calls layers through trait objects, which `#[track_caller]` does not see
//! through. The layers may be its own or its user's. So the library names its source folder once,
//! as a [`Library`], and opens its scopes with that. After [`Scope::leave`], lines in that folder
//! and in this crate still map to the line of the scope that was left. Other lines, which are the
//! user's, are kept.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;

use crate::Fault;

type Line = &'static Location<'static>;

/// The recording state of a thread.
#[derive(Clone, Copy)]
struct State {
    /// The line of the open scope.
    line: Option<Line>,
    /// The line of the scope that was left last. It applies to code of this crate and of the
    /// library if no scope is open.
    left_line: Option<Line>,
    /// The library that opened the last scope.
    library: Option<Library>,
}

thread_local! {
    static STATE: Cell<State> =
        const { Cell::new(State { line: None, left_line: None, library: None }) };
}

/// The line for nodes that are recorded now: the line of the open scope, or the caller's.
#[track_caller]
pub(crate) fn current_line() -> Line {
    STATE.get().resolve(Location::caller())
}

impl State {
    fn resolve(self, caller: Line) -> Line {
        let is_library_code = || {
            Library::new(file!()).contains(caller)
                || self.library.is_some_and(|library| library.contains(caller))
        };
        self.line.or(self.left_line.filter(|_| is_library_code())).unwrap_or(caller)
    }
}

/// A guard: while it lives, everything that this thread records has one line. The module `scope`
/// has the rules:
///
/// - Call [`Scope::open`] at the start of a public function with `#[track_caller]`. The outermost
///   scope wins.
/// - Call [`Scope::leave`] around a user's closure.
/// - Call [`Scope::at`] to record for a line that you stored.
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
/// let line = line!() + 1;
/// let outputs = gelu_all(&[Tensor::scalar(1.0f32)]);
/// assert_eq!(outputs[0].location().line(), line);
/// ```
#[must_use = "the scope ends where the guard is dropped"]
pub struct Scope {
    before: State,
    /// Not `Send`: the thread that made it must drop it.
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

    /// Opens a scope for a stored line, even within an open scope.
    pub fn at(line: &'static Location<'static>) -> Scope {
        Scope::set(State { line: Some(line), ..STATE.get() })
    }

    /// Leaves the open scope, if there is one, to call a user's code: nodes recorded from now on
    /// have their own lines.
    pub fn leave() -> Scope {
        let state = STATE.get();
        Scope::set(State { line: None, left_line: state.line.or(state.left_line), ..state })
    }

    /// Leaves the open scope, as [`Scope::leave`], to call code of a library later than it was
    /// passed: `library` is the value of [`Scope::library`] at that time.
    pub(crate) fn leave_to(library: Option<Library>) -> Scope {
        let scope = Scope::leave();
        STATE.set(State { library, ..STATE.get() });
        scope
    }

    /// The library that opened the last scope.
    pub(crate) fn library() -> Option<Library> {
        STATE.get().library
    }

    /// Runs a user's code under [`Scope::leave`].
    pub(crate) fn outside<T>(code: impl FnOnce() -> T) -> T {
        let _outside = Scope::leave();
        code()
    }

    /// The line for nodes that are recorded now: the line of the open scope, or the caller's. Store
    /// it to record later.
    #[track_caller]
    pub fn line() -> &'static Location<'static> {
        current_line()
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        STATE.set(self.before);
    }
}

/// A library that records for its users, identified by its source folder; see the module `scope`.
///
/// ```
/// use fulmen_tensor::{Scope, Tensor, internal::Library};
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
/// // This closure is in a file of the library, so its nodes have the line of the call.
/// let layer = |x: &Tensor| x.exp();
/// let line = line!() + 1;
/// let y = call(&layer, &x);
/// assert_eq!(y.location().line(), line);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Library {
    root: &'static str,
}

impl Library {
    /// A library whose sources are in the folder of the file `root`, or below: use
    /// `Library::new(file!())` in its `lib.rs`.
    pub const fn new(root: &'static str) -> Library {
        Library { root }
    }

    /// Whether a line is in the library's source folder.
    fn contains(self, line: Line) -> bool {
        let folder = self.root.rfind(['/', '\\']).map_or(self.root, |end| &self.root[..=end]);
        line.file().starts_with(folder)
    }

    /// Like [`Scope::open`], for a function of the library.
    #[track_caller]
    pub fn open(self) -> Scope {
        self.at(current_line())
    }

    /// Like [`Scope::at`], for a function of the library.
    pub fn at(self, line: &'static Location<'static>) -> Scope {
        Scope::set(State { line: Some(line), library: Some(self), ..STATE.get() })
    }

    /// Like [`Tensor::record`](crate::Tensor::record), for a function of the library.
    #[track_caller]
    pub fn record<T: FromFault>(
        self,
        name: impl fmt::Display,
        body: impl FnOnce() -> Result<T, Refusal>,
    ) -> T {
        let _scope = self.open();
        finish(name, body())
    }
}

/// Turns a refusal into a poisoned result of the function `name`. Call this within the function's
/// scope.
pub(crate) fn finish<T: FromFault>(name: impl fmt::Display, result: Result<T, Refusal>) -> T {
    match result {
        Ok(result) => result,
        Err(Refusal::Fault(fault)) => T::from_fault(fault),
        Err(Refusal::Message(message)) => {
            T::from_fault(Fault::new(name.to_string(), message, current_line()))
        }
    }
}

/// Why a function refuses to record: the error of the body of
/// [`Tensor::record`](crate::Tensor::record).
#[derive(Clone, Debug)]
pub enum Refusal {
    /// An earlier mistake, with its own line.
    Fault(Fault),
    /// A message that says what is wrong and what was expected.
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

/// The result type of a function that records: tensors, or types made of tensors.
pub trait FromFault {
    /// A result that is poisoned with this fault.
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
