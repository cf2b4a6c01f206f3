//! `fulmen data info --statistics`, compared with NumPy 2.4.6 and pandas 3.1.1, which computed the
//! expected numbers:
//!
//! ```python
//! n = 1000
//! table = pd.DataFrame({
//!     "x": [None if i % 17 == 3 else ((i * i * 37 + 11) % 1009) / 8 - 40 for i in range(n)],
//!     "label": [i * 7 % 5 for i in range(n)],
//!     "text": ["ab" * (i % 9 + 1) for i in range(n)],
//! })
//! table.x.count(), table.x.min(), table.x.max(), table.x.mean(), table.x.std(ddof=0)
//! np.mean(table.label), np.std(table.label), table.label.value_counts()
//! length = table.text.str.len(); length.mean(), length.std(ddof=0)
//! pixels = []
//! for i in range(12):
//!     y, x, c = np.mgrid[0 : i % 3 + 2, 0 : i % 4 + 3, 0:3]
//!     c = 0 * c if i % 4 == 0 else c
//!     pixels.append((((x * 31 + y * 17 + c * 101 + i * 13) % 256) / 255).reshape(-1, 3))
//! pixels = np.concatenate(pixels); pixels.mean(0), pixels.std(0)
//! ```

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use fulmen_cli::statistics::{
    DatasetStatistics, FieldStatistics, ImageStatistics, NumberStatistics, statistics,
};
use fulmen_images::{Encoding, Image, encode_image};
use fulmen_text::TokenFileWriter;
use parquet::arrow::ArrowWriter;

use crate::prepare::program;

const ROWS: usize = 1000;

fn x(i: usize) -> Option<f64> {
    (i % 17 != 3).then(|| ((i * i * 37 + 11) % 1009) as f64 / 8.0 - 40.0)
}

fn label(i: usize) -> usize {
    i * 7 % 5
}

fn text(i: usize) -> String {
    "ab".repeat(i % 9 + 1)
}

fn close(actual: f64, expected: f64) {
    assert!((actual - expected).abs() < 1e-12 * expected.abs().max(1.0), "{actual} {expected}");
}

fn check_numbers(actual: Option<NumberStatistics>, count: u64, expected: [f64; 4]) {
    let actual = actual.unwrap();
    let [minimum, maximum, mean, deviation] = expected;
    assert_eq!((actual.count, actual.infinite), (count, 0));
    assert_eq!((actual.minimum, actual.maximum), (minimum, maximum));
    close(actual.mean, mean);
    close(actual.standard_deviation, deviation);
}

fn field<'a>(found: &'a DatasetStatistics, name: &str) -> &'a FieldStatistics {
    found
        .fields
        .iter()
        .find(|field| field.name == name)
        .unwrap_or_else(|| panic!("{name}: {found}"))
}

/// Checks the table of the Python program, with these names before the columns.
fn check_table(found: &DatasetStatistics, prefix: &str) {
    assert_eq!(found.samples, ROWS as u64);
    let column = |name: &str| field(found, &format!("{prefix}{name}"));
    let x = column("x");
    assert_eq!((x.count, x.missing), (941, 59));
    check_numbers(x.numbers, 941, [-39.875, 86.0, 21.24508501594049, 37.51815614872916]);
    assert_eq!((&x.values, x.characters), (&None, None));
    let label = column("label");
    assert_eq!((label.count, label.missing), (1000, 0));
    check_numbers(label.numbers, 1000, [0.0, 4.0, 2.0, 2f64.sqrt()]);
    let counts: Vec<(&str, u64)> =
        label.values.iter().flatten().map(|(value, count)| (value.as_str(), *count)).collect();
    assert_eq!(counts, [("0", 200), ("1", 200), ("2", 200), ("3", 200), ("4", 200)]);
    let text = column("text");
    check_numbers(text.characters, 1000, [2.0, 18.0, 9.992, 5.167585122666099]);
    assert!(text.numbers.is_none() && text.values.as_ref().unwrap().len() == 9);
}

