//! Parquet, Arrow and Hugging Face folders written by Python, and invalid files.
#![cfg(feature = "parquet")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::notes;
use arrow_array::{
    ArrayRef, DictionaryArray, Int8Array, Int64Array, NullArray, RecordBatch, StringArray,
};
use arrow_ipc::writer::{FileWriter, StreamWriter};
use expect_test::{Expect, expect};
use fulmen_data::{
    DType, DataLoader, Dataset, Error, Field, Fingerprint, HostBatch, OnError, Source, Stream,
};
use fulmen_tables::{
    ArrowFiles, Csv, HfDataset, HfFeature, HfFolder, JsonLines, Parquet, Row, RowStream, Table,
    TextFile,
};
use parquet::arrow::ArrowWriter;
use parquet::file::metadata::{FileMetaData, ParquetMetaData, ParquetMetaDataWriter};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::Value;

fn reference() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/tables")
}

fn expected() -> Value {
    serde_json::from_slice(&fs::read(reference().join("expected.json")).unwrap()).unwrap()
}

/// Compares the message without the folder of the files.
fn check(error: Error, expect: Expect) {
    expect.assert_eq(&error.to_string().replace(&format!("{}/", reference().display()), ""));
}

fn bytes(value: &Value) -> Vec<u8> {
    value.as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap() as u8).collect()
}

/// Compares every column of a row with pyarrow's result.
fn compare(row: &Row, expected: &Value) {
    for (column, value) in expected.as_object().unwrap() {
        let context = format!("{} of {}", column, row.origin());
        if value.is_null() {
            assert!(row.is_missing(column).unwrap(), "{context}");
            assert!(row.get::<Option<f64>>(column).ok().flatten().is_none(), "{context}");
            continue;
        }
        match column.as_str() {
            "f64" | "f32" | "f16" => {
                assert_eq!(row.get::<f64>(column).unwrap(), value.as_f64().unwrap(), "{context}")
            }
            "i8" | "i64" | "day" => {
                assert_eq!(row.get::<i64>(column).unwrap(), value.as_i64().unwrap(), "{context}")
            }
            "u16" | "u64" => {
                assert_eq!(row.get::<u64>(column).unwrap(), value.as_u64().unwrap(), "{context}")
            }
            "flag" => {
                assert_eq!(row.get::<bool>(column).unwrap(), value.as_bool().unwrap(), "{context}")
            }
            "text" | "large" | "category" => {
                assert_eq!(row.str(column).unwrap(), value.as_str().unwrap(), "{context}");
            }
            "raw" => {
                assert_eq!(row.bytes(column).unwrap(), bytes(value), "{context}");
                assert_eq!(row.get::<Vec<u8>>(column).unwrap(), bytes(value), "{context}");
            }
            "vector" => {
                let expected: Vec<f64> =
                    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
                assert_eq!(row.get::<Vec<f64>>(column).unwrap(), expected, "{context}");
            }
            "fixed" | "ragged" => {
                let expected: Vec<i64> =
                    value.as_array().unwrap().iter().map(|x| x.as_i64().unwrap()).collect();
                assert_eq!(row.get::<Vec<i64>>(column).unwrap(), expected, "{context}");
            }
            "matrix" => {
                let actual: Value =
                    serde_json::to_value(row.get::<Vec<Vec<i64>>>(column).unwrap()).unwrap();
                assert_eq!(&actual, value, "{context}");
            }
            "picture" => {
                assert_eq!(
                    row.bytes("picture.bytes").unwrap(),
                    bytes(&value["bytes"]),
                    "{context}"
                );
                assert_eq!(row.media("picture").unwrap(), bytes(&value["bytes"]), "{context}");
                assert_eq!(
                    row.row("picture").unwrap().str("path").unwrap(),
                    value["path"],
                    "{context}"
                );
            }
            "boxes" => {
                let boxes = row.rows(column).unwrap();
                assert_eq!(boxes.len(), value.as_array().unwrap().len(), "{context}");
                for (actual, expected) in boxes.iter().zip(value.as_array().unwrap()) {
                    assert_eq!(
                        actual.get::<f64>("x").unwrap(),
                        expected["x"].as_f64().unwrap(),
                        "{context}"
                    );
                    assert_eq!(actual.str("kind").unwrap(), expected["kind"], "{context}");
                }
            }
            other => panic!("the column {other} is not compared"),
        }
    }
}

fn compare_all(source: &impl Source<Item = Row>, stream: &RowStream, rows: usize) {
    let expected = expected();
    assert_eq!((source.len(), stream.len()), (rows, Some(rows)));
    let items: Vec<_> = stream.items(0).unwrap().map(|item| item.unwrap()).collect();
    assert_eq!(items.len(), rows);
    let mut compared = 0;
    for (index, expected) in expected["rows"].as_object().unwrap() {
        let index: usize = index.parse().unwrap();
        if index < rows {
            compare(&source.get(index).unwrap(), expected);
            compare(&items[index].item, expected);
            assert_eq!(
                (items[index].index, &items[index].origin),
                (index as u64, &source.origin(index))
            );
            assert!(
                source.origin(index).ends_with(&format!(", row {index}")),
                "{}",
                source.origin(index)
            );
            compared += 1;
        }
    }
    assert!(compared >= 4);
    assert!(source.get(rows).unwrap_err().is_usage());
}

