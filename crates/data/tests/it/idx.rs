//! IDX files: valid files, plain and compressed, and all kinds of damage.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use fulmen_data::{DType, Error, IdxFile};

/// Writes `bytes` to a temporary file, opens it, and returns the message with the path as `FILE`.
struct Case {
    dir: tempfile::TempDir,
    path: PathBuf,
}

impl Case {
    fn new(bytes: &[u8]) -> Case {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file.idx");
        fs::write(&path, bytes).unwrap();
        Case { dir, path }
    }

    fn open(&self) -> Result<IdxFile, Error> {
        IdxFile::open(&self.path)
    }

    #[track_caller]
    fn fails(&self, expect: expect_test::Expect) {
        let error = self.open().unwrap_err();
        assert!(error.is_file(), "{error}");
        assert!(self.dir.path().is_dir());
        expect.assert_eq(&error.to_string().replace(&self.path.display().to_string(), "FILE"));
    }
}

fn idx(code: u8, dims: &[u32], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, code, dims.len() as u8];
    bytes.extend(dims.iter().flat_map(|dim| dim.to_be_bytes()));
    bytes.extend(data);
    bytes
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Bytes that hardly compress, so that truncating the file truncates the data.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(next).collect()
}

#[test]
fn every_element_type_is_read_in_this_machines_byte_order() {
    let cases: [(u8, DType, Vec<u8>, Vec<u8>); 6] = [
        (0x08, DType::U8, vec![1, 255], vec![1, 255]),
        (0x09, DType::I8, vec![1, 255], vec![1, 255]),
        (
            0x0b,
            DType::I16,
            [-2i16, 258].map(i16::to_be_bytes).concat(),
            [-2i16, 258].map(i16::to_ne_bytes).concat(),
        ),
        (
            0x0c,
            DType::I32,
            [-2i32, 66051].map(i32::to_be_bytes).concat(),
            [-2i32, 66051].map(i32::to_ne_bytes).concat(),
        ),
        (
            0x0d,
            DType::F32,
            [0.1f32, -2.0].map(f32::to_be_bytes).concat(),
            [0.1f32, -2.0].map(f32::to_ne_bytes).concat(),
        ),
        (
            0x0e,
            DType::F64,
            [0.1f64, -2.0].map(f64::to_be_bytes).concat(),
            [0.1f64, -2.0].map(f64::to_ne_bytes).concat(),
        ),
    ];
    for (code, dtype, stored, expected) in cases {
        for bytes in [idx(code, &[2, 1], &stored), gz(&idx(code, &[2, 1], &stored))] {
            let file = Case::new(&bytes).open().unwrap();
            assert_eq!(
                (file.dtype(), file.dims(), file.bytes()),
                (dtype, &[2, 1][..], expected.as_slice())
            );
        }
    }
}

#[test]
fn several_gzip_members_are_one_file_and_no_axes_are_one_value() {
    let whole = idx(8, &[4], &[1, 2, 3, 4]);
    let file = Case::new(&[gz(&whole[..9]), gz(&whole[9..])].concat()).open().unwrap();
    assert_eq!(file.bytes(), [1, 2, 3, 4]);
    assert_eq!(Case::new(&idx(8, &[], &[5])).open().unwrap().bytes(), [5]);
    assert_eq!(Case::new(&idx(8, &[0, 28, 28], &[])).open().unwrap().bytes(), [0u8; 0]);
}

#[test]
fn a_truncated_gz_says_how_far_it_went() {
    let whole = gz(&idx(8, &[100, 28, 28], &noise(78400)));
    for (cut, in_header) in
        [(whole.len() - 1, false), (whole.len() - 9, false), (whole.len() / 2, false), (15, true)]
    {
        let error = Case::new(&whole[..cut]).open().unwrap_err().to_string();
        assert!(
            error.contains(&format!(
                "the gzip file is truncated: its {cut} compressed bytes end after"
            )),
            "{error}"
        );
        assert!(
            in_header || error.contains("of 78400 bytes of data; copy or download the file again"),
            "{error}"
        );
    }
    // The file is truncated within the gzip header.
    for cut in 2..12 {
        assert!(
            Case::new(&whole[..cut]).open().unwrap_err().to_string().contains("truncated"),
            "cut at {cut}"
        );
    }
}

