//! WebDataset shards: writing, reading, and reading damaged ones.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use expect_test::expect;
use fulmen_data::{DType, DataLoader, Error, Field, Source, Stream};
use fulmen_shards::{TarShardWriter, TarShards, TarSource};

use crate::notes;

#[test]
fn a_writer_begins_a_shard_where_one_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer =
        TarShardWriter::builder(dir.path()).prefix("t").max_bytes(8192).build().unwrap();
    // 1536 bytes each in the tar, and 1024 for its end: four fit into 8192.
    for i in 0..9 {
        writer.write(&format!("s{i}"), &[("bin", &[i; 600])]).unwrap();
    }
    assert_eq!(writer.written().len(), 2);
    let shards = writer.finish().unwrap();
    assert_eq!(shards.iter().map(|s| s.samples).collect::<Vec<_>>(), [4, 4, 1]);
    for shard in &shards {
        assert_eq!(fs::metadata(&shard.path).unwrap().len(), shard.bytes);
        assert!(shard.bytes <= 8192);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "no temporary file is left");
}

#[test]
fn a_sample_that_a_reader_would_not_find_again_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TarShardWriter::builder(dir.path()).build().unwrap();
    let file: (&str, &[u8]) = ("txt", b"x");
    writer.write("a/b.c/d", &[file]).unwrap();
    for (key, files, why) in [
        ("a.b", vec![file], "dot"),
        ("", vec![file], "names"),
        ("/a", vec![file], "names"),
        ("a/../b", vec![file], "names"),
        ("a/b.c/d", vec![file], "same key"),
        ("__a__", vec![file], "skip"),
        ("e", Vec::new(), "no files"),
        ("e", vec![file, ("TXT", b"y")], "two files"),
        ("e", vec![("", b"y".as_slice())], "extension"),
        ("e", vec![("a/b", b"y".as_slice())], "extension"),
    ] {
        let error = writer.write(key, &files).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains(why), "{error}");
    }
    assert_eq!(writer.finish().unwrap()[0].samples, 1);
}

#[test]
fn nothing_that_is_there_is_replaced_unasked_and_nothing_half_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let builder = || TarShardWriter::builder(dir.path()).max_samples(1);
    let mut writer = builder().build().unwrap();
    writer.write("a", &[("x", b"1")]).unwrap();
    writer.write("b", &[("x", b"2")]).unwrap();
    drop(writer);
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        1,
        "the complete shard stays, the other goes"
    );
    let error = builder().build().unwrap_err();
    assert!(error.is_file() && error.to_string().contains("overwrite(true)"), "{error}");
    let mut writer = builder().first_shard(1).build().unwrap();
    writer.write("b", &[("x", b"2")]).unwrap();
    assert!(writer.finish().unwrap()[0].path.ends_with("shard-000001.tar"));
    let before = fs::read(dir.path().join("shard-000000.tar")).unwrap();
    let mut writer = builder().overwrite(true).build().unwrap();
    writer.write("a", &[("x", b"1")]).unwrap();
    writer.finish().unwrap();
    assert_eq!(
        fs::read(dir.path().join("shard-000000.tar")).unwrap(),
        before,
        "the same bytes each time"
    );
}

#[test]
fn a_shard_that_somebody_else_made_meanwhile_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shard-000000.tar");
    let mut writer = TarShardWriter::builder(dir.path()).build().unwrap();
    writer.write("a", &[("x", b"1")]).unwrap();
    fs::write(&path, "theirs").unwrap();
    let error = writer.finish().unwrap_err();
    assert!(error.is_file() && error.to_string().contains("shard-000000.tar"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing half is left");
}

#[test]
fn extensions_may_be_written_with_a_dot_and_in_upper_case() {
    let (dir, shards) = three();
    let all = stream(&shards, 0).unwrap();
    let wanted = all[0].1.keys().next().unwrap().clone();
    let written = format!(".{}", wanted.to_uppercase());
    let few = stream(&shards.clone().extensions(&[&written]), 0).unwrap();
    assert_eq!(few.len(), all.len());
    assert!(few.iter().all(|(_, files)| files.keys().eq([&wanted])));
    let source = TarSource::open_only(dir.path().join("*.tar"), &[&written]).unwrap();
    assert_eq!(source.len(), all.len());
}

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/tar_shards").join(name)
}