#[test]
fn parquet_of_every_compression_reads_as_pyarrow_reads_it() {
    for (name, rows) in [("plain", 300), ("paged", 300)]
        .into_iter()
        .chain(["snappy", "gzip", "brotli", "lz4", "zstd"].map(|name| (name, 60)))
    {
        let parquet = Parquet::open(reference().join(format!("{name}.parquet"))).unwrap();
        compare_all(&parquet, &parquet.stream(), rows);
        // The cache has no space, so each row is decoded again.
        let parquet = parquet.cache_bytes(0);
        compare_all(&parquet, &parquet.stream(), rows);
    }
}

#[test]
fn arrow_files_of_both_formats_read_as_pyarrow_reads_them() {
    for name in ["plain.arrow", "lz4.arrow", "zstd.arrow", "stream.arrows"] {
        let arrow = ArrowFiles::open(reference().join(name)).unwrap();
        compare_all(&arrow, &arrow.stream(), 300);
    }
    let pandas = ArrowFiles::open(reference().join("pandas.feather")).unwrap();
    assert_eq!(pandas.get(2).unwrap().get::<i64>("a").unwrap(), 3);
    assert_eq!(pandas.get(1).unwrap().get::<Option<String>>("b").unwrap(), None);
}

#[test]
fn columns_become_fields_alike_from_all_formats() {
    fn fields(table: impl Table) {
        let label = ["cat", "dog", "eel"];
        let dataset = table
            .columns("numbers", ["f32", "f64"], DType::F32)
            .fill(-1.0)
            .column("i8", DType::I16)
            .column("u64", DType::U64)
            .column("flag", DType::Bool)
            .fill(0.0)
            .array("vector", DType::F32, [4])
            .array("fixed", DType::I64, [3])
            .array("matrix", DType::I64, [3, 2])
            .array("matrix", DType::Bf16, [6])
            .named("flat")
            .array("raw", DType::U8, [3])
            .label("category")
            .build()
            .unwrap();
        assert_eq!(dataset.classes("category").unwrap(), label);
        let order = [299, 3, 64, 0, 100, 99, 7];
        let batch = HostBatch::collate(&dataset, &order).unwrap();
        let expected = expected();
        let category = batch.field_index("category").unwrap();
        let flat = batch.field_index("flat").unwrap();
        for (position, index) in order.iter().enumerate() {
            let row = &expected["rows"][index.to_string()];
            let numbers = &batch.values::<f32>(0).unwrap()[2 * position..];
            assert_eq!(f64::from(numbers[0]), row["f32"].as_f64().unwrap());
            assert_eq!(numbers[1], row["f64"].as_f64().map_or(-1.0, |x| x as f32));
            assert_eq!(i64::from(batch.values::<i16>(1).unwrap()[position]), row["i8"]);
            assert_eq!(batch.values::<u64>(2).unwrap()[position], row["u64"]);
            assert_eq!(
                batch.values::<bool>(3).unwrap()[position],
                row["flag"].as_bool().unwrap_or(false)
            );
            let vector = &batch.values::<f32>(4).unwrap()[4 * position..4 * position + 4];
            let expected_vector: Vec<f32> = row["vector"]
                .as_array()
                .unwrap()
                .iter()
                .map(|x| x.as_f64().unwrap() as f32)
                .collect();
            assert_eq!(vector, expected_vector);
            let i = *index as i64;
            assert_eq!(
                batch.values::<i64>(5).unwrap()[3 * position..3 * position + 3],
                [i, i + 1, -i]
            );
            assert_eq!(
                batch.values::<i64>(6).unwrap()[6 * position..6 * position + 6],
                [i, 1, 2, 3, 4, -i]
            );
            let flat = batch.values::<half::bf16>(flat).unwrap()[6 * position + 4];
            assert_eq!(flat.to_f32(), 4.0);
            assert_eq!(
                batch.field_bytes(8).unwrap()[3 * position..3 * position + 3],
                bytes(&row["raw"])[..]
            );
            assert_eq!(
                label[batch.values::<i32>(category).unwrap()[position] as usize],
                row["category"].as_str().unwrap()
            );
        }
    }
    fields(Parquet::open(reference().join("plain.parquet")).unwrap());
    fields(Parquet::open(reference().join("paged.parquet")).unwrap().cache_bytes(1));
    fields(ArrowFiles::open(reference().join("zstd.arrow")).unwrap());
    fields(ArrowFiles::open(reference().join("stream.arrows")).unwrap());
}

