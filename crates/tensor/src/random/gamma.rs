//! Numbers from the gamma and the beta distribution.
//!
//! They are drawn by rejection, with as many tries as it takes: try `n` of an element has numbers of its own, decided by
//! the key, `n` and the element's index. So no number depends on the tries that others need, nor on how many devices share
//! the work. JAX splits the key for each element; its numbers are others.

use super::continuous::{drawn_as, normal, unit};
use super::{check_key, fold_in, fold_in_tensor};
use crate::scope::Refusal;
use crate::{AsTensor, DType, Operand, Shape, Tensor, while_loop};

/// A draw by the method of Marsaglia and Tsang ("A simple method for generating gamma variables", ACM TOMS 26, 2000).
struct Draw {
    /// `d · v` is drawn from the gamma distribution of `alpha`, or of `alpha + 1` where `alpha < 1`.
    d: Tensor,
    v: Tensor,
    /// The logarithm of the factor that makes it one of `alpha`: of a uniform number to the power of `1 / alpha`, where
    /// `alpha < 1`, else 0.
    log_boost: Tensor,
}

/// The draws for each element of `alpha`, which is above 0 and of the dtype in which is drawn.
fn marsaglia_tsang(key: &Tensor, alpha: &Tensor) -> Result<Draw, Refusal> {
    check_key(key)?;
    let (dtype, shape) = (alpha.dtype(), alpha.shape().clone());
    let axes: Vec<isize> = (0..shape.len() as isize).collect();
    let small = alpha.lt(1.0);
    let d = small.select(&(alpha + 1.0), alpha) - 1.0 / 3.0;
    let c = (d.sqrt() * 3.0).reciprocal();
    let log_uniform = (-unit(&fold_in(key, 0), dtype, shape.clone())?).log1p();
    let log_boost = (log_uniform / alpha).masked_fill(&small.not(), 0.0);
    let (normals, uniforms) = (fold_in(key, 1), fold_in(key, 2));
    let pending = Tensor::zeros(DType::U32, &shape).eq(0.0);
    let last = while_loop(
        &[&Tensor::scalar(0u32), &pending, &(Tensor::zeros(dtype, &shape) + 1.0)],
        |carry| carry[1].any(&axes),
        |carry| {
            let (number, pending, v) = (&carry[0], &carry[1], &carry[2]);
            let x = normal(&fold_in_tensor(&normals, number), dtype, &shape);
            let u = Tensor::record("gamma", || unit(&fold_in_tensor(&uniforms, number), dtype, shape.clone()));
            let root = &x * &c + 1.0;
            let (squared, tried) = (&x * &x, &root * &root * &root);
            // The first condition is implied by the second except for a few; of a root below 0 there is no logarithm, and a
            // comparison with NaN is false.
            let squeezed = u.lt(&squared * &squared * -0.0331 + 1.0);
            let exact = u.log().lt(&squared * 0.5 + &d * (tried.log() - &tried + 1.0));
            let accepted = root.gt(0.0).and(squeezed.or(&exact));
            let v = pending.and(&accepted).select(&tried, v);
            vec![number + 1.0, pending.and(accepted.not()), v]
        },
    );
    Ok(Draw { d, v: last[2].clone(), log_boost })
}

/// What a parameter of a distribution is: a tensor of `dtype` and `shape`, through which no gradient flows; and whether
/// it is above 0, with 1 in the places where it is not.
fn parameter(name: &str, given: impl Operand, dtype: DType, shape: &Shape) -> Result<(Tensor, Tensor), Refusal> {
    let given = given.to_tensor_like(&Tensor::full(DType::F64, [], 0.0));
    given.live()?;
    if !given.dtype().is_float() {
        return Err(format!("{name} must be floating-point numbers, not {}", given.ty()).into());
    }
    if given.shape().broadcast(shape).as_ref() != Ok(shape) {
        return Err(format!("{name}, {}, does not broadcast to {shape}", given.ty()).into());
    }
    if let Some(wrong) = given.known::<f64>().and_then(|known| known.into_iter().find(|x| x.is_nan() || *x <= 0.0)) {
        return Err(format!("{name} must be above 0, not {wrong}").into());
    }
    let given = given.detach().to_dtype(dtype).broadcast_to(shape);
    let above = given.gt(0.0);
    Ok((given.masked_fill(&above.not(), 1.0), above))
}

