//! Errors about formats that this build does not support.

use std::fs;
use std::path::Path;

use fulmen_data::{Source, Stream};
use fulmen_tables::{ArrowFiles, HfFolder, TextFile};

#[test]
fn a_format_that_is_not_built_in_names_the_feature_of_fulmen() {
    let root = tempfile::tempdir().unwrap();
    let feature = "build fulmen with its feature `parquet`";
    let path = root.path().join("text.zst");
    fs::write(&path, [0x28, 0xb5, 0x2f, 0xfd, 0, 0, 0, 0]).unwrap();
    let error = TextFile::stream(&path)
        .unwrap()
        .items(0)
        .and_then(|mut items| items.next().unwrap())
        .err()
        .unwrap();
    assert!(error.to_string().contains(feature), "{error}");

    fs::write(root.path().join("train.parquet"), b"PAR1").unwrap();
    let error = HfFolder::open(root.path())
        .and_then(|folder| folder.split("train").map(|_| ()))
        .unwrap_err();
    assert!(error.is_usage() && error.to_string().contains(feature), "{error}");

    let zstd = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/tables/zstd.arrow");
    let error = ArrowFiles::open(zstd).and_then(|files| files.get(0)).err().unwrap();
    assert!(
        error.to_string().contains(feature) && !error.to_string().contains("damaged"),
        "{error}"
    );
}
