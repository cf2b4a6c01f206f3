//! Indices that only the device knows: [`check_indices`] marks them in an expression, and
//! [`IndexChecks`] finds the marks that results depend on, also in the bodies of scans and
//! branches. The program of a training step then reports the first index that is out of range.
//!
//! A mark is the identity: programs do not contain it. Within the body of a
//! [`while_loop`](crate::while_loop), marks are not found.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

use crate::graph::{ValueId, replay, value_id, visit};
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::ops::holds;
use crate::region::{Region, parameters};
use crate::scope::{Refusal, Scope};
use crate::tensor::Kind;
use crate::{DType, Shape, Tensor, TensorType, cond};

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
        && let Some(known) = operation.index_rule()
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
        Kind::Operation(operation) => operation.constant() == Some(&[1]),
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
    fn inlined_body(&self) -> Option<&Region> {
        Some(&self.region)
    }
    fn index_rule(&self) -> Option<&Arc<IndexRule>> {
        Some(&self.rule)
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
    /// The same check with some tensors replaced.
    fn substituted(&self, replacements: &HashMap<ValueId, Tensor>) -> IndexCheck {
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

/// The checks of the marks that `results` are computed from.
pub(crate) fn find(results: &[Tensor]) -> Vec<IndexCheck> {
    let mut checks = Vec::new();
    visit(results, |node| {
        let Kind::Operation(operation) = &node.kind else { return };
        if let Some(rule) = operation.index_rule() {
            let facts = IndexFacts::new(rule, node.inputs[0].shape(), node.location);
            checks.push(IndexCheck { facts, value: CheckValue::Indices(node.inputs[0].clone()) });
            return;
        }
        let Some(body) = operation.body() else {
            checks.extend(operation.index_checks(&node.inputs));
            return;
        };
        let found = find(&body.results);
        if found.is_empty() {
            return;
        }
        let replacements =
            body.parameters.iter().map(value_id).zip(node.inputs.iter().cloned()).collect();
        checks.extend(found.iter().map(|check| check.substituted(&replacements)));
    });
    checks
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

/// The marked indices that some values depend on.
///
/// ```
/// use fulmen_tensor::internal::{IndexChecks, IndexRule, check_indices};
/// use fulmen_tensor::{Scope, Tensor};
///
/// let _scope = Scope::open();
/// let targets = Tensor::from_slice(&[0i32, 2], [2]) + 1.0;
/// let rule = IndexRule::below("cross_entropy", "a target", 3, "there are 3 classes");
/// let marked = check_indices(&targets, rule).map_err(|_| "a fault")?;
/// let checks = IndexChecks::find(&[marked * 2.0]);
/// let words = checks.first(&Tensor::scalar(false)).ok_or("no mark")?.eval()?.to_vec::<i32>()?;
/// let facts = checks.facts();
/// assert_eq!(words, [facts[0].id, 1, 3, 0]);
/// assert_eq!(facts[0].rule.message(3), "a target is 3, but there are 3 classes");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct IndexChecks(Vec<IndexCheck>);

impl IndexChecks {
    /// Finds the marks that `results` depend on.
    #[track_caller]
    pub fn find(results: &[Tensor]) -> IndexChecks {
        let _scope = Scope::open();
        IndexChecks(find(results))
    }

    /// What messages say about each check.
    pub fn facts(&self) -> Vec<IndexFacts> {
        self.0.iter().map(|check| check.facts.clone()).collect()
    }

    /// The first check with an invalid index, as i32 `[4]`: its id, or 0 if all indices are valid;
    /// the row-major position of the index; the low and the high word of its value. `None` if there
    /// are no checks. `not_finite`, a boolean scalar, is whether a result is NaN or infinite.
    ///
    /// Checks that need a NaN are in a branch, which runs if there is one. The others are not: on a
    /// CPU, a branch takes longer than the few numbers that a check computes.
    #[track_caller]
    pub fn first(&self, not_finite: &Tensor) -> Option<Tensor> {
        let _scope = Scope::open();
        let (waiting, strict): (Vec<_>, Vec<_>) =
            self.0.iter().partition(|check| check.facts.rule.needs_nan);
        let strict = first_words(&strict);
        let waits = (!waiting.is_empty()).then(|| {
            let words = || first_words(&waiting).into_iter().collect();
            let none = || vec![Tensor::zeros(DType::I32, [WORDS])];
            cond(not_finite, &[] as &[Tensor], |_| words(), |_| none()).remove(0)
        });
        strict.into_iter().chain(waits).reduce(|first, next| first_of(&first, &next))
    }
}

/// The [words](IndexCheck::words) of the first check with an invalid index.
fn first_words(checks: &[&IndexCheck]) -> Option<Tensor> {
    checks.iter().map(|check| check.words()).reduce(|first, next| first_of(&first, &next))
}

/// `first` if it describes an invalid index, else `next`.
fn first_of(first: &Tensor, next: &Tensor) -> Tensor {
    first.narrow(0, 0, 1).ne(0.0).select(first, next)
}

impl fmt::Debug for IndexChecks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|check| &check.facts)).finish()
    }
}
