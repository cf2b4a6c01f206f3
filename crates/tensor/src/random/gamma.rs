//! The gamma and beta distributions.
//!
//! Numbers are drawn by rejection, with as many attempts as needed. Attempt `n` of an element uses
//! random numbers that depend only on the key, `n` and the element's index. So a number depends
//! neither on the attempts of other elements nor on the number of devices. JAX splits the key for
//! each element instead, so its numbers differ.

use super::continuous::{drawn_as, normal, unit};
use super::{check_key, fold_in, fold_in_tensor};
use crate::scope::Refusal;
use crate::{AsTensor, DType, Operand, Shape, Tensor, while_loop};

/// A draw by the method of Marsaglia and Tsang ("A simple method for generating gamma variables",
/// ACM TOMS 26, 2000).
struct Draw {
    /// `d · v` follows the gamma distribution of `alpha`, or of `alpha + 1` where `alpha < 1`.
    d: Tensor,
    v: Tensor,
    /// The logarithm of the factor that corrects `alpha + 1` to `alpha`. Where `alpha < 1`, the
    /// factor is a uniform number to the power `1 / alpha`. Elsewhere this is 0.
    log_boost: Tensor,
}

/// A draw for each element of `alpha`. It must be above 0, and have the dtype of the computation.
fn marsaglia_tsang(key: &Tensor, alpha: &Tensor) -> Result<Draw, Refusal> {
    check_key(key)?;
    let dtype = alpha.dtype();
    let shape = alpha.shape().clone();
    let axes: Vec<isize> = (0..shape.len() as isize).collect();
    let small = alpha.lt(1.0);
    let d = small.select(&(alpha + 1.0), alpha) - 1.0 / 3.0;
    let c = (d.sqrt() * 3.0).reciprocal();
    let log_uniform = (-unit(&fold_in(key, 0), dtype, shape.clone())?).log1p();
    let log_boost = (log_uniform / alpha).masked_fill(&small.not(), 0.0);
    let normals = fold_in(key, 1);
    let uniforms = fold_in(key, 2);
    let pending = Tensor::zeros(DType::U32, &shape).eq(0.0);
    let (_, _, v) = while_loop(
        (Tensor::scalar(0u32), pending, Tensor::zeros(dtype, &shape) + 1.0),
        |(_, pending, _)| pending.any(&axes),
        |(number, pending, v)| {
            let x = normal(&fold_in_tensor(&normals, &number), dtype, &shape);
            let u = Tensor::record("gamma", || {
                unit(&fold_in_tensor(&uniforms, &number), dtype, shape.clone())
            });
            let root = &x * &c + 1.0;
            let squared = &x * &x;
            let candidate = &root * &root * &root;
            // The first condition implies the second, with rare exceptions. The logarithm of a
            // negative root is NaN, and a comparison with NaN is false.
            let squeezed = u.lt(&squared * &squared * -0.0331 + 1.0);
            let exact = u.log().lt(&squared * 0.5 + &d * (candidate.log() - &candidate + 1.0));
            let accepted = root.gt(0.0).and(squeezed.or(&exact));
            let v = pending.and(&accepted).select(&candidate, &v);
            (number + 1.0, pending.and(accepted.not()), v)
        },
    );
    Ok(Draw { d, v, log_boost })
}

/// Checks a parameter of a distribution. Returns it with `dtype` and `shape`, without a gradient
/// and with invalid elements replaced by 1, and a mask of the valid elements, which are above 0.
fn parameter(
    name: &str,
    value: impl Operand,
    dtype: DType,
    shape: &Shape,
) -> Result<(Tensor, Tensor), Refusal> {
    let value = value.to_tensor_like(&Tensor::full(DType::F64, [], 0.0));
    value.live()?;
    if !value.dtype().is_float() {
        return Err(format!("{name} must be floating-point numbers, not {}", value.ty()).into());
    }
    if value.shape().broadcast(shape).as_ref() != Ok(shape) {
        return Err(format!("{name}, {}, does not broadcast to {shape}", value.ty()).into());
    }
    if let Some(invalid) = value
        .constant_elements::<f64>()
        .and_then(|elements| elements.into_iter().find(|x| x.is_nan() || *x <= 0.0))
    {
        return Err(format!("{name} must be above 0, not {invalid}").into());
    }
    let value = value.detach().to_dtype(dtype).broadcast_to(shape);
    let valid = value.gt(0.0);
    Ok((value.masked_fill(&valid.not(), 1.0), valid))
}

