//! `fulmen data presize`: converts many small image files to few large files of smaller images.
//!
//! Out of scope: the implementation (`fulmen_cli::Presize`).

use std::path::PathBuf;

use clap::Args;
use fulmen_cli::Presize;
use fulmen_data::Result;
use fulmen_durable::messages::quantity;
use fulmen_images::ImageFolder;

use crate::limits::Limits;
use crate::progress::Reporter;
use crate::size::parse_size;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The folder of images, with a subfolder for each class, or without subfolders
    images: PathBuf,
    /// Subfolders are not classes: the samples have no class
    #[arg(long)]
    flat: bool,
    /// The folder for the shards; an interrupted run can be continued
    #[arg(long, short, value_name = "FOLDER")]
    output: PathBuf,
    /// The shorter side of the images in pixels; smaller images are copied unchanged
    #[arg(long, default_value_t = 256, value_name = "PIXELS")]
    size: usize,
    /// The quality of the JPEGs, from 1 to 100
    #[arg(long, default_value_t = 95)]
    quality: u8,
    /// Apply the EXIF orientation to the images that are made smaller, which lose their EXIF data
    #[arg(long)]
    exif_orientation: bool,
    #[command(flatten)]
    limits: Limits,
    /// The seed for the order of the images
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The maximum number of images per shard
    #[arg(long, default_value_t = 100_000, value_name = "NUMBER")]
    max_samples: u64,
    /// The maximum size of a shard in bytes
    #[arg(long, default_value = "1GiB", value_parser = parse_size, value_name = "SIZE")]
    max_bytes: u64,
    /// Threads that decode [default: one per core]
    #[arg(long, value_name = "NUMBER")]
    threads: Option<usize>,
    /// How many images may be left out because they cannot be decoded
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    allow_bad: usize,
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let folder = &arguments.images;
    let images = if arguments.flat || ImageFolder::is_flat(folder)? {
        ImageFolder::open_flat(folder)?
    } else {
        ImageFolder::open(folder)?
    };
    let mut presize = Presize::new(arguments.output)
        .shorter_side(arguments.size)
        .quality(arguments.quality)
        .exif_orientation(arguments.exif_orientation)
        .seed(arguments.seed)
        .max_samples(arguments.max_samples)
        .max_bytes(arguments.max_bytes)
        .allow_bad(arguments.allow_bad);
    if let Some(threads) = arguments.threads {
        presize = presize.threads(threads);
    }
    if let Some(pixels) = arguments.limits.max_pixels {
        presize = presize.max_pixels(pixels);
    }
    if arguments.limits.keep_damaged {
        presize = presize.keep_damaged();
    }
    let reporter = Reporter::new();
    let shards = presize.run(&images, &reporter)?;
    drop(reporter);
    let (samples, bytes) =
        shards.iter().fold((0, 0), |sum, shard| (sum.0 + shard.samples, sum.1 + shard.bytes));
    outln!(
        "{}{} in {}, {}",
        quantity(samples, "image"),
        if images.classes().is_empty() { " without classes" } else { "" },
        quantity(shards.len(), "shard"),
        quantity(bytes, "byte")
    );
    Ok(())
}
