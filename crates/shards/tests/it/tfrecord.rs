//! TFRecord files and `tf.train.Example` messages: written by Python, written here, and damaged.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use expect_test::expect;
use fulmen_data::{Error, Fingerprint, Source, Stream};
use fulmen_shards::{Example, Feature, TfRecordSource, TfRecordWriter, TfRecords};

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/tfrecord").join(name)
}

fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn expected() -> serde_json::Value {
    serde_json::from_slice(&fs::read(reference("expected.json")).unwrap()).unwrap()
}

fn records(files: &TfRecords) -> Result<Vec<Vec<u8>>, Error> {
    files.items(0)?.map(|item| item.map(|item| item.item)).collect()
}

#[test]
fn what_python_wrote_is_read_plain_and_compressed() {
    let expected = expected();
    let expected: Vec<Example> = expected["examples"]
        .as_array()
        .unwrap()
        .iter()
        .map(|example| {
            let list = |name: &str| example[name].as_array().unwrap().clone();
            Example::new()
                .with("image", Feature::Bytes(vec![unhex(example["image"].as_str().unwrap())]))
                .with(
                    "floats",
                    Feature::Floats(
                        list("floats").iter().map(|v| v.as_f64().unwrap() as f32).collect(),
                    ),
                )
                .with(
                    "ints",
                    Feature::Ints(list("ints").iter().map(|v| v.as_i64().unwrap()).collect()),
                )
        })
        .collect();
    assert_eq!(expected.len(), 4);
    let path = reference("examples.tfrecord");
    for file in [path.clone(), reference("examples.tfrecord.gz")] {
        let stream = TfRecords::open(&file).unwrap().examples();
        let read: Vec<Example> = stream.items(0).unwrap().map(|item| item.unwrap().item).collect();
        assert_eq!(read, expected, "{}", file.display());
    }
    let source = TfRecordSource::open(&path).unwrap().examples();
    let read: Vec<Example> = (0..source.len()).map(|index| source.get(index).unwrap()).collect();
    assert_eq!(read, expected);
    // Written again, the bytes are the same except for the order of the features, which Python does
    // not fix.
    for example in &expected {
        assert_eq!(Example::parse(&example.encode()).unwrap(), *example);
    }
    let error = TfRecordSource::open(reference("examples.tfrecord.gz")).unwrap_err();
    assert!(error.to_string().contains("compressed records"), "{error}");
}

#[test]
fn records_stand_where_pythons_index_has_them_and_are_written_alike() {
    let dir = tempfile::tempdir().unwrap();
    let path = reference("examples.tfrecord");
    let bytes = fs::read(&path).unwrap();
    let all = records(&TfRecords::open(&path).unwrap()).unwrap();
    for (place, record) in expected()["index"].as_array().unwrap().iter().zip(&all) {
        let offset = place[0].as_u64().unwrap() as usize;
        assert_eq!(place[1].as_u64().unwrap() as usize, record.len() + 16);
        assert_eq!(&bytes[offset + 12..offset + 12 + record.len()], record);
    }
    let mut writer = TfRecordWriter::create(dir.path().join("new/again")).unwrap();
    let mut packed = TfRecordWriter::create_gzip(dir.path().join("packed")).unwrap();
    for record in &all {
        writer.write(record).unwrap();
        packed.write(record).unwrap();
    }
    assert!(!dir.path().join("new/again").exists(), "it has no name before it is complete");
    assert_eq!((writer.finish().unwrap(), packed.finish().unwrap()), (4, 4));
    assert_eq!(fs::read(dir.path().join("new/again")).unwrap(), bytes);
    assert_eq!(records(&TfRecords::open(dir.path().join("packed")).unwrap()).unwrap(), all);
}

