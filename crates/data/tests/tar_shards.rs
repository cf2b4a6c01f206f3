//! WebDataset shards: written, read, and read where they are damaged.

use std::fs;

use fulmen_data::TarShardWriter;

#[test]
fn a_writer_begins_a_shard_where_one_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TarShardWriter::builder(dir.path()).prefix("t").max_bytes(8192).build().unwrap();
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
        ("e", vec![], "no files"),
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
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "the complete shard stays, the other goes");
    let error = builder().build().unwrap_err();
    assert!(error.is_file() && error.to_string().contains("overwrite(true)"), "{error}");
    let mut writer = builder().first_shard(1).build().unwrap();
    writer.write("b", &[("x", b"2")]).unwrap();
    assert!(writer.finish().unwrap()[0].path.ends_with("shard-000001.tar"));
    let before = fs::read(dir.path().join("shard-000000.tar")).unwrap();
    let mut writer = builder().overwrite(true).build().unwrap();
    writer.write("a", &[("x", b"1")]).unwrap();
    writer.finish().unwrap();
    assert_eq!(fs::read(dir.path().join("shard-000000.tar")).unwrap(), before, "the same bytes each time");
}
