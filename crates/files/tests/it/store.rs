//! Locations on the local disk: listing, patterns, ranges, copies, and names that are not UTF-8.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use fulmen_data::Fingerprint;
use fulmen_files::Location;

/// The relative paths of a list of locations in a folder.
fn below(folder: &Path, locations: &[Location]) -> Vec<String> {
    let strip = |l: &Location| {
        l.local().unwrap().strip_prefix(folder).unwrap().to_str().unwrap().to_owned()
    };
    locations.iter().map(strip).collect()
}

#[test]
fn folders_are_listed_in_the_order_of_their_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir_all(dir.join("b/deep")).unwrap();
    for name in ["b/deep/2.txt", "b/1.txt", "b-c.txt", "a.txt", ".hidden"] {
        fs::write(dir.join(name), name).unwrap();
    }
    // A link to a folder is followed; one to an enclosing folder is not, and a dangling one is not
    // a file.
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("far.txt"), "far").unwrap();
    symlink(elsewhere.path(), dir.join("link")).unwrap();
    symlink(dir, dir.join("b/up")).unwrap();
    symlink("nowhere", dir.join("gone")).unwrap();

    let folder = Location::from(dir);
    let all = [".hidden", "a.txt", "b-c.txt", "b/1.txt", "b/deep/2.txt", "link/far.txt"];
    assert_eq!(below(dir, &folder.list().unwrap()), all);
    assert_eq!(below(dir, &folder.join("*.txt").expand().unwrap()), ["a.txt", "b-c.txt"]);
    assert_eq!(below(dir, &folder.join("*/*.txt").expand().unwrap()), ["b/1.txt", "link/far.txt"]);
    let anywhere = folder.join("**/[0-9].txt").expand().unwrap();
    assert_eq!(below(dir, &anywhere), ["b/1.txt", "b/deep/2.txt"]);
    // Braces first, in their own order; then wildcards.
    assert_eq!(below(dir, &folder.join("{b/d*,a*}").expand().unwrap()), ["b/deep", "a.txt"]);
    assert_eq!(
        below(dir, &folder.join("t-{9..10}.tar").expand().unwrap()),
        ["t-9.tar", "t-10.tar"]
    );

    let error = folder.join("*.tar").expand().unwrap_err();
    assert!(
        error.is_not_found() && error.to_string().contains("no file matches this pattern"),
        "{error}"
    );
    assert!(folder.join("missing").list().unwrap_err().is_not_found());
}

#[test]
fn a_file_with_the_name_of_a_pattern_is_itself() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["x{1..3}", "[a]*", "a1"] {
        fs::write(dir.path().join(name), name).unwrap();
    }
    for name in ["x{1..3}", "[a]*"] {
        let file = Location::from(dir.path().join(name));
        assert_eq!(file.expand().unwrap(), [file]);
    }
}

#[test]
fn names_that_are_not_utf8_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let name = OsStr::from_bytes(b"caf\xe9.bin");
    fs::write(dir.path().join(name), "latin").unwrap();
    let folder = Location::from(dir.path());
    let locations = folder.list().unwrap();
    assert_eq!(locations, [folder.join(name)]);
    assert_eq!(folder.join("*.bin").expand().unwrap(), locations);
    assert_eq!(locations[0].read().unwrap(), b"latin");
    assert!(locations[0].name().ends_with(".bin"));
    let error = Location::from("gs://bucket").join(name).size().unwrap_err();
    assert!(error.to_string().contains("UTF-8"), "{error}");
}

#[test]
fn parts_are_read_and_never_more_than_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let file = Location::from(dir.path().join("file"));
    assert!(file.size().unwrap_err().is_not_found());
    assert!(!file.exists().unwrap());
    fs::write(dir.path().join("file"), (0..=255).collect::<Vec<u8>>()).unwrap();
    assert!(file.exists().unwrap());
    assert_eq!(file.size().unwrap(), 256);
    assert_eq!(file.read_range(254..256).unwrap(), [254, 255]);
    assert!(file.read_range(7..7).unwrap().is_empty());
    for range in [255..257, 0..u64::MAX, u64::MAX - 1..u64::MAX] {
        let error = file.read_range(range).unwrap_err();
        assert!(error.is_file() && error.to_string().contains("has 256"), "{error}");
    }
    let mut all = Vec::new();
    file.open().unwrap().read_to_end(&mut all).unwrap();
    assert_eq!(all, file.read().unwrap());
    let folder = Location::from(dir.path());
    for error in
        [folder.read().unwrap_err(), folder.open().err().unwrap(), folder.size().unwrap_err()]
    {
        assert!(error.to_string().contains("this is a folder"), "{error}");
    }
}

