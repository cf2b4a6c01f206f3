//! The catalogue of operations: one row for each operation, one file for each family.

use fulmen_tensor::Tensor;

use crate::operations::attrs::Attrs;
use crate::operations::case::{Case, read};

/// Calls a reduction, or the variant that keeps the axes if the attributes of the case say so.
macro_rules! keepdim {
    ($attrs:expr, $x:expr, $method:ident, $kept:ident, $($arg:expr),*) => {
        if $attrs.keepdims() { $x.$kept($($arg),*) } else { $x.$method($($arg),*) }
    };
}

/// The row of one operation.
pub(crate) struct Row {
    /// The name of the operation in the reference cases.
    pub(crate) op: &'static str,
    /// The public functions that the row covers: the name of a method of `Tensor`, or the path
    /// within the crate (`random::bits`). Empty for a composition that users write themselves.
    pub(crate) methods: &'static [&'static str],
    record: Record,
    /// Cases whose expected value differs from JAX, with the reason.
    pub(crate) unlike: &'static [(&'static str, &'static str)],
    /// The reason why gradients are not compared with differences, if they are not.
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

    /// Sets the cases whose expected value differs from JAX, each with the reason.
    pub(crate) fn unlike_jax(self, cases: &'static [(&'static str, &'static str)]) -> Row {
        Row { unlike: cases, ..self }
    }

    /// Sets the reason why no gradient of this operation is a limit of differences in f64. For a
    /// single case, its script uses `kink=`.
    pub(crate) fn without_differences(self, reason: &'static str) -> Row {
        Row { no_differences: Some(reason), ..self }
    }
}

/// The operations whose cases are in one file of `../../reference`.
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

/// Declares and lists the families, and makes two tests of each.
macro_rules! families {
    ($($name:ident),* $(,)?) => {
        $(mod $name;)*

        /// All families.
        pub(crate) fn families() -> Vec<Family> {
            vec![$(family::$name()),*]
        }

        mod family {
            $(pub(super) fn $name() -> super::Family {
                let text = include_str!(concat!("../../../reference/", stringify!($name), ".json"));
                super::Family { name: stringify!($name), text, rows: super::$name::rows() }
            })*
        }

        /// Compares values and gradients with JAX, one test for each family.
        mod agrees_with_jax {
            $(#[test]
            fn $name() {
                crate::operations::reference::check(&super::family::$name());
            })*
        }

        /// Compares gradients with central differences, one test for each family.
        mod agrees_with_differences {
            $(#[test]
            fn $name() {
                crate::operations::finite_differences::check(&super::family::$name());
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
