//! Indices that only the device knows: [`check_indices`] marks them in an expression, and
//! [`IndexChecks`](crate::internal::IndexChecks) finds the marks that results depend on, also in the
//! bodies of scans and branches. The program of a training step then reports the first index that is
//! out of range.
//!
//! A mark is the identity: programs do not contain it. Within the body of a
//! [`while_loop`](crate::while_loop), marks are not found.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

use crate::graph::{ValueId, replay};
use crate::lower::Lowering;
use crate::operation::{Contents, Operation, Vjp, one};
use crate::ops::constant::elements;
use crate::ops::holds;
use crate::region::{Region, parameters};
use crate::scope::Refusal;
use crate::tensor::Kind;
use crate::{DType, Shape, Tensor, TensorType};

/// Which indices a function accepts, and how a message says so.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IndexRule {
    /// The public function, such as `cross_entropy`.
    pub operation: String,
    /// What the index is, such as `a target`.
    pub what: &'static str,
    /// The valid indices.
    pub range: Range<i64>,
    /// An index outside the range that is valid too.
    pub ignored: Option<i64>,
    /// An index within the range that is invalid, and what it is, such as `the blank`.
    pub excluded: Option<(i64, &'static str)>,
    /// What the range is, such as `there are 3 classes`.
    pub reason: String,
    /// Whether an invalid index is a mistake only if it makes the loss NaN. The function is
    /// documented to accept it otherwise.
    pub needs_nan: bool,
}

impl IndexRule {
    /// A rule for the indices `0..size`, all of which are valid, and no others.
    pub fn below(
        operation: impl fmt::Display,
        what: &'static str,
        size: usize,
        reason: impl Into<String>,
    ) -> IndexRule {
        IndexRule {
            operation: operation.to_string(),
            what,
            range: 0..i64::try_from(size).unwrap_or(i64::MAX),
            ignored: None,
            excluded: None,
            reason: reason.into(),
            needs_nan: false,
        }
    }

    fn accepts(&self, index: i64) -> bool {
        let is_excluded = self.excluded.is_some_and(|(excluded, _)| index == excluded);
        self.ignored == Some(index) || self.range.contains(&index) && !is_excluded
    }

    /// Says that this index is invalid: `a target is 3, but there are 3 classes`.
    pub fn message(&self, index: i64) -> String {
        match self.excluded {
            Some((excluded, name)) if excluded == index => {
                format!("{} is {index}, which is {name}", self.what)
            }
            _ => format!("{} is {index}, but {}", self.what, self.reason),
        }
    }

    /// Where an element is invalid: booleans of the shape of `indices`.
    fn invalid(&self, indices: &Tensor) -> Tensor {
        let dtype = indices.dtype();
        let equals = |value: i64| {
            let is_held = holds(dtype, value as f64);
            is_held.then(|| indices.eq(Tensor::scalar(value).to_dtype(dtype)))
        };
        let mut invalid = indices.lt(self.range.start as f64);
        // A dtype that cannot hold the end has no index past it.
        if holds(dtype, self.range.end as f64) {
            invalid = invalid.or(indices.ge(self.range.end as f64));
        }
        if let Some(excluded) = self.excluded.and_then(|(excluded, _)| equals(excluded)) {
            invalid = invalid.or(excluded);
        }
        match self.ignored.and_then(equals) {
            Some(ignored) => invalid.and(ignored.not()),
            None => invalid,
        }
    }
}

