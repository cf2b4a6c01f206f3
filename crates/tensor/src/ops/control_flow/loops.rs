//! Loops built on [`scan`](super::scan()) and [`while_loop`]: [`fori_loop`] and [`map`].

use super::{Scan, while_loop};
use crate::scope::{Refusal, Scope};
use crate::{DType, IntoTree, Tensor, Tree};

/// A bound of [`fori_loop`]: an integer that is known while recording, or an integer scalar on the
/// device.
#[derive(Clone, Debug)]
pub enum Bound {
    /// An integer that is known while recording.
    Host(i64),
    /// An integer scalar on the device.
    Device(Tensor),
}

macro_rules! bound_from {
    ($($integer:ty)*) => {$(
        impl From<$integer> for Bound {
            fn from(n: $integer) -> Bound {
                // An integer beyond an i64 means too many steps; `fori_loop` reports that.
                Bound::Host(i64::try_from(n).unwrap_or(i64::MAX))
            }
        }
    )*};
}
bound_from!(i32 i64 u32 u64 usize);

impl From<Tensor> for Bound {
    fn from(tensor: Tensor) -> Bound {
        Bound::Device(tensor)
    }
}

impl From<&Tensor> for Bound {
    fn from(tensor: &Tensor) -> Bound {
        Bound::Device(tensor.clone())
    }
}

impl Bound {
    /// The bound as a scalar of `dtype`.
    fn tensor(&self, dtype: DType) -> Result<Tensor, Refusal> {
        match self {
            Bound::Host(n) => Ok(Tensor::full(dtype, [], *n as f64)),
            Bound::Device(t) if t.live()?.dtype().is_integer() && t.rank() == 0 => {
                Ok(t.to_dtype(dtype))
            }
            Bound::Device(t) => {
                Err(format!("a bound must be an integer scalar, not {}", t.ty()).into())
            }
        }
    }
}

/// The numbers that [`fori_loop`] runs over.
enum Numbers {
    /// All of them, known while recording.
    Host(Tensor),
    /// The first one, the end, and the step from one to the next.
    Device { first: Tensor, end: Tensor, one: Tensor },
}

impl Numbers {
    fn new(lower: &Bound, upper: &Bound) -> Result<Numbers, Refusal> {
        if let (Bound::Host(lower), Bound::Host(upper)) = (lower, upper) {
            let steps = usize::try_from(upper.saturating_sub(*lower)).unwrap_or(0);
            if i32::try_from(steps).is_err()
                || i32::try_from(*lower).is_err()
                || i32::try_from(*upper).is_err()
            {
                return Err(format!(
                    "{lower} to {upper}: the bounds and the number of steps must fit an i32"
                )
                .into());
            }
            let first = Tensor::full(DType::I32, [], *lower as f64);
            return Ok(Numbers::Host(Tensor::iota(DType::I32, [steps], 0) + first));
        }
        let bound_dtype = match (lower, upper) {
            (Bound::Device(a), Bound::Device(b)) => {
                a.dtype().promote(b.dtype()).unwrap_or(a.dtype())
            }
            (Bound::Device(t), _) | (_, Bound::Device(t)) => t.dtype(),
            _ => DType::I32,
        };
        let dtype = if bound_dtype.is_integer() { bound_dtype } else { DType::I32 };
        let first = lower.tensor(dtype)?;
        let end = upper.tensor(dtype)?;
        Ok(Numbers::Device { first, end, one: Tensor::full(dtype, [], 1.0) })
    }
}

/// Runs `carry = body(i, carry)` for each `i` in `lower..upper`, starting with `init`, and returns
/// the last carry (JAX's `lax.fori_loop`). `i` is an i32 scalar; if a bound is a tensor, `i` has
/// its dtype. The carry is any [`Tree`](trait@crate::Tree).
///
/// With host integers as bounds this is a [`scan`](super::scan()), and gradients flow. With a
/// tensor as a bound it is a [`while_loop`], which has no derivative. If `upper` is not above
/// `lower`, the result is `init`.
///
/// ```
/// use fulmen_tensor::{Tensor, fori_loop};
///
/// let factorial = fori_loop(1, 6, Tensor::scalar(1i32), |i, product| product * i);
/// assert_eq!(factorial.eval()?.to_vec::<i32>()?, [120]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn fori_loop<C: IntoTree>(
    lower: impl Into<Bound>,
    upper: impl Into<Bound>,
    init: C,
    body: impl FnOnce(&Tensor, C::Tree) -> C::Tree,
) -> C::Tree {
    let _scope = Scope::open();
    let init = init.into_tree();
    match Numbers::new(&lower.into(), &upper.into()) {
        Ok(Numbers::Host(numbers)) => {
            Scan::new().run(init, numbers, |carry, i| (body(&i, carry), ())).0
        }
        Ok(Numbers::Device { first, end, one }) => {
            let step = |(i, carry): (Tensor, C::Tree)| {
                let next = &i + &one;
                (next, body(&i, carry))
            };
            while_loop((first, init), |(i, _)| i.lt(&end), step).1
        }
        Err(refusal) => {
            let poisoned = Tensor::refused("fori_loop", refusal);
            init.map_tensors(&mut |_| poisoned.clone())
        }
    }
}

/// Applies `f` to each slice of `xs` along their first axis and stacks the results (JAX's
/// `lax.map`). Slices are computed one after the other, which needs less memory than all at once.
/// This is a [`scan`](super::scan()) without a carry; gradients flow.
///
/// ```
/// use fulmen_tensor::{Tensor, map};
///
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2]);
/// let norms = map(|x| (&x * &x).sum_all(), &x);
/// assert_eq!(norms.eval()?.to_vec::<f32>()?, [5.0, 25.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn map<X: IntoTree, Y: Tree>(f: impl FnOnce(X::Tree) -> Y, xs: X) -> Y {
    let xs = xs.into_tree();
    if xs.names().is_empty() {
        let poisoned = Tensor::poison("map", "there are no xs; pass at least one tensor");
        return f(xs).map_tensors(&mut |_| poisoned.clone());
    }
    Scan::new().run((), xs, |(), x| ((), f(x))).1
}
