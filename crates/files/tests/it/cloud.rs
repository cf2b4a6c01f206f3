//! Object stores, simulated by a server on loopback: reading, listing and uploading while the store
//! is well, busy, slow to recover, or drops connections.
#![cfg(feature = "cloud")]

use std::cell::RefCell;
use std::fs;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fulmen_data::{Error, Fingerprint, Result, Source, Stream};
use fulmen_files::{Location, StoreOptions};
use fulmen_shards::{TarShardWriter, TarShards, TarSource};
use fulmen_tables::{Csv, JsonLines, TextFile};

use crate::common::s3::{Answer, Request, S3};

fn options(store: &S3) -> StoreOptions {
    StoreOptions::new()
        .set("aws_endpoint_url", &store.url())
        .set("aws_skip_signature", "true")
        .read_ahead(3, 1000)
        .give_up_after(Duration::from_secs(60))
}

fn location(store: &S3, url: &str) -> Location {
    Location::from(url).with_options(options(store))
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 7 % 251) as u8).collect()
}

fn read(location: &Location) -> Vec<u8> {
    let mut all = Vec::new();
    location.open().unwrap().read_to_end(&mut all).unwrap();
    all
}

#[test]
fn objects_are_read_whole_in_parts_and_ahead() {
    let store = S3::start(|_| Answer::Serve);
    store.put("b/folder/ä file.bin", bytes(10_500));
    store.put("b/empty", Vec::new());
    let object = location(&store, "s3://b/folder").join("ä file.bin");
    assert_eq!(object.size().unwrap(), 10_500);
    assert_eq!(read(&object), bytes(10_500));
    assert_eq!(object.read().unwrap(), bytes(10_500));
    assert_eq!(object.read_range(3..7).unwrap(), bytes(10_500)[3..7]);
    assert_eq!(object.read_range(10_499..10_500).unwrap(), bytes(10_500)[10_499..]);
    for range in [10_000..10_501, 0..u64::MAX] {
        let error = object.read_range(range).unwrap_err();
        assert!(
            error.to_string().contains("s3://b/folder/ä file.bin")
                && error.to_string().contains("has 10500"),
            "{error}"
        );
    }
    assert!(read(&location(&store, "s3://b/empty")).is_empty());
    assert!(location(&store, "s3://b/empty").exists().unwrap());
    assert!(!location(&store, "s3://b/none").exists().unwrap());
    let error = location(&store, "s3://b/none").open().err().unwrap();
    assert!(error.is_not_found() && error.to_string().starts_with("s3://b/none: "), "{error}");
    assert!(location(&store, "s3://b").size().unwrap_err().is_usage());
}

#[test]
fn no_more_is_fetched_ahead_than_was_asked_for() {
    let store = S3::start(|_| Answer::Serve);
    store.put("b/k", bytes(100_000));
    let mut reader = location(&store, "s3://b/k").open().unwrap();
    let mut some = [0; 10];
    reader.read_exact(&mut some).unwrap();
    drop(reader);
    // The part that is being read, and three after it.
    let furthest =
        store.seen().iter().filter_map(Request::range).map(|(_, end)| end).max().unwrap();
    assert!(furthest <= 4000, "{furthest}");
}

#[test]
fn lists_go_on_over_pages_and_patterns_pick_from_them() {
    let store = S3::start(|_| Answer::Serve);
    for name in ["a/t-0.tar", "a/t-1.tar", "a/t-2.tar", "a/sub/t-3.tar", "a/t.idx", "a-b/x.tar"] {
        store.put(&format!("b/{name}"), vec![1]);
    }
    // Some programs write such an object to create a folder.
    store.put("b/a/sub/", Vec::new());
    let names =
        |locations: Vec<Location>| locations.iter().map(ToString::to_string).collect::<Vec<_>>();
    let folder = location(&store, "s3://b/a");
    let all = [
        "s3://b/a/sub/t-3.tar",
        "s3://b/a/t-0.tar",
        "s3://b/a/t-1.tar",
        "s3://b/a/t-2.tar",
        "s3://b/a/t.idx",
    ];
    assert_eq!(names(folder.list().unwrap()), all);
    assert_eq!(names(folder.join("*.tar").expand().unwrap()), all[1..4]);
    assert_eq!(names(folder.join("**/*.tar").expand().unwrap()), all[..4]);
    assert_eq!(
        names(location(&store, "s3://b/*/{x,t}.*").expand().unwrap()),
        ["s3://b/a-b/x.tar", "s3://b/a/t.idx"]
    );
    assert_eq!(names(location(&store, "s3://b").list().unwrap()).len(), 6);
    assert!(folder.join("none").list().unwrap_err().is_not_found());
    assert!(folder.join("*.zip").expand().unwrap_err().is_not_found());
}

