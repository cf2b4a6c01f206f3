//! How deep the columns of a Parquet file are nested. The crate `parquet` recurses into the schema,
//! so that some hundred kilobytes of groups within groups would end the process.
//!
//! Out of scope: what the metadata says otherwise (`parquet_blocks`).

use super::source_file::SourceFile;
use fulmen_data::Result;

/// The limit on groups within groups.
const MAX_DEPTH: usize = 100;

/// How much of a file is read first. Most metadata is smaller.
const TAIL: u64 = 64 << 10;

/// The length of the metadata, and the four bytes at the end of a file.
const TRAILER: u64 = 8;

/// Rejects a file whose columns are nested too deeply. Metadata that cannot be read passes, and is
/// reported when it is parsed.
pub(crate) fn check(input: &SourceFile) -> Result<()> {
    let size = input.size();
    let length = size.min(TAIL);
    let tail = input.read_range(size - length, length as usize)?;
    let Some([a, b, c, d, ..]) = tail.last_chunk::<{ TRAILER as usize }>() else { return Ok(()) };
    let metadata_length = u64::from(u32::from_le_bytes([*a, *b, *c, *d]));
    let Some(start) = size.checked_sub(TRAILER).and_then(|end| end.checked_sub(metadata_length))
    else {
        return Ok(());
    };
    let metadata = match start.checked_sub(size - length) {
        Some(in_tail) => tail[in_tail as usize..].to_vec(),
        None => input.read_range(start, metadata_length as usize)?,
    };
    match depth(&metadata) {
        Some(depth) if depth > MAX_DEPTH => Err(input.error(format!(
            "its columns are nested more than {MAX_DEPTH} levels deep; no Parquet file needs that: write it again"
        ))),
        _ => Ok(()),
    }
}

/// The depth of the schema, up to just above the limit; `None` if this is not the metadata of a
/// Parquet file.
fn depth(metadata: &[u8]) -> Option<usize> {
    /// The field of the schema, which is a list of elements in depth-first order.
    const SCHEMA: i16 = 2;
    let mut thrift = Compact(metadata);
    let mut last_field = 0;
    loop {
        let field = thrift.field(&mut last_field)?;
        if field.number == SCHEMA && field.kind == LIST {
            break;
        }
        thrift.skip(field.kind, 0)?;
    }
    let elements = thrift.list()?;
    // The number of children that are still to come, for each open group.
    let mut open: Vec<u64> = Vec::new();
    let mut deepest = 0;
    for _ in 0..elements.length {
        let children = thrift.schema_element()?;
        while open.last() == Some(&0) {
            open.pop();
        }
        if let Some(siblings) = open.last_mut() {
            *siblings -= 1;
        }
        if children > 0 {
            open.push(children);
        }
        deepest = deepest.max(open.len());
        if deepest > MAX_DEPTH {
            break;
        }
    }
    Some(deepest)
}

const BYTE: u8 = 3;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;

/// How deep values within an element of the schema may be nested; logical types have three levels.
const MAX_SKIPPED: usize = 16;

/// A reader of Thrift's compact protocol.
struct Compact<'a>(&'a [u8]);

struct Field {
    number: i16,
    kind: u8,
}

struct List {
    length: u64,
    kind: u8,
}

