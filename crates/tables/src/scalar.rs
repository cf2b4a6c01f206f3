//! A value of a row, and its conversion to a dtype or a Rust type. The rules are the same for all
//! kinds of tables.
//!
//! Out of scope: where the value comes from (`arrow_scalar`).

use arrow_array::Array;
use fulmen_data::internal::quantity;
use fulmen_tensor::DType;
use half::{bf16, f16};

/// A value that borrows from its row.
#[derive(Clone, Copy)]
pub enum ScalarRef<'a> {
    /// A missing value.
    Missing,
    Bool(bool),
    Int(i64),
    Unsigned(u64),
    Float(f64),
    /// Text, which may be a number, because CSV has no types.
    Text(&'a str),
    Bytes(&'a [u8]),
    /// The elements `start..end` of an array.
    List(&'a dyn Array, usize, usize),
    /// The description of an unsupported value, such as a struct.
    Other(&'a str),
}

/// Why a value cannot be converted.
#[derive(Debug)]
pub enum Mismatch {
    Missing,
    /// The actual and the expected value.
    Kind(String, String),
}

impl Mismatch {
    pub(crate) fn kind(cell: &ScalarRef<'_>, expected: impl Into<String>) -> Mismatch {
        match cell {
            ScalarRef::Missing => Mismatch::Missing,
            _ => Mismatch::Kind(cell.describe(), expected.into()),
        }
    }

    /// The message after the column's name.
    pub(crate) fn message(&self) -> String {
        match self {
            Mismatch::Missing => {
                "has a missing value (null or NaN) here; fill it with `.fill(..)`, read it as an Option, or leave the \
                 row out"
                    .to_owned()
            }
            Mismatch::Kind(actual, expected) => format!("holds {actual}, expected {expected}"),
        }
    }
}

/// Truncates text that is too long for a message, with an ellipsis.
pub(crate) fn shorten(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("`{}…`", &text[..end]),
        None => format!("`{text}`"),
    }
}

impl ScalarRef<'_> {
    /// A number of a file. NaN is a missing value, as in pandas.
    #[inline]
    pub(crate) fn from_float(value: f64) -> Self {
        if value.is_nan() { ScalarRef::Missing } else { ScalarRef::Float(value) }
    }

    /// A description for messages.
    pub(crate) fn describe(&self) -> String {
        match self {
            ScalarRef::Missing => "no value".to_owned(),
            ScalarRef::Bool(value) => format!("the truth value {value}"),
            ScalarRef::Int(value) => format!("the integer {value}"),
            ScalarRef::Unsigned(value) => format!("the integer {value}"),
            ScalarRef::Float(value) => format!("the number {value}"),
            ScalarRef::Text(text) => format!("the text {}", shorten(text)),
            ScalarRef::Bytes(bytes) => quantity(bytes.len(), "byte"),
            ScalarRef::List(_, start, end) => {
                format!("a list of {}", quantity(end - start, "element"))
            }
            ScalarRef::Other(description) => (*description).to_owned(),
        }
    }

    /// Reads the value as a float. Floats, integers and booleans are accepted, and text that
    /// contains one of them.
    #[inline]
    pub(crate) fn float(&self, dtype: &str) -> Result<f64, Mismatch> {
        match *self {
            ScalarRef::Float(value) => Ok(value),
            ScalarRef::Int(value) => Ok(value as f64),
            ScalarRef::Unsigned(value) => Ok(value as f64),
            ScalarRef::Bool(value) => Ok(f64::from(u8::from(value))),
            ScalarRef::Text(text) => match (text.trim().parse::<f64>(), truth(text)) {
                (Ok(value), _) if value.is_nan() => Err(Mismatch::Missing),
                // `inf` is infinite, but `1e400` is a number.
                (Ok(value), _)
                    if value.is_infinite()
                        && text.contains(|letter: char| letter.is_ascii_digit()) =>
                {
                    Err(Mismatch::kind(self, "a number that fits in f64"))
                }
                (Ok(value), _) => Ok(value),
                (Err(_), Some(value)) => Ok(f64::from(u8::from(value))),
                _ => Err(Mismatch::kind(self, format!("a number for {dtype}"))),
            },
            _ => Err(Mismatch::kind(self, format!("a number for {dtype}"))),
        }
    }

    /// Reads the value as a float of fewer bits. A finite number stays finite.
    #[inline]
    fn narrow_float<T: Copy + Into<f64>>(
        &self,
        dtype: &str,
        narrow: impl FnOnce(f64) -> T,
    ) -> Result<T, Mismatch> {
        let value = self.float(dtype)?;
        let narrowed = narrow(value);
        if value.is_finite() && !narrowed.into().is_finite() {
            return Err(Mismatch::kind(self, format!("a number that fits in {dtype}")));
        }
        Ok(narrowed)
    }

    /// Reads the value as an integer. Integers and booleans are accepted, and text that contains
    /// one of them or an integer written like `3.0`.
    #[inline]
    pub(crate) fn integer(&self, dtype: &str) -> Result<i128, Mismatch> {
        match *self {
            ScalarRef::Int(value) => Ok(i128::from(value)),
            ScalarRef::Unsigned(value) => Ok(i128::from(value)),
            ScalarRef::Bool(value) => Ok(i128::from(value)),
            ScalarRef::Text(text) => {
                let trimmed = text.trim();
                if let Ok(value) = trimmed.parse::<i64>() {
                    return Ok(i128::from(value));
                }
                if let Ok(value) = trimmed.parse::<u64>() {
                    return Ok(i128::from(value));
                }
                // A writer may have converted a column of integers with missing values to floats.
                match (trimmed.parse::<f64>(), truth(text)) {
                    (Ok(value), _)
                        if value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0 =>
                    {
                        Ok(value as i128)
                    }
                    (Err(_), Some(value)) => Ok(i128::from(value)),
                    (Ok(value), _) if value.is_nan() => Err(Mismatch::Missing),
                    _ => Err(Mismatch::kind(self, format!("an integer for {dtype}"))),
                }
            }
            _ => Err(Mismatch::kind(self, format!("an integer for {dtype}"))),
        }
    }

    /// Reads the value as a boolean. Booleans and the integers 0 and 1 are accepted, and text that
    /// contains one of them.
    #[inline]
    pub(crate) fn bool(&self) -> Result<bool, Mismatch> {
        match *self {
            ScalarRef::Bool(value) => Ok(value),
            ScalarRef::Int(0) | ScalarRef::Unsigned(0) => Ok(false),
            ScalarRef::Int(1) | ScalarRef::Unsigned(1) => Ok(true),
            ScalarRef::Text(text) => match (truth(text), text.trim()) {
                (Some(value), _) => Ok(value),
                (None, "0" | "0.0") => Ok(false),
                (None, "1" | "1.0") => Ok(true),
                _ => Err(Mismatch::kind(self, "true or false")),
            },
            _ => Err(Mismatch::kind(self, "true or false")),
        }
    }

    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, ScalarRef::Missing)
    }

    /// Whether the value is missing when it is read as a number. A text may be `nan`, if that is
    /// not a marker of missing values.
    #[inline]
    fn is_missing_number(&self) -> bool {
        match self {
            ScalarRef::Missing => true,
            ScalarRef::Text(text) => {
                let text = text.trim();
                text.strip_prefix(['+', '-']).unwrap_or(text).eq_ignore_ascii_case("nan")
            }
            _ => false,
        }
    }
}

