//! Discrete Fourier transforms over one to three axes.

use super::dtype_set::DTypeSet;
use super::unary::methods;
use crate::Mesh;
use crate::autocast::wide;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::scope::Refusal;
use crate::whole_axes::WholeAxes;
use crate::{AsAxes, DType, Tensor, TensorType};

/// The transform: StableHLO's `fft_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Fft,
    Ifft,
    Rfft,
    Irfft,
}

impl Kind {
    fn method(self) -> &'static str {
        match self {
            Kind::Fft => "fft",
            Kind::Ifft => "ifft",
            Kind::Rfft => "rfft",
            Kind::Irfft => "irfft",
        }
    }
}

/// A transform over the last axes. `lengths` are the sizes of these axes on the real side.
#[derive(Clone, Debug)]
pub(crate) struct Fft {
    kind: Kind,
    lengths: Vec<usize>,
    /// Whether operand and result are row-major in memory.
    is_row_major: bool,
}

impl Fft {
    fn new(kind: Kind, lengths: Vec<usize>) -> Fft {
        Fft { kind, lengths, is_row_major: false }
    }

    /// The same transform, of a row-major operand to a row-major result.
    pub(crate) fn row_major(&self) -> Fft {
        Fft { is_row_major: true, ..self.clone() }
    }
}

impl Operation for Fft {
    fn name(&self) -> &'static str {
        self.kind.method()
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let from = inputs[0];
        let mut shape = from.shape.to_vec();
        let first = shape.len() - self.lengths.len();
        let last = self.lengths.last().copied().unwrap_or(1);
        if let Some(axis) = (first..shape.len()).find(|&a| shape[a] == 0) {
            return Err(format!("{from} has no element along axis {axis}"));
        }
        let dtype = match self.kind {
            Kind::Fft | Kind::Ifft => from.dtype,
            Kind::Rfft => {
                shape[first..].copy_from_slice(&self.lengths);
                shape[first + self.lengths.len() - 1] = last / 2 + 1;
                if from.dtype == DType::F64 { DType::C128 } else { DType::C64 }
            }
            Kind::Irfft => {
                if last == 0 {
                    return Err("n must be at least 1, but it is 0".to_owned());
                }
                if *shape.last().unwrap_or(&0) != last / 2 + 1 {
                    return Err(format!(
                        "the last transformed axis of {from} must have n/2 + 1 elements, which is {} for n = {last}",
                        last / 2 + 1
                    ));
                }
                shape[first..].copy_from_slice(&self.lengths);
                from.dtype.real()
            }
        };
        one(TensorType::new(dtype, shape))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let g = cx.cotangent();
        let transform =
            |kind, x: &Tensor| Tensor::apply(Fft::new(kind, self.lengths.clone()), &[x]);
        let last = self.lengths.last().copied().unwrap_or(1);
        vec![Some(match self.kind {
            // The matrix of the transform is symmetric, so the transform is its own derivative.
            Kind::Fft | Kind::Ifft => transform(self.kind, &g),
            // The result is the first half of a full transform; the other half gets no gradient.
            Kind::Rfft => {
                let rank = g.rank();
                let mut high = vec![0; rank];
                high[rank - 1] = (last - (last / 2 + 1)) as i64;
                let whole =
                    g.pad(&Tensor::zeros(g.dtype(), []), &vec![0; rank], &high, &vec![0; rank]);
                transform(Kind::Fft, &whole).real()
            }
            // All elements count twice, for themselves and their conjugates, except the first, and
            // the last for an even size.
            Kind::Irfft => {
                let count: f64 = self.lengths.iter().map(|&n| n as f64).product();
                let half = last / 2 + 1;
                let weights: Vec<f64> = (0..half)
                    .map(|k| if k == 0 || 2 * k == last { 1.0 / count } else { 2.0 / count })
                    .collect();
                let weight = Tensor::from_slice(&weights, [half]).to_dtype(g.dtype());
                (transform(Kind::Rfft, &g) * weight).conj()
            }
        })]
    }
    /// XLA gathers the other axes too, before it transforms. It does so after [`row_major`], which
    /// then has no effect.
    fn check(&self, _: &Mesh, inputs: &[&TensorType]) -> Result<WholeAxes, String> {
        Ok(WholeAxes::of_both((0..inputs[0].shape.rank()).collect()))
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let kind = self.kind.method().to_uppercase();
        let operand = cx.operand_type(0).clone();
        let result = cx.result().clone();
        let transform = |of: &str, cx: &Lowering<'_>| {
            format!(
                "stablehlo.fft {of}, type = {kind}, length = {:?} : {}",
                self.lengths,
                cx.signature()
            )
        };
        if !self.is_row_major {
            return transform(cx.operand(0), cx);
        }
        let operand = cx.statement(row_major(cx.operand(0), &operand));
        let transformed = cx.statement(transform(&operand, cx));
        row_major(&transformed, &result)
    }
}

