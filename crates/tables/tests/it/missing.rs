//! Missing values mean the same in all formats: what pandas says about the same table.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{ArrayRef, FixedSizeListArray, RecordBatch};
use arrow_ipc::writer::FileWriter;
use fulmen_data::{DType, Dataset, HostBatch, Result, Source};
use fulmen_tables::{ArrowFiles, Csv, JsonLines, Parquet, Row, Table};
use serde::Deserialize;
use serde_json::Value;

const COLUMNS: [&str; 3] = ["f64", "f32", "f16"];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/missing").join(name)
}

fn expected(file: &str) -> Value {
    let all: Value = serde_json::from_slice(&fs::read(path("expected.json")).unwrap()).unwrap();
    all[file].clone()
}

fn parse<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

/// Compares each column, read by rows and as fields, with pandas.
fn check<T: Table<Item = Row>>(file: &str, open: impl Fn(&Path) -> Result<T>) {
    let expected = expected(file);
    for column in COLUMNS {
        let missing: Vec<bool> = parse(&expected["missing"][column]);
        let filled: Vec<f32> = parse(&expected["filled"][column]);
        let table = open(&path(file)).unwrap();
        let rows: Vec<Row> = (0..table.len()).map(|index| table.get(index).unwrap()).collect();
        let context = format!("{column} of {file}");
        let is_missing = |row: &Row| row.is_missing(column).unwrap();
        assert_eq!(rows.iter().map(is_missing).collect::<Vec<_>>(), missing, "{context}");
        let is_none = |row: &Row| row.get::<Option<f64>>(column).unwrap().is_none();
        assert_eq!(rows.iter().map(is_none).collect::<Vec<_>>(), missing, "{context}");

        let all: Vec<usize> = (0..rows.len()).collect();
        let dataset = table.column(column, DType::F32).fill(-1.0).build().unwrap();
        let batch = HostBatch::collate(&dataset, &all).unwrap();
        assert_eq!(batch.values::<f32>(0).unwrap(), filled, "{context}");
        let dataset = open(&path(file)).unwrap().column(column, DType::F32).build().unwrap();
        for (index, is_missing) in missing.iter().enumerate() {
            let read = HostBatch::collate(&dataset, &[index]).map(|_| ());
            let error = read.err().map(|error| error.to_string());
            let is_refused = error.is_some_and(|text| text.contains("a missing value"));
            assert_eq!(is_refused, *is_missing, "{context}, row {index}");
        }
        let kept = open(&path(file)).unwrap().column(column, DType::F32).fill(f64::NAN);
        let batch = HostBatch::collate(&kept.build().unwrap(), &all).unwrap();
        let is_nan: Vec<bool> =
            batch.values::<f32>(0).unwrap().iter().map(|value| value.is_nan()).collect();
        assert_eq!(is_nan, missing, "{context}");
    }
}

#[test]
fn nan_is_missing_in_parquet_arrow_and_csv_as_in_pandas() {
    check("x.parquet", |path| Parquet::open(path));
    check("x.arrow", |path| ArrowFiles::open(path));
    check("x.csv", |path| Csv::open(path));
}

#[test]
fn nan_in_a_list_is_missing_too() {
    let expected = expected("pair");
    let missing: Vec<[bool; 2]> = parse(&expected["missing"]);
    let filled: Vec<[f32; 2]> = parse(&expected["filled"]);
    let open = || Parquet::open(path("x.parquet")).unwrap();
    let dataset = open().array("pair", DType::F32, [2]).fill(-1.0).build().unwrap();
    let unfilled = open().array("pair", DType::F32, [2]).build().unwrap();
    for (index, (missing, filled)) in missing.iter().zip(&filled).enumerate() {
        let batch = HostBatch::collate(&dataset, &[index]).unwrap();
        assert_eq!(batch.values::<f32>(0).unwrap(), filled);
        let row = open().get(index).unwrap();
        let values = row.get::<Vec<Option<f32>>>("pair").unwrap();
        assert_eq!(values.iter().map(Option::is_none).collect::<Vec<_>>(), missing);
        let is_refused = HostBatch::collate(&unfilled, &[index]).is_err();
        assert_eq!(is_refused, missing.contains(&true), "row {index}");
    }
}