#[test]
fn a_list_that_fails_between_two_pages_is_taken_up_where_it_was() {
    let pages = AtomicUsize::new(0);
    let store = S3::start(move |request| match request.path.as_str() {
        "b" if pages.fetch_add(1, Ordering::Relaxed) % 2 == 1 => Answer::Status(503),
        _ => Answer::Serve,
    });
    // With a key that is encoded differently, `%25` for `%`, a store would skip later ones.
    let names =
        ["a#1", "a#2", "a#3", "a%1", "a%2", "a%25", "a&1", "a+1", "a[1]", "a[2]", "a~1", "a~2"];
    names.iter().for_each(|name| store.put(&format!("b/f/{}", name.replace('&', "and")), vec![1]));
    let mut expected: Vec<String> =
        names.iter().map(|name| format!("s3://b/f/{}", name.replace('&', "and"))).collect();
    expected.sort();
    let actual: Vec<String> =
        location(&store, "s3://b/f").list().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(actual, expected);
}

#[test]
fn a_store_that_accepts_and_never_answers_is_given_up() {
    let store = S3::start(|_| Answer::Never);
    let hasty = location(&store, "s3://b/k")
        .with_options(options(&store).give_up_after(Duration::from_millis(300)));
    for error in [hasty.size().unwrap_err(), hasty.open().err().unwrap(), hasty.list().unwrap_err()]
    {
        let text = error.to_string();
        assert!(text.contains("given up after") && text.contains("no data for"), "{text}");
    }
}

#[test]
#[ignore = "slow: ci/slow"]
fn an_upload_that_takes_its_time_is_not_broken_off() {
    let dir = tempfile::tempdir().unwrap();
    let late = Duration::from_millis(1500);
    let mut cut = std::collections::HashSet::new();
    let store = S3::start(move |request| match request.method.as_str() {
        // The first attempt at each object or part breaks after the time for retries is over.
        "PUT" if cut.insert(request.query("partNumber")) => Answer::LoseLate(late),
        "PUT" => Answer::Late(late),
        // The store joins the parts.
        "POST" if !request.body_is_empty() => Answer::Late(late),
        _ => Answer::Serve,
    });
    let hasty = location(&store, "s3://b/k")
        .with_options(options(&store).give_up_after(Duration::from_secs(1)));
    for size in [1000, (5 << 20) + 1] {
        fs::write(dir.path().join("file"), bytes(size)).unwrap();
        hasty.upload(&dir.path().join("file"), &|_| {}).unwrap();
        assert_eq!(store.get("b/k").unwrap().len(), size);
    }
}

/// A store that answers 503 for some time, and the result of a reader that starts during it.
fn busy_for(time: Duration) {
    let began = OnceLock::new();
    // The time begins with the first request, however late that comes.
    let store = S3::start(move |_| {
        let began = began.get_or_init(Instant::now);
        if began.elapsed() < time { Answer::Status(503) } else { Answer::Serve }
    });
    store.put("b/k", bytes(50_000));
    let object = location(&store, "s3://b/k");
    assert_eq!(read(&object), bytes(50_000));
    assert!(store.seen().len() > 50, "it was asked before it worked, and once for each part");
}

#[test]
fn a_store_that_is_busy_for_a_while_loses_nothing() {
    busy_for(Duration::from_secs(1));
}

#[test]
#[ignore = "takes as long as the store is busy"]
fn a_store_that_is_busy_for_ten_seconds_loses_nothing() {
    busy_for(Duration::from_secs(10));
}

