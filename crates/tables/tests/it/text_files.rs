//! CSV, JSON lines and text files: variations in real files, and invalid files.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use crate::notes;
use expect_test::{Expect, expect};
use flate2::Compression;
use flate2::write::GzEncoder;
use fulmen_data::{
    DType, DataLoader, Dataset, Error, Field, HostBatch, OnError, Result, Source, Stream,
};
use fulmen_tables::{Csv, CsvOptions, JsonLines, Row, Table, TextFile, TextFolder};
use tempfile::TempDir;

struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn check(&self, error: Error, expect: Expect) {
        expect.assert_eq(&error.to_string().replace(&format!("{}/", self.0.path().display()), ""));
    }
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// All values of all rows, with their lines.
fn rows(source: impl Iterator<Item = Result<Row>>) -> Vec<(String, Vec<Option<String>>)> {
    source
        .map(|row| {
            let row = row.unwrap();
            let values = (0..row.columns().len())
                .map(|column| row.get::<Option<String>>(column).unwrap())
                .collect();
            (row.origin().rsplit_once(", ").unwrap().1.to_owned(), values)
        })
        .collect()
}

/// The rows by index from memory, by index from disk, and in sequence, which must be equal.
fn read_csv(options: CsvOptions, path: &PathBuf) -> Vec<(String, Vec<Option<String>>)> {
    let table = options.clone().open(path).unwrap();
    let by_index = rows((0..table.len()).map(|index| table.get(index)));
    let from_disk = options.clone().keep_below(0).open(path).unwrap();
    assert_eq!(
        rows((0..from_disk.len()).rev().map(|index| from_disk.get(index)))
            .into_iter()
            .rev()
            .collect::<Vec<_>>(),
        by_index
    );
    for (index, (line, _)) in by_index.iter().enumerate() {
        assert!(table.origin(index).ends_with(line), "{} and {line}", table.origin(index));
    }
    let stream = options.clone().stream(path).unwrap();
    let items: Vec<_> = stream.items(3).unwrap().map(|item| item.unwrap()).collect();
    assert!(
        items
            .iter()
            .enumerate()
            .all(|(index, item)| item.index == index as u64 && item.origin == item.item.origin())
    );
    assert_eq!(rows(items.into_iter().map(|item| Ok(item.item))), by_index);
    let packed = path.with_extension("csv.gz");
    fs::write(&packed, gzip(&fs::read(path).unwrap())).unwrap();
    let stream = options.stream(&packed).unwrap();
    assert_eq!(rows(stream.items(0).unwrap().map(|item| Ok(item?.item))), by_index);
    by_index
}

fn row(line: usize, values: &[&str]) -> (String, Vec<Option<String>>) {
    let some = |value: &&str| (!value.is_empty()).then(|| (*value).to_owned());
    (format!("line {line}"), values.iter().map(some).collect())
}

#[test]
fn csv_reads_alike_by_index_from_the_disk_and_in_order() {
    let files = Files::new();
    let plain = files.write("plain.csv", "a,b\n1,2\n3,\n");
    assert_eq!(read_csv(Csv::options(), &plain), [row(2, &["1", "2"]), row(3, &["3", ""])]);
    let windows = files.write(
        "windows.csv",
        b"\xef\xbb\xbfa,b\r\n1,2\r\n\r\n\"x\r\ny\",\"say \"\"hi\"\"\"\r\n5,6",
    );
    assert_eq!(
        read_csv(Csv::options(), &windows),
        [row(2, &["1", "2"]), row(4, &["x\r\ny", "say \"hi\""]), row(6, &["5", "6"])]
    );
    assert_eq!(Csv::open(&windows).unwrap().column_names(), ["a", "b"]);
    let odd = files.write("odd.csv", "# made by hand\n1;'a;b'\n\n# more\n2;'it''s'\n");
    let options = || Csv::options().delimiter(b';').quote(b'\'').comment(b'#').header(false);
    assert_eq!(read_csv(options(), &odd), [row(2, &["1", "a;b"]), row(5, &["2", "it's"])]);
    let quotes = files.write("quotes.csv", "a,b\n\"1,2\n");
    assert_eq!(read_csv(Csv::options().quote(None), &quotes), [row(2, &["\"1", "2"])]);
    let only_header = files.write("header.csv", "a,b\n");
    assert_eq!(read_csv(Csv::options(), &only_header), []);
    // A value that is longer than any buffer, with line ends inside.
    let long = "word\n".repeat(60_000);
    let content = format!("a,b\n\"{long}\",1\n\"{long}\",2\n");
    let large = files.write("large.csv", &content);
    assert_eq!(
        read_csv(Csv::options(), &large),
        [row(2, &[&long, "1"]), row(60_003, &[&long, "2"])]
    );
}