/// Keys and files of all samples.
type Samples = Vec<(String, BTreeMap<String, Vec<u8>>)>;

fn expected(name: &str) -> Samples {
    let json: serde_json::Value =
        serde_json::from_slice(&fs::read(reference("expected.json")).unwrap()).unwrap();
    let unhex = |hex: &str| {
        (0..hex.len() / 2)
            .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
            .collect()
    };
    let sample = |sample: &serde_json::Value| {
        let files = sample["files"].as_object().unwrap().iter();
        let files = files.map(|(name, hex)| (name.clone(), unhex(hex.as_str().unwrap()))).collect();
        (sample["key"].as_str().unwrap().to_owned(), files)
    };
    json[name].as_array().unwrap().iter().map(sample).collect()
}

fn stream(shards: &TarShards, epoch: u64) -> Result<Samples, Error> {
    shards.items(epoch)?.map(|item| item.map(|item| (item.item.key, item.item.files))).collect()
}

#[test]
fn shards_are_read_as_webdataset_reads_them() {
    for name in ["gnu.tar", "pax.tar", "ustar.tar", "packed.tar.gz", "webdataset.tar"] {
        let samples = stream(&TarShards::open(reference(name)).unwrap(), 0).unwrap();
        assert!(!samples.is_empty());
        assert_eq!(samples, expected(name), "{name}");
        if name.ends_with(".gz") {
            let error = TarSource::open(reference(name)).unwrap_err();
            assert!(error.to_string().contains("compressed samples"), "{error}");
            continue;
        }
        let source = TarSource::open(reference(name)).unwrap();
        let indexed =
            (0..source.len()).map(|i| source.get(i).map(|sample| (sample.key, sample.files)));
        assert_eq!(indexed.collect::<Result<Samples, _>>().unwrap(), samples, "{name}");
    }
}

#[test]
fn what_is_written_is_what_tarfile_writes() {
    // Also with names that do not fit into a header, and with folders in keys.
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TarShardWriter::builder(dir.path()).build().unwrap();
    let long = "folder/".repeat(40) + "key";
    let samples: Samples = vec![
        (long, [("jpg".to_owned(), vec![1; 513]), ("seg.png".to_owned(), Vec::new())].into()),
        ("a".repeat(96), [("txt".to_owned(), vec![2; 512])].into()),
        ("b".repeat(97), [("txt".to_owned(), vec![3; 511])].into()),
        ("é/ü".to_owned(), [("txt".to_owned(), vec![4])].into()),
    ];
    for (key, files) in &samples {
        let files: Vec<(&str, &[u8])> =
            files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
        writer.write(key, &files).unwrap();
    }
    let shard = writer.finish().unwrap().remove(0);
    assert_eq!(fs::metadata(&shard.path).unwrap().len(), shard.bytes);
    assert_eq!(stream(&TarShards::open(&shard.path).unwrap(), 0).unwrap(), samples);
}

/// Three shards of four samples each.
fn three() -> (tempfile::TempDir, TarShards) {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TarShardWriter::builder(dir.path()).max_samples(4).build().unwrap();
    for i in 0..12u8 {
        writer.write(&format!("{i:02}"), &[("bin", &[i]), ("long", &[i; 700])]).unwrap();
    }
    writer.finish().unwrap();
    let shards = TarShards::open(dir.path().join("shard-{000000..000002}.tar")).unwrap();
    (dir, shards)
}

#[test]
fn the_order_of_shards_is_that_of_seed_and_epoch_and_numbers_stay() {
    let (_dir, shards) = three();
    let numbers = |shards: &TarShards, epoch| -> Vec<(u64, u8)> {
        let items = shards.items(epoch).unwrap().map(Result::unwrap);
        items.map(|item| (item.index, item.item.files["bin"][0])).collect()
    };
    let plain = numbers(&shards, 0);
    assert_eq!(plain.iter().map(|(_, i)| *i).collect::<Vec<_>>(), (0..12).collect::<Vec<_>>());
    assert_eq!((plain[0].0, plain[5].0), (0, (1 << 32) + 1));
    let shuffled = shards.clone().shuffle_shards(3);
    let orders: Vec<_> = (0..6).map(|epoch| numbers(&shuffled, epoch)).collect();
    assert!(orders.iter().any(|order| *order != orders[0]));
    for (epoch, mut order) in orders.into_iter().enumerate() {
        assert_eq!(order, numbers(&shuffled, epoch as u64));
        order.sort_unstable();
        assert_eq!(order, plain, "the number of a sample is the same wherever its shard stands");
    }
    let only = shards.clone().extensions(&["bin"]);
    assert!(stream(&only, 0).unwrap().iter().all(|(_, files)| files.keys().eq(["bin"])));
    assert!(stream(&shards.extensions(&["png"]), 0).unwrap().is_empty());
}