#[test]
fn features_may_be_missing_empty_or_of_another_kind() {
    let mut odd = Example::parse(&fs::read(reference("odd.bin")).unwrap()).unwrap();
    assert_eq!(odd.features["none"], Feature::Missing);
    assert_eq!(odd.features["empty"], Feature::Ints(Vec::new()));
    assert_eq!(odd.features["two"], Feature::Bytes(vec![b"a".to_vec(), Vec::new()]));
    let tell = |error: Error| error.to_string();
    expect!["the feature `two` is a list of 2 byte strings, expected one string of bytes"]
        .assert_eq(&tell(odd.take_bytes("two").unwrap_err()));
    expect!["the feature `none` is not a list, expected one integer"]
        .assert_eq(&tell(odd.int("none").unwrap_err()));
    expect!["the example has no feature `label`; its features: `empty`, `none`, `two`"]
        .assert_eq(&tell(odd.floats("label").unwrap_err()));
    assert_eq!(Example::parse(&odd.encode()).unwrap(), odd);
    // Unpacked values, as in old files, and an unknown field.
    let old = [
        &[0x0a, 0x17, 0x0a, 0x15, 0x0a, 1, b'f', 0x12, 0x10, 0x12, 0x0a][..],
        &[0x0d, 0, 0, 0x80, 0x3f],
        &[0x0d, 0, 0, 0, 0x40],
        &[0x1d, 1, 2, 3, 4][..3],
        &[0x20],
    ]
    .concat();
    assert!(Example::parse(&old).is_err(), "it ends within a field");
    let old = [
        &[0x0a, 0x13, 0x0a, 0x11, 0x0a, 1, b'f', 0x12, 0x0c, 0x12, 0x0a][..],
        &[0x0d, 0, 0, 0x80, 0x3f],
        &[0x0d, 0, 0, 0, 0x40],
    ]
    .concat();
    assert_eq!(Example::parse(&old).unwrap().floats("f").unwrap(), [1.0, 2.0]);
    for broken in [&[0x0a][..], &[0x0a, 5, 1], &[0xff; 12], &[0x0f], &[0x08, 1], &[0x02, 0]] {
        let error = Example::parse(broken).unwrap_err();
        assert!(error.to_string().contains("not a tf.train.Example"), "{error}");
    }
}

#[test]
fn damaged_files_are_refused_with_the_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.tfrecord");
    let good = fs::read(reference("examples.tfrecord")).unwrap();
    let second = expected()["index"][1][0].as_u64().unwrap() as usize;
    let damaged = |offset: usize| {
        let mut bytes = good.clone();
        bytes[offset] ^= 0x40;
        bytes
    };
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&good).unwrap();
    let gzip = gzip.finish().unwrap();
    let cases: Vec<(Vec<u8>, expect_test::Expect)> = vec![
        (Vec::new(), expect!["FILE: the file is empty; expected a TFRecord file"]),
        (
            b"<html><body>".to_vec(),
            expect![
                "FILE: not a TFRecord file, plain or gzip: the checksum of the first length is wrong (it looks like a \
                 web page: did the download fail?)"
            ],
        ),
        (
            vec![0; 5],
            expect![
                "FILE: record 0, at byte 0: the file ends after 5 of the 12 bytes of its header; it is truncated: \
                 copy or download it again"
            ],
        ),
        (
            damaged(second + 3),
            expect![
                "FILE: record 1, at byte 79: the checksum of its length is wrong; copy or download the file again"
            ],
        ),
        (
            damaged(second + 20),
            expect![
                "FILE: record 1, at byte 79: the checksum of its 126 bytes is wrong; copy or download the file again"
            ],
        ),
        (
            good[..second + 6].to_vec(),
            expect![
                "FILE: record 1, at byte 79: the file ends after 6 of the 12 bytes of its header; it is truncated: \
                 copy or download it again"
            ],
        ),
        (
            good[..second + 40].to_vec(),
            expect![
                "FILE: record 1, at byte 79: the file ends after 28 of its 126 bytes; it is truncated: copy or \
                 download it again"
            ],
        ),
        (
            good[..good.len() - 1].to_vec(),
            expect![
                "FILE: record 3, at byte 428: the file ends after 3 of the 4 bytes of its checksum; it is truncated: \
                 copy or download it again"
            ],
        ),
        (
            gzip[..gzip.len() / 2].to_vec(),
            expect![
                "FILE: record 2, at byte 221: the compressed file is truncated; copy or download it again"
            ],
        ),
    ];
    for (bytes, expect) in cases {
        fs::write(&path, &bytes).unwrap();
        let error = records(&TfRecords::open(&path).unwrap()).unwrap_err();
        assert!(error.is_file(), "{error}");
        expect.assert_eq(&error.to_string().replace(&path.display().to_string(), "FILE"));
    }
    // A record with a wrong checksum is one error, and the others are read.
    fs::write(&path, damaged(second + 20)).unwrap();
    let stream = TfRecords::open(&path).unwrap();
    assert!(stream.describe().starts_with("TfRecords(1 from ") && !stream.describe().contains("/"));
    let items: Vec<_> = stream.items(0).unwrap().collect();
    assert_eq!(items.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true, true]);
    assert_eq!(items[3].as_ref().unwrap().index, 3);
    let source = TfRecordSource::open(&path).unwrap();
    assert!(source.get(1).unwrap_err().to_string().contains("record 1, at byte"));
    assert_eq!(source.get(2).unwrap(), items[2].as_ref().unwrap().item);
    assert!(source.get(4).unwrap_err().is_usage());
    // Opening a truncated file by index fails.
    for end in [5, second + 6, second + 40, good.len() - 1] {
        fs::write(&path, &good[..end]).unwrap();
        assert!(TfRecordSource::open(&path).unwrap_err().is_file());
    }
    fs::write(&path, &good).unwrap();
    let error = records(&TfRecords::open(&path).unwrap().max_record_bytes(10)).unwrap_err();
    assert!(error.to_string().contains("max_record_bytes"), "{error}");
}