/// Several blocks; some rows take one line and some take more.
#[test]
fn rows_of_many_blocks_read_alike_by_index_and_in_order_with_their_lines() {
    let files = Files::new();
    let mut csv = "n,text\n".to_owned();
    let mut json = String::new();
    let mut lines = Vec::new();
    let mut line = 2;
    for number in 0..3000 {
        if number % 500 == 499 {
            (csv, json, line) = (csv + "\n", json + "\n", line + 1);
        }
        lines.push(line);
        // Near the end each row takes one line, so its number is known without reading it.
        let broken = number % 100 == 7 && number < 1500;
        csv += &format!("{number},\"{}\"\n", if broken { "a\nb" } else { "a, b" });
        json += &format!("{{\"n\": {number}}}\n");
        line += if broken { 2 } else { 1 };
    }
    let path = files.write("x.csv", &csv);
    let expected: Vec<_> = (0..3000).map(|number| (number, lines[number])).collect();
    let line_and_values = |row: Row| {
        let line = row.origin().rsplit_once("x.csv, line ").unwrap().1.parse().unwrap();
        (row.get::<usize>("n").unwrap(), line)
    };
    for (keep_below, cache) in [(0, 0), (0, 1 << 20), (1 << 20, 0)] {
        let table = Csv::options().keep_below(keep_below).open(&path).unwrap().cache_bytes(cache);
        // 1709 and 3000 have no common factor.
        let order: Vec<usize> = (0..3000).map(|step| step * 1709 % 3000).collect();
        for &index in &order {
            assert!(
                table.origin(index).ends_with(&format!("x.csv, line {}", lines[index])),
                "{}",
                table.origin(index)
            );
            assert_eq!(line_and_values(table.get(index).unwrap()), expected[index]);
        }
        let data = table.select(["text", "n"]).unwrap().column("n", DType::I64).build().unwrap();
        let batch = HostBatch::collate(&data, &order).unwrap();
        assert!(
            batch
                .values::<i64>(0)
                .unwrap()
                .iter()
                .zip(&order)
                .all(|(&n, &index)| n == index as i64)
        );
    }
    let streamed = Csv::stream(&path)
        .unwrap()
        .items(0)
        .unwrap()
        .map(|item| line_and_values(item.unwrap().item));
    assert_eq!(streamed.collect::<Vec<_>>(), expected);
    let path = files.write("x.jsonl", &json);
    let json = JsonLines::open(&path).unwrap();
    for index in [2999, 0, 498, 499, 500, 1234] {
        assert_eq!(json.get(index).unwrap()["n"], index);
        assert!(
            json.origin(index).ends_with(&format!("line {}", index + 1 + (index + 1) / 500)),
            "{}",
            json.origin(index)
        );
    }
    let text = TextFile::open(&path).unwrap();
    assert_eq!((text.len(), text.get(499).unwrap().as_str()), (3006, ""));
    assert_eq!(text.get(3005).unwrap(), "{\"n\": 2999}");
}

#[test]
fn a_value_that_is_no_utf8_is_an_error_of_its_row_and_column_alone() {
    let files = Files::new();
    let path = files.write("x.csv", b"a,b\n1,x\n2,\xff\n3,NA\n");
    let csv = Csv::open(&path).unwrap();
    let streamed: Vec<Row> =
        Csv::stream(&path).unwrap().items(0).unwrap().map(|item| item.unwrap().item).collect();
    for row in [csv.get(1).unwrap(), streamed[1].clone()] {
        assert_eq!(row.get::<u8>("a").unwrap(), 2);
        files.check(
            row.str("b").unwrap_err(),
            expect!["x.csv: line 3: column `b` holds bytes that are not UTF-8 (convert the file), expected text"],
        );
    }
    assert!(
        !csv.get(1).unwrap().is_missing("b").unwrap() && csv.get(2).unwrap().is_missing(1).unwrap()
    );
    files.check(
        csv.get(2).unwrap().str(1).unwrap_err(),
        expect!["x.csv: line 4: column `b` has a missing value (null or NaN) here; fill it with `.fill(..)`, read it as an Option, or leave the row out"],
    );
    let labels = csv.label("b").fill(-1.0).build().unwrap_err();
    assert!(
        labels.to_string().contains("line 3: column `b` holds bytes that are not UTF-8"),
        "{labels}"
    );
}

