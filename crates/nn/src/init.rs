//! Initializers: rules for the initial value of a parameter, with PyTorch's formulas. The numbers
//! are drawn on the device.

mod orthogonal;
mod patterns;

use fulmen_tensor::{AsTensor, DType, Refusal, Tensor, TensorType, random};

use crate::library::NN;

/// The rule for a parameter's initial value.
///
/// ```
/// use fulmen_nn::{Init, init::{Fan, Nonlinearity}};
/// use fulmen_tensor::{AsTensor, DType, TensorType, random};
///
/// let ty = TensorType::new(DType::F32, [64, 3, 7, 7]);
/// let he = Init::kaiming_normal(Nonlinearity::Relu, Fan::Out);
/// assert_eq!(he.tensor(&random::key(0), &ty).ty(), &ty);
/// let deviation = he.spread(&ty.shape).unwrap();
/// assert!((deviation - (2.0f64 / (64.0 * 49.0)).sqrt()).abs() < 1e-12);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Init {
    /// The same number for all elements.
    Constant(f64),
    /// A uniform distribution over `low..high`.
    Uniform {
        /// The smallest value.
        low: f64,
        /// The upper bound, exclusive.
        high: f64,
    },
    /// A normal distribution with this mean and standard deviation.
    Normal {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        std: f64,
    },
    /// A normal distribution with this mean and standard deviation, truncated to `a..=b`.
    TruncNormal {
        /// The mean before truncation.
        mean: f64,
        /// The standard deviation before truncation.
        std: f64,
        /// The smallest value.
        a: f64,
        /// The largest value.
        b: f64,
    },
    /// Ones on the diagonal of a matrix, zeros elsewhere.
    Eye,
    /// A convolution's weight `[out, in/groups, kernel…]` that passes its first channels through
    /// unchanged.
    Dirac {
        /// The groups of the convolution.
        groups: usize,
    },
    /// A random orthogonal matrix times a factor: its rows (or its columns, if there are fewer) are
    /// orthogonal and have length `gain`. A weight with more axes counts as `[out, rest]`. Computed
    /// in f32, also for f64: orthonormal to about 6 digits.
    Orthogonal {
        /// The factor, usually [`Nonlinearity::gain`].
        gain: f64,
    },
    /// A matrix of normal numbers with mean 0 and this standard deviation, in which a random
    /// fraction of each column, rounded up, is zero.
    Sparse {
        /// The fraction of zeros in each column.
        sparsity: f64,
        /// The standard deviation of the other elements.
        std: f64,
    },
    /// Zeros in one row, and another rule for the other rows.
    ZeroRow {
        /// The index of the row along the first axis.
        row: usize,
        /// The rule for the other rows.
        rest: Box<Init>,
    },
    /// A uniform distribution over `±gain·√(3/fan)`.
    KaimingUniform {
        /// The nonlinearity after the layer.
        nonlinearity: Nonlinearity,
        /// The fan in the formula: of the inputs or of the outputs.
        fan: Fan,
    },
    /// A normal distribution with mean 0 and standard deviation `gain/√fan`.
    KaimingNormal {
        /// The nonlinearity after the layer.
        nonlinearity: Nonlinearity,
        /// The fan in the formula: of the inputs or of the outputs.
        fan: Fan,
    },
    /// A uniform distribution over `±gain·√(6/(fan_in + fan_out))`.
    XavierUniform {
        /// A factor, usually [`Nonlinearity::gain`].
        gain: f64,
    },
    /// A normal distribution with mean 0 and standard deviation `gain·√(2/(fan_in + fan_out))`.
    XavierNormal {
        /// A factor, usually [`Nonlinearity::gain`].
        gain: f64,
    },
    /// This value, which must have the parameter's type.
    Value(Tensor),
}

/// Whether to preserve the variance of activations (forward) or of gradients (backward).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Fan {
    /// The number of inputs that contribute to one output.
    #[default]
    In,
    /// The number of outputs to which one input contributes.
    Out,
}

