//! Loops that are said with [`scan`](super::scan()) or [`while_loop`]: [`fori_loop`] and [`map`].

use super::{Scan, owned, while_loop};
use crate::scope::Refusal;
use crate::{DType, Tensor};

/// Where a [`fori_loop`] begins or ends: an integer that is known while recording, or an integer scalar on the device.
#[derive(Clone, Debug)]
pub enum Bound {
    /// Known while recording.
    Host(i64),
    /// A scalar on the device.
    Device(Tensor),
}

macro_rules! bound_from {
    ($($integer:ty)*) => {$(
        impl From<$integer> for Bound {
            fn from(n: $integer) -> Bound {
                // Beyond an i64 there are more steps than a loop counts, and that is said there.
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
            Bound::Device(t) if t.live()?.dtype().is_integer() && t.rank() == 0 => Ok(t.to_dtype(dtype)),
            Bound::Device(t) => Err(format!("a bound must be an integer scalar, not {}", t.ty()).into()),
        }
    }
}

/// Runs `body(i, carry)` for `i` from `lower` up to and without `upper`, the carry being `init` at first (JAX's
/// `lax.fori_loop`), and gives the last carry. `i` is an i32 scalar; where a bound is a tensor, it has that one's dtype.
///
/// With bounds that are integers of the host this is a [`scan`](super::scan()), and gradients flow; with a tensor it is a
/// [`while_loop`], and none do. Where `upper` is not above `lower` the carry stays `init`.
///
/// ```
/// use fulmen_tensor::{Tensor, fori_loop};
///
/// let factorial = fori_loop(1, 6, &[&Tensor::scalar(1i32)], |i, carry| vec![&carry[0] * i]);
/// assert_eq!(factorial[0].eval()?.to_vec::<i32>()?, [120]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn fori_loop(
    lower: impl Into<Bound>,
    upper: impl Into<Bound>,
    init: &[&Tensor],
    body: impl FnOnce(&Tensor, &[Tensor]) -> Vec<Tensor>,
) -> Vec<Tensor> {
    Tensor::record_many("fori_loop", init.len(), || {
        let (lower, upper) = (lower.into(), upper.into());
        if let (Bound::Host(lower), Bound::Host(upper)) = (&lower, &upper) {
            let steps = usize::try_from(upper.saturating_sub(*lower)).unwrap_or(0);
            if i32::try_from(steps).is_err() || i32::try_from(*lower).is_err() || i32::try_from(*upper).is_err() {
                return Err(format!("{lower} to {upper}: the bounds and the number of steps must fit an i32").into());
            }
            let numbers = Tensor::iota(DType::I32, [steps], 0) + Tensor::full(DType::I32, [], *lower as f64);
            return Ok(Scan::new().run(init, &[&numbers], |carry, i| (body(&i[0], carry), vec![])).0);
        }
        let dtype = match (&lower, &upper) {
            (Bound::Device(a), Bound::Device(b)) => a.dtype().promote(b.dtype()).unwrap_or(a.dtype()),
            (Bound::Device(t), _) | (_, Bound::Device(t)) => t.dtype(),
            _ => DType::I32,
        };
        let dtype = if dtype.is_integer() { dtype } else { DType::I32 };
        let (first, end) = (lower.tensor(dtype)?, upper.tensor(dtype)?);
        let mut held = vec![&first];
        held.extend(init);
        let one = Tensor::full(dtype, [], 1.0);
        let mut last = while_loop(
            &held,
            |carry| carry[0].lt(&end),
            |carry| {
                let mut next = vec![&carry[0] + &one];
                next.extend(body(&carry[0], &carry[1..]));
                next
            },
        );
        Ok(last.split_off(1))
    })
}

/// `f` of each slice of `xs` along their first axis, the results stacked (JAX's `lax.map`): one slice after the other, for
/// what would take too much memory at once. A [`scan`](super::scan()) without a carry; gradients flow.
///
/// ```
/// use fulmen_tensor::{Tensor, map};
///
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2]);
/// let norms = map(|x| vec![(&x[0] * &x[0]).sum_all()], &[&x]);
/// assert_eq!(norms[0].eval()?.to_vec::<f32>()?, [5.0, 25.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn map(f: impl FnOnce(&[Tensor]) -> Vec<Tensor>, xs: &[&Tensor]) -> Vec<Tensor> {
    if xs.is_empty() {
        let count = f(&owned(xs)).len();
        return vec![Tensor::poison("map", "there are no xs; pass at least one tensor"); count];
    }
    Scan::new().run(&[], xs, |_, x| (vec![], f(x))).1
}