#[test]
fn csv_that_is_not_as_it_should_be_is_named_by_file_and_line() {
    let files = Files::new();
    let open = |content: &[u8]| {
        let path = files.write("x.csv", content);
        let index = Csv::open(&path).unwrap_err();
        let stream = Csv::stream(&path)
            .and_then(|stream| stream.items(0)?.try_for_each(|item| item.map(|_| ())));
        assert_eq!(stream.unwrap_err().to_string(), index.to_string());
        index
    };
    files.check(
        open(b""),
        expect!["x.csv: the file is empty; expected a line with the names of the columns"],
    );
    files.check(
        open(b"\xef\xbb\xbf\n\n"),
        expect!["x.csv: the file is empty; expected a line with the names of the columns"],
    );
    files.check(
        open(b"a,b\n1,2\n1,2,3\n"),
        expect!["x.csv: line 3: the record has 3 values, expected 2 as in the first line"],
    );
    files.check(
        open(b"a,b\n1,2\n\"3\n1,2\n5\"\n5,6\n"),
        expect!["x.csv: line 3: the record has 1 value (it goes on to line 5: is a quote not closed?), expected 2 as in the first line"],
    );
    files.check(
        open(b"a,b\n1,2\n\"3\n1,2\n5,6\n"),
        expect!["x.csv: line 3: the record that begins here has a quote that is not closed before the file ends"],
    );
    files.check(open(b"a,b,a\n1,2,3\n"), expect!["x.csv: the header names two columns `a`"]);
    files.check(
        open(b"5.1,3.5,1\n4.9,3.0,0\n"),
        expect!["x.csv: the first line holds only numbers, expected the names of the columns; if the file has no header, open it with `Csv::options().header(false)`"],
    );
    files.check(
        open(b"a,\xff\n1,2\n"),
        expect!["x.csv: the name of column 1 is not UTF-8; convert the file"],
    );
    let packed = files.write("x.csv.gz", gzip(b"a\n1\n"));
    files.check(
        Csv::open(&packed).unwrap_err(),
        expect!["x.csv.gz: the file is compressed with gzip, so its items can only be read in sequence; use `CsvOptions::stream`, or decompress it"],
    );
    assert!(Csv::open(files.0.path().join("none.csv")).unwrap_err().is_not_found());
    assert!(Csv::options().delimiter(b'"').open(&packed).unwrap_err().is_usage());
    let whole = gzip("a,b\n1,2\n".repeat(50_000).as_bytes());
    let cut = files.write("cut.csv.gz", &whole[..whole.len() / 2]);
    let error = Csv::stream(&cut).unwrap().items(0).unwrap().find_map(Result::err).unwrap();
    assert!(
        error.is_file() && error.to_string().contains("compressed file is truncated"),
        "{error}"
    );
}

#[test]
fn csv_values_of_another_type_or_missing_are_named_by_file_line_and_column() {
    let files = Files::new();
    let path =
        files.write("x.csv", "x,n,flag,kind\n1.5,3.0,true,b\nNA,4,0,a\nlong,300,maybe,b\n2,5,1,\n");
    let read = |dataset: &dyn Dataset, index| {
        HostBatch::collate(dataset, &[index]).map(|_| ()).unwrap_err()
    };
    let open = || Csv::open(&path).unwrap();
    let x = open().column("x", DType::F32).build().unwrap();
    files.check(
        read(&x, 1),
        expect!["sample 1 (x.csv, line 3): column `x` has a missing value (null or NaN) here; fill it with `.fill(..)`, read it as an Option, or leave the row out"],
    );
    files.check(
        read(&x, 2),
        expect![
            "sample 2 (x.csv, line 4): column `x` holds the text `long`, expected a number for f32"
        ],
    );
    let n = open().column("n", DType::U8).build().unwrap();
    files.check(
        read(&n, 2),
        expect!["sample 2 (x.csv, line 4): column `n` holds the integer 300, expected one that fits in u8"],
    );
    assert_eq!(HostBatch::collate(&n, &[0, 1, 3]).unwrap().values::<u8>(0).unwrap(), [3, 4, 5]);
    let flag = open().column("flag", DType::Bool).build().unwrap();
    files.check(
        read(&flag, 2),
        expect![
            "sample 2 (x.csv, line 4): column `flag` holds the text `maybe`, expected true or false"
        ],
    );
    assert_eq!(
        HostBatch::collate(&flag, &[0, 1, 3]).unwrap().values::<bool>(0).unwrap(),
        [true, false, true]
    );
    files.check(
        open().label("kind").build().unwrap_err(),
        expect!["x.csv: line 5: column `kind` has a missing value (null or NaN) here; fill it with `.fill(..)`, read it as an Option, or leave the row out"],
    );
    let kind = open().label("kind").fill(-1.0).build().unwrap();
    assert_eq!(
        HostBatch::collate(&kind, &[0, 1, 2, 3]).unwrap().values::<i32>(0).unwrap(),
        [1, 0, 1, -1]
    );
    assert_eq!(kind.classes("kind").unwrap(), ["a", "b"]);
    files.check(
        open().array("x", DType::F32, [1]).build().unwrap_err(),
        expect![
            "x.csv: column `x` has the type text, expected lists whose elements can be read as f32"
        ],
    );
    let row = open().get(2).unwrap();
    files.check(
        row.get::<f64>("x").unwrap_err(),
        expect!["x.csv: line 4: column `x` holds the text `long`, expected a number for f64"],
    );
    assert_eq!((row.str(3).unwrap(), row.get::<u16>(1).unwrap()), ("b", 300));
    assert!(
        row.str("y").unwrap_err().to_string().contains("no column `y`; it has 4 columns: `x`, `n`")
    );
}