/// The nonlinearity after a layer, which determines the gain.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Nonlinearity {
    /// No activation, a convolution or a sigmoid: gain 1.
    Linear,
    /// The hyperbolic tangent: gain 5/3.
    Tanh,
    /// `max(x, 0)`: gain √2.
    Relu,
    /// A rectifier with this slope below 0: gain `√(2/(1 + slope²))`.
    LeakyRelu(f64),
    /// SELU: gain ¾.
    Selu,
}

impl Nonlinearity {
    /// The factor that preserves the variance through this nonlinearity, like PyTorch's
    /// `calculate_gain`.
    pub fn gain(self) -> f64 {
        match self {
            Nonlinearity::Linear => 1.0,
            Nonlinearity::Tanh => 5.0 / 3.0,
            Nonlinearity::Relu => 2f64.sqrt(),
            Nonlinearity::LeakyRelu(slope) => (2.0 / (1.0 + slope * slope)).sqrt(),
            Nonlinearity::Selu => 0.75,
        }
    }
}

impl Init {
    /// All elements 0.
    pub fn zeros() -> Init {
        Init::Constant(0.0)
    }

    /// All elements 1.
    pub fn ones() -> Init {
        Init::Constant(1.0)
    }

    /// [`Init::Constant`].
    pub fn constant(value: f64) -> Init {
        Init::Constant(value)
    }

    /// [`Init::Eye`].
    pub fn eye() -> Init {
        Init::Eye
    }

    /// [`Init::Dirac`].
    pub fn dirac(groups: usize) -> Init {
        Init::Dirac { groups }
    }

    /// [`Init::Sparse`].
    pub fn sparse(sparsity: f64, std: f64) -> Init {
        Init::Sparse { sparsity, std }
    }

    /// [`Init::Value`].
    pub fn value(value: impl AsTensor) -> Init {
        Init::Value(value.as_tensor().clone())
    }

    /// A uniform distribution over `low..high`.
    pub fn uniform(low: f64, high: f64) -> Init {
        Init::Uniform { low, high }
    }

    /// A normal distribution with this mean and standard deviation.
    pub fn normal(mean: f64, std: f64) -> Init {
        Init::Normal { mean, std }
    }

    /// Normal with mean 0 and standard deviation `std`, truncated at two standard deviations: the
    /// rule of timm and JAX for transformers. PyTorch's bounds are ±2 for every standard deviation;
    /// use [`Init::TruncNormal`] for such bounds.
    ///
    /// ```
    /// use fulmen_nn::Init;
    /// use fulmen_tensor::{AsTensor, DType, TensorType, random};
    /// let value = Init::trunc_normal(0.02).tensor(&random::key(0), &TensorType::new(DType::F32, [100, 10]));
    /// assert!(value.eval()?.to_vec::<f32>()?.iter().all(|x| x.abs() <= 0.04));
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    pub fn trunc_normal(std: f64) -> Init {
        Init::TruncNormal { mean: 0.0, std, a: -2.0 * std, b: 2.0 * std }
    }

    /// [`Init::Orthogonal`].
    ///
    /// ```
    /// use fulmen_nn::Init;
    /// use fulmen_tensor::{AsTensor, DType, TensorType, random};
    /// let q = Init::orthogonal(1.0).tensor(&random::key(0), &TensorType::new(DType::F32, [2, 3]));
    /// let products = q.matmul(&q.t()).eval()?.to_vec::<f32>()?;
    /// assert!(products.iter().zip([1.0, 0.0, 0.0, 1.0]).all(|(x, y)| (x - y).abs() < 1e-5));
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    pub fn orthogonal(gain: f64) -> Init {
        Init::Orthogonal { gain }
    }

    /// [`Init::KaimingUniform`].
    pub fn kaiming_uniform(nonlinearity: Nonlinearity, fan: Fan) -> Init {
        Init::KaimingUniform { nonlinearity, fan }
    }

    /// [`Init::KaimingNormal`].
    pub fn kaiming_normal(nonlinearity: Nonlinearity, fan: Fan) -> Init {
        Init::KaimingNormal { nonlinearity, fan }
    }

    /// [`Init::XavierUniform`].
    pub fn xavier_uniform(gain: f64) -> Init {
        Init::XavierUniform { gain }
    }

    /// [`Init::XavierNormal`].
    pub fn xavier_normal(gain: f64) -> Init {
        Init::XavierNormal { gain }
    }