#[test]
fn values_and_columns_of_another_type_are_named_with_their_place() {
    let open = || Parquet::open(reference().join("plain.parquet")).unwrap();
    check(
        open().column("f64", DType::I32).build().unwrap_err(),
        expect![
            "plain.parquet: column `f64` has the type float64, expected values that can be read as i32"
        ],
    );
    check(
        open().column("text", DType::F32).build().unwrap_err(),
        expect![
            "plain.parquet: column `text` has the type string, expected values that can be read as f32"
        ],
    );
    check(
        open().array("matrix", DType::C64, [6]).build().unwrap_err(),
        expect![
            "plain.parquet: column `matrix` has the type list<list<int64>>, expected lists whose elements can be read \
             as c64"
        ],
    );
    check(
        open().label("picture").build().unwrap_err(),
        expect![
            "plain.parquet: column `picture` has the type struct<bytes: binary, path: string>, expected texts or \
             integers, to number classes by"
        ],
    );
    let error = open().column("height", DType::F32).build().unwrap_err();
    assert!(
        error.is_field()
            && error.to_string().contains("no column `height`; it has 19 columns: `f64`"),
        "{error}"
    );
    check(
        open().column("i8", DType::U8).fill(0.5).build().unwrap_err(),
        expect!["field `i8 u8[]` cannot be filled with 0.5"],
    );
    let read = |dataset: &dyn Dataset, index| {
        HostBatch::collate(dataset, &[index]).map(|_| ()).unwrap_err()
    };
    let missing = open().column("f64", DType::F32).build().unwrap();
    check(
        read(&missing, 3),
        expect![
            "sample 3 (plain.parquet, row 3): column `f64` has a missing value (null or NaN) here; fill it with \
             `.fill(..)`, read it as an Option, or leave the row out"
        ],
    );
    let ragged = open().array("ragged", DType::I64, [3]).build().unwrap();
    check(
        read(&ragged, 4),
        expect![
            "sample 4 (plain.parquet, row 4): column `ragged` holds a list of 4 elements, expected the shape [3]"
        ],
    );
    let range = open().column("i64", DType::I16).build().unwrap();
    let error = read(&range, 0).to_string();
    assert!(
        error.contains("row 0): column `i64` holds the integer") && error.ends_with("fits in i16"),
        "{error}"
    );
    let classes = open().label_of("category", ["cat", "dog"]).build().unwrap();
    let error = read(&classes, 2).to_string();
    assert!(
        error.ends_with("holds the class `eel`, expected one of the 2 classes `cat`, `dog`"),
        "{error}"
    );
    check(
        open().get(7).unwrap().get::<f32>("text").unwrap_err(),
        expect![
            "plain.parquet: row 7: column `text` holds the text `row 7 é`, expected a number for f32"
        ],
    );
    let error = open().get(0).unwrap().str("picture.size").unwrap_err().to_string();
    assert!(error.contains("plain.parquet, row 0 has no column `picture.size`"), "{error}");
}

#[test]
fn only_the_columns_that_are_used_are_read() {
    let parquet =
        Parquet::open(reference().join("plain.parquet")).unwrap().select(["i8", "text"]).unwrap();
    let row = parquet.get(150).unwrap();
    assert_eq!(row.columns(), ["i8", "text"]);
    assert!(row.get::<f64>("f32").unwrap_err().is_field());
    let item = parquet.stream().items(0).unwrap().nth(299).unwrap().unwrap().item;
    assert_eq!((item.columns(), item.str("text").unwrap()), (vec!["i8", "text"], "row 299 é"));
    let print = |parquet: &Parquet| {
        let mut fingerprint = Fingerprint::new();
        parquet.fingerprint(&mut fingerprint).unwrap();
        fingerprint.to_string()
    };
    let all = Parquet::open(reference().join("plain.parquet")).unwrap();
    assert_ne!(print(&parquet), print(&all));
    assert_eq!(print(&all), print(&Parquet::open(reference().join("plain.parquet")).unwrap()));
}