#[test]
fn a_bad_shard_is_an_error_and_the_next_one_is_read() {
    let (dir, shards) = three();
    let second = dir.path().join("shard-000001.tar");
    let whole = fs::read(&second).unwrap();
    // Within the third sample of the four.
    fs::write(&second, &whole[..whole.len() / 2]).unwrap();
    assert_eq!(shards.describe(), "TarShards(3 from shard-000000.tar)");
    let items: Vec<_> = shards.items(0).unwrap().collect();
    let bad: Vec<usize> =
        items.iter().enumerate().filter(|(_, item)| item.is_err()).map(|(i, _)| i).collect();
    let error = items[bad[0]].as_ref().unwrap_err().to_string();
    assert_eq!(bad.len(), 1);
    assert!(error.contains("shard-000001.tar") && error.contains("truncated"), "{error}");
    let last = items.last().unwrap().as_ref().unwrap();
    assert_eq!((last.item.key.as_str(), last.index), ("11", (2 << 32) + 3));
    fs::remove_file(&second).unwrap();
    let items: Vec<_> = shards.items(0).unwrap().collect();
    assert_eq!(items.len(), 9);
    assert!(items[4].as_ref().unwrap_err().is_not_found());
}

#[test]
fn a_source_tells_files_that_changed_under_it() {
    let (dir, _) = three();
    let source = TarSource::open(dir.path().join("*.tar")).unwrap();
    assert_eq!((source.len(), source.key(11), source.key(12)), (12, Some("11"), None));
    let second = dir.path().join("shard-000001.tar");
    fs::OpenOptions::new().write(true).open(&second).unwrap().set_len(600).unwrap();
    assert_eq!(source.get(3).unwrap().files["long"], [3; 700]);
    let error = source.get(5).unwrap_err();
    assert!(error.is_file() && error.to_string().contains("entry 05.bin"), "{error}");
    fs::remove_file(dir.path().join("shard-000002.tar")).unwrap();
    assert!(source.get(11).unwrap_err().is_not_found());
    assert!(source.get(12).unwrap_err().is_usage());
}

/// A header with these parts and a valid checksum.
fn header(name: &[u8], size: &[u8], kind: u8) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name);
    block[124..124 + size.len()].copy_from_slice(size);
    block[156] = kind;
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