#[test]
fn labels_that_are_integers_are_taken_as_they_are() {
    let files = Files::new();
    let path = files.write("x.csv", "y\n10\n2\n0\n");
    let data = Csv::open(&path).unwrap().label("y").build().unwrap();
    assert_eq!(
        HostBatch::collate(&data, &[0, 1, 2]).unwrap().values::<i32>(0).unwrap(),
        [10, 2, 0]
    );
    assert_eq!(data.classes("y"), None);
    let data = Csv::open(&path).unwrap().label_of("y", ["a", "b", "c"]).build().unwrap();
    assert_eq!(HostBatch::collate(&data, &[1, 2]).unwrap().values::<i32>(0).unwrap(), [2, 0]);
    files.check(
        HostBatch::collate(&data, &[0]).map(|_| ()).unwrap_err(),
        expect![
            "sample 0 (x.csv, line 2): column `y` holds the label 10, expected one from 0 to 2: there are 3 classes"
        ],
    );
}

#[test]
fn an_integer_that_is_no_label_does_not_change_the_others() {
    let files = Files::new();
    for (value, line) in [("3000000000", 4), ("-1", 4), ("99999999999999999999999", 4)] {
        let path = files.write("x.csv", &format!("y\n10\n2\n{value}\n"));
        let data = Csv::open(&path).unwrap().label("y").build().unwrap();
        assert_eq!(HostBatch::collate(&data, &[0, 1]).unwrap().values::<i32>(0).unwrap(), [10, 2]);
        let error = HostBatch::collate(&data, &[2]).map(|_| ()).unwrap_err().to_string();
        let expected = format!(
            "x.csv, line {line}): column `y` holds the text `{value}`, expected a label from 0 to 2147483647 (`label_of` \
             numbers other names)"
        );
        assert!(error.contains(&expected), "{error}");
        // As names, they are as good as any.
        let named = Csv::open(&path).unwrap().label_of("y", ["10", "2", value]).build().unwrap();
        assert_eq!(HostBatch::collate(&named, &[2, 0]).unwrap().values::<i32>(0).unwrap(), [2, 0]);
    }
}

#[test]
fn a_finite_number_never_becomes_infinite() {
    let files = Files::new();
    let path = files.write("x.csv", "x\n1e400\n1e39\n65520\ninf\n-1e308\n");
    let read = |dtype, row| {
        let data = Csv::open(&path).unwrap().column("x", dtype).build().unwrap();
        HostBatch::collate(&data, &[row]).map(|batch| batch.values::<f64>(0).map(|x| x[0]).ok())
    };
    let message = |dtype, row| read(dtype, row).map(|_| ()).unwrap_err().to_string();
    for (dtype, row, expected) in [
        (DType::F64, 0, "holds the text `1e400`, expected a number that fits in f64"),
        (DType::F32, 1, "holds the text `1e39`, expected a number that fits in f32"),
        (DType::F32, 4, "holds the text `-1e308`, expected a number that fits in f32"),
        (DType::Bf16, 1, "holds the text `1e39`, expected a number that fits in bf16"),
        (DType::F16, 2, "holds the text `65520`, expected a number that fits in f16"),
    ] {
        assert!(message(dtype, row).contains(expected), "{}", message(dtype, row));
    }
    assert_eq!(read(DType::F64, 3).unwrap(), Some(f64::INFINITY));
    assert_eq!(read(DType::F64, 4).unwrap(), Some(-1e308));
    assert!(read(DType::F32, 3).is_ok() && read(DType::F32, 2).is_ok());
    let row = Csv::open(&path).unwrap().get(1).unwrap();
    assert!(row.get::<f32>("x").is_err() && row.get::<f64>("x").unwrap() == 1e39);
    let fill = Csv::open(&path).unwrap().column("x", DType::F32).fill(1e39).build();
    assert!(fill.unwrap_err().to_string().contains("cannot be filled with 1000"));
}

