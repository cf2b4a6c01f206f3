//! Prints values as NumPy does: rows and columns, aligned, with the digits of the dtype.

use std::fmt;

use half::{bf16, f16};

use crate::{DType, Element, Literal, Tensor};

/// Arrays with more elements are abbreviated to the first and last [`EDGE`] along each axis.
const MAX_ELEMENTS: usize = 1000;
const EDGE: usize = 3;
/// The longest line, and the most digits after the point.
const LINE_WIDTH: usize = 75;
const PRECISION: usize = 8;

/// Prints the elements as NumPy's `print` does: at most 1,000 of them, with `...` for what is left
/// out. The last line has dtype and shape. A scalar prints as a number only.
///
/// ```
/// use fulmen_tensor::Literal;
///
/// let literal = Literal::from_slice(&[1.0f32, -0.5, 2.25, 100.0], [2, 2])?;
/// assert_eq!(literal.to_string(), "[[  1.    -0.5 ]\n [  2.25 100.  ]]\nf32[2, 2]");
/// assert_eq!(Literal::from_slice(&[0.1f32], [])?.to_string(), "0.1");
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&elements(self))?;
        if self.ty().shape.rank() > 0 {
            write!(f, "\n{}", self.ty())?;
        }
        Ok(())
    }
}

/// Computes the tensor with [`Tensor::eval`], and prints its elements as [`Literal`] does. The last
/// line also names the platform that computed it. A tensor without a value, such as an input of a
/// step that is being recorded, prints the reason.
///
/// ```
/// use fulmen_tensor::Tensor;
///
/// let a = Tensor::from_slice(&[1i32, 2, 3, 4, 5, 6], [2, 3]);
/// assert_eq!((&a * 10.0).to_string(), "[[10 20 30]\n [40 50 60]]\ni32[2, 3] on cpu");
/// assert_eq!(a.sum_all().to_string(), "21");
/// ```
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.eval() {
            Ok(value) => {
                write!(f, "{value}")?;
                match crate::Runtime::global() {
                    Ok(runtime) if value.ty().shape.rank() > 0 => {
                        write!(f, " on {}", runtime.client().platform_name())
                    }
                    _ => Ok(()),
                }
            }
            Err(error) => write!(f, "Tensor({}, without a value: {error})", self.ty()),
        }
    }
}

/// The text of the elements, in brackets.
fn elements(literal: &Literal) -> String {
    let dims = literal.ty().shape.dims();
    if dims.is_empty() {
        return scalar(literal);
    }
    if dims.contains(&0) {
        return "[]".to_owned();
    }
    let count: usize = dims.iter().product();
    let shown = Shown { dims, is_abbreviated: count > MAX_ELEMENTS };
    let mut indices = Vec::new();
    shown.collect(0, 0, &mut indices);
    let mut words = texts(literal, &indices).into_iter();
    let mut text = String::new();
    shown.write(0, LINE_WIDTH, &mut words, &mut text);
    text
}

/// The elements of an array that are printed.
struct Shown<'a> {
    dims: &'a [usize],
    is_abbreviated: bool,
}

impl Shown<'_> {
    /// The positions along an axis that are printed, and how many of them come before the dots.
    fn positions(&self, axis: usize) -> (Vec<usize>, Option<usize>) {
        let length = self.dims[axis];
        if !self.is_abbreviated || length <= 2 * EDGE {
            return ((0..length).collect(), None);
        }
        ((0..EDGE).chain(length - EDGE..length).collect(), Some(EDGE))
    }

    /// The indices of the elements in row-major order.
    fn collect(&self, axis: usize, start: usize, indices: &mut Vec<usize>) {
        if axis == self.dims.len() {
            indices.push(start);
            return;
        }
        for position in self.positions(axis).0 {
            self.collect(axis + 1, start * self.dims[axis] + position, indices);
        }
    }

    /// Writes the rest of the axes in brackets. `width` is what is left of the line.
    fn write(
        &self,
        axis: usize,
        width: usize,
        words: &mut impl Iterator<Item = String>,
        text: &mut String,
    ) {
        let (positions, dots) = self.positions(axis);
        let axes_left = self.dims.len() - axis;
        let indent = " ".repeat(axis + 1);
        text.push('[');
        if axes_left == 1 {
            let mut line = Line { text, length: indent.len(), indent: &indent, width: width - 1 };
            for index in 0..positions.len() {
                if dots == Some(index) {
                    line.push("...");
                    line.separate();
                }
                line.push(&words.next().unwrap_or_default());
                if index + 1 < positions.len() {
                    line.separate();
                }
            }
        } else {
            let separator = "\n".repeat(axes_left - 1);
            for index in 0..positions.len() {
                if index > 0 {
                    text.push_str(&separator);
                    text.push_str(&indent);
                }
                if dots == Some(index) {
                    text.push_str("...");
                    text.push_str(&separator);
                    text.push_str(&indent);
                }
                self.write(axis + 1, width - 1, words, text);
            }
        }
        text.push(']');
    }
}