#[test]
fn a_large_row_group_is_read_in_parts_by_index_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.parquet");
    let rows = 150_001;
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let texts: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..rows).map(|row| format!("{}", row % 7))));
    let batch = RecordBatch::try_from_iter([("number", numbers), ("text", texts)]).unwrap();
    let mut writer =
        ArrowWriter::try_new(fs::File::create(&path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    assert_eq!(writer.close().unwrap().num_row_groups(), 1);

    let table = Parquet::open(&path).unwrap();
    for index in [150_000, 0, 65_535, 65_536, 131_071, 131_072, 77_777] {
        let row = table.get(index).unwrap();
        assert_eq!(
            (row.get::<usize>("number").unwrap(), row.get::<String>("text").unwrap()),
            (index, (index % 7).to_string())
        );
        assert_eq!(row.origin(), table.origin(index));
    }
    let mut count = 0;
    for (index, item) in table.stream().items(0).unwrap().enumerate() {
        let item = item.unwrap();
        assert_eq!(
            (item.index as usize, item.item.get::<usize>("number").unwrap()),
            (index, index)
        );
        count += 1;
    }
    assert_eq!(count, rows);
}

#[test]
fn threads_that_share_the_cache_read_the_same_rows() {
    let read = |workers: usize, cache: usize| {
        let table = Parquet::open(reference().join("plain.parquet")).unwrap().cache_bytes(cache);
        let dataset =
            table.column("i64", DType::I64).array("fixed", DType::I32, [3]).build().unwrap();
        let loader = DataLoader::builder(dataset)
            .batch_size(20)
            .shuffle(true)
            .seed(9)
            .num_workers(workers)
            .build()
            .unwrap();
        let values = loader.epoch(2).flat_map(|batch| {
            let batch = batch.unwrap();
            let fixed = batch.values::<i32>(1).unwrap().iter().map(|&value| i64::from(value));
            batch.values::<i64>(0).unwrap().iter().copied().chain(fixed).collect::<Vec<_>>()
        });
        values.collect::<Vec<_>>()
    };
    let expected = read(0, 1 << 20);
    assert_eq!(expected.len(), 4 * 300);
    assert!(read(3, 1 << 20) == expected && read(3, 0) == expected);
}

#[test]
fn files_that_are_cut_short_or_are_something_else_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.parquet");
    let open = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        Parquet::open(&path).map(|_| ()).unwrap_err()
    };
    let whole = fs::read(reference().join("snappy.parquet")).unwrap();
    for end in [0, 3, 11, 100, whole.len() / 2, whole.len() - 1] {
        let error = open(&whole[..end]);
        assert!(
            error.is_file() && error.to_string().contains("copy or download it again"),
            "{error}"
        );
    }
    let error = open(b"<html>no parquet here</html>");
    assert!(error.to_string().contains("not a Parquet file"), "{error}");
    let arrow = folder.path().join("x.arrow");
    for name in ["plain.arrow", "stream.arrows"] {
        let whole = fs::read(reference().join(name)).unwrap();
        for end in [5, 9, 1000, whole.len() / 2, whole.len() - 20] {
            fs::write(&arrow, &whole[..end]).unwrap();
            let error = ArrowFiles::open(&arrow).map(|_| ()).unwrap_err();
            assert!(error.is_file(), "{name} up to {end}: {error}");
        }
    }
    fs::write(&arrow, "a,b\n1,2\n".repeat(10)).unwrap();
    assert!(ArrowFiles::open(&arrow).unwrap_err().to_string().contains("not an Arrow IPC file"));
    assert!(ArrowFiles::open(folder.path().join("none.arrow")).unwrap_err().is_not_found());
    assert!(Parquet::open(reference().join("saved")).unwrap_err().is_not_found());
}

#[test]
fn damage_within_a_file_is_an_error_of_the_rows_it_hits_and_never_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["snappy.parquet", "plain.arrow", "stream.arrows", "lz4.arrow"] {
        let whole = fs::read(reference().join(name)).unwrap();
        let path = folder.path().join(name);
        let mut right = 0;
        let mut refused = 0;
        let mut count = |outcome: fulmen_data::Result<()>| match outcome {
            Ok(()) => right += 1,
            Err(error) => {
                assert!(error.is_file() || error.is_field(), "{name}: {error}");
                refused += 1;
            }
        };
        for step in 0..24 {
            let mut bytes = whole.clone();
            let offset = whole.len() * step / 24 + 7;
            bytes[offset..offset + 2].iter_mut().for_each(|byte| *byte ^= 0xa5);
            fs::write(&path, &bytes).unwrap();
            let mut read = |source: &dyn Fn(usize) -> fulmen_data::Result<Row>| {
                for index in (0..60).step_by(13) {
                    count(source(index).and_then(|row| row.get::<Vec<i64>>("ragged")).map(drop));
                }
            };
            let opened = if name.ends_with("parquet") {
                Parquet::open(&path).map(|table| read(&|index| table.get(index)))
            } else {
                ArrowFiles::open(&path).map(|table| read(&|index| table.get(index)))
            };
            opened.unwrap_or_else(|error| count(Err(error)));
        }
        assert!(
            right > 0 && refused > 0,
            "{name}: {right} rows were read and {refused} reads refused"
        );
    }
}

/// The values of a file of `checksums_*.parquet`, or the first error, by index and in order.
fn checked_values(path: &Path) -> [fulmen_data::Result<Vec<String>>; 2] {
    let values = |row: fulmen_data::Result<Row>| -> fulmen_data::Result<String> {
        let row = row?;
        let float = row.get::<Option<f64>>("f64")?;
        let ragged = row.get::<Vec<i64>>("ragged")?;
        let text = row.get::<Option<String>>("text")?;
        Ok(format!(
            "{float:?} {} {text:?} {} {ragged:?}",
            row.get::<i64>("i64")?,
            row.str("category")?
        ))
    };
    let parquet = match Parquet::open(path) {
        Ok(parquet) => parquet,
        Err(error) => return [Err(Error::new(error.to_string())), Err(error)],
    };
    let stream = parquet.stream();
    let streamed =
        stream.items(0).unwrap().map(|item| values(item.map(|item| item.item))).collect();
    [(0..parquet.len()).map(|row| values(parquet.get(row))).collect(), streamed]
}

