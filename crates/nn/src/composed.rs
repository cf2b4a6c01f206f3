//! What a weight can have besides its own values: scales, if these are int8, and a low-rank update.
//! A [`Parameter`] holds both; the layers read them here.

use fulmen_tensor::{DType, Literal, Tensor, TensorType};

use crate::precision::precision;
use crate::{Error, Init, Parameter, Result};

/// The largest int8 value of a quantized weight; −128 is not used.
const LARGEST: f32 = 127.0;

/// The scales of an int8 weight.
#[derive(Clone)]
pub(crate) struct Int8 {
    /// One factor for each row, `[out]`.
    pub(crate) scale: Parameter,
    /// The dtype that the weight had.
    pub(crate) dtype: DType,
}

/// A low-rank update of a weight: `scale·B·A`, or its transpose for a weight `[in, out]`.
#[doc(hidden)] // for `Lora`
#[derive(Clone, Debug)]
pub struct LowRank {
    /// `[rank, in]`.
    pub a: Parameter,
    /// `[out, rank]`.
    pub b: Parameter,
    /// The factor of the product.
    pub scale: f64,
    /// Whether the weight is `[in, out]`.
    pub transposed: bool,
}

impl LowRank {
    /// The weight with its update, in the weight's dtype.
    fn added_to(&self, weight: &Tensor) -> Tensor {
        let product = self.b.get().matmul(self.a.get()) * self.scale;
        let update = if self.transposed { product.t() } else { product };
        weight + update.to_dtype(weight.dtype())
    }

    /// What the update adds to `x·Wᵀ`, without the product of the two matrices.
    fn project(&self, x: &Tensor) -> Tensor {
        let inner =
            if self.transposed { x.matmul(self.b.get()) } else { x.matmul(self.a.get().t()) };
        let outer = if self.transposed { self.a.get() } else { self.b.get().t() };
        inner.matmul(outer) * self.scale
    }
}

/// The product `x·Qᵀ` with integers `[out, in]`, times a scale for each of the outputs.
pub(crate) fn scaled_product(x: &Tensor, integers: &Tensor, scales: &Tensor) -> Tensor {
    // bf16 has all int8 values, but not the scales.
    let product = x.matmul(&integers.to_dtype(x.dtype()).t());
    let wide = precision(product.dtype());
    (product.to_dtype(wide) * scales.to_dtype(wide)).to_dtype(product.dtype())
}

impl Parameter {
    /// The product `x·Wᵀ` with a weight `[out, in]`. Scales of int8 values multiply the product, and
    /// a low-rank update is a product of its own, so that no matrix of the weight's size is made.
    pub(crate) fn project(&self, x: &Tensor) -> Tensor {
        let stored = self.stored();
        let product = match self.int8() {
            None => x.matmul(&stored.t()),
            Some(Int8 { scale, .. }) => scaled_product(x, &stored, &scale.get()),
        };
        match self.low_rank() {
            None => product,
            Some(update) => &product + update.project(x).to_dtype(product.dtype()),
        }
    }

    /// The rows with these indices.
    pub(crate) fn rows(&self, indices: &Tensor) -> Tensor {
        match (self.int8(), self.low_rank()) {
            (Some(Int8 { scale, dtype }), None) => {
                let scales = scale.get().take(0, indices).unsqueeze(-1);
                let rows = self.stored().take(0, indices);
                (rows.to_dtype(scales.dtype()) * scales).to_dtype(dtype)
            }
            _ => self.get().take(0, indices),
        }
    }

    /// The value of the weight that these parts make of the stored values.
    pub(crate) fn composed(&self, stored: Tensor) -> Tensor {
        let weight = match self.int8() {
            None => stored,
            Some(Int8 { scale, dtype }) => {
                let scale = scale.get().unsqueeze(-1);
                (stored.to_dtype(scale.dtype()) * scale).to_dtype(dtype)
            }
        };
        match self.low_rank() {
            None => weight,
            Some(update) => update.added_to(&weight),
        }
    }

