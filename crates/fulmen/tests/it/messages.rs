//! Compiler messages for a user's mistakes: they are short, and name types by paths that the user
//! can write.

use std::path::PathBuf;
use std::process::Command;

/// The newest library of this crate that cargo has built for this test.
fn library() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let built =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("libfulmen-") && name.ends_with(".rlib")
        });
    built
        .max_by_key(|path| path.metadata().unwrap().modified().unwrap())
        .expect("a library of this crate")
}

/// The compiler's messages for code with these lines in its `main`.
fn messages(lines: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("main.rs");
    let library = library();
    std::fs::write(&source, format!("use fulmen::prelude::*;\nfn main() {{\n{lines}\n}}\n"))
        .unwrap();
    let out = Command::new(option_env!("RUSTC").unwrap_or("rustc"))
        .args(["--edition=2024", "--emit=metadata", "--color=never", "--extern"])
        .arg(format!("fulmen={}", library.display()))
        .arg("-L")
        .arg(format!("dependency={}", library.parent().unwrap().display()))
        .arg("--out-dir")
        .arg(folder.path())
        .arg(&source)
        .output()
        .unwrap();
    String::from_utf8(out.stderr).unwrap()
}

#[test]
fn types_have_paths_that_a_user_can_write() {
    let text = messages(
        "let _: Vec<u8> = TensorDataset::builder().build();
         let _: Vec<u8> = Linear::new(1, 2).to_dtype(DType::F32);
         let _: Vec<u8> = Trainer::builder().options();",
    );
    assert_eq!(text.matches(", fulmen::Error>").count(), 3, "{text}");
    assert!(!text.contains("fulmen_"), "{text}");
}

#[test]
fn a_wrong_argument_has_a_short_message() {
    let text = messages("Trainer::builder().max_epochs(\"6\");");
    assert!(text.contains("expected `u64`, found `&str`"), "{text}");
    let text = messages("Linear::new(3, 4).forward(3.0);");
    assert!(text.starts_with("error[E0277]: `{float}` is not a tensor"), "{text}");
    let text = messages("Tensor::zeros(DType::F32, [2]).maximum(1);");
    assert!(
        text.starts_with("error[E0277]: `{integer}` is neither a tensor nor an `f64`"),
        "{text}"
    );
}