/// The elements of the last axis, in lines.
struct Line<'a> {
    text: &'a mut String,
    /// The length of the current line.
    length: usize,
    indent: &'a str,
    width: usize,
}

impl Line<'_> {
    fn push(&mut self, word: &str) {
        let is_empty = self.length <= self.indent.len();
        if !is_empty && self.length + word.len() > self.width {
            self.text.truncate(self.text.trim_end_matches(' ').len());
            self.text.push('\n');
            self.text.push_str(self.indent);
            self.length = self.indent.len();
        }
        self.text.push_str(word);
        self.length += word.len();
    }

    fn separate(&mut self) {
        self.text.push(' ');
        self.length += 1;
    }
}

/// The aligned texts of these elements.
fn texts(literal: &Literal, indices: &[usize]) -> Vec<String> {
    let dtype = literal.ty().dtype;
    if dtype.is_complex() {
        let values = literal.to_f64();
        let real: Vec<f64> = indices.iter().map(|&index| values[2 * index]).collect();
        let imaginary: Vec<f64> = indices.iter().map(|&index| values[2 * index + 1]).collect();
        let real_column = Column::new(&real, dtype.real(), false);
        let imaginary_column = Column::new(&imaginary, dtype.real(), true);
        let join = |(real, imaginary): (&f64, &f64)| {
            let text = imaginary_column.text(*imaginary);
            let digits = text.trim_end_matches(' ');
            let spaces = &text[digits.len()..];
            format!("{}{digits}j{spaces}", real_column.text(*real))
        };
        return real.iter().zip(&imaginary).map(join).collect();
    }
    if dtype.is_float() {
        let values = literal.to_f64();
        let shown: Vec<f64> = indices.iter().map(|&index| values[index]).collect();
        let column = Column::new(&shown, dtype, false);
        return shown.iter().map(|&value| column.text(value)).collect();
    }
    let all = exact_texts(literal);
    let shown: Vec<&String> = indices.iter().map(|&index| &all[index]).collect();
    let width = shown.iter().map(|text| text.len()).max().unwrap_or_default();
    shown.iter().map(|text| format!("{text:>width$}")).collect()
}

/// The texts of truth values and integers. All truth values are as wide as `False`.
fn exact_texts(literal: &Literal) -> Vec<String> {
    fn read<T: Element + ToString>(literal: &Literal) -> Vec<String> {
        T::from_bytes(literal.bytes()).iter().map(T::to_string).collect()
    }
    match literal.ty().dtype {
        DType::Bool => {
            let text = |value: bool| if value { " True" } else { "False" }.to_owned();
            bool::from_bytes(literal.bytes()).into_iter().map(text).collect()
        }
        DType::I8 => read::<i8>(literal),
        DType::I16 => read::<i16>(literal),
        DType::I32 => read::<i32>(literal),
        DType::I64 => read::<i64>(literal),
        DType::U8 => read::<u8>(literal),
        DType::U16 => read::<u16>(literal),
        DType::U32 => read::<u32>(literal),
        DType::U64 => read::<u64>(literal),
        DType::F32 | DType::F64 | DType::Bf16 | DType::F16 | DType::C64 | DType::C128 => Vec::new(),
    }
}

/// The text of a scalar.
fn scalar(literal: &Literal) -> String {
    let dtype = literal.ty().dtype;
    let values = literal.to_f64();
    if dtype.is_complex() {
        let part = |value: f64| scalar_float(value, dtype.real()).trim_end_matches(".0").to_owned();
        let imaginary = part(values[1]);
        let is_positive_zero = values[0] == 0.0 && values[0].is_sign_positive();
        if is_positive_zero {
            return format!("{imaginary}j");
        }
        let sign = if imaginary.starts_with('-') { "" } else { "+" };
        return format!("({}{sign}{imaginary}j)", part(values[0]));
    }
    if dtype.is_float() {
        return scalar_float(values[0], dtype);
    }
    exact_texts(literal).concat().trim_start().to_owned()
}