    /// The half width of a uniform rule around 0, or the standard deviation of a normal one, for a
    /// weight of this shape. `None` for other rules, and for rules that need fans if the shape has
    /// none.
    pub fn spread(&self, shape: &[usize]) -> Option<f64> {
        let reciprocal = |fan: f64| if fan > 0.0 { 1.0 / fan } else { 0.0 };
        let reciprocal_of_fan = |fan: &Fan| {
            let (fan_in, fan_out) = fans(shape)?;
            Some(reciprocal(if *fan == Fan::In { fan_in } else { fan_out }))
        };
        let reciprocal_of_both =
            || fans(shape).map(|(fan_in, fan_out)| reciprocal(fan_in + fan_out));
        match self {
            Init::Constant(_)
            | Init::Value(_)
            | Init::Uniform { .. }
            | Init::TruncNormal { .. } => None,
            Init::Eye | Init::Dirac { .. } | Init::Orthogonal { .. } | Init::Sparse { .. } => None,
            Init::ZeroRow { rest, .. } => rest.spread(shape),
            Init::Normal { std, .. } => Some(*std),
            Init::KaimingUniform { nonlinearity, fan } => {
                Some(nonlinearity.gain() * (3.0 * reciprocal_of_fan(fan)?).sqrt())
            }
            Init::KaimingNormal { nonlinearity, fan } => {
                Some(nonlinearity.gain() * reciprocal_of_fan(fan)?.sqrt())
            }
            Init::XavierUniform { gain } => Some(gain * (6.0 * reciprocal_of_both()?).sqrt()),
            Init::XavierNormal { gain } => Some(gain * (2.0 * reciprocal_of_both()?).sqrt()),
        }
    }

    /// An initial value of type `ty`, drawn with `key`. Numbers are drawn as f32, or as f64 for f64
    /// tensors, and then rounded to shorter types. Orthogonal matrices are always computed in f32.
    ///
    /// Poisoned for a type that is not floating-point, for a shape that the rule does not support
    /// (without fans, or not a matrix), and for an empty or infinite range.
    #[track_caller]
    pub fn tensor(&self, key: &Tensor, ty: &TensorType) -> Tensor {
        NN.record("init", || self.draw(key, ty))
    }

    fn draw(&self, key: &Tensor, ty: &TensorType) -> Result<Tensor, Refusal> {
        if let Init::Value(value) = self {
            if value.live()?.ty() != ty {
                return Err(format!("the value is {}, the parameter {ty}", value.ty()).into());
            }
            return Ok(value.clone());
        }
        if let Init::ZeroRow { row, rest } = self {
            let value = rest.draw(key, ty)?;
            if ty.shape.first().is_none_or(|rows| row >= rows) {
                return Ok(value);
            }
            let mut rows = vec![1; ty.shape.rank()];
            rows[0] = ty.shape[0];
            let zero = Tensor::iota(DType::I64, rows, 0).eq(*row as f64);
            return Ok(zero.select(&value.zeros_like(), &value));
        }
        if !ty.dtype.is_float() {
            return Err(format!(
                "{ty} is not a floating-point type; draw as f32 and convert with to_dtype()"
            )
            .into());
        }
        let drawn = if ty.dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let spread = self.spread(&ty.shape);
        let value = match (self, spread) {
            (Init::Constant(value), _) => return Ok(Tensor::full(ty.dtype, &ty.shape, *value)),
            (Init::Uniform { low, high }, _) => {
                if !(low.is_finite() && high.is_finite() && low <= high) {
                    return Err(format!(
                        "there is no number between {low} and {high}; pass a finite low <= high"
                    )
                    .into());
                }
                uniform(key, drawn, ty, *low, *high)
            }
            (Init::Normal { mean, std }, _) => {
                if !(mean.is_finite() && std.is_finite() && *std >= 0.0) {
                    return Err(format!(
                        "mean {mean} and standard deviation {std} must be finite, and std >= 0"
                    )
                    .into());
                }
                random::normal(key, drawn, &ty.shape) * *std + *mean
            }
            (Init::TruncNormal { mean, std, a, b }, _) => {
                truncated_normal(key, drawn, ty, *mean, *std, *a, *b)
            }
            (Init::Eye, _) => return patterns::eye(ty),
            (Init::Dirac { groups }, _) => return patterns::dirac(ty, *groups),
            (Init::Sparse { sparsity, std }, _) => {
                patterns::sparse(key, drawn, ty, *sparsity, *std)?
            }
            (Init::Orthogonal { gain }, _) => orthogonal::orthogonal(key, &ty.shape)? * *gain,
            (Init::KaimingUniform { .. } | Init::XavierUniform { .. }, Some(bound)) => {
                uniform(key, drawn, ty, -bound, bound)
            }
            (_, Some(std)) => random::normal(key, drawn, &ty.shape) * std,
            (_, None) => {
                return Err(format!(
                    "{self:?} needs a weight [out, in, …] with at least 2 axes to count its inputs, {ty} has {}; use \
                     uniform or normal",
                    ty.shape.rank()
                )
                .into());
            }
        };
        Ok(value.to_dtype(ty.dtype))
    }
}