#[test]
fn labels_that_are_whole_floats_are_integers_and_numbers_as_names_are_no_indices() {
    let files = Files::new();
    let path = files.write("x.csv", "y,grade\n10.0,5\n2.0,3\n0,2\n");
    let open = || Csv::open(&path).unwrap();
    let read = |dataset: &dyn Dataset, rows: &[usize]| -> Result<Vec<i32>> {
        Ok(HostBatch::collate(dataset, rows)?.values::<i32>(0)?.to_vec())
    };
    let data = open().label("y").build().unwrap();
    assert_eq!((read(&data, &[0, 1, 2]).unwrap(), data.classes("y")), (vec![10, 2, 0], None));
    let grades = open().label_of("grade", ["3", "4", "5"]).build().unwrap();
    assert_eq!(read(&grades, &[0, 1]).unwrap(), [2, 0]);
    files.check(
        read(&grades, &[2]).unwrap_err(),
        expect![
            "sample 2 (x.csv, line 4): column `grade` holds the class `2`, expected one of the 3 classes `3`, `4`, `5`"
        ],
    );
}

#[test]
fn a_quote_that_is_not_closed_is_an_error_and_swallows_nothing() {
    let files = Files::new();
    let path = files.write("a.csv", "a,b\n1,2\n3,\"x\n4,5\n6,7\n");
    let expected = expect![
        "a.csv: line 3: the record that begins here has a quote that is not closed before the file ends"
    ];
    files.check(Csv::open(&path).unwrap_err(), expected);
    files.write("b.csv", "a,b\n8,\"9\"");
    let items: Vec<_> = Csv::stream(files.0.path()).unwrap().items(0).unwrap().collect();
    let read: Vec<Option<i32>> =
        items.iter().map(|item| item.as_ref().ok()?.item.get("a").ok()).collect();
    assert_eq!(read, [Some(1), None, Some(8)]);
    // A line end within quotes, and a last line without one, are valid.
    let whole = files.write("c.csv", "a,b\n1,\"x\ny\"");
    assert_eq!(read_csv(Csv::options(), &whole), [row(2, &["1", "x\ny"])]);
    let trailing = files.write("d.csv", "a,b\n1,");
    assert_eq!(read_csv(Csv::options(), &trailing), [row(2, &["1", ""])]);
    // A file with one value per line. The buffer needs space for the line end.
    let single = files.write("e.csv", "a\nx");
    assert_eq!(read_csv(Csv::options(), &single), [row(2, &["x"])]);
}

/// The numbers of a stream's epoch, read in batches of 9 by workers that skip bad records.
fn skipping<S: Stream>(stream: S, records: usize, number: fn(&S::Item) -> Result<i64>) -> Vec<i64> {
    let write =
        move |item, sample: &mut fulmen_data::Sample<'_>| sample.write_value(0, number(&item)?);
    let data = stream.into_dataset(vec![Field::new("number", DType::I64, [])], write);
    let loader = DataLoader::from_stream(data)
        .num_samples(records)
        .batch_size(9)
        .on_error(OnError::Skip)
        .num_workers(2)
        .build()
        .unwrap();
    let numbers = loader.epoch(0).flat_map(|batch| {
        let batch = batch.unwrap();
        batch.values::<i64>(0).unwrap()[..batch.valid()].to_vec()
    });
    let numbers = numbers.collect();
    assert_eq!(loader.bad_samples().count, 1, "{}", loader.bad_samples());
    assert!(loader.bad_samples().first[0].message.contains("line 5"), "{}", loader.bad_samples());
    numbers
}