#[test]
fn a_damaged_tar_is_refused_with_the_place() {
    let end = vec![0; 1024];
    let file = |size: &[u8]| header(b"a.txt", size, b'0');
    let block = |text: &[u8]| [text, &vec![0; 512 - text.len()]].concat();
    let good = [file(b"4"), block(b"text")].concat();
    let mut flipped =
        [good.clone(), header(b"b.txt", b"4", b'0'), block(b"more"), end.clone()].concat();
    flipped[1024 + 10] ^= 1;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&[good.clone(), end.clone()].concat()).unwrap();
    let gzip = gzip.finish().unwrap();
    let mut bad_gzip = gzip.clone();
    let checksum = bad_gzip.len() - 6;
    bad_gzip[checksum] ^= 1;
    let huge = b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff";
    let cases: Vec<(Vec<u8>, expect_test::Expect)> = vec![
        (Vec::new(), expect!["FILE: the file is empty; expected a tar"]),
        (
            b"<html>".repeat(100),
            expect![
                "FILE: not a tar file, plain or gzip: its checksum is not a number (it looks like a web page: did the \
                 download fail?)"
            ],
        ),
        (
            good.clone(),
            expect![
                "FILE: entry a.txt, at byte 512: the file ends without the zeros that end a tar; it is truncated: \
                 copy or download it again"
            ],
        ),
        (
            good[..700].to_vec(),
            expect![
                "FILE: entry a.txt, at byte 512: the file ends 324 bytes before the entry does; it is truncated: copy \
                 or download it again"
            ],
        ),
        (
            [&good[..], &[1; 100]].concat(),
            expect![
                "FILE: entry a.txt, at byte 512: the file ends within a header, at byte 1124; it is truncated: copy \
                 or download it again"
            ],
        ),
        (
            flipped,
            expect![
                "FILE: the header at byte 1024, after the entry a.txt, is damaged: its checksum should be 853, but is \
                 852; copy or download the file again"
            ],
        ),
        (
            [file(b"77777777777"), end.clone()].concat(),
            expect![
                "FILE: entry a.txt, at byte 512: the file ends after 1024 of the entry's 8589934591 bytes; it is \
                 truncated: copy or download it again"
            ],
        ),
        (
            [file(huge), end.clone()].concat(),
            expect![
                "FILE: entry a.txt, at byte 512: with its 9223372036854775807 bytes the sample would have \
                 9223372036854775807, over the limit of 1099511627776; if that is right, raise the limit with \
                 max_sample_bytes"
            ],
        ),
        (
            [file(b"9"), end.clone()].concat(),
            expect!["FILE: not a tar file, plain or gzip: its size is not a number"],
        ),
        (
            [header(b"a.txt", b"4", b'S'), block(b"text"), end.clone()].concat(),
            expect![
                "FILE: entry a.txt, at byte 512: it is a file with holes (GNU tar --sparse); pack it without --sparse"
            ],
        ),
        (
            [header(b"x", b"77777777", b'L'), end.clone()].concat(),
            expect![
                "FILE: the name or extended header before byte 512 claims 16777215 bytes, and more than 1048576 are \
                 refused"
            ],
        ),
        (
            [header(b"x", b"4", b'x'), block(b"no\n"), end.clone()].concat(),
            expect!["FILE: at byte 0: a record of an extended header is not `length key=value`"],
        ),
        (
            [header(b"x", b"14", b'x'), block(b"12 size=-12\n"), good.clone(), end.clone()]
                .concat(),
            expect!["FILE: at byte 0: the size `-12` is not a number"],
        ),
        (
            [
                header(b"x", b"26", b'x'),
                block(b"22 GNU.sparse.major=1\n"),
                good.clone(),
                end.clone(),
            ]
            .concat(),
            expect![
                "FILE: entry a.txt, at byte 1536: it is a file with holes (GNU tar --sparse); pack it without --sparse"
            ],
        ),
        (
            [header(b"x", b"5", b'L'), b"name".to_vec()].concat(),
            expect![
                "FILE: the file ends after 4 of the entry's 5 bytes; it is truncated: copy or download it again"
            ],
        ),
        (
            [header(b"x", b"5", b'L'), block(b"name"), end.clone()].concat(),
            expect!["FILE: it ends after the name of an entry, without the entry"],
        ),
        (
            [good.clone(), good.clone(), end.clone()].concat(),
            expect![
                "FILE: entry a.txt, at byte 1536: the sample `a` has a file with the extension `txt` already"
            ],
        ),
        (
            [good.clone(), end.clone(), good.clone(), end.clone()].concat(),
            expect![
                "FILE: entry a.txt, at byte 512: there are more bytes after the zeros at byte 1024 that end the tar; were several tars concatenated? Make one tar of them"
            ],
        ),
        (
            gzip[..gzip.len() - 4].to_vec(),
            expect![
                "FILE: entry a.txt, at byte 512: the compressed file is truncated; copy or download it again"
            ],
        ),
        (
            bad_gzip,
            expect![
                "FILE: entry a.txt, at byte 512: the compressed file is damaged (corrupt gzip stream does not have a \
                 matching checksum); copy or download it again"
            ],
        ),
    ];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.tar");
    for (bytes, expect) in cases {
        fs::write(&path, &bytes).unwrap();
        let error =
            stream(&TarShards::open(&path).unwrap().max_sample_bytes(1 << 40), 0).unwrap_err();
        let tell = |error: &Error| error.to_string().replace(&path.display().to_string(), "FILE");
        assert!(error.is_file(), "{error}");
        expect.assert_eq(&tell(&error));
        // Opening it by index fails too.
        let indexed = TarSource::open(&path).unwrap_err();
        assert!(bytes.starts_with(&[0x1f, 0x8b]) || indexed.is_file(), "{indexed}");
    }
    fs::write(&path, [file(b"4"), block(b"text"), end.clone()].concat()).unwrap();
    let error = stream(&TarShards::open(&path).unwrap().max_sample_bytes(3), 0).unwrap_err();
    expect!["FILE: entry a.txt, at byte 512: with its 4 bytes the sample would have 4, over the limit of 3; if that is right, raise the limit with max_sample_bytes"].assert_eq(&error.to_string().replace(&path.display().to_string(), "FILE"));
    fs::write(&path, &end).unwrap();
    let error = TarSource::open(&path).unwrap_err();
    expect!["FILE: there are no samples in this tar: expected files named `key.extension`"]
        .assert_eq(&error.to_string().replace(&path.display().to_string(), "FILE"));
}

