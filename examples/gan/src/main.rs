//! Trains a generator of handwritten digits and its discriminator, each with an optimizer of its own, in one program; then
//! draws a sheet of digits. The options of the Trainer are in the environment: `FULMEN_MAX_EPOCHS=20 cargo run --release -p gan`.

mod model;

use std::error::Error;
use std::path::Path;

use fulmen::data::{Mnist, Split};
use fulmen::prelude::*;
use fulmen::tensor::random;

use model::Gan;

/// Digits of the sheet, along each side.
const SIDE: usize = 8;

/// Writes digits, `f32[64, 784]`, as a picture in the format PGM.
fn write_sheet(path: &Path, digits: &[f32]) -> std::io::Result<()> {
    let width = SIDE * 28;
    let mut picture = format!("P5 {width} {width} 255\n").into_bytes();
    for (y, x) in (0..width).flat_map(|y| (0..width).map(move |x| (y, x))) {
        let digit = y / 28 * SIDE + x / 28;
        let value = digits[digit * 784 + y % 28 * 28 + x % 28];
        picture.push(((value + 1.0) * 127.5).round() as u8);
    }
    std::fs::write(path, picture)
}

fn main() -> Result<(), Box<dyn Error>> {
    let digits = Mnist::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../mnist/data"), Split::Train)?;
    let loader = DataLoader::builder(digits).batch_size(64).shuffle(true).last_batch(LastBatch::Drop).build()?;
    let mut trainer = Trainer::builder().build()?;
    let gan = Gan::new();
    let summary = trainer.fit(&gan, &loader, None)?;

    gan.eval();
    let drawn = gan.draw(&random::key(1), SIDE * SIDE).eval()?.to_vec::<f32>()?;
    let sheet = trainer.run_dir().unwrap_or(Path::new(".")).join("digits.pgm");
    write_sheet(&sheet, &drawn)?;
    println!("{} steps, {} compilation; {}", summary.global_step, summary.train_compilations, sheet.display());
    Ok(())
}