#[test]
fn a_bad_line_is_one_bad_sample_and_the_lines_behind_it_are_read() {
    let files = Files::new();
    let write = |name: &str, bad: &[u8], good: fn(i64) -> String| {
        let lines = (1..=100)
            .flat_map(|line| if line == 5 { bad.to_vec() } else { good(line).into_bytes() });
        files.write(name, lines.collect::<Vec<u8>>())
    };
    let all_but_5: Vec<i64> = (1..=100).filter(|&line| line != 5).collect();
    let text = write("x.txt", b"\xff\n", |line| format!("{line}\n"));
    let number = |line: &String| line.parse::<i64>().map_err(Error::new);
    assert_eq!(skipping(TextFile::stream(&text).unwrap(), 100, number), all_but_5);
    let json = write("x.jsonl", b"{\"n\": \n", |line| format!("{{\"n\": {line}}}\n"));
    let number = |value: &serde_json::Value| value["n"].as_i64().ok_or(Error::new("no number"));
    assert_eq!(skipping(JsonLines::stream(&json).unwrap(), 100, number), all_but_5);
    // A bad CSV record is detected while reading, so it does not count among the 99.
    let csv = write("x.csv", b"5,6,7\n", |line| {
        if line == 1 { "n,m\n".to_owned() } else { format!("{line},0\n") }
    });
    assert_eq!(skipping(Csv::stream(&csv).unwrap(), 98, |row| row.get("n")), all_but_5[1..]);
    // A shuffle buffer does not lose records either.
    let mut shuffled = skipping(JsonLines::stream(&json).unwrap().shuffle(30, 7), 100, number);
    assert_ne!(shuffled, all_but_5);
    shuffled.sort();
    assert_eq!(shuffled, all_but_5);
    // In sequence, the numbers of the items are those of the lines, and each stream describes
    // itself.
    let items: Vec<_> = Csv::stream(&csv).unwrap().items(0).unwrap().collect();
    let index_at = |position: usize| items[position].as_ref().map(|item| item.index).ok();
    assert_eq!((items.len(), index_at(2), index_at(3), index_at(4)), (99, Some(2), None, Some(4)));
    for message in [
        TextFile::stream(&text).unwrap().describe(),
        JsonLines::stream(&json).unwrap().describe(),
        Csv::stream(&csv).unwrap().describe(),
    ] {
        assert!(
            message.contains("Stream(1 from x."),
            "the name alone, for the folder may be another one: {message}"
        );
    }
}

#[test]
fn a_file_that_is_cut_short_ends_there_and_the_next_one_is_read() {
    let files = Files::new();
    let whole = gzip((0..20_000).map(|line| format!("{line}\n")).collect::<String>().as_bytes());
    files.write("a.txt.gz", &whole[..whole.len() / 2]);
    files.write("b.txt", "last\n");
    let items: Vec<_> = TextFile::stream(files.0.path()).unwrap().items(0).unwrap().collect();
    let bad: Vec<_> = items.iter().filter_map(|item| item.as_ref().err()).collect();
    assert!(
        bad.len() == 1 && bad[0].to_string().contains("compressed file is truncated"),
        "{bad:?}"
    );
    assert_eq!(items.last().unwrap().as_ref().unwrap().item, "last");
}

#[test]
fn tabs_part_the_values_of_tsv_files() {
    let files = Files::new();
    files.write("a.csv", "x,y\n1,\"2\t\"\n");
    files.write("b.tsv", "x\ty\n3\t4,5\n");
    let csv = Csv::open(files.0.path()).unwrap();
    let values = |index| {
        csv.get(index).map(|row| (row.get::<i32>("x").unwrap(), row.get::<String>("y").unwrap()))
    };
    assert_eq!((values(1).unwrap(), values(0).unwrap()), ((3, "4,5".into()), (1, "2\t".into())));
    let dataset = csv.column("x", DType::I32).build().unwrap();
    assert_eq!(
        HostBatch::collate(&dataset, &[1, 0, 1]).unwrap().values::<i32>(0).unwrap(),
        [3, 1, 3]
    );
    let rows: Vec<_> = Csv::stream(files.0.path())
        .unwrap()
        .items(0)
        .unwrap()
        .map(|item| item.unwrap().item)
        .collect();
    assert_eq!(rows[1].str("y").unwrap(), "4,5");
    let commas = files.write("c.tsv", "x,y\n1,2\n");
    assert_eq!(Csv::options().delimiter(b',').open(&commas).unwrap().column_names(), ["x", "y"]);
}