#[test]
fn no_flipped_bit_in_a_page_with_a_checksum_gives_other_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.parquet");
    for version in [1, 2] {
        let whole = fs::read(reference().join(format!("checksums_{version}.parquet"))).unwrap();
        fs::write(&path, &whole).unwrap();
        let [expected, streamed] = checked_values(&path).map(Result::unwrap);
        assert_eq!((expected.len(), &expected), (60, &streamed));
        let metadata =
            SerializedFileReader::new(fs::File::open(&path).unwrap()).unwrap().metadata().clone();
        for (number, group) in metadata.row_groups().iter().enumerate() {
            for chunk in group.columns() {
                let (start, size) = chunk.byte_range();
                let column = &chunk.column_path().parts()[0];
                let mut refused = 0;
                let mut flips = 0;
                for offset in (start..start + size).step_by(11) {
                    let mut bytes = whole.clone();
                    bytes[offset as usize] ^= 1 << (offset % 8);
                    fs::write(&path, &bytes).unwrap();
                    flips += 1;
                    for values in checked_values(&path) {
                        match values {
                            Ok(values) => {
                                assert!(
                                    values == expected,
                                    "a flip at byte {offset} changes `{column}` silently"
                                )
                            }
                            Err(error) => {
                                let message = error.to_string();
                                let position = format!("row group {number}, column `{column}`: ");
                                assert!(
                                    message.contains("x.parquet: ") && message.contains(&position),
                                    "{message}"
                                );
                                refused += 1;
                            }
                        }
                    }
                }
                // The other bits are in fields of a page's header that do not affect its values.
                assert!(refused > flips, "{refused} of {flips} flips of `{column}` are refused");
            }
        }
    }
}

/// 10 blocks of 10 rows, as a Parquet file and as an Arrow file; the second block cannot be
/// decoded.
fn with_a_bad_block(folder: &Path) -> (PathBuf, PathBuf) {
    let batch = |first: i64| {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + 10));
        let texts: ArrayRef = Arc::new(StringArray::from_iter_values(
            (first..first + 10).map(|row| format!("row{row:03}")),
        ));
        RecordBatch::try_from_iter([("number", numbers), ("text", texts)]).unwrap()
    };
    let parquet = folder.join("x.parquet");
    let arrow = folder.join("x.arrow");
    let properties = WriterProperties::builder().set_dictionary_enabled(false).build();
    let mut rows = ArrowWriter::try_new(
        fs::File::create(&parquet).unwrap(),
        batch(0).schema(),
        Some(properties),
    )
    .unwrap();
    let mut batches =
        FileWriter::try_new(fs::File::create(&arrow).unwrap(), &batch(0).schema()).unwrap();
    for first in (0..100).step_by(10) {
        rows.write(&batch(first)).unwrap();
        rows.flush().unwrap();
        batches.write(&batch(first)).unwrap();
    }
    let metadata = rows.close().unwrap();
    batches.finish().unwrap();
    let offset = metadata.row_group(1).column(0).data_page_offset() as usize;
    let mut bytes = fs::read(&parquet).unwrap();
    bytes[offset..offset + 8].fill(0xff);
    fs::write(&parquet, bytes).unwrap();
    let mut bytes = fs::read(&arrow).unwrap();
    let offset = bytes.windows(12).position(|bytes| bytes == b"row010row011").unwrap();
    bytes[offset] = 0xff;
    fs::write(&arrow, bytes).unwrap();
    (parquet, arrow)
}

#[test]
fn a_block_that_cannot_be_decoded_loses_its_rows_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let (parquet, arrow) = with_a_bad_block(folder.path());
    for stream in
        [Parquet::open(parquet).unwrap().stream(), ArrowFiles::open(arrow).unwrap().stream()]
    {
        let items: Vec<_> = stream.items(0).unwrap().collect();
        assert_eq!((items.len(), items[10].is_err()), (91, true));
        let read: Vec<(u64, u64)> = items
            .into_iter()
            .flatten()
            .map(|item| (item.index, item.item.get("number").unwrap()))
            .collect();
        assert_eq!(read, (0..10).chain(20..100).map(|row| (row, row)).collect::<Vec<_>>());
        assert_eq!(stream.describe(), "RowStream(number, text of 100 rows)");
        let data = stream
            .into_dataset(vec![Field::new("number", DType::I64, [])], |row, sample| {
                sample.write_value(0, row.get::<i64>("number")?)
            });
        let loader = DataLoader::from_stream(data)
            .num_samples(90)
            .batch_size(30)
            .on_error(OnError::Skip)
            .build()
            .unwrap();
        let read: Vec<i64> = loader
            .epoch(0)
            .flat_map(|batch| batch.unwrap().values::<i64>(0).unwrap().to_vec())
            .collect();
        assert_eq!(read, (0..10).chain(20..100).collect::<Vec<i64>>());
        assert_eq!(loader.bad_samples().count, 1);
    }
}