impl Compact<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    fn advance(&mut self, length: u64) -> Option<()> {
        self.0 = self.0.get(usize::try_from(length).ok()?..)?;
        Some(())
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn zigzag(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// The next field of a struct; `None` also at its end.
    fn field(&mut self, last: &mut i16) -> Option<Field> {
        let header = self.byte()?;
        if header == 0 {
            return None;
        }
        let number = match header >> 4 {
            0 => i16::try_from(self.zigzag()?).ok()?,
            delta => last.checked_add(i16::from(delta))?,
        };
        *last = number;
        Some(Field { number, kind: header & 15 })
    }

    fn list(&mut self) -> Option<List> {
        let header = self.byte()?;
        let length = match header >> 4 {
            15 => self.varint()?,
            length => u64::from(length),
        };
        Some(List { length, kind: header & 15 })
    }

    /// Skips a value.
    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth > MAX_SKIPPED {
            return None;
        }
        match kind {
            // The value is in the header of its field.
            1 | 2 => Some(()),
            BYTE => self.advance(1),
            4..=6 => self.varint().map(drop),
            DOUBLE => self.advance(8),
            BINARY => self.varint().and_then(|length| self.advance(length)),
            LIST | SET => {
                let List { length, kind } = self.list()?;
                (0..length).try_for_each(|_| self.skip_element(kind, depth))
            }
            MAP => {
                let length = self.varint()?;
                let kinds = if length > 0 { self.byte()? } else { 0 };
                (0..length).try_for_each(|_| {
                    self.skip_element(kinds >> 4, depth)?;
                    self.skip_element(kinds & 15, depth)
                })
            }
            STRUCT => self.fields(|thrift, field| thrift.skip(field.kind, depth + 1)),
            _ => None,
        }
    }

    /// Skips an element of a list or a map, in which a boolean takes a byte.
    fn skip_element(&mut self, kind: u8, depth: usize) -> Option<()> {
        self.skip(if matches!(kind, 1 | 2) { BYTE } else { kind }, depth + 1)
    }

    /// Calls `read` for each field of a struct, which must read its value.
    fn fields(&mut self, mut read: impl FnMut(&mut Self, Field) -> Option<()>) -> Option<()> {
        let mut last = 0;
        while *self.0.first()? != 0 {
            let field = self.field(&mut last)?;
            read(self, field)?;
        }
        self.advance(1)
    }

    /// Reads an element of the schema, and returns its number of children.
    fn schema_element(&mut self) -> Option<u64> {
        const NUM_CHILDREN: i16 = 5;
        let mut children = 0;
        self.fields(|thrift, field| match field {
            Field { number: NUM_CHILDREN, kind: 5 } => {
                children = u64::try_from(thrift.zigzag()?).ok()?;
                Some(())
            }
            Field { kind, .. } => thrift.skip(kind, 0),
        })?;
        Some(children)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn varint(mut value: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value > 127 {
            bytes.push(value as u8 | 128);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    /// The metadata of a file whose only column is in this number of groups.
    fn nested(groups: usize) -> Vec<u8> {
        // Repetition, name, number of children; then the same with a type, for the leaf.
        let group = [0x35, 0, 0x18, 1, b'a', 0x15, 2, 0];
        let leaf = [0x15, 2, 0x25, 0, 0x18, 1, b'x', 0];
        let root = [0x48, 1, b'r', 0x15, 2, 0];
        let list = [&[0x15, 2, 0x19, 0xfc][..], &varint(groups + 2), &root].concat();
        [&list[..], &group.repeat(groups), &leaf, &[0x16, 0, 0x19, 0x0c, 0]].concat()
    }

    #[test]
    fn groups_within_groups_are_counted() {
        assert_eq!(depth(&nested(0)), Some(1));
        assert_eq!(depth(&nested(7)), Some(8));
        assert_eq!(depth(&nested(100_000)), Some(MAX_DEPTH + 1));
        assert_eq!(depth(&nested(7)[..20]), None);
        assert_eq!(depth(&[]), None);
    }

    #[test]
    fn a_file_that_is_nested_too_deeply_is_refused_before_it_is_parsed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.parquet");
        let write = |groups| {
            let metadata = nested(groups);
            let length = u32::try_from(metadata.len()).unwrap().to_le_bytes();
            std::fs::write(&path, [b"PAR1", &metadata[..], &length, b"PAR1"].concat()).unwrap();
            crate::Parquet::open(&path)
        };
        assert!(write(50).is_ok());
        let error = write(100_000).unwrap_err().to_string();
        assert!(error.contains("nested more than 100 levels deep"), "{error}");
    }
}
