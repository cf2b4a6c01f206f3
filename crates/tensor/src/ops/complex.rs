//! Complex numbers: made of two real parts, and split into them.
//!
//! Gradients follow JAX: the gradient of a real value with respect to `z = x + iy` is
//! `∂/∂x − i·∂/∂y`. The derivative of a holomorphic function is then a multiplication without a
//! conjugate.

use super::binary::operands;
use super::dtype_set::DTypeSet;
use super::unary::{composed, methods};
use crate::autocast::wide;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::{AsTensor, DType, Tensor, TensorType};

#[derive(Debug)]
struct Complex;

impl Operation for Complex {
    fn name(&self) -> &'static str {
        "complex"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let dtype = if inputs[0].dtype == DType::F64 { DType::C128 } else { DType::C64 };
        one(TensorType::new(dtype, &inputs[0].shape))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let g = cx.cotangent();
        vec![Some(g.real()), Some(-g.imag())]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("stablehlo.complex {} : {}", cx.operands(), cx.result().stablehlo())
    }
}

/// The real or the imaginary part of complex numbers.
#[derive(Debug)]
enum Part {
    Real,
    Imag,
}

impl Operation for Part {
    fn name(&self) -> &'static str {
        match self {
            Part::Real => "real",
            Part::Imag => "imag",
        }
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        one(TensorType::new(inputs[0].dtype.real(), &inputs[0].shape))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let g = cx.cotangent();
        vec![Some(match self {
            Part::Real => Tensor::complex(&g, &g.zeros_like()),
            Part::Imag => Tensor::complex(&g.zeros_like(), &-g),
        })]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("stablehlo.{} {} : {}", self.name(), cx.operand(0), cx.signature())
    }
}

/// The absolute value of real or complex numbers.
#[derive(Debug)]
struct Abs;

impl Operation for Abs {
    fn name(&self) -> &'static str {
        "abs"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        DTypeSet::SignedNumbersAndComplex.check(inputs[0].dtype)?;
        one(TensorType::new(inputs[0].dtype.real(), &inputs[0].shape))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let x = cx.input(0);
        let y = cx.output();
        let g = cx.cotangent();
        if !x.dtype().is_complex() {
            return vec![Some(g * x.sign())];
        }
        let factor = g / y.eq(0.0).select(&y.ones_like(), y);
        vec![Some(Tensor::complex(&(&factor * x.real()), &-(&factor * x.imag())))]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("stablehlo.abs {} : {}", cx.operand(0), cx.signature())
    }
}

methods! {
    /// The real part, elementwise. A real tensor is unchanged.
    real() -> Tensor, |x| if x.dtype().is_complex() { Tensor::try_apply(Part::Real, &[x]) } else { Ok(x.clone()) };

    /// The imaginary part, elementwise; zeros for a real tensor.
    imag() -> Tensor, |x| if x.dtype().is_complex() { Tensor::try_apply(Part::Imag, &[x]) } else { Ok(x.zeros_like()) };

    /// The complex conjugate, elementwise. A real tensor is unchanged.
    conj() -> Tensor, |x| Ok(if x.dtype().is_complex() { Tensor::complex(&x.real(), &-x.imag()) } else { x.clone() });

    /// `|x|`, elementwise; real for complex `x`. The derivative is `sign(x)`, or `conj(x)/|x|` for
    /// complex `x`, and 0 at 0.
    abs() -> Tensor, |x| Tensor::try_apply(Abs, &[x]);
}

impl Tensor {
    /// `re + i·im`, elementwise: c128 for f64 parts, c64 for narrower floats. The parts broadcast.
    ///
    /// ```
    /// use fulmen_tensor::{Complex, Tensor};
    /// let z = Tensor::complex(&Tensor::scalar(3.0f32), &Tensor::scalar(4.0f32));
    /// assert_eq!((&z * &z).eval()?.to_vec::<Complex<f32>>()?, [Complex::new(-7.0, 24.0)]);
    /// assert_eq!(z.abs().eval()?.to_vec::<f32>()?, [5.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn complex(re: impl AsTensor, im: impl AsTensor) -> Tensor {
        Tensor::record("complex", || {
            let (re, im) = operands("complex", DTypeSet::Floats, re.as_tensor(), im.as_tensor())?;
            // No complex dtype has 16-bit parts.
            Tensor::try_apply(Complex, &[&wide(&re), &wide(&im)])
        })
    }
}

composed! {
    /// The angle in `(−π, π]`, elementwise. For real `x` it is π below 0, else 0. The derivative
    /// is NaN at 0, as for [`Tensor::atan2`].
    angle, FloatsAndComplex, |x| x.imag().atan2(x.real());
}
