//! Reads a value from an Arrow array, and determines the kind of the values of a column.
//!
//! Out of scope: the arrays (`block_reader`), and rows (`row`).

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Date64Type, Decimal128Type, DurationMicrosecondType, DurationMillisecondType,
    DurationNanosecondType, DurationSecondType, Float16Type, Float32Type, Float64Type, Int8Type,
    Int16Type, Int32Type, Int64Type, Time32MillisecondType, Time32SecondType,
    Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrowPrimitiveType};
use arrow_schema::{DataType, TimeUnit};
use fulmen_tensor::DType;

use super::column::Kind;
use super::scalar::{Mismatch, ScalarRef, store};

/// The value of an array at `row`, which must exist.
pub(crate) fn cell(array: &dyn Array, row: usize) -> ScalarRef<'_> {
    if array.is_null(row) {
        return ScalarRef::Missing;
    }
    macro_rules! number {
        ($type:ty, $cell:ident) => {
            ScalarRef::$cell(array.as_primitive::<$type>().value(row).into())
        };
    }
    match array.data_type() {
        DataType::Null => ScalarRef::Missing,
        DataType::Boolean => ScalarRef::Bool(array.as_boolean().value(row)),
        DataType::Int8 => number!(Int8Type, Int),
        DataType::Int16 => number!(Int16Type, Int),
        DataType::Int32 => number!(Int32Type, Int),
        DataType::Int64 => number!(Int64Type, Int),
        DataType::UInt8 => number!(UInt8Type, Unsigned),
        DataType::UInt16 => number!(UInt16Type, Unsigned),
        DataType::UInt32 => number!(UInt32Type, Unsigned),
        DataType::UInt64 => number!(UInt64Type, Unsigned),
        DataType::Float16 => {
            ScalarRef::from_float(array.as_primitive::<Float16Type>().value(row).to_f64())
        }
        DataType::Float32 => {
            ScalarRef::from_float(array.as_primitive::<Float32Type>().value(row).into())
        }
        DataType::Float64 => ScalarRef::from_float(array.as_primitive::<Float64Type>().value(row)),
        DataType::Decimal128(_, scale) => ScalarRef::Float(
            array.as_primitive::<Decimal128Type>().value(row) as f64
                / 10f64.powi(i32::from(*scale)),
        ),
        DataType::Date32 => number!(Date32Type, Int),
        DataType::Date64 => number!(Date64Type, Int),
        DataType::Time32(TimeUnit::Second) => number!(Time32SecondType, Int),
        DataType::Time32(_) => number!(Time32MillisecondType, Int),
        DataType::Time64(TimeUnit::Microsecond) => number!(Time64MicrosecondType, Int),
        DataType::Time64(_) => number!(Time64NanosecondType, Int),
        DataType::Timestamp(TimeUnit::Second, _) => number!(TimestampSecondType, Int),
        DataType::Timestamp(TimeUnit::Millisecond, _) => number!(TimestampMillisecondType, Int),
        DataType::Timestamp(TimeUnit::Microsecond, _) => number!(TimestampMicrosecondType, Int),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => number!(TimestampNanosecondType, Int),
        DataType::Duration(TimeUnit::Second) => number!(DurationSecondType, Int),
        DataType::Duration(TimeUnit::Millisecond) => number!(DurationMillisecondType, Int),
        DataType::Duration(TimeUnit::Microsecond) => number!(DurationMicrosecondType, Int),
        DataType::Duration(TimeUnit::Nanosecond) => number!(DurationNanosecondType, Int),
        DataType::Utf8 => ScalarRef::Text(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => ScalarRef::Text(array.as_string::<i64>().value(row)),
        DataType::Utf8View => ScalarRef::Text(array.as_string_view().value(row)),
        DataType::Binary => ScalarRef::Bytes(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => ScalarRef::Bytes(array.as_binary::<i64>().value(row)),
        DataType::BinaryView => ScalarRef::Bytes(array.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => ScalarRef::Bytes(array.as_fixed_size_binary().value(row)),
        DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) => {
            match children(array, row, row + 1) {
                Some((values, start, end)) => ScalarRef::List(values, start, end),
                None => ScalarRef::Missing,
            }
        }
        DataType::Dictionary(..) => dictionary(array, row),
        DataType::Struct(_) => {
            ScalarRef::Other("a struct (select one of its parts as `column.part`)")
        }
        _ => ScalarRef::Other("a value of a type that is not supported"),
    }
}

/// A dictionary-encoded value, such as a pandas category.
fn dictionary(array: &dyn Array, row: usize) -> ScalarRef<'_> {
    let dictionary = array.as_any_dictionary();
    let key = match cell(dictionary.keys(), row) {
        ScalarRef::Int(key) => usize::try_from(key).ok(),
        ScalarRef::Unsigned(key) => usize::try_from(key).ok(),
        _ => None,
    };
    match key {
        Some(key) if key < dictionary.values().len() => cell(dictionary.values().as_ref(), key),
        _ => ScalarRef::Missing,
    }
}

/// The elements of the lists `start..end` of an array of lists; they are consecutive.
fn children(array: &dyn Array, start: usize, end: usize) -> Option<(&dyn Array, usize, usize)> {
    match array.data_type() {
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            let offsets = list.value_offsets();
            Some((list.values().as_ref(), offsets[start] as usize, offsets[end] as usize))
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            let offsets = list.value_offsets();
            Some((list.values().as_ref(), offsets[start] as usize, offsets[end] as usize))
        }
        DataType::FixedSizeList(_, size) => {
            let size = *size as usize;
            Some((array.as_fixed_size_list().values().as_ref(), start * size, end * size))
        }
        _ => None,
    }
}