/// Marks indices, so that a training step can report an invalid one. Returns the same indices.
///
/// # Errors
/// An invalid index of a value that the host knows, unless the function accepts it.
pub fn check_indices(indices: &Tensor, rule: IndexRule) -> Result<Tensor, Refusal> {
    indices.live()?;
    let elements = indices.shape().num_elements();
    let is_too_large = rule.needs_nan && elements > MAX_KEPT;
    if elements == 0 || is_too_large || !indices.dtype().is_integer() {
        return Ok(indices.clone());
    }
    if let Some(literal) = indices.host_value().filter(|_| !rule.needs_nan) {
        let values = literal.to_f64();
        let invalid = |value: &f64| !rule.accepts(*value as i64);
        if let Some(position) = values.iter().position(invalid) {
            let message = rule.message(values[position] as i64);
            return Err(match place(indices.shape(), position) {
                Some(place) => format!("{message} ({place})").into(),
                None => message.into(),
            });
        }
        return Ok(indices.clone());
    }
    if let Kind::Operation(operation) = &indices.node.kind
        && let Some(known) = marked_rule(operation.as_ref())
        && known.range.end <= rule.range.end
        && known.range.start >= rule.range.start
    {
        return Ok(indices.clone());
    }
    let own = parameters(NAME, "operand", [indices.ty()]);
    let region = Region { results: own.clone(), parameters: own };
    Tensor::try_apply(Mark { rule: Arc::new(rule), region }, &[indices])
}

/// Like [`check_indices`], for the elements where `mask`, a boolean tensor of the same shape, is
/// true. The others become valid.
pub fn check_masked_indices(
    indices: &Tensor,
    mask: &Tensor,
    rule: IndexRule,
) -> Result<Tensor, Refusal> {
    let keeps_all = match &mask.live()?.node.kind {
        Kind::Operation(operation) => elements(operation.as_ref()) == Some(&[1]),
        _ => false,
    };
    if keeps_all || !indices.live()?.dtype().is_integer() {
        return check_indices(indices, rule);
    }
    let Some(valid) = rule.range.clone().take(2).find(|&index| rule.accepts(index)) else {
        return Ok(indices.clone());
    };
    let valid = indices.zeros_like() + valid as f64;
    check_indices(&mask.select(indices, &valid), rule)
}

/// Where the element at this row-major position is: its row, and its position in the row. `None`
/// for a scalar.
pub fn place(shape: &Shape, position: usize) -> Option<String> {
    let (_, inner) = shape.dims().split_first()?;
    let size: usize = inner.iter().product::<usize>().max(1);
    let row = format!("row {}", position / size);
    let mut rest = position % size;
    let mut coordinates = Vec::new();
    for axis in (0..inner.len()).rev() {
        coordinates.insert(0, rest % inner[axis]);
        rest /= inner[axis];
    }
    Some(match &coordinates[..] {
        [] => row,
        [position] => format!("{row}, position {position}"),
        coordinates => format!("{row}, position {coordinates:?}"),
    })
}

const NAME: &str = "check_indices";

/// Indices that are checked only after a NaN stay in memory until the end of the step, so there may
/// be only this many of them in one tensor.
const MAX_KEPT: usize = 1 << 22;

/// The operation: the identity.
struct Mark {
    rule: Arc<IndexRule>,
    region: Region,
}

impl Operation for Mark {
    fn name(&self) -> &'static str {
        NAME
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        one(inputs[0].clone())
    }
    fn vjp(&self, _: &Vjp<'_>) -> Vec<Option<Tensor>> {
        vec![None]
    }
    fn contents(&self) -> Contents<'_> {
        Contents::Inlined(&self.region)
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        // Never called: a program contains the operand instead.
        format!("stablehlo.reshape {} : {}", cx.operand(0), cx.signature())
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{NAME} {:?}", self.rule)
    }
}

/// The rule of the indices that an operation marks, if it is a mark.
pub(crate) fn marked_rule(operation: &dyn Operation) -> Option<&Arc<IndexRule>> {
    operation.downcast::<Mark>().map(|mark| &mark.rule)
}

/// A mark that was found.
#[derive(Clone)]
pub(crate) struct IndexCheck {
    facts: IndexFacts,
    value: CheckValue,
}

#[derive(Clone)]
enum CheckValue {
    /// The marked indices.
    Indices(Tensor),
    /// The [words](IndexCheck::words) that a body returns.
    Words(Tensor),
}