    /// The parameters besides this one that make its value, with a name for each.
    pub(crate) fn parts(&self) -> Vec<(&'static str, Parameter)> {
        let int8 = self.int8().map(|int8| ("scale", int8.scale));
        let update = self.low_rank();
        let update =
            update.into_iter().flat_map(|update| [("lora_A", update.a), ("lora_B", update.b)]);
        int8.into_iter().chain(update).collect()
    }

    /// Stores a matrix `[out, in]` as int8 with an f32 scale for each row: `scale = max|w|/127`, and
    /// `w/scale` is rounded to the nearest integer, halves to even. The value is then `scale·integer`,
    /// in the dtype that the parameter had. Returns the scales `[out]`, a frozen parameter. The parameter is
    /// frozen too.
    ///
    /// A value on the host is converted there. Without a value, only the type changes.
    ///
    /// # Errors
    /// The parameter is not a matrix of floating-point numbers; a value is infinite or NaN.
    #[doc(hidden)] // for `Lora`
    #[track_caller]
    pub fn quantize_int8(&self) -> Result<Parameter> {
        let location = std::panic::Location::caller();
        let ty = self.ty();
        let [rows, columns] = ty.shape[..] else {
            let message = format!("cannot store {ty} as int8, expected a matrix");
            return Err(Error::usage_at(message, location));
        };
        if !ty.dtype.is_float() {
            let message = format!("cannot store {ty} as int8, expected floating-point numbers");
            return Err(Error::usage_at(message, location));
        }
        let scale = Parameter::new([rows], Init::constant(1.0));
        let mut value = None;
        if self.is_set() {
            let values = self.stored().to_dtype_on_host(DType::F32).eval()?.to_vec::<f32>()?;
            let Some(Quantized { integers, scales }) = quantize(&values, columns) else {
                let message = format!("cannot store {ty} as int8: it has an infinity or NaN");
                return Err(Error::usage_at(message, location));
            };
            scale.set(Literal::from_slice(&scales, [rows])?.to_tensor());
            value = Some(Literal::from_slice(&integers, [rows, columns])?.to_tensor());
        }
        if let Some(axes) = self.axes() {
            scale.with_axes(axes.first().map(Option::as_deref));
        }
        scale.set_requires_grad(false);
        self.set_requires_grad(false);
        let int8 = Int8 { scale: scale.clone(), dtype: ty.dtype };
        self.set_int8(TensorType::new(DType::I8, &ty.shape), value, Some(int8));
        Ok(scale)
    }

    /// Stores an int8 weight in the dtype that it had, with its present value: the inverse of
    /// [`quantize_int8`](Parameter::quantize_int8), except for rounding.
    #[doc(hidden)] // for `Lora`
    #[track_caller]
    pub fn dequantize(&self) {
        let Some(Int8 { dtype, .. }) = self.int8() else { return };
        let value = self.is_set().then(|| self.get());
        self.set_int8(TensorType::new(dtype, self.ty().shape), value, None);
    }
}

/// A quantized matrix, row after row, and a scale for each row.
struct Quantized {
    integers: Vec<i8>,
    scales: Vec<f32>,
}

/// Quantizes the rows of a matrix; `None` if it has an infinity or NaN.
fn quantize(values: &[f32], columns: usize) -> Option<Quantized> {
    let mut quantized =
        Quantized { integers: Vec::with_capacity(values.len()), scales: Vec::new() };
    for row in values.chunks_exact(columns.max(1)) {
        if !row.iter().all(|value| value.is_finite()) {
            return None;
        }
        let largest = row.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        let scale = largest / LARGEST;
        // Also if the largest value is so small that its scale would be 0.
        let scale = if scale > 0.0 { scale } else { 1.0 };
        let integer =
            |value: &f32| (value / scale).round_ties_even().clamp(-LARGEST, LARGEST) as i8;
        quantized.integers.extend(row.iter().map(integer));
        quantized.scales.push(scale);
    }
    Some(quantized)
}
