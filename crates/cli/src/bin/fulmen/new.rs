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
    /// A checkout of Fulmen to depend on [default: the one that this command was built from]
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
    if let Some(url) = &arguments.fulmen_git {
        return Ok(format!("{{ git = {} }}", quoted(url)));
    }
    if let Some(checkout) = &arguments.fulmen_path {
        return on_checkout(checkout).map_err(|reason| {
            Error::usage(format!("--fulmen-path {reason}; expected a checkout of Fulmen"))
        });
    }
    default_dependency(Path::new(env!("CARGO_MANIFEST_DIR")))
}

/// On what this command was built from: a checkout, or a published package. `package` is the folder
/// of `fulmen-cli`.
fn default_dependency(package: &Path) -> Result<String> {
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    // Cargo unpacks a published package into a folder of this name.
    if package.ends_with(format!("fulmen-cli-{VERSION}")) {
        return Ok(quoted(VERSION));
    }
    // From crates/cli.
    let checkout = package.ancestors().nth(2).unwrap_or(package);
    on_checkout(checkout).map_err(|reason| {
        Error::usage(format!(
            "the source that this command was built from is gone: {reason}; choose what the project depends on \
             with --fulmen-path FOLDER (a checkout of Fulmen) or --fulmen-git URL"
        ))
    })
}

/// A dependency on a checkout, or why the folder is none.
fn on_checkout(checkout: &Path) -> std::result::Result<String, String> {
    let folder = checkout.join("crates/fulmen");
    if !folder.join("Cargo.toml").is_file() {
        return Err(format!("{} has no file crates/fulmen/Cargo.toml", checkout.display()));
    }
    let folder =
        folder.canonicalize().map_err(|e| format!("{} cannot be read: {e}", folder.display()))?;
    let path = folder.to_str().ok_or_else(|| format!("{} is not UTF-8", folder.display()))?;
    Ok(format!("{{ path = {} }}", quoted(path)))
}

/// JSON strings are valid TOML strings.
fn quoted(text: &str) -> String {
    json!(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_depends_on_what_the_command_was_built_from() {
        let folder = tempfile::tempdir().unwrap();
        let checkout = folder.path().canonicalize().unwrap();
        let error = default_dependency(&checkout.join("crates/cli")).unwrap_err().to_string();
        assert!(
            error.contains(&format!("{} has no file crates/fulmen/Cargo.toml", checkout.display()))
                && error
                    .contains("--fulmen-path FOLDER (a checkout of Fulmen) or --fulmen-git URL"),
            "{error}"
        );
        fs::create_dir_all(checkout.join("crates/fulmen")).unwrap();
        fs::write(checkout.join("crates/fulmen/Cargo.toml"), "").unwrap();
        assert_eq!(
            default_dependency(&checkout.join("crates/cli")).unwrap(),
            format!("{{ path = {:?} }}", checkout.join("crates/fulmen"))
        );
        let version = env!("CARGO_PKG_VERSION");
        let published = format!("/registry/src/index/fulmen-cli-{version}");
        assert_eq!(default_dependency(Path::new(&published)).unwrap(), format!("\"{version}\""));
    }
}