fn scalar_float(value: f64, dtype: DType) -> String {
    if !value.is_finite() {
        return not_finite(value, false);
    }
    let digits = Digits::shortest(value, dtype);
    // From here on, the dtype has no digits left for the ones.
    let large = match dtype {
        DType::F16 | DType::Bf16 => 1e3,
        DType::F32 => 1e6,
        _ => 1e16,
    };
    if value == 0.0 || (1e-4..large).contains(&value.abs()) {
        let text = digits.positional();
        return if text.ends_with('.') { text + "0" } else { text };
    }
    let (mantissa, exponent) = digits.scientific();
    format!("{}e{}", mantissa.trim_end_matches('.'), exponent_text(exponent, 2))
}

fn not_finite(value: f64, has_plus: bool) -> String {
    match value {
        _ if value.is_nan() => if has_plus { "+nan" } else { "nan" }.to_owned(),
        _ if value < 0.0 => "-inf".to_owned(),
        _ => if has_plus { "+inf" } else { "inf" }.to_owned(),
    }
}

/// How floats that stand above each other are written.
struct Column {
    dtype: DType,
    /// Whether positive numbers have a sign.
    has_plus: bool,
    /// The digits after the point and of the exponent, for numbers with an exponent.
    scientific: Option<Scientific>,
    /// The width before and after the point.
    left: usize,
    right: usize,
}

#[derive(Clone, Copy)]
struct Scientific {
    precision: usize,
    exponent_digits: usize,
}

impl Column {
    fn new(values: &[f64], dtype: DType, has_plus: bool) -> Column {
        let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        let mut column = Column { dtype, has_plus, scientific: None, left: 0, right: 0 };
        if !finite.is_empty() {
            if needs_exponent(&finite, dtype) {
                column.fit_scientific(&finite);
            } else {
                column.fit_positional(&finite);
            }
        }
        // Values that are not finite fill the width of a number.
        for &value in values.iter().filter(|value| !value.is_finite()) {
            let width = not_finite(value, has_plus).len();
            column.left = column.left.max(width.saturating_sub(column.right + 1));
        }
        column
    }

    fn fit_positional(&mut self, finite: &[f64]) {
        for &value in finite {
            let text = self.signed(value, Digits::rounded(value, self.dtype).positional());
            let (before, after) = text.split_once('.').unwrap_or((&text, ""));
            self.left = self.left.max(before.len());
            self.right = self.right.max(after.len());
        }
    }

    fn fit_scientific(&mut self, finite: &[f64]) {
        let mut form = Scientific { precision: 0, exponent_digits: 2 };
        for &value in finite {
            let (mantissa, exponent) = Digits::rounded_scientific(value, self.dtype).scientific();
            let mantissa = self.signed(value, mantissa);
            let (before, after) = mantissa.split_once('.').unwrap_or((&mantissa, ""));
            form.precision = form.precision.max(after.len());
            form.exponent_digits =
                form.exponent_digits.max(exponent.unsigned_abs().to_string().len());
            self.left = self.left.max(before.len());
        }
        self.right = form.precision + form.exponent_digits + 2;
        self.scientific = Some(form);
    }

    fn signed(&self, value: f64, text: String) -> String {
        if self.has_plus && value.is_sign_positive() { format!("+{text}") } else { text }
    }

    fn text(&self, value: f64) -> String {
        if !value.is_finite() {
            let width = self.left + self.right + 1;
            return format!("{:>width$}", not_finite(value, self.has_plus));
        }
        match self.scientific {
            Some(Scientific { precision, exponent_digits }) => {
                // All digits are shown, also those that are not needed to tell the value.
                let text = format!("{value:.precision$e}");
                let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                let mantissa = self.signed(value, mantissa.to_owned());
                let (before, after) = mantissa.split_once('.').unwrap_or((&mantissa, ""));
                let exponent = exponent_text(exponent.parse().unwrap_or_default(), exponent_digits);
                format!("{before:>left$}.{after}e{exponent}", left = self.left)
            }
            None => {
                let text = self.signed(value, Digits::rounded(value, self.dtype).positional());
                let (before, after) = text.split_once('.').unwrap_or((&text, ""));
                let left = self.left;
                let right = self.right;
                format!("{before:>left$}.{after:<right$}")
            }
        }
    }
}