#[test]
fn what_tools_leave_in_a_folder_is_not_read() {
    let files = Files::new();
    for folder in [".ipynb_checkpoints", "__MACOSX", "part"] {
        fs::create_dir(files.0.path().join(folder)).unwrap();
    }
    for name in [
        "a.csv",
        ".ipynb_checkpoints/a-checkpoint.csv",
        "__MACOSX/a.csv",
        "part/._b.csv",
        "part/b.csv",
    ] {
        files.write(name, "x\n1\n");
    }
    assert_eq!(Csv::open(files.0.path()).unwrap().len(), 2);
    assert_eq!(Csv::stream(files.0.path()).unwrap().items(0).unwrap().count(), 2);
    assert_eq!(
        Csv::open(files.0.path().join(".ipynb_checkpoints")).unwrap().len(),
        1,
        "asked for by name it is"
    );
}

#[test]
fn what_a_folder_leaves_out_is_said_once() {
    let files = Files::new();
    files.write("a.csv", "x\n1\n");
    for name in ["b.csv.gz", "c.CSV.GZ", "d.xlsx", "README.md", ".hidden", "notes"] {
        files.write(name, "x\n2\n");
    }
    let folder = files.write("a.csv", "x\n1\n").parent().unwrap().to_owned();
    notes::collect();
    for _ in 0..2 {
        assert_eq!(Csv::open(&folder).unwrap().len(), 1);
    }
    let expected = "left out 4 files (2 .gz, 1 .xlsx, 1 without an extension): files that end in .csv, .tsv are read";
    let folder = folder.display().to_string();
    assert_eq!(notes::about(&folder), [format!("{folder}: {expected}")]);
}

#[test]
fn several_csv_files_are_one_table() {
    let files = Files::new();
    files.write("b.csv", "x\n3\n");
    files.write("a.csv", "x\n1\n2\n");
    files.write("notes.md", "no table");
    let csv = Csv::open(files.0.path()).unwrap();
    let values: Vec<i32> = (0..3).map(|index| csv.get(index).unwrap().get("x").unwrap()).collect();
    assert_eq!(values, [1, 2, 3]);
    assert!(csv.origin(2).ends_with("b.csv, line 2"));
    assert!(csv.get(3).unwrap_err().is_usage());
    files.write("c.csv", "y\n3\n");
    let error = Csv::open(files.0.path()).unwrap_err().to_string();
    assert!(error.contains("c.csv: the columns are y, expected x as in"), "{error}");
}

#[test]
fn text_that_changed_under_the_reader_is_an_error() {
    let files = Files::new();
    let path = files.write("x.csv", "a,b\n1,2\n3,4\n");
    let csv = Csv::options().keep_below(0).open(&path).unwrap();
    files.write("x.csv", "a,b\n1\n3,");
    files.check(
        csv.get(1).unwrap_err(),
        expect!["x.csv: the file ends before byte 12; it had 12 bytes when it was opened: was it changed since?"],
    );
}

