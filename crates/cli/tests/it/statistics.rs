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

use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, FixedSizeListArray, Float64Array, Int64Array,
    LargeListArray, ListArray, RecordBatch, StringArray, StructArray, TimestampSecondArray,
};
use arrow_schema::Field;
use fulmen_cli::statistics::{
    DatasetStatistics, FieldStatistics, ImageStatistics, NumberStatistics, statistics,
};
use fulmen_images::{Encoding, Image, encode_image};
use fulmen_text::TokenFileWriter;
use parquet::arrow::ArrowWriter;

use crate::pack::program;

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

/// The counts of a field's values.
fn counts(field: &FieldStatistics) -> Option<Vec<(&str, u64)>> {
    let values = field.values.as_ref()?;
    Some(values.iter().map(|(value, count)| (value.as_str(), *count)).collect())
}

#[test]
fn columns_of_every_type_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let picture = image(1);
    let pictures: ArrayRef = Arc::new(BinaryArray::from(vec![&picture[..], &picture]));
    let struct_of = |name: &str, array: ArrayRef| -> ArrayRef {
        let field = Field::new(name, array.data_type().clone(), true);
        Arc::new(StructArray::from(vec![(Arc::new(field), array)]))
    };
    let number: ArrayRef = Arc::new(Float64Array::from(vec![2.5, f64::NAN]));
    let lists = [Some(vec![Some(1)]), Some(vec![Some(2), Some(3), Some(4)])];
    let pairs = [Some(vec![Some(1), Some(2)]), Some(vec![Some(3), Some(4)])];
    let columns: [(&str, ArrayRef); 9] = [
        ("stored", pictures.clone()),
        ("other", Arc::new(BinaryArray::from(vec![&b"abc"[..], b"a"]))),
        // An image of Hugging Face's `datasets`.
        ("media", struct_of("bytes", pictures)),
        ("box", struct_of("width", number.clone())),
        ("list", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists.clone()))),
        ("large", Arc::new(LargeListArray::from_iter_primitive::<Int32Type, _, _>(lists))),
        ("pair", Arc::new(FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(pairs, 2))),
        ("time", Arc::new(TimestampSecondArray::from(vec![1, 2]))),
        ("on", Arc::new(BooleanArray::from(vec![true, false]))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let path = folder.path().join("a.arrow");
    let file = File::create(&path).unwrap();
    let mut writer = arrow_ipc::writer::FileWriter::try_new(file, &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();

    let found = statistics(&[path]).unwrap();
    assert_eq!(found.samples, 2);
    for name in ["stored", "media"] {
        let images = field(&found, name).images.as_ref().unwrap();
        assert_eq!((images.height.mean, images.width.mean), (3.0, 4.0), "{name}");
    }
    check_numbers(field(&found, "other").bytes, 2, [1.0, 3.0, 2.0, 1.0]);
    let width = field(&found, "box.width");
    assert_eq!((width.count, width.missing), (1, 1));
    check_numbers(width.numbers, 1, [2.5, 2.5, 2.5, 0.0]);
    for name in ["list", "large"] {
        check_numbers(field(&found, name).lengths, 2, [1.0, 3.0, 2.0, 1.0]);
    }
    check_numbers(field(&found, "pair").lengths, 2, [2.0, 2.0, 2.0, 0.0]);
    let time = field(&found, "time");
    assert_eq!((time.count, time.numbers, time.bytes), (2, None, None));
    assert_eq!(counts(field(&found, "on")), Some(vec![("false", 1), ("true", 1)]));
}

#[test]
fn the_end_of_a_name_says_how_a_file_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("a.tsv"), "x\ty,z\n1\ta\n").unwrap();
    let found = statistics(&[path("a.tsv")]).unwrap();
    assert_eq!(field(&found, "y,z").count, 1);
    fs::write(path("a.ndjson"), "{\"x\": 1}\n7\n").unwrap();
    let found = statistics(&[path("a.ndjson")]).unwrap();
    assert_eq!((field(&found, "x").count, field(&found, "value").count), (1, 1));

    // A hidden file is still being written, and one of another kind is not read.
    fs::create_dir(path("folder")).unwrap();
    fs::write(path("folder/.a.csv"), "hidden\n1\n").unwrap();
    fs::write(path("folder/a.md"), "# other\n").unwrap();
    fs::write(path("folder/b.CSV"), "x\n1\n").unwrap();
    let found = statistics(&[path("folder")]).unwrap();
    let names: Vec<&str> = found.fields.iter().map(|field| field.name.as_str()).collect();
    assert_eq!((found.samples, names), (1, vec!["x"]));

    // Images without folders of classes, which are all gray.
    fs::create_dir(path("flat")).unwrap();
    for i in [0, 4] {
        fs::write(path(&format!("flat/{i}.png")), image(i)).unwrap();
    }
    let found = statistics(&[path("flat")]).unwrap();
    assert_eq!((found.samples, found.fields.len()), (2, 1));
    let images = field(&found, "image").images.as_ref().unwrap();
    assert_eq!((images.mean.len(), images.standard_deviation.len()), (1, 1));
}

