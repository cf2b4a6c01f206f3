//! `fulmen new`: creates a project that compiles, trains and tests itself. Its files are in
//! `src/new`.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use fulmen_data::{Error, Result};
use serde_json::json;

/// Creates a project to start from: a model, data, a configuration file and a test
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Its name: lower-case letters, digits, `-` and `_`
    name: String,
    /// Its folder, which must be new or empty [default: NAME]
    #[arg(long, value_name = "FOLDER")]
    path: Option<PathBuf>,
    /// A checkout of Fulmen to depend on [default: the published version]
    #[arg(long, value_name = "FOLDER", conflicts_with = "fulmen_git")]
    fulmen_path: Option<PathBuf>,
    /// A git repository of Fulmen to depend on
    #[arg(long, value_name = "URL")]
    fulmen_git: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The path and the content of a file.
const FILES: [(&str, &str); 7] = [
    ("Cargo.toml", include_str!("../../new/Cargo.toml.in")),
    (".gitignore", include_str!("../../new/gitignore")),
    ("README.md", include_str!("../../new/README.md")),
    ("config.toml", include_str!("../../new/config.toml")),
    ("src/main.rs", include_str!("../../new/main.rs")),
    ("src/model.rs", include_str!("../../new/model.rs")),
    ("src/data.rs", include_str!("../../new/data.rs")),
];

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let name = &arguments.name;
    check_name(name)?;
    let dependency = dependency(arguments)?;
    let folder = arguments.path.clone().unwrap_or_else(|| name.into());
    let cannot = |path: &Path, e: std::io::Error| {
        Error::new(format!("cannot write {}: {e}", path.display()))
    };
    if fs::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Error::usage(format!(
            "{} is not empty; choose another folder with --path",
            folder.display()
        )));
    }
    for (file, text) in FILES {
        let path = folder.join(file);
        fs::create_dir_all(path.parent().unwrap_or(&folder)).map_err(|e| cannot(&path, e))?;
        fs::write(&path, text.replace("NAME", name).replace("FULMEN", &dependency))
            .map_err(|e| cannot(&path, e))?;
    }
    if arguments.json {
        outln!("{}", json!({ "path": folder, "files": FILES.map(|(file, _)| file) }));
    } else {
        outln!(
            "{0}: created; in it, `cargo run --release` trains and `cargo test --release` tests",
            folder.display()
        );
    }
    Ok(())
}

/// Rejects names that Cargo would reject, or that would make an unusable crate.
fn check_name(name: &str) -> Result<()> {
    let refuse =
        |reason: &str| Err(Error::usage(format!("{name:?} cannot be a project's name: {reason}")));
    let is_allowed = |letter: char| {
        letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-_".contains(letter)
    };
    if !name.starts_with(|letter: char| letter.is_ascii_lowercase())
        || !name.chars().all(is_allowed)
    {
        return refuse("expected lower-case letters, digits, `-` and `_`, starting with a letter");
    }
    const RESERVED: [&str; 12] = [
        "core",
        "alloc",
        "std",
        "test",
        "proc_macro",
        "fulmen",
        "tempfile",
        "build",
        "deps",
        "examples",
        "incremental",
        "crate",
    ];
    // Cargo also rejects keywords as package names.
    const KEYWORDS: &str = "abstract as async await become box break const continue do dyn else enum extern false \
                            final fn for gen if impl in let loop macro match mod move mut override priv pub ref \
                            return self static struct super trait true try type typeof unsafe unsized use virtual \
                            where while yield";
    if RESERVED.contains(&name) || KEYWORDS.split_whitespace().any(|keyword| keyword == name) {
        return refuse("Rust, Cargo or a crate that it uses has that name");
    }
    Ok(())
}

/// The value of `fulmen =` in `Cargo.toml`.
fn dependency(arguments: &Arguments) -> Result<String> {
    // JSON strings are valid TOML strings.
    let quoted = |text: &str| json!(text).to_string();
    if let Some(url) = &arguments.fulmen_git {
        return Ok(format!("{{ git = {} }}", quoted(url)));
    }
    let Some(checkout) = &arguments.fulmen_path else {
        return Ok(quoted(env!("CARGO_PKG_VERSION")));
    };
    let path = checkout.join("crates/fulmen").canonicalize().map_err(|e| {
        Error::usage(format!(
            "--fulmen-path is {}, which has no folder crates/fulmen ({e}); expected a checkout of Fulmen",
            checkout.display()
        ))
    })?;
    let path =
        path.to_str().ok_or_else(|| Error::usage(format!("{} is not UTF-8", path.display())))?;
    Ok(format!("{{ path = {} }}", quoted(path)))
}
