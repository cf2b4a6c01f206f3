//! Gives the runs of the book's programs a folder, so that no program has to name one.

use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let runs = Path::new(&env::var_os("OUT_DIR").unwrap_or_default()).join("runs");
    // Earlier runs are removed. Cargo runs this again when there are new ones.
    if runs.exists() {
        fs::remove_dir_all(&runs)?;
    }
    fs::create_dir(&runs)?;
    println!("cargo::rerun-if-changed={}", runs.display());
    // Cargo passes it to the doc tests of this package, and to nothing else.
    println!("cargo::rustc-env=FULMEN_DEFAULT_ROOT_DIR={}", runs.display());
    Ok(())
}
