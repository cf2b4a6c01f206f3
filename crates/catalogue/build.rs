//! Compresses the files of `reference`, which a binary carries.

use std::error::Error;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=reference");
    let target = std::env::var("OUT_DIR")?;
    for entry in fs::read_dir("reference")? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "json") {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let file = File::create(Path::new(&target).join(name + ".gz"))?;
            let mut encoder = GzEncoder::new(file, Compression::best());
            encoder.write_all(&fs::read(&path)?)?;
            encoder.finish()?;
        }
    }
    Ok(())
}