fn truth(text: &str) -> Option<bool> {
    match text.trim() {
        "true" | "True" | "TRUE" => Some(true),
        "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

/// Converts to a narrower integer type, or returns a mismatch.
#[inline]
fn narrow<T: TryFrom<i128>>(cell: &ScalarRef<'_>, dtype: &str) -> Result<T, Mismatch> {
    let value = cell.integer(dtype)?;
    T::try_from(value).map_err(|_| {
        Mismatch::Kind(format!("the integer {value}"), format!("one that fits in {dtype}"))
    })
}

/// Writes consecutive scalars as elements of `dtype`. Their number must match the size of `out`;
/// `fill` replaces missing values.
pub(crate) fn store<'a>(
    cells: impl Iterator<Item = ScalarRef<'a>>,
    dtype: DType,
    fill: Option<f64>,
    out: &mut [u8],
) -> Result<(), Mismatch> {
    let cells = cells.map(|cell| match fill.filter(|_| cell.is_missing_number()) {
        Some(fill) if dtype.is_float() => ScalarRef::Float(fill),
        Some(fill) => ScalarRef::Int(fill as i64),
        None => cell,
    });
    macro_rules! each {
        ($type:ty, $cell:ident => $value:expr) => {
            for (cell, slot) in cells.zip(out.chunks_exact_mut(size_of::<$type>())) {
                let $cell = &cell;
                let value: $type = $value;
                slot.copy_from_slice(bytemuck::bytes_of(&value));
            }
        };
    }
    match dtype {
        DType::F32 => each!(f32, cell => cell.narrow_float("f32", |value| value as f32)?),
        DType::F64 => each!(f64, cell => cell.float("f64")?),
        DType::F16 => each!(f16, cell => cell.narrow_float("f16", f16::from_f64)?),
        DType::Bf16 => each!(bf16, cell => cell.narrow_float("bf16", bf16::from_f64)?),
        DType::I8 => each!(i8, cell => narrow(cell, "i8")?),
        DType::I16 => each!(i16, cell => narrow(cell, "i16")?),
        DType::I32 => each!(i32, cell => narrow(cell, "i32")?),
        DType::I64 => each!(i64, cell => narrow(cell, "i64")?),
        DType::U8 => each!(u8, cell => narrow(cell, "u8")?),
        DType::U16 => each!(u16, cell => narrow(cell, "u16")?),
        DType::U32 => each!(u32, cell => narrow(cell, "u32")?),
        DType::U64 => each!(u64, cell => narrow(cell, "u64")?),
        DType::Bool => each!(u8, cell => u8::from(cell.bool()?)),
        DType::C64 | DType::C128 => {
            return Err(Mismatch::Kind(
                "real values".to_owned(),
                format!("complex ones for {dtype}"),
            ));
        }
    }
    Ok(())
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type for values of a row: numbers, `bool`, `String`, bytes as `Vec<u8>`, lists of numbers
/// or texts as `Vec<T>`, and an `Option` of any of them for values that may be missing.
///
/// Numbers must be in range: an integer must fit, and a finite number must stay finite. Integers and
/// booleans can be read as floats, but floats not as integers. Text can be read as the number or
/// boolean that it contains. NaN is a missing value, as in pandas.
pub trait Value: sealed::Sealed + Sized {
    #[doc(hidden)]
    fn from_cell(cell: ScalarRef<'_>) -> Result<Self, Mismatch>;

    /// Creates a value from bytes, if the type supports it.
    #[doc(hidden)]
    fn from_bytes(_bytes: &[u8]) -> Option<Vec<Self>> {
        None
    }
}

macro_rules! values {
    ($($type:ty: $cell:ident => $value:expr;)*) => {$(
        impl sealed::Sealed for $type {}
        impl Value for $type {
            fn from_cell(cell: ScalarRef<'_>) -> Result<Self, Mismatch> {
                let $cell = &cell;
                $value
            }
        }
    )*};
}

values! {
    f32: cell => cell.narrow_float("f32", |value| value as f32);
    f64: cell => cell.float("f64");
    i8: cell => narrow(cell, "i8");
    i16: cell => narrow(cell, "i16");
    i32: cell => narrow(cell, "i32");
    i64: cell => narrow(cell, "i64");
    u16: cell => narrow(cell, "u16");
    u32: cell => narrow(cell, "u32");
    u64: cell => narrow(cell, "u64");
    usize: cell => narrow(cell, "usize");
    bool: cell => cell.bool();
    String: cell => text(cell).map(str::to_owned);
}

impl sealed::Sealed for u8 {}
impl Value for u8 {
    fn from_cell(cell: ScalarRef<'_>) -> Result<u8, Mismatch> {
        narrow(&cell, "u8")
    }

    fn from_bytes(bytes: &[u8]) -> Option<Vec<u8>> {
        Some(bytes.to_vec())
    }
}

impl<T: Value> sealed::Sealed for Option<T> {}
impl<T: Value> Value for Option<T> {
    fn from_cell(cell: ScalarRef<'_>) -> Result<Option<T>, Mismatch> {
        match T::from_cell(cell) {
            _ if cell.is_missing() => Ok(None),
            // A text that is NaN as a number.
            Err(Mismatch::Missing) if matches!(cell, ScalarRef::Text(_)) => Ok(None),
            value => value.map(Some),
        }
    }
}

impl<T: Value> sealed::Sealed for Vec<T> {}
impl<T: Value> Value for Vec<T> {
    fn from_cell(cell: ScalarRef<'_>) -> Result<Vec<T>, Mismatch> {
        match cell {
            ScalarRef::List(values, start, end) => (start..end)
                .map(|row| T::from_cell(super::arrow_scalar::cell(values, row)))
                .collect(),
            ScalarRef::Bytes(bytes) => T::from_bytes(bytes)
                .ok_or_else(|| Mismatch::kind(&cell, "a list (bytes are a Vec<u8>)")),
            cell => Err(Mismatch::kind(&cell, "a list")),
        }
    }
}

pub(crate) fn text<'a>(cell: &ScalarRef<'a>) -> Result<&'a str, Mismatch> {
    match *cell {
        ScalarRef::Text(text) => Ok(text),
        _ => Err(Mismatch::kind(cell, "text")),
    }
}

/// Reads the value as bytes. Binary values and text are accepted.
pub(crate) fn bytes<'a>(cell: &ScalarRef<'a>) -> Result<&'a [u8], Mismatch> {
    match *cell {
        ScalarRef::Bytes(bytes) => Ok(bytes),
        ScalarRef::Text(text) => Ok(text.as_bytes()),
        _ => Err(Mismatch::kind(cell, "bytes")),
    }
}