#[test]
fn numbers_of_rows_that_cannot_be_are_refused_before_places_are_taken_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.parquet");
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..12_345));
    let batch = RecordBatch::try_from_iter([("number", numbers)]).unwrap();
    let mut writer =
        ArrowWriter::try_new(fs::File::create(&path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    let metadata = writer.close().unwrap();
    let whole = fs::read(&path).unwrap();
    let length: [u8; 4] = whole[whole.len() - 8..whole.len() - 4].try_into().unwrap();
    let footer = whole.len() - 8 - u32::from_le_bytes(length) as usize;
    let rewritten = |rows: i64| {
        let old = metadata.file_metadata();
        let file_metadata =
            FileMetaData::new(old.version(), rows, None, None, old.schema_descr_ptr(), None);
        let group_metadata =
            metadata.row_group(0).clone().into_builder().set_num_rows(rows).build().unwrap();
        let mut bytes = whole[..footer].to_vec();
        let metadata = ParquetMetaData::new(file_metadata, vec![group_metadata]);
        ParquetMetaDataWriter::new(&mut bytes, &metadata).finish().unwrap();
        fs::write(&path, bytes).unwrap();
        Parquet::open(&path)
    };
    assert_eq!(rewritten(12_345).unwrap().len(), 12_345);
    for rows in [1 << 62, i64::MAX, -1] {
        let error = rewritten(rows).unwrap_err().to_string();
        assert!(error.contains("damaged") && error.contains("claims to have"), "{error}");
    }

    let path = folder.path().join("x.arrow");
    let mut writer =
        StreamWriter::try_new(fs::File::create(&path).unwrap(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let offset = bytes.windows(8).position(|bytes| bytes == 12_345i64.to_le_bytes()).unwrap();
    bytes[offset..offset + 8].copy_from_slice(&(1i64 << 62).to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let error = ArrowFiles::open(&path).unwrap_err().to_string();
    assert!(
        error.contains("damaged") && error.contains("claims to have 4611686018427387904 rows"),
        "{error}"
    );
}

#[test]
fn bytes_are_no_list_of_numbers_and_nulls_of_any_kind_are_missing() {
    let row = Parquet::open(reference().join("plain.parquet")).unwrap().get(0).unwrap();
    assert_eq!(row.get::<Vec<u8>>("raw").unwrap(), row.bytes("raw").unwrap());
    let error = row.get::<Vec<f32>>("raw").unwrap_err().to_string();
    assert!(
        error.contains("column `raw` holds 3 bytes, expected a list (bytes are a Vec<u8>)"),
        "{error}"
    );

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.arrow");
    let nothing: ArrayRef = Arc::new(NullArray::new(2));
    let values = StringArray::from(vec![None, Some("cat")]);
    let category: ArrayRef =
        Arc::new(DictionaryArray::new(Int8Array::from(vec![0, 1]), Arc::new(values)));
    let batch = RecordBatch::try_from_iter([("nothing", nothing), ("category", category)]).unwrap();
    let mut writer =
        FileWriter::try_new(fs::File::create(&path).unwrap(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    let rows = ArrowFiles::open(&path).unwrap();
    let missing = |row: usize, column| rows.get(row).unwrap().is_missing(column).unwrap();
    assert_eq!(
        [missing(0, "nothing"), missing(0, "category"), missing(1, "category")],
        [true, true, false]
    );
}

#[test]
fn several_files_are_one_table_if_their_columns_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    for (name, to) in [("gzip", "b"), ("snappy", "a"), ("empty", "c")] {
        fs::copy(
            reference().join(format!("{name}.parquet")),
            folder.path().join(format!("{to}.parquet")),
        )
        .unwrap();
    }
    let table = Parquet::open(folder.path()).unwrap();
    assert_eq!(table.len(), 120);
    assert!(table.origin(61).ends_with("b.parquet, row 1"), "{}", table.origin(61));
    compare(&table.get(63).unwrap(), &expected()["rows"]["3"]);
    let pattern = Parquet::open(folder.path().join("{b,a}.parquet")).unwrap();
    assert!(pattern.origin(0).ends_with("b.parquet, row 0"));
    fs::copy(
        reference().join("hub/data/test-00000-of-00001.parquet"),
        folder.path().join("d.parquet"),
    )
    .unwrap();
    let error = Parquet::open(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("d.parquet: the file has the column `image` where")
            && error.contains("has `f64`"),
        "{error}"
    );
}

/// The expected content of the images in the reference datasets.
fn check_animals(dataset: &HfDataset, first: usize) {
    for index in 0..dataset.len() {
        let number = (first + index) as i64;
        let row = dataset.get(index).unwrap();
        assert_eq!(row.get::<i64>("label").unwrap(), number % 3);
        assert_eq!(row.str("caption").unwrap(), format!("caption {number}"));
        assert!(row.media("image").unwrap().starts_with(b"\x89PNG"));
        assert_eq!(
            row.get::<Vec<i64>>("tokens").unwrap(),
            [number, number + 1, number + 2, number + 3]
        );
    }
}

#[test]
fn hugging_face_folders_are_read_as_they_are() {
    for (name, splits) in [("saved", ["train", "test"]), ("hub", ["train", "test"])] {
        let folder = HfFolder::open(reference().join(name)).unwrap();
        assert_eq!(folder.splits(), splits);
        let train = folder.split("train").unwrap();
        assert_eq!(train.len(), 23);
        check_animals(&train, 0);
        let test = HfDataset::open_split(reference().join(name), "test").unwrap();
        assert_eq!(test.len(), 5);
        check_animals(&test, 100);
        assert_eq!(train.features().get("image"), Some(&HfFeature::Image));
        assert_eq!(
            train.features().get("tokens"),
            Some(&HfFeature::List(Box::new(HfFeature::Value("int32".to_owned()))))
        );
        let dataset = train
            .label("label")
            .array("grid", DType::F32, [2, 3])
            .array("tokens", DType::I32, [4])
            .build()
            .unwrap();
        assert_eq!(dataset.classes("label").unwrap(), ["zebra", "ant", "moose"]);
        let loader =
            DataLoader::builder(dataset).batch_size(23).shuffle(true).seed(3).build().unwrap();
        let batch = loader.epoch(0).next().unwrap().unwrap();
        for (row, label) in batch.values::<i32>(0).unwrap().iter().enumerate() {
            let grid = &batch.values::<f32>(1).unwrap()[6 * row..];
            assert_eq!(grid[0] as i32 % 3, *label);
            assert_eq!((grid[1], grid[5]), (1.0, grid[0]));
            assert_eq!(batch.values::<i32>(2).unwrap()[4 * row], grid[0] as i32);
        }
    }
    let dataset = HfDataset::open(reference().join("saved_one")).unwrap();
    assert_eq!(dataset.len(), 23);
    check_animals(&dataset, 0);
    let selected = HfDataset::open(reference().join("saved_selected")).unwrap();
    let captions: Vec<String> =
        (0..3).map(|index| selected.get(index).unwrap().get("caption").unwrap()).collect();
    assert_eq!(captions, ["caption 3", "caption 1", "caption 2"]);
}

#[test]
fn a_card_says_which_files_belong_to_which_split() {
    let folder = HfFolder::open(reference().join("configured")).unwrap();
    assert_eq!((folder.configs(), folder.splits()), (vec!["small", "full"], vec!["train", "test"]));
    check_animals(&folder.split("test").unwrap(), 100);
    let small = folder.config("small").unwrap();
    assert_eq!(small.splits(), ["train"]);
    check_animals(&small.split("train").unwrap(), 100);
    let error = small.config("large").unwrap_err().to_string();
    assert!(error.ends_with("there is no configuration `large`; there are small, full"), "{error}");
}

#[test]
fn files_that_belong_to_no_split_are_left_out() {
    let hub = |name: &str| reference().join(format!("hub/data/{name}.parquet"));
    let train = hub("train-00000-of-00002");
    let test = hub("test-00000-of-00001");
    let rows = |path: &Path| Parquet::open(path).unwrap().len();
    notes::collect();
    let check = |files: &[(&str, &Path)], expected: &[(&str, usize)], left_out: Option<&str>| {
        let folder = tempfile::tempdir().unwrap();
        for (name, from) in files {
            let to = folder.path().join(name);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(from, to).unwrap();
        }
        let opened = HfFolder::open(folder.path()).unwrap();
        let actual: Vec<(&str, usize)> = opened
            .splits()
            .into_iter()
            .map(|split| (split, opened.split(split).unwrap().len()))
            .collect();
        assert_eq!(actual, expected, "{files:?}");
        let reason = "their names give no split, but those of others do";
        let folder = folder.path().display().to_string();
        let expected =
            left_out.map(|files| format!("{folder}: left out {files} of no split): {reason}"));
        assert_eq!(notes::about(&folder), Vec::from_iter(expected), "{files:?}");
    };
    let of_train = rows(&train);
    let of_test = rows(&test);
    assert_ne!(of_train, of_test);
    // The result of `datasets` 5.2 for the same names.
    check(
        &[
            ("data/train-00000-of-00001.parquet", &train),
            ("data/unsupervised-00000-of-00001.parquet", &test),
            ("test.parquet", &train),
            ("stray.parquet", &train),
        ],
        &[("train", of_train), ("unsupervised", of_test)],
        Some("2 files (2"),
    );
    check(
        &[
            ("train/0.parquet", &train),
            ("val/0.parquet", &test),
            ("0.parquet", &test),
            ("test.parquet", &test),
        ],
        &[("train", of_train), ("validation", of_test)],
        Some("2 files (2"),
    );
    check(
        &[
            ("my-train.parquet", &train),
            ("x/eval_0.parquet", &test),
            ("x/unsupervised.parquet", &test),
        ],
        &[("train", of_train), ("test", of_test)],
        Some("1 file (1"),
    );
    check(&[("a.parquet", &test), (".cache/b.parquet", &test)], &[("train", of_test)], None);
}

#[test]
fn no_card_and_no_list_of_files_leads_out_of_its_folder() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("dataset");
    let secret = root.path().join("secret");
    fs::create_dir_all(folder.join("inner")).unwrap();
    fs::create_dir(&secret).unwrap();
    let parquet = reference().join("hub/data/test-00000-of-00001.parquet");
    fs::copy(&parquet, secret.join("x.parquet")).unwrap();
    fs::copy(&parquet, folder.join("inner/x.parquet")).unwrap();
    let refused = |card: &str| {
        fs::write(
            folder.join("README.md"),
            format!("---\nconfigs:\n- config_name: a\n{card}\n---\n"),
        )
        .unwrap();
        let error = HfFolder::open(&folder).unwrap_err().to_string();
        assert!(error.contains("README.md: the configuration `a`: "), "{error}");
        assert!(error.contains("is not inside the folder"), "{error}");
    };
    let absolute = format!("{}/x.parquet", secret.display());
    for pattern in [
        "../**/*.parquet",
        "inner/../../secret/x.parquet",
        "{..,inner}/secret/x.parquet",
        &absolute,
    ] {
        refused(&format!("  data_files: \"{pattern}\""));
        refused(&format!("  data_files:\n  - split: train\n    path: [\"{pattern}\"]"));
    }
    refused("  data_dir: ../secret");
    refused(&format!("  data_dir: {}", secret.display()));
    for inner in ["inner", "./inner", "inner/"] {
        let card = format!("---\nconfigs:\n- config_name: a\n  data_dir: {inner}\n---\n");
        fs::write(folder.join("README.md"), card).unwrap();
        assert_eq!(HfDataset::open(&folder).unwrap().len(), 5, "{inner}");
    }

    let message = |name: &str, text: &str| {
        fs::write(folder.join(name), text).unwrap();
        let error = HfFolder::open(&folder).unwrap_err().to_string();
        fs::remove_file(folder.join(name)).unwrap();
        error
    };
    for name in ["../secret", "..", "/etc"] {
        let error = message("dataset_dict.json", &format!(r#"{{"splits": ["{name}"]}}"#));
        assert!(error.contains("is not inside the folder"), "{error}");
        let error = message(
            "state.json",
            &format!(r#"{{"_data_files": [{{"filename": "{name}/x.arrow"}}]}}"#),
        );
        assert!(error.contains("is not inside the folder"), "{error}");
    }
}

/// Opening a pipe would wait for a writer, and a device never ends.
#[test]
fn only_regular_files_are_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let pipe = path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for target in [&*pipe, Path::new("/dev/zero")] {
        for name in ["x.csv", "x.jsonl", "x.txt", "x.parquet", "x.arrow"] {
            std::os::unix::fs::symlink(target, path(name)).unwrap();
            let error = match name {
                "x.csv" => Csv::open(path(name)).map(|_| ()),
                "x.jsonl" => JsonLines::open(path(name)).map(|_| ()),
                "x.txt" => TextFile::open(path(name)).map(|_| ()),
                "x.parquet" => Parquet::open(path(name)).map(|_| ()),
                _ => ArrowFiles::open(path(name)).map(|_| ()),
            };
            let error = error.unwrap_err().to_string();
            assert!(error.contains("this is not a regular file"), "{name}: {error}");
            fs::remove_file(path(name)).unwrap();
        }
    }
    std::os::unix::fs::symlink("/dev/zero", path("README.md")).unwrap();
    assert!(HfFolder::open(folder.path()).unwrap_err().is_not_found());
}

#[test]
fn what_a_card_lists_need_not_be_there_before_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let card = "---\nconfigs:\n- config_name: small\n  data_files:\n  - split: train\n    path: small/train-*\n  - \
                split: test\n    path: small/test-*\n- config_name: large\n  data_files: large/*.parquet\n- \
                config_name: other\n  data_dir: other\n---\n";
    fs::write(folder.path().join("README.md"), card).unwrap();
    fs::create_dir(folder.path().join("small")).unwrap();
    fs::copy(
        reference().join("hub/data/test-00000-of-00001.parquet"),
        folder.path().join("small/train-0.parquet"),
    )
    .unwrap();
    let open = |config: &str| HfFolder::open(folder.path()).unwrap().config(config).unwrap();
    assert_eq!(open("small").configs(), ["small", "large", "other"]);
    assert_eq!(open("small").splits(), ["train", "test"]);
    assert_eq!(open("small").split("train").unwrap().len(), 5);
    assert!(open("small").split("test").unwrap_err().is_not_found());
    assert!(open("large").split("train").unwrap_err().is_not_found());
    let error = open("other").split("train").unwrap_err().to_string();
    assert!(
        error.ends_with("there is no split `train`; this configuration has no files here"),
        "{error}"
    );
}

#[test]
fn what_is_no_folder_of_a_dataset_says_what_is_missing() {
    check(
        HfDataset::open(reference().join("saved")).unwrap_err(),
        expect![
            "saved: the dataset has the splits train, test; choose one with `HfDataset::open_split`"
        ],
    );
    check(
        HfDataset::open_split(reference().join("hub"), "validation").unwrap_err(),
        expect!["hub: there is no split `validation`; there are train, test"],
    );
    let folder = tempfile::tempdir().unwrap();
    let error = HfFolder::open(folder.path()).unwrap_err();
    assert!(
        error.is_not_found()
            && error.to_string().contains("not a folder of Hugging Face's `datasets`"),
        "{error}"
    );
    fs::write(folder.path().join("state.json"), r#"{"_data_files": [{"filename": "../x.arrow"}]}"#)
        .unwrap();
    assert!(
        HfFolder::open(folder.path()).unwrap_err().to_string().contains("is not inside the folder")
    );
    fs::write(folder.path().join("state.json"), r#"{"_data_files": [{"filename": "gone.arrow"}]}"#)
        .unwrap();
    assert!(HfDataset::open(folder.path()).unwrap_err().is_not_found());
    fs::write(folder.path().join("state.json"), "{").unwrap();
    assert!(
        HfDataset::open(folder.path()).unwrap_err().to_string().contains("state.json: not JSON")
    );
}