#[test]
fn every_third_answer_may_fail_in_any_way() {
    let count = AtomicUsize::new(0);
    let failures = [
        Answer::Status(503),
        Answer::Cut(17),
        Answer::Status(429),
        Answer::Cut(0),
        Answer::Status(500),
        Answer::Lose,
    ];
    let store = S3::start(move |_| {
        let number = count.fetch_add(1, Ordering::Relaxed);
        if number.is_multiple_of(3) { failures[number / 3 % failures.len()] } else { Answer::Serve }
    });
    for number in 0..9 {
        store.put(&format!("b/f/{number}"), bytes(number * 700));
    }
    let objects = location(&store, "s3://b/f").list().unwrap();
    assert_eq!(objects.len(), 9);
    for (number, object) in objects.iter().enumerate() {
        assert_eq!(read(object), bytes(number * 700));
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("small"), bytes(5000)).unwrap();
    location(&store, "s3://b/up").upload(&dir.path().join("small"), &|_| {}).unwrap();
    assert_eq!(store.get("b/up").unwrap(), bytes(5000));
}

#[test]
fn a_connection_that_is_cut_is_taken_up_at_its_byte() {
    let store = S3::start(|request| match request.range() {
        // Each response is cut after 300 bytes, so 1000 take four.
        Some(_) => Answer::Cut(300),
        None => Answer::Serve,
    });
    store.put("b/k", bytes(1000));
    assert_eq!(read(&location(&store, "s3://b/k")), bytes(1000));
    let ranges: Vec<_> = store.seen().iter().filter_map(Request::range).collect();
    assert_eq!(ranges, [(0, 1000), (300, 1000), (600, 1000), (900, 1000)]);
}

#[test]
fn a_store_that_never_works_is_given_up_with_its_name() {
    let store = S3::start(|_| Answer::Status(503));
    let object = location(&store, "s3://b/k");
    let object = object.with_options(options(&store).give_up_after(Duration::from_millis(500)));
    for error in
        [object.size().unwrap_err(), object.open().err().unwrap(), object.list().unwrap_err()]
    {
        let text = error.to_string();
        assert!(error.is_file(), "{error}");
        for part in
            ["s3://b/k: ", "given up after", "retries", "503", &store.url(), "give_up_after"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    // A store that does not exist, at a port that no program gets by chance.
    let options = StoreOptions::new()
        .set("aws_endpoint_url", "http://127.0.0.1:1")
        .set("aws_skip_signature", "true");
    let object =
        Location::from("s3://b/k").with_options(options.give_up_after(Duration::from_millis(300)));
    let error = object.read().unwrap_err();
    assert!(error.to_string().contains("given up after"), "{error}");
}

#[test]
fn what_will_not_pass_is_not_tried_again() {
    for (status, reason) in [
        (403, "AWS_ACCESS_KEY_ID"),
        (404, "the object does not exist"),
        (400, "400"),
        (301, "AWS_REGION"),
        (307, "AWS_REGION"),
    ] {
        let store = S3::start(move |_| Answer::Status(status));
        let error = location(&store, "s3://b/k").size().unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(store.seen().len(), 1);
    }
    let error = Location::from("s3://b/k")
        .with_options(StoreOptions::new().set("aws_colour", "red"))
        .size();
    assert!(error.unwrap_err().to_string().contains("aws_colour"));
}

#[test]
fn an_object_that_changes_while_it_is_read_is_told() {
    let store = S3::start(|_| Answer::Serve);
    store.put("b/k", bytes(20_000));
    let mut reader = location(&store, "s3://b/k").open().unwrap();
    store.put("b/k", bytes(19_999));
    let error = reader.read_to_end(&mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("changed while it was read"), "{error}");
    assert!(reader.read(&mut [0; 1]).is_err(), "an end must not seem to follow");
}

#[test]
fn uploads_arrive_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("large");
    let large = bytes((12 << 20) + 5);
    fs::write(&file, &large).unwrap();
    let count = AtomicUsize::new(0);
    let store = S3::start(move |request| {
        match (request.method.as_str(), count.fetch_add(1, Ordering::Relaxed) % 4) {
            ("PUT", 1) => Answer::Status(503),
            ("PUT", 3) => Answer::Lose,
            _ => Answer::Serve,
        }
    });
    let progress = RefCell::new(Vec::new());
    location(&store, "s3://b/large")
        .upload(&file, &|sent| progress.borrow_mut().push(sent))
        .unwrap();
    assert!(store.get("b/large").unwrap() == large);
    assert_eq!(progress.borrow().last(), Some(&(large.len() as u64)));
    assert!(progress.borrow().is_sorted() && progress.borrow().len() == 3);
    assert_eq!(store.uploads(), 0);

    // The answer to the last request is lost: a complete object stays complete.
    let completed = AtomicUsize::new(0);
    let store = S3::start(move |request| match request.method.as_str() {
        "POST" if !request.body_is_empty() && completed.fetch_add(1, Ordering::Relaxed) == 0 => {
            Answer::Lose
        }
        _ => Answer::Serve,
    });
    location(&store, "s3://b/lost").upload(&file, &|_| {}).unwrap();
    assert!(store.get("b/lost").unwrap() == large);

    // Parts that are never accepted: nothing is left.
    let store =
        S3::start(
            |request| if request.method == "PUT" { Answer::Status(503) } else { Answer::Serve },
        );
    let hasty = location(&store, "s3://b/never")
        .with_options(options(&store).give_up_after(Duration::from_millis(300)));
    let error = hasty.upload(&file, &|_| {}).unwrap_err();
    assert!(error.to_string().contains("sending part"), "{error}");
    assert_eq!((store.get("b/never"), store.uploads()), (None, 0));
    assert!(hasty.upload(&dir.path().join("none"), &|_| {}).unwrap_err().is_not_found());
}

#[test]
fn google_is_spoken_to_too() {
    let store = S3::start(|_| Answer::Serve);
    let options = StoreOptions::new()
        .set("google_base_url", &store.url())
        .set("google_bearer_token", "token");
    let folder = Location::from("gs://b/folder").with_options(options.read_ahead(2, 999));
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), bytes(5000)).unwrap();
    folder.join("one").upload(&dir.path().join("file"), &|_| {}).unwrap();
    assert_eq!(read(&folder.join("one")), bytes(5000));
    assert_eq!(folder.list().unwrap(), [folder.join("one")]);
    let fingerprint = || {
        let mut fingerprint = Fingerprint::new();
        folder.join("one").fingerprint(&mut fingerprint).unwrap();
        fingerprint.to_string()
    };
    let first = fingerprint();
    assert_eq!(first, fingerprint());
    store.put("b/folder/one", bytes(5001));
    assert_ne!(first, fingerprint());
}