/// Like `random::uniform`, but the interval may be a single point.
fn uniform(key: &Tensor, dtype: DType, ty: &TensorType, low: f64, high: f64) -> Tensor {
    if low == high {
        return Tensor::full(dtype, &ty.shape, low);
    }
    random::uniform(key, dtype, &ty.shape, low, high)
}

fn truncated_normal(
    key: &Tensor,
    dtype: DType,
    ty: &TensorType,
    mean: f64,
    std: f64,
    a: f64,
    b: f64,
) -> Tensor {
    if !([mean, std, a, b].into_iter().all(f64::is_finite) && std > 0.0 && a < b) {
        let message = format!(
            "mean {mean}, deviation {std} and bounds {a}, {b} must be finite, std > 0 and a < b"
        );
        return Tensor::poison("init", message);
    }
    random::truncated_normal(key, dtype, &ty.shape, (a - mean) / std, (b - mean) / std) * std + mean
}

/// `fan_in` and `fan_out` of a weight `[out, in, kernel…]`.
fn fans(shape: &[usize]) -> Option<(f64, f64)> {
    let [out, inputs, kernel @ ..] = shape else { return None };
    let field: f64 = kernel.iter().map(|&k| k as f64).product();
    Some((*inputs as f64 * field, *out as f64 * field))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fans_count_the_kernel_on_both_sides() {
        assert_eq!(fans(&[16, 3, 5, 5]), Some((75.0, 400.0)));
        assert_eq!(fans(&[10]), None);
    }

    #[test]
    fn what_cannot_be_drawn_is_poisoned_with_the_reason() {
        let message = |init: Init, ty: TensorType| {
            init.tensor(&random::key(0), &ty).fault().map(|f| f.message().to_owned()).unwrap()
        };
        let vector = TensorType::new(DType::F32, [10]);
        assert!(message(Init::xavier_normal(1.0), vector.clone()).contains("at least 2 axes"));
        assert!(message(Init::uniform(1.0, 0.0), vector.clone()).contains("between 1 and 0"));
        assert!(message(Init::normal(0.0, -1.0), vector).contains("std >= 0"));
        assert!(
            message(Init::eye(), TensorType::new(DType::F32, [10])).contains("[rows, columns]")
        );
        assert!(
            message(Init::dirac(1), TensorType::new(DType::F32, [3, 3])).contains("convolution")
        );
        assert!(
            message(Init::dirac(2), TensorType::new(DType::F32, [3, 3, 3])).contains("2 groups")
        );
        assert!(
            message(Init::orthogonal(1.0), TensorType::new(DType::F32, [10]))
                .contains("at least 2 axes")
        );
        let sparse = |sparsity| Init::sparse(sparsity, 1.0);
        assert!(
            message(sparse(0.5), TensorType::new(DType::F32, [10])).contains("[rows, columns]")
        );
        assert!(
            message(sparse(1.5), TensorType::new(DType::F32, [10, 2])).contains("between 0 and 1")
        );
        assert!(
            message(Init::trunc_normal(0.0), TensorType::new(DType::F32, [10])).contains("std > 0")
        );
        assert!(
            message(Init::ones(), TensorType::new(DType::I32, [1]))
                .contains("not a floating-point type")
        );
    }
}