/// Numbers from the gamma distribution with the shape parameter `alpha`, a number or a tensor that broadcasts to `shape`,
/// and the scale 1: mean and variance `alpha`. Drawn by Marsaglia and Tsang's method; NaN where a tensor `alpha` is not
/// above 0. No gradient flows to `alpha`.
///
/// Where `alpha` is far below 1 most numbers are too small for `dtype` and come out as 0.
///
/// Poisoned if `dtype` is not a floating-point type, if `alpha` is a number that is not above 0, or if it does not broadcast
/// to `shape`.
///
/// ```
/// use fulmen_tensor::{DType, random};
/// let drawn = random::gamma(&random::key(0), DType::F32, [1000], 3.0).eval()?.to_vec::<f32>()?;
/// let mean = drawn.iter().sum::<f32>() / 1000.0;
/// assert!((2.8..3.2).contains(&mean));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn gamma(key: impl AsTensor, dtype: DType, shape: impl Into<Shape>, alpha: impl Operand) -> Tensor {
    Tensor::record("gamma", || {
        let (key, shape, wide) = (key.as_tensor(), shape.into(), drawn_as(dtype)?);
        let (alpha, above) = parameter("alpha", alpha, wide, &shape)?;
        let draw = marsaglia_tsang(key, &alpha)?;
        let drawn = draw.d * draw.v * draw.log_boost.exp();
        Ok(drawn.masked_fill(&above.not(), f64::NAN).to_dtype(dtype).detach())
    })
}

/// The logarithms of what [`gamma`] draws with the key.
fn log_gamma(key: &Tensor, alpha: &Tensor) -> Result<Tensor, Refusal> {
    let draw = marsaglia_tsang(key, alpha)?;
    Ok(draw.d.log() + draw.v.log() + draw.log_boost)
}

/// Numbers from the beta distribution with the parameters `a` and `b`, numbers or tensors that broadcast to `shape`: from
/// 0 to 1, with the mean `a / (a + b)`. Made of two gamma draws, `x / (x + y)`, in logarithms; NaN where a tensor `a` or
/// `b` is not above 0. No gradient flows to `a` and `b`.
///
/// Poisoned if `dtype` is not a floating-point type, if `a` or `b` is a number that is not above 0, or if it does not
/// broadcast to `shape`.
///
/// ```
/// use fulmen_tensor::{DType, random};
/// let lambda = random::beta(&random::key(0), DType::F32, [100], 0.2, 0.2).eval()?.to_vec::<f32>()?;
/// assert!(lambda.iter().all(|lambda| (0.0..=1.0).contains(lambda)));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn beta(key: impl AsTensor, dtype: DType, shape: impl Into<Shape>, a: impl Operand, b: impl Operand) -> Tensor {
    Tensor::record("beta", || {
        let (key, shape, wide) = (key.as_tensor(), shape.into(), drawn_as(dtype)?);
        check_key(key)?;
        let (a, a_above) = parameter("a", a, wide, &shape)?;
        let (b, b_above) = parameter("b", b, wide, &shape)?;
        let (x, y) = (log_gamma(&fold_in(key, 0), &a)?, log_gamma(&fold_in(key, 1), &b)?);
        let largest = x.maximum(&y);
        let (x, y) = ((x - &largest).exp(), (y - &largest).exp());
        let share = &x / (&x + y);
        Ok(share.masked_fill(&a_above.and(&b_above).not(), f64::NAN).to_dtype(dtype).detach())
    })
}