#[test]
fn tables_have_the_statistics_of_pandas() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut csv = "x,label,text\n".to_owned();
    let mut json = String::new();
    for i in 0..ROWS {
        let number = x(i).map(|x| x.to_string()).unwrap_or_default();
        let label = label(i);
        let text = text(i);
        writeln!(csv, "{number},{label},{text}").unwrap();
        let number = if number.is_empty() { "null" } else { &number };
        writeln!(
            json,
            r#"{{"a":{{"x":{number},"label":{label},"text":"{text}"}},"list":[1,2],"on":true}}"#
        )
        .unwrap();
    }
    fs::write(path("table.csv"), csv).unwrap();
    fs::write(path("table.jsonl"), json).unwrap();
    check_table(&statistics(&[path("table.csv")]).unwrap(), "");
    let found = statistics(&[path("table.jsonl")]).unwrap();
    check_table(&found, "a.");
    check_numbers(field(&found, "list").lengths, 1000, [2.0, 2.0, 2.0, 0.0]);
    check_numbers(field(&found, "on").numbers, 1000, [1.0, 1.0, 1.0, 0.0]);
    assert_eq!(field(&found, "on").values.as_ref().unwrap()["true"], 1000);

    let columns: [(&str, ArrayRef); 4] = [
        ("x", Arc::new(Float64Array::from_iter((0..ROWS).map(x)))),
        ("label", Arc::new(Int64Array::from_iter_values((0..ROWS).map(|i| label(i) as i64)))),
        ("text", Arc::new(StringArray::from_iter_values((0..ROWS).map(text)))),
        ("on", Arc::new(BooleanArray::from(vec![false; ROWS]))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let file = File::create(path("table.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    check_table(&statistics(&[path("table.parquet")]).unwrap(), "");

    // Several files are one data set.
    let both = statistics(&[path("table.csv"), path("table.parquet")]).unwrap();
    assert_eq!((both.samples, field(&both, "x").count), (2000, 1882));
    assert_eq!(field(&both, "on").missing, 1000);
}

/// An image of the Python program, and whether it is gray.
fn image(i: usize) -> Vec<u8> {
    let height = i % 3 + 2;
    let width = i % 4 + 3;
    let channels = if i.is_multiple_of(4) { 1 } else { 3 };
    let mut pixels = Vec::new();
    for y in 0..height {
        for x in 0..width {
            for c in 0..channels {
                pixels.push((x * 31 + y * 17 + c * 101 + i * 13) as u8);
            }
        }
    }
    encode_image(&Image::new(width, height, channels, pixels).unwrap(), Encoding::Png).unwrap()
}

fn check_images(images: &ImageStatistics) {
    check_numbers(Some(images.height), 12, [2.0, 4.0, 3.0, (2.0f64 / 3.0).sqrt()]);
    check_numbers(Some(images.width), 12, [3.0, 6.0, 4.5, 1.25f64.sqrt()]);
    assert_eq!(images.channels.iter().collect::<Vec<_>>(), [(&1, &3), (&3, &9)]);
    let mean = [0.5104333091261194, 0.4934640522875818, 0.45170660856935346];
    let deviation = [0.25334680566863316, 0.30726037904511033, 0.2559860833744739];
    for channel in 0..3 {
        close(images.mean[channel], mean[channel]);
        close(images.standard_deviation[channel], deviation[channel]);
    }
}

fn shard(path: &Path) {
    let mut tar = tar::Builder::new(File::create(path).unwrap());
    for i in 0..12 {
        let mut files = vec![("png", image(i)), ("cls", format!("{}\n", i % 2).into_bytes())];
        if i < 10 {
            files.push(("txt", "é".repeat(i).into_bytes()));
        }
        for (extension, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            tar.append_data(&mut header, format!("{i:03}.{extension}"), &content[..]).unwrap();
        }
    }
    tar.finish().unwrap();
}

#[test]
fn images_have_the_statistics_of_numpy() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("shards")).unwrap();
    shard(&folder.path().join("shards/train-000000.tar"));
    let found = statistics(&[folder.path().join("shards")]).unwrap();
    assert_eq!(found.samples, 12);
    check_images(field(&found, "png").images.as_ref().unwrap());
    let cls = field(&found, "cls");
    assert_eq!((cls.values.as_ref().unwrap()["1"], cls.numbers), (6, None));
    let txt = field(&found, "txt");
    assert_eq!((txt.count, txt.missing), (10, 2));
    check_numbers(txt.characters, 10, [0.0, 9.0, 4.5, 8.25f64.sqrt()]);

    // The same images in folders by class.
    for i in 0..12 {
        let class = folder.path().join(format!("images/{}", if i < 9 { "cat" } else { "dog" }));
        fs::create_dir_all(&class).unwrap();
        fs::write(class.join(format!("{i}.png")), image(i)).unwrap();
    }
    let found = statistics(&[folder.path().join("images")]).unwrap();
    check_images(field(&found, "image").images.as_ref().unwrap());
    assert_eq!(field(&found, "class").values.as_ref().unwrap()["dog"], 3);

    // A damaged image is named.
    fs::write(folder.path().join("images/dog/12.png"), &image(1)[..40]).unwrap();
    let error = statistics(&[folder.path().join("images")]).unwrap_err().to_string();
    assert!(error.contains("images/dog/12.png: "), "{error}");
}

#[test]
fn token_files_have_lengths_and_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.tokens");
    let mut writer = TokenFileWriter::create(&path, 100_000).unwrap();
    // The ids are read in several parts.
    writer.push(vec![7; 70_000]).unwrap();
    writer.push([99_999, 3]).unwrap();
    writer.finish().unwrap();
    let found = statistics(&[path]).unwrap();
    let tokens = field(&found, "tokens");
    assert_eq!((found.samples, tokens.count), (2, 2));
    check_numbers(tokens.lengths, 2, [2.0, 70_000.0, 35_001.0, 34_999.0]);
    let numbers = tokens.numbers.unwrap();
    assert_eq!((numbers.count, numbers.minimum, numbers.maximum), (70_002, 3.0, 99_999.0));
    close(numbers.mean, (70_000.0 * 7.0 + 100_002.0) / 70_002.0);
}