#[test]
fn a_damaged_gz_is_refused() {
    let whole = gz(&idx(8, &[100, 28, 28], &noise(78400)));
    let mut flipped = whole.clone();
    let checksum = whole.len() - 6;
    flipped[checksum] ^= 1;
    let error = Case::new(&flipped).open().unwrap_err().to_string();
    assert!(
        error.contains("the gzip file is damaged after 78400 of 78400 bytes of data"),
        "{error}"
    );

    let garbage = [whole.as_slice(), b"garbage after the end"].concat();
    assert!(Case::new(&garbage).open().unwrap_err().is_file());

    // A flipped bit is detected, unless the bit is unused and the data is therefore unchanged.
    let expected = Case::new(&whole).open().unwrap();
    let mut refused = 0;
    let indices: Vec<usize> = (10..whole.len()).step_by(997).collect();
    for &index in &indices {
        let mut flipped = whole.clone();
        flipped[index] ^= 0x10;
        match Case::new(&flipped).open() {
            Ok(file) => assert_eq!(file.bytes(), expected.bytes(), "byte {index}"),
            Err(error) => {
                assert!(error.is_file());
                refused += 1;
            }
        }
    }
    assert!(refused + 1 >= indices.len(), "{refused} of {}", indices.len());
}

#[test]
fn a_wrong_size_names_both_sizes() {
    use expect_test::expect;
    let too_little = idx(8, &[3, 2], &[0; 5]);
    let too_much = idx(8, &[3, 2], &[0; 9]);
    Case::new(&too_little).fails(expect![
        "FILE: the header promises 6 bytes of data (u8[3, 2]), found 5; copy or download the file again"
    ]);
    Case::new(&too_much).fails(expect![
        "FILE: the header promises 6 bytes of data (u8[3, 2]), found 9; copy or download the file again"
    ]);
    Case::new(&gz(&too_little)).fails(expect![
        "FILE: the header promises 6 bytes of data (u8[3, 2]), found 5; copy or download the file again"
    ]);
    Case::new(&gz(&too_much)).fails(expect![
        "FILE: the header promises 6 bytes of data (u8[3, 2]), found more than that; copy or download the file again"
    ]);
}

#[test]
fn a_header_that_is_none_is_refused() {
    use expect_test::expect;
    Case::new(b"").fails(expect![
        "FILE: the file ends in its header: expected 4 bytes of magic number, found 0 bytes"
    ]);
    Case::new(&[0, 0, 8, 3, 0, 0]).fails(expect![
        "FILE: the file ends in its header: expected the sizes of 3 axes, found 2 bytes"
    ]);
    Case::new(b"<!DOCTYPE html>").fails(expect!["FILE: not an IDX file: it starts with the bytes [3c, 21, 44, 4f], expected [00, 00, element type, number of axes] (it looks like a web page: did the download fail?)"]);
    Case::new(&idx(0x0a, &[1], &[0])).fails(expect!["FILE: not an IDX file: the magic number [00, 00, 0a, 01] has the element type 0x0a, expected one of 0x08 (u8), 0x09 (i8), 0x0b (i16), 0x0c (i32), 0x0d (f32), 0x0e (f64)"]);
    Case::new(&gz(b"not idx")).fails(expect!["FILE: not an IDX file: it starts with the bytes [6e, 6f, 74, 20], expected [00, 00, element type, number of axes]"]);
}

#[test]
fn a_header_that_promises_the_moon_allocates_nothing() {
    use expect_test::expect;
    let max = u32::MAX;
    Case::new(&idx(8, &[max, max, max], &[0])).fails(expect!["FILE: the header claims the shape [4294967295, 4294967295, 4294967295] of u8, which is more than this machine can address; the file is damaged"]);
    // The size is within the limit, but the file is too small for it.
    Case::new(&idx(8, &[2, max], &[0])).fails(expect![
        "FILE: the header promises 8589934590 bytes of data (u8[2, 4294967295]), found 1; copy or download the file \
         again"
    ]);
    let small = gz(&idx(8, &[2, max], &[0]));
    let error = Case::new(&small).open().unwrap_err().to_string();
    assert!(error.contains("compressed bytes can hold no more than"), "{error}");
    Case::new(&idx(8, &[8, max], &[0])).fails(expect!["FILE: the header claims 34359738360 bytes of data (u8[8, 4294967295]), over the limit of 17179869184; if that is right, raise the limit with IdxFile::open_with_limit"]);
    let case = Case::new(&idx(8, &[6], &[0; 6]));
    assert!(
        IdxFile::open_with_limit(&case.path, 5)
            .unwrap_err()
            .to_string()
            .contains("over the limit of 5")
    );
    assert!(IdxFile::open_with_limit(&case.path, 6).is_ok());
}

#[test]
fn every_cut_of_a_plain_file_is_an_error() {
    let whole = idx(0x0c, &[2, 3], &noise(24));
    for cut in 0..whole.len() {
        assert!(Case::new(&whole[..cut]).open().unwrap_err().is_file(), "cut at {cut}");
    }
}

#[test]
fn a_missing_file_and_a_folder_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let error = IdxFile::open(dir.path().join("none")).unwrap_err();
    assert!(error.is_not_found(), "{error}");
    let error = IdxFile::open(dir.path()).unwrap_err();
    assert!(!error.is_not_found() && error.to_string().contains("this is a folder"), "{error}");
}