/// Whether numbers are too large, too small or too different to stand above each other without an
/// exponent. The comparison is in the numbers' own precision.
fn needs_exponent(finite: &[f64], dtype: DType) -> bool {
    let sizes = finite.iter().map(|value| value.abs()).filter(|&size| size != 0.0);
    let Some(largest) = sizes.clone().reduce(f64::max) else { return false };
    let smallest = sizes.reduce(f64::min).unwrap_or(largest);
    let ratio = round_to(largest / smallest, dtype);
    largest >= 1e8 || smallest < round_to(1e-4, dtype) || ratio > 1000.0
}

/// The nearest number of a dtype.
fn round_to(value: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f16::from_f64(value).to_f64(),
        DType::Bf16 => bf16::from_f64(value).to_f64(),
        DType::F32 => f64::from(value as f32),
        _ => value,
    }
}

fn exponent_text(exponent: i32, digits: usize) -> String {
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{sign}{:0digits$}", exponent.unsigned_abs())
}

/// A finite number in decimal digits: a sign, one digit before the point, the others after it.
struct Digits {
    is_negative: bool,
    digits: String,
    exponent: i32,
}

impl Digits {
    /// The fewest digits that no other number of the dtype is closer to.
    fn shortest(value: f64, dtype: DType) -> Digits {
        let text = match dtype {
            DType::F16 | DType::Bf16 => {
                let reads_back = |text: &String| {
                    text.parse().is_ok_and(|parsed: f64| round_to(parsed, dtype) == value)
                };
                // Nine digits are enough for every f32.
                let mut texts = (0..9).map(|digits| format!("{value:.digits$e}"));
                texts.find(reads_back).unwrap_or_else(|| format!("{value:e}"))
            }
            DType::F32 => format!("{:e}", value as f32),
            _ => format!("{value:e}"),
        };
        Digits::parse(&text)
    }

    /// At most [`PRECISION`] digits after the point.
    fn rounded(value: f64, dtype: DType) -> Digits {
        let digits = Digits::shortest(value, dtype);
        let after_point = digits.digits.len() as i32 - 1 - digits.exponent;
        if after_point <= PRECISION as i32 {
            return digits;
        }
        let text = format!("{value:.PRECISION$}");
        // The leading digit may be left of where it was: 0.999999999 is 1.
        match text.parse::<f64>() {
            Ok(0.0) | Err(_) => {
                Digits { is_negative: digits.is_negative, digits: "0".into(), exponent: 0 }
            }
            Ok(_) => Digits::from_positional(&text),
        }
    }

    /// At most [`PRECISION`] digits after the first.
    fn rounded_scientific(value: f64, dtype: DType) -> Digits {
        let digits = Digits::shortest(value, dtype);
        if digits.digits.len() <= PRECISION + 1 {
            return digits;
        }
        Digits::parse(&format!("{value:.PRECISION$e}"))
    }

    /// Reads the text of a number with an exponent.
    fn parse(text: &str) -> Digits {
        let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
        let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
        let trimmed = digits.trim_end_matches('0');
        Digits {
            is_negative: mantissa.starts_with('-'),
            digits: if trimmed.is_empty() { "0".to_owned() } else { trimmed.to_owned() },
            exponent: exponent.parse().unwrap_or_default(),
        }
    }

    /// Reads the text of a number other than 0, without an exponent.
    fn from_positional(text: &str) -> Digits {
        let unsigned = text.trim_start_matches('-');
        let point = unsigned.find('.').unwrap_or(unsigned.len());
        let all: String = unsigned.chars().filter(char::is_ascii_digit).collect();
        let zeros = all.len() - all.trim_start_matches('0').len();
        Digits {
            is_negative: text.starts_with('-'),
            digits: all.trim_matches('0').to_owned(),
            exponent: point as i32 - 1 - zeros as i32,
        }
    }

    fn sign(&self) -> &'static str {
        if self.is_negative { "-" } else { "" }
    }

    /// Such as `-120.` and `0.5`.
    fn positional(&self) -> String {
        let sign = self.sign();
        if self.exponent < 0 {
            let zeros = "0".repeat(self.exponent.unsigned_abs() as usize - 1);
            return format!("{sign}0.{zeros}{}", self.digits);
        }
        let before = self.exponent as usize + 1;
        if self.digits.len() <= before {
            return format!("{sign}{:0<before$}.", self.digits);
        }
        format!("{sign}{}.{}", &self.digits[..before], &self.digits[before..])
    }

    /// Such as `-1.2` and its exponent.
    fn scientific(&self) -> (String, i32) {
        (format!("{}{}.{}", self.sign(), &self.digits[..1], &self.digits[1..]), self.exponent)
    }
}
