//! [`Row`]: how an operation is recorded.

use fulmen_tensor::Tensor;

use crate::Attrs;

/// One operation.
pub struct Row {
    /// The name of the operation in the cases.
    pub op: &'static str,
    /// The public functions that the row covers: the name of a method of `Tensor`, or the path
    /// within the crate (`random::bits`). Empty for a composition that users write themselves.
    pub methods: &'static [&'static str],
    record: Record,
    /// Cases whose expected value differs from JAX, with the reason.
    pub unlike: &'static [(&'static str, &'static str)],
    /// The reason why gradients are not compared with differences, if they are not.
    pub no_differences: Option<&'static str>,
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
pub(crate) fn many(op: &'static str, methods: &'static [&'static str], record: Many) -> Row {
    Row { op, methods, record: Record::Many(record), unlike: &[], no_differences: None }
}

/// The results of an operation that has two.
pub(crate) fn pair(results: (Tensor, Tensor)) -> Vec<Tensor> {
    vec![results.0, results.1]
}

impl Row {
    /// Records the operation.
    pub fn record(&self, x: &[Tensor], attrs: &Attrs) -> Vec<Tensor> {
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
