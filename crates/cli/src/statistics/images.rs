//! The statistics of images: sizes, channels, and the mean and standard deviation that
//! normalization subtracts and divides by.

use std::collections::BTreeMap;

use fulmen_data::{Result, SampleRng};
use fulmen_images::ImagePipeline;
use serde::Serialize;

use super::numbers::{NumberStatistics, Numbers};

/// The statistics of images. Values of pixels are between 0 and 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ImageStatistics {
    /// The heights, as stored.
    pub height: NumberStatistics,
    /// The widths, as stored.
    pub width: NumberStatistics,
    /// The number of images with each number of channels: 1 is gray, 2 gray with alpha, 3 RGB, 4
    /// RGBA or CMYK.
    pub channels: BTreeMap<usize, u64>,
    /// The mean over all pixels of all images: of red, green and blue, or one number if all images
    /// are gray.
    pub mean: Vec<f64>,
    /// The standard deviation over all pixels of all images, for the same channels.
    pub standard_deviation: Vec<f64>,
}

/// What one image adds.
pub(super) struct Measured {
    height: usize,
    width: usize,
    channels: usize,
    /// In red, green and blue.
    sums: [Sums<u64>; 3],
}

/// The sums of values and of their squares, which are exact: those of one image fit into a `u64`.
#[derive(Clone, Copy, Default)]
struct Sums<T> {
    values: T,
    squares: T,
}

/// Decodes an image in memory.
///
/// # Errors
/// A file that is damaged, or not an image.
pub(super) fn measure(file: &[u8]) -> Result<Measured> {
    let pipeline = ImagePipeline::rgb();
    let header = pipeline.header(file)?;
    // No step of the pipeline uses random numbers.
    let image = pipeline.decode(file, &mut SampleRng::new(0, 0, 0))?;
    let mut sums = [Sums::<u64>::default(); 3];
    for pixel in image.pixels().chunks_exact(3) {
        for (sum, &value) in sums.iter_mut().zip(pixel) {
            let value = u64::from(value);
            sum.values += value;
            sum.squares += value * value;
        }
    }
    Ok(Measured {
        height: header.size.height,
        width: header.size.width,
        channels: header.channels,
        sums,
    })
}

/// The images that have been seen.
#[derive(Default)]
pub(super) struct Images {
    height: Numbers,
    width: Numbers,
    channels: BTreeMap<usize, u64>,
    pixels: u128,
    sums: [Sums<u128>; 3],
}

impl Images {
    pub(super) fn add(&mut self, image: &Measured) {
        self.height.add(image.height as f64);
        self.width.add(image.width as f64);
        *self.channels.entry(image.channels).or_default() += 1;
        self.pixels += (image.height * image.width) as u128;
        for (sum, of_image) in self.sums.iter_mut().zip(image.sums) {
            sum.values += u128::from(of_image.values);
            sum.squares += u128::from(of_image.squares);
        }
    }

    /// `None` if there are no images.
    pub(super) fn statistics(&self) -> Option<ImageStatistics> {
        let is_gray = self.channels.keys().all(|&channels| channels <= 2);
        let sums = if is_gray { &self.sums[..1] } else { &self.sums[..] };
        let pixels = self.pixels;
        let mean = |sum: &Sums<u128>| sum.values as f64 / pixels as f64 / 255.0;
        let deviation = |sum: &Sums<u128>| {
            // The variance, times the square of the number of pixels: a whole number.
            let variance = pixels * sum.squares - sum.values * sum.values;
            (variance as f64).sqrt() / pixels as f64 / 255.0
        };
        Some(ImageStatistics {
            height: self.height.statistics()?,
            width: self.width.statistics()?,
            channels: self.channels.clone(),
            mean: sums.iter().map(mean).collect(),
            standard_deviation: sums.iter().map(deviation).collect(),
        })
    }
}

/// Whether bytes begin as a JPEG, PNG or WebP file does.
pub(super) fn is_image(bytes: &[u8]) -> bool {
    matches!(
        bytes,
        [0xff, 0xd8, 0xff, ..]
            | [0x89, b'P', b'N', b'G', ..]
            | [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..]
    )
}
