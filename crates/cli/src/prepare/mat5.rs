//! MATLAB's file format version 5, as far as ImageNet's `meta.mat` needs it: numbers, texts and
//! arrays of structures, compressed or not.
//!
//! Out of scope: sparse arrays, objects, function handles and version 7.3, which is HDF5. Based on
//! "MAT-File Format" by MathWorks.

use std::io::Read;

use flate2::read::ZlibDecoder;

/// The limit on the total size of variables, because a small compressed file can expand to a
/// thousand times its size.
const MAX_BYTES: u64 = 256 << 20;

/// The limit on nested structures.
const MAX_DEPTH: usize = 16;

/// The size of the header before the variables.
const HEADER: usize = 128;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// Numbers of any type, in column-major order.
    Numbers(Vec<f64>),
    /// A text of one row.
    Text(String),
    /// An array of structures, in column-major order. Each structure is a list of names and values.
    Structures(Vec<Vec<(String, Value)>>),
    /// A value of an unsupported kind.
    Other,
}

impl Value {
    /// The value of a structure's field.
    pub(crate) fn field<'a>(structure: &'a [(String, Value)], name: &str) -> Option<&'a Value> {
        structure.iter().find(|(field, _)| field == name).map(|(_, value)| value)
    }

    /// The value as a single number.
    pub(crate) fn number(&self) -> Option<f64> {
        match self {
            Value::Numbers(numbers) if numbers.len() == 1 => numbers.first().copied(),
            _ => None,
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// Parses the variables of a file with their names. The error text does not include the file's
/// name.
pub(crate) fn variables(bytes: &[u8]) -> Result<Vec<(String, Value)>, String> {
    let header = bytes.get(..HEADER).ok_or("it is shorter than the header of a MAT file")?;
    let is_big_endian = match &header[126..] {
        b"IM" => false,
        b"MI" => true,
        _ => {
            return Err(
                "not a MAT file of version 5 (a file of version 7.3 begins with MATLAB 7.3)"
                    .to_owned(),
            );
        }
    };
    let mut cursor = Cursor { bytes: &bytes[HEADER..], is_big_endian };
    let mut variables = Vec::new();
    let mut remaining = MAX_BYTES;
    while !cursor.bytes.is_empty() {
        match cursor.element()? {
            (15, data) => {
                let mut inflated = Vec::new();
                let read = ZlibDecoder::new(data).take(remaining + 1).read_to_end(&mut inflated);
                read.map_err(|source| format!("inflating a variable: {source}"))?;
                remaining = remaining
                    .checked_sub(inflated.len() as u64)
                    .ok_or_else(|| format!("its variables have more than {MAX_BYTES} bytes"))?;
                let mut inner = Cursor { bytes: &inflated, is_big_endian };
                let (kind, data) = inner.element()?;
                if kind == 14 {
                    variables.push(matrix(Cursor { bytes: data, is_big_endian }, 0)?);
                }
            }
            (14, data) => variables.push(matrix(Cursor { bytes: data, is_big_endian }, 0)?),
            _ => {}
        }
    }
    Ok(variables)
}

/// The remaining elements of a list.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    bytes: &'a [u8],
    is_big_endian: bool,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (taken, remaining) = self.bytes.split_at_checked(count).ok_or_else(|| {
            format!(
                "it ends where {count} more bytes were expected ({} are left)",
                self.bytes.len()
            )
        })?;
        self.bytes = remaining;
        Ok(taken)
    }

    fn word(&mut self) -> Result<u32, String> {
        let bytes = self.take(4)?.try_into().map_err(|_| "expected a word of 4 bytes")?;
        Ok(if self.is_big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    /// Reads the next element. Returns its type and its data.
    fn element(&mut self) -> Result<(u32, &'a [u8]), String> {
        let word = self.word()?;
        let small = (word >> 16) as usize;
        if small > 0 {
            // Type and size share the first word, followed by up to 4 bytes of data.
            let data = self
                .take(4)?
                .get(..small)
                .ok_or_else(|| format!("a small element claims {small} bytes, at most 4 fit"))?;
            return Ok((word & 0xffff, data));
        }
        let size = self.word()? as usize;
        let data = self.take(size)?;
        // Compressed elements are not padded.
        let padding = if word == 15 { 0 } else { size.wrapping_neg() % 8 };
        self.bytes = self.bytes.get(padding..).unwrap_or_default();
        Ok((word, data))
    }

    /// Reads an element of numbers.
    fn numbers(&mut self) -> Result<Vec<f64>, String> {
        let (kind, data) = self.element()?;
        let width = match kind {
            1 | 2 | 16 => 1,
            3 | 4 => 2,
            5..=7 => 4,
            9 | 12 | 13 => 8,
            _ => return Err(format!("found an element of type {kind}, expected numbers")),
        };
        if data.len() % width != 0 {
            return Err(format!("{} bytes of numbers that have {width} bytes each", data.len()));
        }
        let one = |bytes: &[u8]| {
            let mut word = [0; 8];
            word[..width].copy_from_slice(bytes);
            if self.is_big_endian {
                word[..width].reverse();
            }
            let unsigned = u64::from_le_bytes(word);
            // Shifting the sign bit to the top and back extends the sign.
            let signed = (unsigned << (64 - 8 * width)) as i64 >> (64 - 8 * width);
            match kind {
                1 | 3 | 5 | 12 => signed as f64,
                7 => f64::from(f32::from_bits(unsigned as u32)),
                9 => f64::from_bits(unsigned),
                _ => unsigned as f64,
            }
        };
        Ok(data.chunks_exact(width).map(one).collect())
    }

    /// Reads an element of characters.
    fn text(&mut self) -> Result<String, String> {
        let (kind, data) = self.element()?;
        let is_big_endian = self.is_big_endian;
        let wide = |bytes: &[u8]| match *bytes {
            [a, b] if is_big_endian => u16::from_be_bytes([a, b]),
            [a, b] => u16::from_le_bytes([a, b]),
            _ => 0,
        };
        match kind {
            1 | 2 | 16 => Ok(match std::str::from_utf8(data) {
                Ok(text) => text.to_owned(),
                // Bytes that are not valid UTF-8 are treated as Latin-1.
                Err(_) => data.iter().copied().map(char::from).collect(),
            }),
            4 | 17 => {
                Ok(String::from_utf16_lossy(&data.chunks_exact(2).map(wide).collect::<Vec<u16>>()))
            }
            _ => Err(format!("found an element of type {kind}, expected a text")),
        }
    }
}

/// Parses the elements of an array. Returns the array with its name.
fn matrix(mut cursor: Cursor<'_>, depth: usize) -> Result<(String, Value), String> {
    if depth > MAX_DEPTH {
        return Err(format!("structures in structures, more than {MAX_DEPTH} deep"));
    }
    if cursor.bytes.is_empty() {
        return Ok((String::new(), Value::Numbers(Vec::new())));
    }
    let (_, flags) = cursor.element()?;
    let class = Cursor { bytes: flags, is_big_endian: cursor.is_big_endian }.word()? & 0xff;
    let sizes = cursor.numbers()?;
    let count = sizes
        .iter()
        .try_fold(1usize, |count, &size| {
            let size = (0.0..=f64::from(u32::MAX)).contains(&size).then_some(size as usize)?;
            count.checked_mul(size)
        })
        .ok_or_else(|| format!("an array of size {sizes:?}"))?;
    let name = cursor.text()?;
    let value = match class {
        2 => {
            let width = cursor.numbers()?.first().map_or(0, |&width| width as usize);
            let (_, names) = cursor.element()?;
            if width == 0 {
                return Err("the names of a structure's fields have no bytes".to_owned());
            }
            let names: Vec<String> = names
                .chunks(width)
                .map(|name| {
                    String::from_utf8_lossy(
                        name.split(|&byte| byte == 0).next().unwrap_or_default(),
                    )
                    .into()
                })
                .collect();
            let mut structures = Vec::new();
            // Without fields, no data would be read that limits the number of iterations.
            for _ in 0..if names.is_empty() { 0 } else { count } {
                let mut structure = Vec::with_capacity(names.len());
                for name in &names {
                    let (_, data) = cursor.element()?;
                    structure.push((
                        name.clone(),
                        matrix(
                            Cursor { bytes: data, is_big_endian: cursor.is_big_endian },
                            depth + 1,
                        )?
                        .1,
                    ));
                }
                structures.push(structure);
            }
            Value::Structures(structures)
        }
        4 => match sizes.as_slice() {
            _ if count == 0 => Value::Text(String::new()),
            &[1.0, _] => Value::Text(cursor.text()?),
            _ => Value::Other,
        },
        6..=15 => Value::Numbers(if count == 0 { Vec::new() } else { cursor.numbers()? }),
        _ => Value::Other,
    };
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file written by scipy; see `tests/reference/meta_mat.py`.
    const SCIPY: &[u8] = include_bytes!("../../tests/reference/meta.mat");

    #[test]
    fn a_file_written_by_scipy_is_read() {
        let variables = variables(SCIPY).unwrap();
        let find = |name: &str| &variables.iter().find(|(found, _)| found == name).unwrap().1;
        let Value::Structures(synsets) = find("synsets") else { panic!("{variables:?}") };
        assert_eq!(synsets.len(), 4);
        let text = |index: usize, name: &str| {
            Value::field(&synsets[index], name).unwrap().text().unwrap().to_owned()
        };
        let number = |index: usize, name: &str| {
            Value::field(&synsets[index], name).unwrap().number().unwrap()
        };
        assert_eq!(
            (text(0, "WNID"), text(0, "words")),
            ("n02119789".to_owned(), "kit fox, Vulpes macrotis".to_owned())
        );
        assert_eq!((number(1, "ILSVRC2012_ID"), number(1, "num_children")), (2.0, 0.0));
        assert_eq!(text(2, "gloss"), "a café's \u{1f98a}");
        assert_eq!(
            Value::field(&synsets[3], "children"),
            Some(&Value::Numbers(vec![1.0, 2.0, 300.0]))
        );
        assert_eq!(text(3, "words"), "");
        assert_eq!(find("numbers"), &Value::Numbers(vec![-1.5, 4.0, 2.0, 5.0, 1e300, -6.0]));
        assert_eq!(find("single"), &Value::Numbers(vec![0.25]));
        assert_eq!(find("bytes"), &Value::Numbers(vec![-1.0, 127.0]));
        assert_eq!(find("large"), &Value::Numbers(vec![-3e9]));
    }

    #[test]
    fn damaged_files_do_not_panic() {
        for length in 0..SCIPY.len() {
            let _ = variables(&SCIPY[..length]);
        }
        for place in HEADER..SCIPY.len() {
            for bits in [0x01, 0x80, 0xff] {
                let mut damaged = SCIPY.to_vec();
                damaged[place] ^= bits;
                let _ = variables(&damaged);
            }
        }
        assert!(variables(b"short").unwrap_err().contains("shorter"));
        assert!(variables(&[0; 200]).unwrap_err().contains("not a MAT file"));
    }
}