/// Values without a null are copied at once.
#[test]
fn nan_in_lists_without_a_null_is_missing_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.arrow");
    let pairs = [Some([Some(1.0), Some(f32::NAN)]), Some([Some(2.0), Some(3.0)])];
    let narrow = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(pairs, 2);
    let pairs = [Some([Some(1.0), Some(f64::NAN)]), Some([Some(2.0), Some(3.0)])];
    let wide = FixedSizeListArray::from_iter_primitive::<Float64Type, _, _>(pairs, 2);
    let columns: [(&str, ArrayRef); 2] = [("narrow", Arc::new(narrow)), ("wide", Arc::new(wide))];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer =
        FileWriter::try_new(fs::File::create(&path).unwrap(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    for column in ["narrow", "wide"] {
        let open = || ArrowFiles::open(&path).unwrap().array(column, DType::F32, [2]);
        let batch = HostBatch::collate(&open().fill(-1.0).build().unwrap(), &[0, 1]).unwrap();
        assert_eq!(batch.values::<f32>(0).unwrap(), [1.0, -1.0, 2.0, 3.0], "{column}");
        let unfilled = open().build().unwrap();
        assert!(HostBatch::collate(&unfilled, &[0]).is_err(), "{column}");
        assert!(HostBatch::collate(&unfilled, &[1]).is_ok(), "{column}");
    }
}

#[test]
fn nan_in_json_lines_is_null() {
    #[derive(Deserialize)]
    struct Numbers {
        f64: Option<f64>,
    }

    let expected = expected("x.jsonl");
    let missing: Vec<bool> = parse(&expected["missing"]["f64"]);
    let rows = JsonLines::open(path("x.jsonl")).unwrap();
    let is_null: Vec<bool> =
        (0..rows.len()).map(|index| rows.get(index).unwrap()["f64"].is_null()).collect();
    assert_eq!(is_null, missing);
    let rows = rows.typed::<Numbers>();
    let is_none: Vec<bool> =
        (0..rows.len()).map(|index| rows.get(index).unwrap().f64.is_none()).collect();
    assert_eq!(is_none, missing);
}

#[test]
fn nan_within_texts_of_json_stays_and_errors_keep_their_characters() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.jsonl");
    let lines = [
        r#"{"a": "NaN", "b": "\"NaN\\", "c": [NaN, 1]}"#,
        r#"{"a": NaN, "b": Infinity}"#,
        r#"{"a": NaN"#,
        r#"{"a": NaNs}"#,
    ];
    fs::write(&path, lines.join("\n")).unwrap();
    let rows = JsonLines::open(&path).unwrap();
    let row = rows.get(0).unwrap();
    assert_eq!(row, serde_json::json!({"a": "NaN", "b": "\"NaN\\", "c": [null, 1]}));
    for (index, part) in
        [(1, "this is not JSON at character 17"), (2, "at character 9"), (3, "not JSON")]
    {
        let error = rows.get(index).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn nan_is_a_missing_number_whatever_the_markers_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.csv");
    fs::write(&path, "x,name\nnan,nan\n?,b\n-NaN,?\n2,NAN\n").unwrap();
    let open = || Csv::options().missing(["?"]).open(&path).unwrap();
    let row = open().get(0).unwrap();
    assert_eq!((row.get::<Option<f32>>("x").unwrap(), row.str("name").unwrap()), (None, "nan"));
    assert_eq!(row.get::<Option<String>>("name").unwrap().as_deref(), Some("nan"));
    assert!(row.get::<f32>("x").unwrap_err().to_string().contains("a missing value"));
    for (dtype, expected) in
        [(DType::F64, [7.0, 7.0, 7.0, 2.0]), (DType::I32, [7.0, 7.0, 7.0, 2.0])]
    {
        let data = open().column("x", dtype).fill(7.0).build().unwrap();
        let batch = HostBatch::collate(&data as &dyn Dataset, &[0, 1, 2, 3]).unwrap();
        let values: Vec<f64> = match dtype {
            DType::F64 => batch.values::<f64>(0).unwrap().to_vec(),
            _ => batch.values::<i32>(0).unwrap().iter().map(|&value| value.into()).collect(),
        };
        assert_eq!(values, expected);
    }
}