#[test]
fn extended_records_and_binary_sizes_count_more_than_a_header() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.tar");
    let block = |text: &[u8]| [text, &vec![0; 512 - text.len()]].concat();
    let read = |parts: &[Vec<u8>]| {
        fs::write(&path, [parts.concat(), vec![0; 1024]].concat()).unwrap();
        stream(&TarShards::open(&path).unwrap(), 0).unwrap()
    };
    let text =
        |key: &str| vec![(key.to_owned(), BTreeMap::from([("txt".to_owned(), b"text".to_vec())]))];
    let records =
        [header(b"x", b"51", b'x'), block(b"21 path=folder/b.txt\n9 size=4\n11 mtime=1\n")];
    assert_eq!(
        read(&[records.concat(), header(b"a.txt", b"0", b'0'), block(b"text")]),
        text("folder/b")
    );
    assert_eq!(
        read(&[header(b"a.txt", b"\x80\0\0\0\0\0\0\0\0\0\0\x04", b'0'), block(b"text")]),
        text("a")
    );
    assert_eq!(read(&[header(b"a.txt", b"     000004\0", b'7'), block(b"text")]), text("a"));
    // A folder with a size but no content, and bytes that are irrelevant for names.
    let other = [header(b"folder/", b"100", b'5'), header(b"g", b"4", b'g'), block(b"what")];
    assert_eq!(read(&[other.concat(), header(b"a.txt", b"4", b'0'), block(b"text")]), text("a"));
}

#[test]
fn shards_go_through_a_loader() {
    let (_dir, shards) = three();
    let read = |workers| -> Vec<u8> {
        let shuffled = shards.clone().num_samples(12).shuffle(5, 1);
        let data = shuffled
            .into_dataset(vec![Field::new("n", DType::U8, [1])], |mut sample, row| {
                row.write(0, &sample.take("bin")?)
            });
        let loader =
            DataLoader::from_stream(data).batch_size(4).num_workers(workers).build().unwrap();
        loader.epoch(2).flat_map(|batch| batch.unwrap().values::<u8>(0).unwrap().to_vec()).collect()
    };
    let mut once = read(0);
    assert_eq!(once, read(3));
    once.sort_unstable();
    assert_eq!(once, (0..12).collect::<Vec<u8>>());
}

#[test]
fn what_a_shard_leaves_out_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tar");
    let mut tar = tar::Builder::new(fs::File::create(&path).unwrap());
    let header = |kind| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(if kind == tar::EntryType::Regular { 3 } else { 0 });
        header
    };
    for name in ["a.txt", "README", "b.txt", "._b.txt", "__meta__/x.json"] {
        let mut header = header(tar::EntryType::Regular);
        tar.append_data(&mut header, name, &b"abc"[..]).unwrap();
    }
    for kind in [tar::EntryType::Symlink, tar::EntryType::Link] {
        let mut header = header(kind);
        tar.append_link(&mut header, "c.txt", "a.txt").unwrap();
    }
    tar.finish().unwrap();
    notes::collect();
    assert_eq!(TarSource::open(&path).unwrap().len(), 2);
    for epoch in 0..2 {
        assert_eq!(TarShards::open(&path).unwrap().items(epoch).unwrap().count(), 2);
    }
    let expected = "left out 3 files (2 links, 1 without an extension): files of samples are named `key.extension`, and \
                    no links";
    let path = path.display().to_string();
    assert_eq!(notes::about(&path), [format!("{path}: {expected}")]);
}
