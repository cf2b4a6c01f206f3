//! One header block of a tar file, and the records of an extended (pax) header.
//!
//! Not here: going from header to header (`walk`).

/// All of a tar is made of blocks of so many bytes.
pub(super) const BLOCK: usize = 512;

/// What a header says of the entry that it stands before.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) name: Vec<u8>,
    /// What follows the header, in bytes; it fills whole blocks.
    pub(super) size: u64,
    pub(super) kind: Kind,
}

/// What follows a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The content of a file.
    File,
    /// A file with holes, which GNU tar writes when it is told `--sparse`.
    Sparse,
    /// Nothing: folders, links, devices.
    Nothing,
    /// The name of the next entry, as GNU tar writes long ones.
    LongName,
    /// Records about the next entry (pax).
    Extended,
    /// Bytes that say nothing about names or sizes here.
    Other,
}

/// Reads a header block that is not all zeros (POSIX.1-1988 ustar, GNU's, and those before them).
pub(super) fn parse(block: &[u8; BLOCK]) -> Result<Header, String> {
    let claimed = number(&block[148..156]).ok_or("its checksum is no number")?;
    // The sum counts the field of the checksum itself as spaces. Old tars took bytes as signed.
    let (mut sum, mut signed) = (0u64, 0i64);
    for (at, &byte) in block.iter().enumerate() {
        let byte = if (148..156).contains(&at) { b' ' } else { byte };
        sum += u64::from(byte);
        signed += i64::from(byte as i8);
    }
    if claimed != sum && i64::try_from(claimed) != Ok(signed) {
        return Err(format!("its checksum should be {sum}, but is {claimed}"));
    }
    let size = number(&block[124..136]).ok_or("its size is no number")?;
    let mut name = until_zero(&block[..100]).to_vec();
    // GNU's magic ends with a space, and has times where the beginning of the name would be.
    if &block[257..263] == b"ustar\0" {
        let folder = until_zero(&block[345..500]);
        if !folder.is_empty() {
            name = [folder, b"/", &name].concat();
        }
    }
    let kind = match block[156] {
        // Before there was a mark for folders, their names ended with a slash.
        b'\0' if name.ends_with(b"/") => Kind::Nothing,
        b'\0' | b'0' | b'7' => Kind::File,
        b'S' => Kind::Sparse,
        b'1'..=b'6' => Kind::Nothing,
        b'L' => Kind::LongName,
        b'x' | b'X' => Kind::Extended,
        _ => Kind::Other,
    };
    Ok(Header { name, size, kind })
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len())]
}

/// A number in octal digits, or, where the first bit is set, in the bits after it.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        // Negative ones begin with 0xff.
        let first = (field[0] != 0xff).then_some(u64::from(field[0] & 0x7f))?;
        return field[1..].iter().try_fold(first, |number, &byte| Some(number.checked_mul(256)? | u64::from(byte)));
    }
    let digits = std::str::from_utf8(until_zero(field)).ok()?.trim_matches(' ');
    match digits {
        "" => Some(0),
        _ if digits.bytes().all(|byte| (b'0'..=b'7').contains(&byte)) => u64::from_str_radix(digits, 8).ok(),
        _ => None,
    }
}

/// What extended records say about the next entry.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Extended {
    pub(super) name: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    /// It has holes; what follows the header is not the content as it is.
    pub(super) sparse: bool,
}

/// Reads records `length key=value\n`, where the length is that of the whole record (POSIX.1-2001 pax). Where a key comes
/// twice, the last one counts.
pub(super) fn parse_extended(mut records: &[u8]) -> Result<Extended, String> {
    let mut extended = Extended::default();
    while !records.is_empty() {
        let broken = || "a record of an extended header is not `length key=value`".to_owned();
        let space = records.iter().take(20).position(|&byte| byte == b' ').ok_or_else(broken)?;
        let length = std::str::from_utf8(&records[..space]).ok().and_then(|digits| digits.parse::<usize>().ok());
        let length = length.filter(|&length| length > space + 1 && length <= records.len()).ok_or_else(broken)?;
        let (record, rest) = records.split_at(length);
        let record = record[space + 1..].strip_suffix(b"\n").ok_or_else(broken)?;
        let equals = record.iter().position(|&byte| byte == b'=').ok_or_else(broken)?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        match key {
            // A record without a value takes back what another said.
            b"path" => extended.name = (!value.is_empty()).then(|| until_zero(value).to_vec()),
            b"size" if value.is_empty() => extended.size = None,
            b"size" => {
                let size = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
                let size = size.ok_or_else(|| format!("the size `{}` is no number", value.escape_ascii()))?;
                extended.size = Some(size);
            }
            _ => extended.sparse |= key.starts_with(b"GNU.sparse."),
        }
        records = rest;
    }
    Ok(extended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        assert_eq!(number(b"0000017\0"), Some(15));
        assert_eq!(number(b"   17 \0\0"), Some(15));
        assert_eq!(number(b"\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(number(b"0000018\0"), None);
        assert_eq!(number(b"-000001\0"), None);
        assert_eq!(number(b"77777777777\0"), Some((1 << 33) - 1));
        assert_eq!(number(b"777777777777"), Some((1 << 36) - 1));
        assert_eq!(number(b"\x80\0\0\0\0\0\0\x02\0\0\0\0"), Some(2 << 32));
        assert_eq!(number(b"\x80\0\0\x01\0\0\0\x02\0\0\0\0"), None);
        assert_eq!(number(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), None);
        assert_eq!(number(b"\x80\0\0\0\0\0\0\x02"), Some(2));
    }

    #[test]
    fn records_of_extended_headers_are_read() {
        let read = |records: &str| parse_extended(records.as_bytes());
        let extended = read("19 path=folder/name\n13 size=1234\n11 mtime=1\n").unwrap_err();
        assert!(extended.contains("length key=value"), "{extended}");
        let extended = read("20 path=folder/name\n13 size=1234\n11 mtime=1\n").unwrap();
        assert_eq!(extended, Extended { name: Some(b"folder/name".to_vec()), size: Some(1234), sparse: false });
        assert!(read("22 GNU.sparse.major=1\n").unwrap().sparse);
        for broken in
            ["5", "0 a=b\n", "99999999999999999999 a=b\n", "6 a=b\n\n", "2 ", "3 \n", "7 size=\n", "8 size=\n\n"]
        {
            assert!(read(broken).is_err(), "{broken:?}");
        }
        assert!(read("12 size=-12\n").unwrap_err().contains("`-12`"));
    }
}