/// The operation that gives a value a row-major layout.
fn row_major(name: &str, ty: &TensorType) -> String {
    let rank = ty.shape.rank();
    let axes: Vec<String> = (0..rank).rev().map(|axis| axis.to_string()).collect();
    let layouts = format!("[dense<[{}]> : tensor<{rank}xindex>]", axes.join(", "));
    let ty = ty.stablehlo();
    format!(
        "stablehlo.custom_call @LayoutConstraint({name}) {{operand_layouts = {layouts}, \
         result_layouts = {layouts}}} : ({ty}) -> {ty}"
    )
}

methods! {
    /// The discrete Fourier transform over one to three different `axes`: `Σₙ xₙ exp(−2πi·kn/N)`
    /// along each (NumPy's `fft.fftn`). A real tensor is first converted to complex numbers. The
    /// shape does not change.
    ///
    /// Poisoned if an axis is empty, if there are not one to three axes, or for integers.
    ///
    /// ```
    /// use fulmen_tensor::{Complex, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 0.0], [4]);
    /// assert_eq!(x.fft(-1).eval()?.to_vec::<Complex<f32>>()?, [Complex::new(1.0, 0.0); 4]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    fft(axes: impl AsAxes) -> Tensor, |x| x.transform(Kind::Fft, axes.as_axes(), None);

    /// The inverse of [`Tensor::fft`]: `1/N·Σₖ xₖ exp(2πi·kn/N)` along each of the `axes`.
    ifft(axes: impl AsAxes) -> Tensor, |x| x.transform(Kind::Ifft, axes.as_axes(), None);

    /// [`Tensor::fft`] of a real tensor, without the half that follows by symmetry (NumPy's
    /// `fft.rfftn`). If the last of `axes` has `n` elements, the result has the first `n/2 + 1`.
    /// f64 gives c128, narrower floats give c64.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1.0f32, -2.0, 0.5, 3.0, 4.0], [5]);
    /// let back = x.rfft(0).irfft(0, 5).eval()?.to_vec::<f32>()?;
    /// assert!((back[1] + 2.0).abs() < 1e-5);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    rfft(axes: impl AsAxes) -> Tensor, |x| x.transform(Kind::Rfft, axes.as_axes(), None);

    /// The inverse of [`Tensor::rfft`]: a real tensor with `n` elements along the last of `axes`
    /// (NumPy's `fft.irfftn`). Imaginary parts that the transform of a real tensor cannot have are
    /// ignored.
    ///
    /// Poisoned if that axis does not have `n/2 + 1` elements.
    irfft(axes: impl AsAxes, n: usize) -> Tensor, |x| x.transform(Kind::Irfft, axes.as_axes(), Some(n));
}

impl Tensor {
    fn transform(&self, kind: Kind, axes: &[isize], n: Option<usize>) -> Result<Tensor, Refusal> {
        self.live()?;
        if !(1..=3).contains(&axes.len()) {
            return Err(format!("takes one to three axes, not {}: {axes:?}", axes.len()).into());
        }
        // This only checks that the axes differ; their order is kept below.
        self.shape().axes(axes)?;
        let dtypes = if kind == Kind::Rfft { DTypeSet::Floats } else { DTypeSet::FloatsAndComplex };
        dtypes.check(self.dtype())?;
        let mut x = wide(self);
        if kind != Kind::Rfft && !x.dtype().is_complex() {
            x = x.to_dtype(if x.dtype() == DType::F64 { DType::C128 } else { DType::C64 });
        }
        let transformed = self.shape().indices(axes)?;
        let mut order: Vec<usize> = (0..self.rank()).filter(|a| !transformed.contains(a)).collect();
        order.extend(&transformed);
        let in_place = order.iter().enumerate().all(|(i, &a)| i == a);
        let mut lengths: Vec<usize> = transformed.iter().map(|&a| self.shape()[a]).collect();
        if let (Some(last), Some(n)) = (lengths.last_mut(), n) {
            *last = n;
        }
        if in_place {
            return Tensor::try_apply(Fft::new(kind, lengths), &[&x]);
        }
        let mut inverse = vec![0; order.len()];
        for (position, &axis) in order.iter().enumerate() {
            inverse[axis] = position;
        }
        Ok(Tensor::try_apply(Fft::new(kind, lengths), &[&x.permute_axes(order)])?
            .permute_axes(inverse))
    }
}