#[test]
fn lines_of_text_come_whole_and_what_is_no_utf8_is_named() {
    let files = Files::new();
    let path = files.write("x.txt", b"\xef\xbb\xbffirst\r\n\nthird \xc3\xa9\nlast");
    let expected = ["first", "", "third é", "last"];
    let text = TextFile::open(&path).unwrap();
    let lines: Vec<String> = (0..text.len()).map(|index| text.get(index).unwrap()).collect();
    assert_eq!(lines, expected);
    let packed = files.write("x.txt.gz", gzip(&fs::read(&path).unwrap()));
    let names = [
        path.clone(),
        packed,
        #[cfg(feature = "parquet")]
        files.write("x.txt.zst", zstd::encode_all(&fs::read(&path).unwrap()[..], 1).unwrap()),
    ];
    for name in names {
        let stream = TextFile::stream(name).unwrap();
        let items: Vec<_> = stream.items(0).unwrap().map(|item| item.unwrap()).collect();
        assert_eq!(items.iter().map(|item| item.item.as_str()).collect::<Vec<_>>(), expected);
        assert!(items[2].origin.ends_with(", line 3") && items[2].index == 2);
    }
    let bad = files.write("bad.txt", b"good\nb\xe9d\ngood\n");
    let message = expect![
        "bad.txt: line 2: the text is not UTF-8 from byte 1 on; convert the file, for instance with `iconv -t utf-8`"
    ];
    files.check(TextFile::open(&bad).unwrap().get(1).unwrap_err(), message);
    let stream = TextFile::stream(&bad).unwrap();
    let items: Vec<_> = stream.items(0).unwrap().collect();
    assert_eq!(items.iter().map(Result::is_err).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(items[2].as_ref().unwrap().index, 2);
    let empty = files.write("empty.txt", "");
    assert_eq!(TextFile::open(&empty).unwrap().len(), 0);
    assert!(TextFile::open(files.0.path().join("none.txt")).unwrap_err().is_not_found());
}

#[test]
fn a_folder_of_texts_is_read_document_by_document() {
    let files = Files::new();
    files.write("b.txt", "two\n\nparts");
    files.write("a.md", "one");
    files.write("c.txt", b"\xff");
    let texts = TextFolder::open(files.0.path()).unwrap();
    assert_eq!((texts.len(), texts.get(0).unwrap().as_str()), (2, "two\n\nparts"));
    files.check(
        texts.get(1).unwrap_err(),
        expect!["c.txt: the text is not UTF-8 from byte 0 on; convert the file, for instance with `iconv -t utf-8`"],
    );
    assert_eq!(
        TextFolder::open_with(files.0.path(), &[".md", ".txt"]).unwrap().get(0).unwrap(),
        "one"
    );
    let error = TextFolder::open_with(files.0.path(), &[".rst"]).unwrap_err().to_string();
    assert!(error.ends_with("the folder has no file whose name ends in `.rst`"), "{error}");
}

#[test]
fn json_lines_read_alike_by_index_and_in_order() {
    let files = Files::new();
    let content = "{\"a\": 1, \"b\": [\"x\"]}\r\n\n  \n{\"a\": 2.5, \"b\": []}";
    let path = files.write("x.jsonl", content);
    let packed = files.write("x.jsonl.gz", gzip(content.as_bytes()));
    let json = JsonLines::open(&path).unwrap();
    assert_eq!(
        (json.len(), &json.get(0).unwrap()["b"][0], &json.get(1).unwrap()["a"]),
        (2, &"x".into(), &2.5.into())
    );
    assert!(json.origin(1).ends_with("x.jsonl, line 4"));
    for path in [path, packed] {
        let items: Vec<_> =
            JsonLines::stream(path).unwrap().items(0).unwrap().map(|item| item.unwrap()).collect();
        assert_eq!(items.len(), 2);
        assert_eq!(items[1].item, json.get(1).unwrap());
        assert!(items[1].origin.ends_with(", line 4"));
    }
    let bad = files.write("bad.jsonl", "{\"a\": 1}\n{\"a\": }\n");
    files.check(
        JsonLines::open(&bad).unwrap().get(1).unwrap_err(),
        expect!["bad.jsonl: line 2: this is not JSON at character 7: expected value"],
    );
    #[derive(Debug, serde::Deserialize)]
    struct Numbers {
        #[allow(dead_code, reason = "only its type matters")]
        a: u8,
    }
    let stream = JsonLines::stream(files.0.path().join("x.jsonl")).unwrap().typed::<Numbers>();
    let items: Vec<_> = stream.items(0).unwrap().collect();
    assert_eq!(items.len(), 2);
    files.check(
        items.into_iter().nth(1).unwrap().unwrap_err(),
        expect!["x.jsonl: line 4: the value has an unexpected form at character 9: invalid type: floating point `2.5`, expected u8"],
    );
}

/// Comparing each column with all others would take minutes.
#[test]
fn a_csv_file_may_have_200_000_columns() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wide.csv");
    let names: Vec<String> = (0..200_000).map(|column| format!("c{column}")).collect();
    let values: Vec<String> = (0..200_000).map(|column| (column % 7).to_string()).collect();
    fs::write(&path, format!("{}\n{}\n", names.join(","), values.join(","))).unwrap();
    let table = Csv::open(&path).unwrap();
    let row = table.get(0).unwrap();
    for (column, name) in names.iter().enumerate() {
        assert_eq!(row.get::<usize>(name.as_str()).unwrap(), column % 7);
    }
    let streamed = Csv::stream(&path).unwrap().items(0).unwrap().next().unwrap().unwrap().item;
    assert_eq!(streamed.str("c199999").unwrap(), (199_999 % 7).to_string());
    let dataset = table.columns("x", names.iter().map(String::as_str), DType::U8).build().unwrap();
    let batch = HostBatch::collate(&dataset, &[0]).unwrap();
    assert!(
        batch
            .values::<u8>(0)
            .unwrap()
            .iter()
            .enumerate()
            .all(|(column, &value)| usize::from(value) == column % 7)
    );
    fs::write(&path, format!("{},c7\n", names.join(","))).unwrap();
    assert!(
        Csv::open(&path).unwrap_err().to_string().contains("the header names two columns `c7`")
    );
}