/// Values without types, of CSV, and those of other files are one field.
#[test]
fn files_of_several_kinds_are_counted_together() {
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("a.csv");
    let json = folder.path().join("b.jsonl");
    fs::write(&csv, "x,y\n1,ab\n2,ab\n,c\n").unwrap();
    fs::write(&json, "{\"x\": 3, \"y\": \"abcd\"}\n{\"x\": 10}\n").unwrap();
    for paths in [[&csv, &json], [&json, &csv]] {
        let found = statistics(&paths).unwrap();
        let x = field(&found, "x");
        assert_eq!((found.samples, x.count, x.missing), (5, 4, 1));
        // np.mean([1, 2, 3, 10]), np.std([1, 2, 3, 10])
        check_numbers(x.numbers, 4, [1.0, 10.0, 4.0, 3.535_533_905_932_737_8]);
        let y = field(&found, "y");
        assert_eq!((y.count, y.missing), (4, 1));
        // np.mean([2, 2, 1, 4]), np.std([2, 2, 1, 4])
        check_numbers(y.characters, 4, [1.0, 4.0, 2.25, 1.089_724_735_885_168_4]);
    }
}

#[test]
fn the_command_prints_text_or_json() {
    let folder = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let output =
            program().current_dir(folder.path()).args(["data", "info"]).args(args).output();
        let output = output.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    fs::write(folder.path().join("a.csv"), "x,y,z\n1,a,0.5\n2,b,nan\n3,a,inf\n").unwrap();
    let (code, stdout, stderr) = run(&["a.csv", "--statistics"]);
    let expected = "3 samples\n\
         x: 3 values, 0 missing\n\
         \x20 numbers: 1 to 3, mean 2, standard deviation 0.816497\n\
         y: 3 values, 0 missing\n\
         \x20 characters: 1 to 1, mean 1, standard deviation 0\n\
         \x20 values: a: 2, b: 1\n\
         z: 2 values, 1 missing\n\
         \x20 numbers: 0.5 to 0.5, mean 0.5, standard deviation 0; 1 infinite, left out\n";
    assert_eq!((code, stdout.as_str()), (Some(0), expected), "{stderr}");
    let (code, stdout, _) = run(&["a.csv", "--statistics", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, json["fields"][0]["numbers"]["mean"].as_f64()), (Some(0), Some(2.0)));

    let (code, _, stderr) = run(&["a.csv", "--json"]);
    assert!(code == Some(2) && stderr.contains("--statistics"), "{stderr}");
    fs::write(folder.path().join("a.bin"), "").unwrap();
    let (code, _, stderr) = run(&["a.bin", "--statistics"]);
    assert!(code == Some(2) && stderr.contains("files that end in .tar, "), "{stderr}");
    let (code, _, stderr) = run(&["none.csv", "--statistics"]);
    assert!(code == Some(1) && stderr.contains("none.csv"), "{stderr}");
    fs::create_dir(folder.path().join("empty")).unwrap();
    let (code, _, stderr) = run(&["empty", "--statistics"]);
    assert!(code == Some(1) && stderr.contains("empty: the folder has no files"), "{stderr}");
    let many: Vec<String> = (0..1001).map(|n| format!("\"f{n}\":0")).collect();
    fs::write(folder.path().join("b.jsonl"), format!("{{{}}}\n", many.join(","))).unwrap();
    let (code, _, stderr) = run(&["b.jsonl", "--statistics"]);
    assert!(code == Some(1) && stderr.contains("more than 1000 fields"), "{stderr}");
}
