//! [`Literal`]: a value in host memory.

use std::fmt;

use fulmen_pjrt::HostBuffer;

use crate::{DType, Element, Error, Result, Shape, TensorType};

/// A value in host memory: a dtype, a shape, and the elements in row-major order.
///
/// ```
/// use fulmen_tensor::Literal;
///
/// let literal = Literal::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
/// assert_eq!(literal.ty().to_string(), "f32[2, 3]");
/// assert_eq!(literal.to_vec::<f32>()?[3], 4.0);
/// assert!(literal.to_vec::<i32>().is_err());
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
pub struct Literal {
    ty: TensorType,
    data: HostBuffer,
}

impl Literal {
    /// A literal with these elements.
    ///
    /// # Errors
    /// The number of elements does not match the shape, or the host is out of memory.
    pub fn from_slice<T: Element>(elements: &[T], shape: impl Into<Shape>) -> Result<Literal> {
        Literal::from_bytes(TensorType::new(T::DTYPE, shape), &T::to_bytes(elements))
    }

    /// A literal from the little-endian bytes of its elements.
    ///
    /// # Errors
    /// The number of bytes does not match the type, or the host is out of memory.
    pub fn from_bytes(ty: TensorType, bytes: &[u8]) -> Result<Literal> {
        if !ty.is_addressable() {
            return Err(Error::usage(ty.too_large()));
        }
        if bytes.len() != ty.size_in_bytes() {
            let message =
                format!("{ty} takes {} bytes, but got {}", ty.size_in_bytes(), bytes.len());
            return Err(Error::usage(message));
        }
        let mut data = HostBuffer::zeroed(bytes.len())
            .map_err(|e| Error::runtime(format!("allocating host memory for {ty}"), e))?;
        data.copy_from_slice(bytes);
        Ok(Literal { ty, data })
    }

    /// A literal from a transfer.
    pub(crate) fn from_host_buffer(ty: TensorType, data: HostBuffer) -> Literal {
        Literal { ty, data }
    }

    /// Dtype and shape.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The bytes of the elements, little-endian.
    pub fn bytes(&self) -> &[u8] {
        &self.data[..self.ty.size_in_bytes()]
    }

    /// The elements.
    ///
    /// # Errors
    /// `T` is not the Rust type of the literal's dtype.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.ty.dtype {
            let message =
                format!("the value is {}; its elements cannot be read as {}", self.ty, T::DTYPE);
            return Err(Error::usage(message));
        }
        Ok(T::from_bytes(self.bytes()))
    }

    /// The elements of any dtype as f64. 64-bit integers may lose their last bits. A complex number
    /// becomes two values, its real and its imaginary part.
    pub fn to_f64(&self) -> Vec<f64> {
        to_f64(self.bytes(), self.ty.dtype)
    }

    /// The same numbers in another floating-point dtype, rounded if it is narrower.
    ///
    /// # Errors
    /// One of the two dtypes is not floating-point.
    pub fn to_dtype(&self, dtype: DType) -> Result<Literal> {
        if dtype == self.ty.dtype {
            return Literal::from_bytes(self.ty.clone(), self.bytes());
        }
        if !self.ty.dtype.is_float() || !dtype.is_float() {
            return Err(Error::usage(format!(
                "cannot convert {} to {dtype}: both must be floating-point",
                self.ty
            )));
        }
        let elements = convert_floats(self.bytes(), self.ty.dtype, dtype);
        Literal::from_bytes(TensorType::new(dtype, &self.ty.shape), &elements)
    }
}

/// The elements of any dtype as f64.
fn to_f64(bytes: &[u8], dtype: DType) -> Vec<f64> {
    fn read<T: Element>(bytes: &[u8], convert: impl Fn(T) -> f64) -> Vec<f64> {
        T::from_bytes(bytes).into_iter().map(convert).collect()
    }
    match dtype {
        DType::F32 => read::<f32>(bytes, f64::from),
        DType::F64 => read::<f64>(bytes, |v| v),
        DType::Bf16 => read::<half::bf16>(bytes, f64::from),
        DType::F16 => read::<half::f16>(bytes, f64::from),
        DType::I8 => read::<i8>(bytes, f64::from),
        DType::I16 => read::<i16>(bytes, f64::from),
        DType::I32 => read::<i32>(bytes, f64::from),
        DType::I64 => read::<i64>(bytes, |v| v as f64),
        DType::U8 => read::<u8>(bytes, f64::from),
        DType::U16 => read::<u16>(bytes, f64::from),
        DType::U32 => read::<u32>(bytes, f64::from),
        DType::U64 => read::<u64>(bytes, |v| v as f64),
        DType::Bool => read::<bool>(bytes, |v| f64::from(u8::from(v))),
        // Each element is two adjacent floats.
        DType::C64 => read::<f32>(bytes, f64::from),
        DType::C128 => read::<f64>(bytes, |v| v),
    }
}

/// How many elements to convert at once, so that the intermediate f64 values need little memory.
const CONVERTED_AT_ONCE: usize = 1 << 16;

/// Converts elements between floating-point dtypes.
pub(crate) fn convert_floats(bytes: &[u8], from: DType, to: DType) -> Vec<u8> {
    if from == to {
        return bytes.to_vec();
    }
    if (from, to) == (DType::Bf16, DType::F32) {
        // The upper half of an f32.
        return bytes.chunks_exact(2).flat_map(|half| [0, 0, half[0], half[1]]).collect();
    }
    let count = bytes.len() / from.size_in_bytes();
    let mut converted = Vec::with_capacity(count * to.size_in_bytes());
    for chunk in bytes.chunks(CONVERTED_AT_ONCE * from.size_in_bytes()) {
        for value in to_f64(chunk, from) {
            // From f64, `half` ignores the last bits, so ties are not what they seem.
            let single = value as f32;
            match to {
                DType::F64 => converted.extend(value.to_le_bytes()),
                DType::F32 => converted.extend(single.to_le_bytes()),
                DType::Bf16 => converted.extend(half::bf16::from_f32(single).to_le_bytes()),
                _ => converted.extend(half::f16::from_f32(single).to_le_bytes()),
            }
        }
    }
    converted
}

impl fmt::Debug for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.to_f64();
        let first_values = &values[..values.len().min(16)];
        let more = if values.len() > first_values.len() { " …" } else { "" };
        write!(f, "{} {first_values:?}{more}", self.ty)
    }
}