#[test]
fn files_of_a_shard_are_read_by_their_kind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tar");
    let write = |files: &[(&str, &[u8])]| {
        let mut tar = tar::Builder::new(File::create(&path).unwrap());
        for (extension, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            tar.append_data(&mut header, format!("000.{extension}"), *content).unwrap();
        }
        tar.finish().unwrap();
    };
    let deep = format!("{}1{}", "{\"a\":".repeat(10), "}".repeat(10));
    write(&[("json", deep.as_bytes()), ("bin", &[0; 12])]);
    let found = statistics(&[&path]).unwrap();
    // What is nested deeper than eight objects is counted by its size.
    let names: Vec<&str> = found.fields.iter().map(|field| field.name.as_str()).collect();
    assert_eq!(names, ["bin", "json.a.a.a.a.a.a.a.a"]);
    check_numbers(found.fields[0].bytes, 1, [12.0, 12.0, 12.0, 0.0]);
    check_numbers(found.fields[1].bytes, 1, [13.0, 13.0, 13.0, 0.0]);

    write(&[("json", b"{")]);
    let error = statistics(&[&path]).unwrap_err().to_string();
    assert!(error.contains("a.tar: 000.json: EOF"), "{error}");
    for extension in ["txt", "cls"] {
        write(&[(extension, &[0xff])]);
        let error = statistics(&[&path]).unwrap_err().to_string();
        assert!(error.contains(&format!("000.{extension}: it is not text")), "{error}");
    }
}

#[test]
fn only_few_and_short_values_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let found = |lines: &mut dyn Iterator<Item = String>| {
        let path = folder.path().join("a.jsonl");
        fs::write(&path, lines.collect::<String>()).unwrap();
        statistics(&[path]).unwrap()
    };
    let values = |found: &DatasetStatistics| field(found, "value").values.as_ref().map(|v| v.len());
    assert_eq!(values(&found(&mut (0..1000).map(|n| format!("{n}\n")))), Some(1000));
    assert_eq!(values(&found(&mut (0..1001).map(|n| format!("{n}\n")))), None);
    let text = |length: usize| std::iter::once(format!("\"{}\"\n", "a".repeat(length)));
    assert_eq!(values(&found(&mut text(100))), Some(1));
    assert_eq!(values(&found(&mut text(101))), None);

    // Many values are printed as a range of counts, and values that are all different not at all.
    let found_text = |lines: &mut dyn Iterator<Item = String>| found(lines).to_string();
    let many = found_text(&mut (0..50).map(|n| format!("{}\n", n % 21)));
    assert!(many.ends_with("\n  values: 21 different ones, with 2 to 3 samples each"), "{many}");
    let few = found_text(&mut (0..40).map(|n| format!("{}\n", n % 20)));
    assert!(few.contains("\n  values: 0: 2, 1: 2, 10: 2, "), "{few}");
    let different = found_text(&mut (0..5).map(|n| format!("{n}\n")));
    assert!(!different.contains("values: "), "{different}");
}

/// pandas reads `NAN` and ` nan` as texts, but they are NaN to those who read the column as numbers.
#[test]
fn nan_is_missing_in_every_spelling() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    fs::write(&path, "x\n1\nNAN\n nan\n2\n+nan\n2\n").unwrap();
    let found = statistics(&[&path]).unwrap();
    let x = field(&found, "x");
    assert_eq!((x.count, x.missing), (3, 3));
    assert_eq!(counts(x), Some(vec![("1", 1), ("2", 2)]));
    // In a column of texts it is a text.
    fs::write(&path, "x\nab\nNAN\n").unwrap();
    let found = statistics(&[&path]).unwrap();
    assert_eq!((field(&found, "x").count, field(&found, "x").missing), (2, 0));
}

#[test]
fn images_are_printed_with_their_sizes_and_pixels() {
    let folder = tempfile::tempdir().unwrap();
    for i in 0..4 {
        fs::write(folder.path().join(format!("{i}.png")), image(i)).unwrap();
    }
    let text = statistics(&[folder.path()]).unwrap().to_string();
    let expected = "4 samples\n\
         image: 4 values, 0 missing\n\
         \x20 height: 2 to 4, mean 2.75, standard deviation 0.829156\n\
         \x20 width: 3 to 6, mean 4.5, standard deviation 1.11803\n\
         \x20 1 channel in 1 image, 3 channels in 3 images\n\
         \x20 pixels from 0 to 1: mean ";
    assert!(text.starts_with(expected) && text.contains("; standard deviation 0."), "{text}");
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