#[test]
fn a_file_that_shrinks_under_a_source_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.tfrecord");
    fs::copy(reference("examples.tfrecord"), &path).unwrap();
    let source = TfRecordSource::open(&path).unwrap();
    assert!(source.origin(2).ends_with("a.tfrecord, record 2"));
    let fingerprint_of = |source: &TfRecordSource| {
        let mut fingerprint = Fingerprint::new();
        source.fingerprint(&mut fingerprint).unwrap();
        fingerprint.to_string()
    };
    let before = fingerprint_of(&source);
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(30).unwrap();
    assert!(source.get(2).unwrap_err().to_string().contains("shorter than when it was opened"));
    assert_ne!(fingerprint_of(&source), before);
}

/// A length whose low bytes are gzip's magic bytes.
#[test]
fn a_plain_file_may_begin_as_gzip_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let record = vec![7; 0x8b1f];
    let mut writer = TfRecordWriter::create(&path).unwrap();
    writer.write(&record).unwrap();
    writer.finish().unwrap();
    assert_eq!(fs::read(&path).unwrap()[..2], [0x1f, 0x8b]);
    assert_eq!(records(&TfRecords::open(&path).unwrap()).unwrap(), std::slice::from_ref(&record));
    assert_eq!(TfRecordSource::open(&path).unwrap().get(0).unwrap(), record);
}

/// A field of a protocol buffer message: its number and its bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).unwrap();
    assert!(length < 128);
    [&[number << 3 | 2, length], bytes].concat()
}

/// An entry of a map from names.
fn entry(name: &str, value: &[u8]) -> Vec<u8> {
    field(1, &[field(1, name.as_bytes()), field(2, value)].concat())
}

/// The bytes of `tensorflow/core/example/example.proto`, written out.
#[test]
fn the_lists_of_a_sequence_example_are_kept() {
    let ints = |value: u8| field(3, &field(1, &[value]));
    let bytes = |value: &[u8]| field(1, &field(1, value));
    let words = [field(1, &bytes(b"a")), field(1, &bytes(b"bc"))].concat();
    let lengths = [field(1, &ints(1)), field(1, &ints(2))].concat();
    let context = field(1, &entry("label", &ints(7)));
    let lists = field(2, &[entry("lengths", &lengths), entry("words", &words)].concat());
    let message = [context, lists].concat();

    let example = Example::parse(&message).unwrap();
    let expected = Example::new()
        .with("label", Feature::Ints(vec![7]))
        .with_list("lengths", [Feature::Ints(vec![1]), Feature::Ints(vec![2])])
        .with_list(
            "words",
            [Feature::Bytes(vec![b"a".to_vec()]), Feature::Bytes(vec![b"bc".to_vec()])],
        );
    assert_eq!(example, expected);
    assert_eq!(expected.encode(), message);
    assert_eq!(example.int("label").unwrap(), 7);
    assert_eq!(example.list("lengths").unwrap()[1], Feature::Ints(vec![2]));
    let error = example.int("words").unwrap_err().to_string();
    assert!(
        error.ends_with("its features: `label`; its feature lists: `lengths`, `words`"),
        "{error}"
    );
    let error = example.list("label").unwrap_err().to_string();
    assert!(error.ends_with("no feature list `label`; its lists: `lengths`, `words`"), "{error}");
}