/// The number of words that describe the first invalid index of a check.
pub(crate) const WORDS: usize = 4;

impl IndexCheck {
    /// The check of marked indices.
    pub(crate) fn new(
        rule: &Arc<IndexRule>,
        indices: &Tensor,
        location: &'static Location<'static>,
    ) -> IndexCheck {
        let facts = IndexFacts::new(rule, indices.shape(), location);
        IndexCheck { facts, value: CheckValue::Indices(indices.clone()) }
    }

    /// What a message says about the check.
    pub(crate) fn facts(&self) -> &IndexFacts {
        &self.facts
    }

    /// The same check with some tensors replaced.
    pub(crate) fn substituted(&self, replacements: &HashMap<ValueId, Tensor>) -> IndexCheck {
        let replaced = |t: &Tensor| replay(std::slice::from_ref(t), replacements).remove(0);
        let value = match &self.value {
            CheckValue::Indices(indices) => CheckValue::Indices(replaced(indices)),
            CheckValue::Words(words) => CheckValue::Words(replaced(words)),
        };
        IndexCheck { facts: self.facts.clone(), value }
    }

    /// The same check outside of a body that returned its words.
    pub(crate) fn with_words(&self, words: Tensor) -> IndexCheck {
        IndexCheck { facts: self.facts.clone(), value: CheckValue::Words(words) }
    }

    /// The id of the check if an index is invalid, else 0; the row-major position of the first
    /// invalid index; its value, as a low and a high word. They are i32 `[4]`.
    pub(crate) fn words(&self) -> Tensor {
        let indices = match &self.value {
            CheckValue::Words(words) => return words.clone(),
            CheckValue::Indices(indices) => indices,
        };
        let shape = indices.shape();
        let axes: Vec<isize> = (0..indices.rank() as isize).collect();
        let mut position = Tensor::zeros(DType::I32, shape);
        let mut stride = 1;
        for axis in (0..shape.rank()).rev() {
            position = position + Tensor::iota(DType::I32, shape, axis as isize) * stride as f64;
            stride *= shape[axis];
        }
        let invalid = self.facts.rule.invalid(indices);
        let none = Tensor::full(DType::I32, [], f64::from(i32::MAX));
        let first = invalid.select(&position, &none).min(&axes);
        let is_first = position.eq(&first);
        let value = |t: &Tensor| is_first.select(t, &t.zeros_like()).sum(&axes);
        let low = value(&indices.to_dtype(DType::I32));
        let zero = low.zeros_like();
        let high = match indices.dtype() {
            DType::I64 | DType::U64 => {
                let shift = Tensor::full(indices.dtype(), [], 32.0);
                value(&indices.shift_right_logical(&shift).to_dtype(DType::I32))
            }
            DType::U32 => zero.clone(),
            _ => low.lt(0.0).select(&(&zero - 1.0), &zero),
        };
        let id = Tensor::full(DType::I32, [], f64::from(self.facts.id));
        let id = first.lt(&none).select(&id, &zero);
        Tensor::stack(&[id, first, low, high], 0)
    }
}

/// What a message says about a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexFacts {
    /// Identifies the check among those of a module; not 0.
    pub id: i32,
    /// The rule of the function.
    pub rule: Arc<IndexRule>,
    /// The shape of the indices.
    pub shape: Shape,
    /// The user's line.
    pub location: &'static Location<'static>,
}

impl IndexFacts {
    fn new(
        rule: &Arc<IndexRule>,
        shape: &Shape,
        location: &'static Location<'static>,
    ) -> IndexFacts {
        // FNV-1a: the same in every process.
        let text = format!("{location} {shape} {rule:?}");
        let hash = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        let id = text.bytes().fold(0x811c_9dc5, hash) & 0x7fff_ffff;
        IndexFacts {
            id: i32::try_from(id).unwrap_or_default().max(1),
            rule: rule.clone(),
            shape: shape.clone(),
            location,
        }
    }
}
