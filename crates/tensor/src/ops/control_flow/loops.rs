//! Loops built on [`scan`](super::scan()) and [`while_loop`]: [`fori_loop`] and [`map`].

use super::{Scan, while_loop};
use crate::as_tensor::as_tensors;
use crate::scope::Refusal;
use crate::{AsTensor, DType, Tensor};

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

/// Runs `carry = body(i, carry)` for each `i` in `lower..upper`, starting with `init`, and returns
/// the last carry (JAX's `lax.fori_loop`). `i` is an i32 scalar; if a bound is a tensor, `i` has
/// its dtype.
///
/// With host integers as bounds this is a [`scan`](super::scan()), and gradients flow. With a
/// tensor as a bound it is a [`while_loop`], which has no derivative. If `upper` is not above
/// `lower`, the result is `init`.
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
    init: &[impl AsTensor],
    body: impl FnOnce(&Tensor, &[Tensor]) -> Vec<Tensor>,
) -> Vec<Tensor> {
    Tensor::record_many("fori_loop", init.len(), || {
        let init = as_tensors(init);
        let lower = lower.into();
        let upper = upper.into();
        if let (Bound::Host(lower), Bound::Host(upper)) = (&lower, &upper) {
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
            let numbers =
                Tensor::iota(DType::I32, [steps], 0) + Tensor::full(DType::I32, [], *lower as f64);
            return Ok(Scan::new()
                .run(&init, &[&numbers], |carry, i| (body(&i[0], carry), Vec::new()))
                .0);
        }
        let bound_dtype = match (&lower, &upper) {
            (Bound::Device(a), Bound::Device(b)) => {
                a.dtype().promote(b.dtype()).unwrap_or(a.dtype())
            }
            (Bound::Device(t), _) | (_, Bound::Device(t)) => t.dtype(),
            _ => DType::I32,
        };
        let dtype = if bound_dtype.is_integer() { bound_dtype } else { DType::I32 };
        let first = lower.tensor(dtype)?;
        let end = upper.tensor(dtype)?;
        let mut carry = vec![&first];
        carry.extend(&init);
        let one = Tensor::full(dtype, [], 1.0);
        let mut last = while_loop(
            &carry,
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

/// Applies `f` to each slice of `xs` along their first axis and stacks the results (JAX's
/// `lax.map`). Slices are computed one after the other, which needs less memory than all at once.
/// This is a [`scan`](super::scan()) without a carry; gradients flow.
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
pub fn map(f: impl FnOnce(&[Tensor]) -> Vec<Tensor>, xs: &[impl AsTensor]) -> Vec<Tensor> {
    if xs.is_empty() {
        let count = f(&[]).len();
        return vec![Tensor::poison("map", "there are no xs; pass at least one tensor"); count];
    }
    Scan::new().run(&[] as &[Tensor], xs, |_, x| (Vec::new(), f(x))).1
}
