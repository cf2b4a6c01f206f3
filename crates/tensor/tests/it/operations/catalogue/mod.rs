//! The catalogue of operations: a row an operation, a file a family.

use fulmen_tensor::Tensor;

use crate::operations::attrs::Attrs;
use crate::operations::case::{Case, read};

/// A reduction, or the method that keeps the axes, as the attributes of a case say.
macro_rules! keepdim {
    ($attrs:expr, $x:expr, $method:ident, $kept:ident, $($arg:expr),*) => {
        if $attrs.keepdims() { $x.$kept($($arg),*) } else { $x.$method($($arg),*) }
    };
}

/// What is known of one operation.
pub(crate) struct Row {
    /// The name that its reference cases carry.
    pub(crate) op: &'static str,
    /// The public functions that it covers: the name of a method of `Tensor`, else the path within the crate
    /// (`random::bits`). Empty where it is a composition that users write themselves.
    pub(crate) methods: &'static [&'static str],
    record: Record,
    /// Cases where another value than JAX's is wanted, and why.
    pub(crate) unlike: &'static [(&'static str, &'static str)],
    /// Why gradients are not compared with differences, where they are not.
    pub(crate) no_differences: Option<&'static str>,
}

type Many = fn(&[Tensor], &Attrs) -> Vec<Tensor>;
type One = fn(&[Tensor], &Attrs) -> Tensor;

enum Record {
    One(One),
    Many(Many),
}

/// The row of an operation with one result.
pub(crate) fn row(op: &'static str, methods: &'static [&'static str], record: One) -> Row {
    Row { op, methods, record: Record::One(record), unlike: &[], no_differences: None }
}

/// The row of an operation with several results.
#[allow(dead_code, reason = "for the families that have such an operation")]
pub(crate) fn many(op: &'static str, methods: &'static [&'static str], record: Many) -> Row {
    Row { op, methods, record: Record::Many(record), unlike: &[], no_differences: None }
}

/// The results of an operation that has two.
pub(crate) fn pair(results: (Tensor, Tensor)) -> Vec<Tensor> {
    vec![results.0, results.1]
}

impl Row {
    /// Records the operation.
    pub(crate) fn record(&self, x: &[Tensor], attrs: &Attrs) -> Vec<Tensor> {
        match self.record {
            Record::One(record) => vec![record(x, attrs)],
            Record::Many(record) => record(x, attrs),
        }
    }

    /// Names cases where another value than JAX's is wanted, each with the reason.
    pub(crate) fn unlike_jax(self, cases: &'static [(&'static str, &'static str)]) -> Row {
        Row { unlike: cases, ..self }
    }

    /// Says why the gradients of no case are limits of differences in f64. One case says so with `kink=` in its script.
    pub(crate) fn without_differences(self, reason: &'static str) -> Row {
        Row { no_differences: Some(reason), ..self }
    }
}

/// Operations whose cases are one file of `../../reference`.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    text: &'static str,
    pub(crate) rows: Vec<Row>,
}

impl Family {
    pub(crate) fn cases(&self) -> Vec<Case> {
        read(self.text)
    }
}

/// Declares the files, lists them, and makes two tests of each.
macro_rules! families {
    ($($name:ident),* $(,)?) => {
        $(mod $name;)*

        /// Every family.
        pub(crate) fn families() -> Vec<Family> {
            vec![$(family::$name()),*]
        }

        mod family {
            $(pub(super) fn $name() -> super::Family {
                let text = include_str!(concat!("../../../reference/", stringify!($name), ".json"));
                super::Family { name: stringify!($name), text, rows: super::$name::rows() }
            })*
        }

        /// Values and gradients against JAX, a test a family.
        mod agrees_with_jax {
            $(#[test]
            fn $name() {
                crate::operations::reference::check(&super::family::$name());
            })*
        }

        /// Gradients against central differences, a test a family.
        mod agrees_with_differences {
            $(#[test]
            fn $name() {
                crate::operations::differences::check(&super::family::$name());
            })*
        }
    };
}

families! {
    elementwise,
    arithmetic,
    transcendental,
    bitwise,
    complex_numbers,
    fft,
    linalg,
    reduce,
    shape,
    arrange,
    gather,
    scatter,
    dot,
    convolution,
    pooling,
    interpolation,
    softmax,
    cumulative,
    sort,
    einsum,
    sequence,
    random_numbers,
}
