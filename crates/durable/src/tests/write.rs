//! Atomic files, leftovers, and error messages.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use crate::{NewFile, NewFolder, explain, is_full, remove_leftovers, write};

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_disk_that_fills_up_half_way_keeps_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    fs::write(&path, "old").unwrap();
    let error = write(&path, None, |file| {
        file.write_all(&[1; 4096])?;
        file.flush()?;
        // Every write to this device fails as on a full disk.
        fs::OpenOptions::new().write(true).open("/dev/full")?.write_all(b"x")
    })
    .unwrap_err();
    assert!(is_full(&error) && error.to_string().contains("the disk has"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    assert_eq!(names(folder.path()), ["x"]);
}

#[test]
fn a_file_larger_than_the_disk_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    // An exabyte is too large for the disk or for a file.
    let error = write(&path, Some(1 << 60), |_| panic!("nothing is written")).unwrap_err();
    assert!(is_full(&error), "{error:?}");
    assert!(error.to_string().contains("the file needs 1152921.5 TB"), "{error}");
    assert!(names(folder.path()).is_empty());
}

#[test]
fn the_error_says_how_much_space_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let message = |kind: io::ErrorKind, bytes| explain(kind.into(), &path, bytes).to_string();
    let full = message(io::ErrorKind::StorageFull, Some(1 << 60));
    assert!(
        full.contains("the file needs 1152921.5 TB and the disk has")
            && full.ends_with("are missing"),
        "{full}"
    );
    assert!(message(io::ErrorKind::StorageFull, None).ends_with("that the disk has free"));
    assert!(message(io::ErrorKind::QuotaExceeded, Some(1500)).ends_with("; the file needs 1.5 kB"));
    assert_eq!(message(io::ErrorKind::PermissionDenied, Some(1)), "permission denied");
}

#[test]
fn no_error_names_a_temporary_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("taken")).unwrap();
    fs::write(folder.path().join("taken/x"), "").unwrap();
    for path in ["missing/x", "taken"].map(|name| folder.path().join(name)) {
        let error = write(&path, Some(1), |file| file.write_all(b"x")).unwrap_err();
        assert!(!error.to_string().contains(".part"), "{error}");
        let error = NewFolder::create(&path).and_then(NewFolder::keep).unwrap_err();
        assert!(!error.to_string().contains(".part"), "{error}");
    }
    assert_eq!(names(folder.path()), ["taken"]);
}

#[test]
fn open_files_and_other_names_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = NewFile::create(&folder.path().join("file")).unwrap();
    let shards = NewFolder::create(&folder.path().join("shards")).unwrap();
    file.write_all(b"x").unwrap();
    for name in [".part-list", ".part-", ".part-AbCdE-", ".parts-AbCdE", "part-AbCdEf"] {
        fs::write(folder.path().join(name), "mine").unwrap();
    }
    for name in [".part-folder", ".parts-AbCdEf"] {
        fs::create_dir_all(folder.path().join(name).join("inner")).unwrap();
    }
    let before = names(folder.path());
    for left in [".part-AbCdEf", ".part-012345"] {
        fs::write(folder.path().join(left), "half").unwrap();
    }
    fs::create_dir(folder.path().join(".parts-GhIjKl")).unwrap();
    fs::write(folder.path().join(".parts-GhIjKl/a"), "half").unwrap();
    remove_leftovers(folder.path()).unwrap();
    assert_eq!(names(folder.path()), before);
    file.keep().unwrap();
    shards.keep().unwrap();
    assert!(folder.path().join("file").is_file() && folder.path().join("shards").is_dir());
}

#[test]
fn a_new_file_has_the_usual_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
    fs::write(folder.path().join("usual"), "").unwrap();
    write(&folder.path().join("ours"), None, |_| Ok(())).unwrap();
    assert_eq!(mode("ours"), mode("usual"));
}