#[test]
fn a_copy_takes_its_name_when_it_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    let bytes: Vec<u8> = (0..3_000_000u32).map(|i| i as u8).collect();
    fs::write(&from, &bytes).unwrap();
    let to = Location::from(dir.path().join("new/folder/to"));
    let progress = RefCell::new(Vec::new());
    to.upload(&from, &|bytes| progress.borrow_mut().push(bytes)).unwrap();
    assert_eq!(to.read().unwrap(), bytes);
    assert_eq!(progress.borrow().last(), Some(&3_000_000));
    assert!(progress.borrow().is_sorted());
    // No other files are left, and a failed copy leaves the old file.
    assert_eq!(Location::from(dir.path().join("new")).list().unwrap(), std::slice::from_ref(&to));
    assert!(to.upload(&dir.path().join("missing"), &|_| {}).unwrap_err().is_not_found());
    assert_eq!(to.read().unwrap(), bytes);
}

#[test]
fn places_that_are_none_are_told_on_first_use() {
    for (text, reason) in [
        ("", "empty"),
        ("https://example.org/a.tar?download=true", "`?`"),
        ("ftp://example.org/a.tar", "gs://bucket/path"),
        ("s3://", "bucket"),
        ("s3://a b/c", "bucket"),
        ("gs://bucket/a//b", "empty"),
        ("gs://bucket/a/../b", "`..`"),
        ("file://data/a", "file:///"),
    ] {
        let error = Location::from(text).join("").read().unwrap_err();
        assert!(error.is_usage() && error.to_string().contains(reason), "{text}: {error}");
    }
    assert_eq!(Location::from("file:///data/a"), Location::from("/data/a"));
    assert_eq!(Location::from("./gs://x").local(), Some(Path::new("./gs://x")));
    assert_eq!(Location::from(Path::new("gs://b/k/")).join("/x/y/").to_string(), "gs://b/k/x/y");
    assert_eq!(Location::from("s3://b").join("x").to_string(), "s3://b/x");
    let names = Location::from("s3://b/{train,val}-{0..1}.tar").expand().unwrap();
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    assert_eq!(
        names,
        ["s3://b/train-0.tar", "s3://b/train-1.tar", "s3://b/val-0.tar", "s3://b/val-1.tar"]
    );
}

#[test]
fn a_fingerprint_sees_a_change() {
    let dir = tempfile::tempdir().unwrap();
    let file = Location::from(dir.path().join("file"));
    let fingerprint = || {
        let mut fingerprint = Fingerprint::new();
        file.fingerprint(&mut fingerprint).map(|()| fingerprint.to_string())
    };
    assert!(fingerprint().unwrap_err().is_not_found());
    fs::write(dir.path().join("file"), "a").unwrap();
    let first = fingerprint().unwrap();
    assert_eq!(first, fingerprint().unwrap());
    fs::write(dir.path().join("file"), "ab").unwrap();
    assert_ne!(first, fingerprint().unwrap());
}

#[cfg(not(feature = "cloud"))]
#[test]
fn object_stores_that_are_not_built_in_name_the_feature_of_fulmen() {
    for error in [
        Location::from("gs://bucket/a.tar").size().unwrap_err(),
        Location::from("s3://bucket/a.tar").read().unwrap_err(),
        Location::from("s3://bucket/*.tar").expand().unwrap_err(),
    ] {
        assert!(error.is_usage(), "{error}");
        assert!(error.to_string().contains("build fulmen with its feature `cloud`"), "{error}");
    }
}