/// Numbers from the gamma distribution with shape parameter `alpha` and scale 1, so that the mean
/// and the variance are `alpha` (JAX's `random.gamma`). `alpha` is a number, or a tensor that
/// broadcasts to `shape`. The method is Marsaglia and Tsang's. The result is NaN where a tensor
/// `alpha` is not above 0. No gradient flows to `alpha`.
///
/// If `alpha` is far below 1, most numbers are too small for `dtype` and underflow to 0.
///
/// Poisoned if `dtype` is not a floating-point type, if `alpha` is a number that is not above 0, or
/// if it does not broadcast to `shape`.
///
/// ```
/// use fulmen_tensor::{DType, random};
/// let sample = random::gamma(&random::key(0), DType::F32, [1000], 3.0).eval()?.to_vec::<f32>()?;
/// let mean = sample.iter().sum::<f32>() / 1000.0;
/// assert!((2.8..3.2).contains(&mean));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn gamma(
    key: impl AsTensor,
    dtype: DType,
    shape: impl Into<Shape>,
    alpha: impl Operand,
) -> Tensor {
    Tensor::record("gamma", || {
        let key = key.as_tensor();
        let shape = shape.into();
        let wide = drawn_as(dtype)?;
        let (alpha, above) = parameter("alpha", alpha, wide, &shape)?;
        let draw = marsaglia_tsang(key, &alpha)?;
        let sample = draw.d * draw.v * draw.log_boost.exp();
        Ok(sample.masked_fill(&above.not(), f64::NAN).to_dtype(dtype).detach())
    })
}

/// The logarithms of the numbers that [`gamma`] draws with this key.
fn log_gamma(key: &Tensor, alpha: &Tensor) -> Result<Tensor, Refusal> {
    let draw = marsaglia_tsang(key, alpha)?;
    Ok(draw.d.log() + draw.v.log() + draw.log_boost)
}

/// Numbers from the beta distribution with parameters `a` and `b`: from 0 to 1, with the mean
/// `a / (a + b)` (JAX's `random.beta`). `a` and `b` are numbers, or tensors that broadcast to
/// `shape`. A number is `x / (x + y)` of two gamma draws, computed from logarithms. The result is
/// NaN where a tensor `a` or `b` is not above 0. No gradient flows to `a` and `b`.
///
/// Poisoned if `dtype` is not a floating-point type, if `a` or `b` is a number that is not above 0,
/// or if it does not broadcast to `shape`.
///
/// ```
/// use fulmen_tensor::{DType, random};
/// let lambda = random::beta(&random::key(0), DType::F32, [100], 0.2, 0.2).eval()?.to_vec::<f32>()?;
/// assert!(lambda.iter().all(|lambda| (0.0..=1.0).contains(lambda)));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn beta(
    key: impl AsTensor,
    dtype: DType,
    shape: impl Into<Shape>,
    a: impl Operand,
    b: impl Operand,
) -> Tensor {
    Tensor::record("beta", || {
        let key = key.as_tensor();
        let shape = shape.into();
        let wide = drawn_as(dtype)?;
        check_key(key)?;
        let (a, a_above) = parameter("a", a, wide, &shape)?;
        let (b, b_above) = parameter("b", b, wide, &shape)?;
        let x = log_gamma(&fold_in(key, 0), &a)?;
        let y = log_gamma(&fold_in(key, 1), &b)?;
        let largest = x.maximum(&y);
        let x = (x - &largest).exp();
        let y = (y - &largest).exp();
        let share = &x / (&x + y);
        Ok(share.masked_fill(&a_above.and(&b_above).not(), f64::NAN).to_dtype(dtype).detach())
    })
}