#[test]
fn shards_are_read_from_a_store_that_fails_now_and_then() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TarShardWriter::builder(dir.path()).max_samples(7).build().unwrap();
    for i in 0..20u8 {
        writer.write(&format!("{i:02}"), &[("bin", &[i; 900])]).unwrap();
    }
    let count = AtomicUsize::new(0);
    let store = S3::start(move |request| match count.fetch_add(1, Ordering::Relaxed) % 5 {
        2 if request.range().is_some() => Answer::Cut(400),
        4 => Answer::Status(503),
        _ => Answer::Serve,
    });
    let folder = location(&store, "s3://b/set");
    for shard in writer.finish().unwrap() {
        folder.join(shard.path.file_name().unwrap()).upload(&shard.path, &|_| {}).unwrap();
    }
    let shards = TarShards::open(folder.join("shard-{000000..000002}.tar")).unwrap();
    let read: Vec<_> = shards.items(0).unwrap().map(|item| item.unwrap().item).collect();
    let local = TarSource::open(dir.path().join("*.tar")).unwrap();
    assert_eq!(read, (0..20).map(|i| local.get(i).unwrap()).collect::<Vec<_>>());
    shards.fingerprint(&mut Fingerprint::new()).unwrap();
    let error = TarSource::open(folder.join("shard-000000.tar")).unwrap_err();
    assert!(error.to_string().contains("only from a local disk"), "{error}");
}

/// The error of a stream once the store returns only this status.
fn fails_with<S: Stream>(
    status: u16,
    name: &str,
    content: Vec<u8>,
    open: impl Fn(Location) -> Result<S>,
) -> Error {
    let now = Arc::new(AtomicU16::new(0));
    let answer = now.clone();
    let store = S3::start(move |_| match answer.load(Ordering::SeqCst) {
        0 => Answer::Serve,
        status => Answer::Status(status),
    });
    store.put(&format!("b/{name}"), content);
    let file = location(&store, &format!("s3://b/{name}"));
    let stream =
        open(file.with_options(options(&store).give_up_after(Duration::from_millis(300)))).unwrap();
    let mut items = stream.items(0).unwrap();
    items.next().unwrap().unwrap();
    now.store(status, Ordering::SeqCst);
    items.find_map(Result::err).unwrap()
}