/// Writes the elements `start..end` of an array as a field of this shape, flattening nested lists.
pub(crate) fn store_list(
    mut values: &dyn Array,
    mut start: usize,
    mut end: usize,
    dtype: DType,
    shape: &[usize],
    fill: Option<f64>,
    out: &mut [u8],
) -> Result<(), Mismatch> {
    let mut sizes = vec![end - start];
    while let Some((children, first, last)) = children(values, start, end) {
        let lists = end - start;
        if (start..end).any(|list| values.is_null(list)) {
            return Err(Mismatch::Missing);
        }
        let size = (last - first).checked_div(lists).unwrap_or(0);
        let ragged = (start..end).any(|list| {
            self::children(values, list, list + 1)
                .is_some_and(|(_, first, last)| last - first != size)
        });
        if ragged {
            return Err(Mismatch::Kind(
                "lists of different lengths".to_owned(),
                format!("the shape {shape:?}"),
            ));
        }
        sizes.push(size);
        (values, start, end) = (children, first, last);
    }
    // A shape with a different number of axes takes the elements in their order.
    let shape_matches = if sizes.len() == shape.len() {
        sizes == shape
    } else {
        shape.iter().product::<usize>() == end - start
    };
    if !shape_matches {
        let actual = if let [length] = sizes[..] {
            format!("a list of {length} elements")
        } else {
            format!("lists of the shape {sizes:?}")
        };
        return Err(Mismatch::Kind(actual, format!("the shape {shape:?}")));
    }
    store_range(values, start, end, dtype, fill, out)
}

/// Like [`store_list`], for values that are not lists.
fn store_range(
    values: &dyn Array,
    start: usize,
    end: usize,
    dtype: DType,
    fill: Option<f64>,
    out: &mut [u8],
) -> Result<(), Mismatch> {
    fn native<T: ArrowPrimitiveType>(values: &dyn Array, start: usize, end: usize) -> &[T::Native] {
        &values.as_primitive::<T>().values()[start..end]
    }
    macro_rules! numbers {
        ($type:ty, $native:ty, $cell:ident, $same:ident) => {{
            let numbers = native::<$type>(values, start, end);
            if dtype == DType::$same {
                let bytes: &[u8] = bytemuck::cast_slice(numbers);
                out.copy_from_slice(bytes);
                return Ok(());
            }
            store(numbers.iter().map(|&value| ScalarRef::$cell(value.into())), dtype, fill, out)
        }};
    }
    let has_nan = match values.data_type() {
        DataType::Float32 => {
            native::<Float32Type>(values, start, end).iter().any(|value| value.is_nan())
        }
        DataType::Float64 => {
            native::<Float64Type>(values, start, end).iter().any(|value| value.is_nan())
        }
        _ => false,
    };
    if values.null_count() > 0 || has_nan {
        return store((start..end).map(|row| cell(values, row)), dtype, fill, out);
    }
    match values.data_type() {
        DataType::Int8 => numbers!(Int8Type, i8, Int, I8),
        DataType::Int16 => numbers!(Int16Type, i16, Int, I16),
        DataType::Int32 => numbers!(Int32Type, i32, Int, I32),
        DataType::Int64 => numbers!(Int64Type, i64, Int, I64),
        DataType::UInt8 => numbers!(UInt8Type, u8, Unsigned, U8),
        DataType::UInt16 => numbers!(UInt16Type, u16, Unsigned, U16),
        DataType::UInt32 => numbers!(UInt32Type, u32, Unsigned, U32),
        DataType::UInt64 => numbers!(UInt64Type, u64, Unsigned, U64),
        DataType::Float32 => numbers!(Float32Type, f32, Float, F32),
        DataType::Float64 => numbers!(Float64Type, f64, Float, F64),
        _ => store((start..end).map(|row| cell(values, row)), dtype, fill, out),
    }
}

/// The kind of values of a type.
pub(crate) fn kind(data_type: &DataType) -> Kind {
    match data_type {
        DataType::Null => Kind::Nothing,
        DataType::Boolean => Kind::Bool,
        DataType::Float16 | DataType::Float32 | DataType::Float64 | DataType::Decimal128(..) => {
            Kind::Float
        }
        DataType::Date32
        | DataType::Date64
        | DataType::Time32(_)
        | DataType::Time64(_)
        | DataType::Timestamp(..)
        | DataType::Duration(_) => Kind::Integer,
        integer if integer.is_integer() => Kind::Integer,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Kind::Text,
        DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => Kind::Bytes,
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => {
            Kind::List(Box::new(kind(field.data_type())))
        }
        DataType::Dictionary(_, values) => kind(values),
        _ => Kind::Other,
    }
}

/// The usual name of a type: `float64`, `list<int32>`, `struct<bytes: binary, path: string>`.
pub(crate) fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Boolean => "bool".to_owned(),
        DataType::Utf8 => "string".to_owned(),
        DataType::LargeUtf8 => "large_string".to_owned(),
        DataType::List(field) => format!("list<{}>", type_name(field.data_type())),
        DataType::LargeList(field) => format!("large_list<{}>", type_name(field.data_type())),
        DataType::FixedSizeList(field, size) => {
            format!("list<{}>[{size}]", type_name(field.data_type()))
        }
        DataType::Struct(fields) => {
            let fields = fields
                .iter()
                .map(|field| format!("{}: {}", field.name(), type_name(field.data_type())));
            format!("struct<{}>", fields.collect::<Vec<_>>().join(", "))
        }
        DataType::Dictionary(_, values) => format!("dictionary<{}>", type_name(values)),
        other => {
            // `Float32` is called `float32` everywhere else. Types with parameters keep Arrow's
            // notation.
            let name = other.to_string();
            if name.contains('(') { name } else { name.to_lowercase() }
        }
    }
}