/// A parquet and an Arrow file of three parts.
fn tables(number: impl Fn(u64) -> u64) -> (Vec<u8>, Vec<u8>) {
    let numbers: arrow_array::ArrayRef =
        Arc::new(arrow_array::UInt64Array::from_iter_values((0..4000).map(number)));
    let batch = arrow_array::RecordBatch::try_from_iter([("n", numbers)]).unwrap();
    let mut parquet = Vec::new();
    let mut arrow = Vec::new();
    let mut writer =
        parquet::arrow::ArrowWriter::try_new(&mut parquet, batch.schema(), None).unwrap();
    let mut arrow_writer =
        arrow_ipc::writer::FileWriter::try_new(&mut arrow, &batch.schema()).unwrap();
    for _ in 0..3 {
        writer.write(&batch).unwrap();
        writer.flush().unwrap();
        arrow_writer.write(&batch).unwrap();
    }
    writer.close().unwrap();
    arrow_writer.finish().unwrap();
    drop(arrow_writer);
    (parquet, arrow)
}

#[test]
fn a_store_that_fails_under_a_table_is_not_taken_for_a_damaged_file() {
    // Numbers that gzip can hardly compress.
    let number = |line: u64| line.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let lines: String = (0..20_000).map(|line| format!("{}\n", number(line))).collect();
    let csv = format!("a\n{lines}").replace('\n', ",1\n").replacen(",1", ",b", 1);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(lines.as_bytes()).unwrap();
    let packed = packed.finish().unwrap();
    let zstd = zstd::encode_all(lines.as_bytes(), 1).unwrap();
    let lines = lines.into_bytes();
    let csv = csv.into_bytes();
    let (parquet, arrow) = tables(number);
    let open_parquet = |file| fulmen_tables::Parquet::open(file).map(|table| table.stream());
    let open_arrow = |file| fulmen_tables::ArrowFiles::open(file).map(|table| table.stream());
    let check = |status: u16, error: Error| {
        let text = error.to_string();
        assert!(text.contains("s3://b/x") && !text.contains("damaged"), "{text}");
        assert_eq!(error.is_not_found(), status == 404, "{text}");
        assert!(status == 404 || text.contains("given up after"), "{text}");
    };
    let [lines, packed, csv, zstd, parquet, arrow] =
        [&lines, &packed, &csv, &zstd, &parquet, &arrow];
    // At the same time, because each waits before it gives up.
    std::thread::scope(|scope| {
        for status in [503, 404] {
            let check = move |error| check(status, error);
            scope
                .spawn(move || check(fails_with(status, "x.txt", lines.clone(), TextFile::stream)));
            scope.spawn(move || {
                check(fails_with(status, "x.jsonl", lines.clone(), JsonLines::stream))
            });
            scope.spawn(move || {
                check(fails_with(status, "x.jsonl.gz", packed.clone(), JsonLines::stream))
            });
            scope.spawn(move || check(fails_with(status, "x.csv", csv.clone(), Csv::stream)));
            scope.spawn(move || {
                check(fails_with(status, "x.jsonl.zst", zstd.clone(), JsonLines::stream))
            });
            scope.spawn(move || {
                check(fails_with(status, "x.parquet", parquet.clone(), open_parquet))
            });
            scope.spawn(move || check(fails_with(status, "x.arrow", arrow.clone(), open_arrow)));
        }
    });
}

/// In a separate process, because all tests share the environment.
#[test]
fn settings_come_from_the_environment() {
    let store = S3::start(|_| Answer::Serve);
    store.put("b/k", bytes(10));
    if std::env::var_os("FULMEN_TEST_CHILD").is_some() {
        assert_eq!(Location::from("s3://b/k").read().unwrap(), bytes(10));
        return;
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["cloud::settings_come_from_the_environment", "--exact"])
        .env("FULMEN_TEST_CHILD", "1")
        .env("AWS_ENDPOINT_URL", store.url())
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .env("AWS_REGION", "eu-central-1")
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    let requests = store.seen();
    assert!(
        !requests.is_empty() && requests.iter().all(|request| request.signed_for("eu-central-1")),
        "it asked with its keys"
    );
}
