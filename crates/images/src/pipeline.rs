//! A pipeline from the bytes of an image's file to `u8` values in a batch.
//!
//! Out of scope: its execution (`render`), and the steps themselves.

use std::fmt;
use std::sync::Arc;

use super::decode::{self, Header, Limits};
use super::geometry::{GeometricStep, ImageSize};
use super::interpolation::Interpolation;
use super::transform::ImageTransform;
use fulmen_data::{DType, Error, Field, Result};

/// How images are processed: channels, crop, size and augmentation, like torchvision's `Compose`.
///
/// Crops, resizes and flips at the start are passed to the decoder. With the feature `turbojpeg`,
/// libjpeg-turbo transforms only the blocks of a JPEG within the crop, and does not read the rows
/// below it. Without the feature, the whole image is decoded. The pixels are the same as if the
/// whole image were decoded, then cropped, then resized. There is one exception: if the crop is
/// many times larger than the target, [`reducing_gap`](ImagePipeline::reducing_gap) lets
/// libjpeg-turbo shrink it.
///
/// All random numbers come from the sample ([`Sample::random`](fulmen_data::Sample::random)), so
/// the pixels depend only on the seed, the epoch and the index.
///
/// ```
/// use fulmen_images::{Image, ImagePipeline};
/// use fulmen_data::SampleRng;
///
/// let train = ImagePipeline::rgb().random_resized_crop(224).horizontal_flip(0.5);
/// let eval = ImagePipeline::rgb().resize(256).center_crop(224);
/// assert_eq!(train.field("image")?.to_string(), "image u8[3, 224, 224]");
///
/// let photo = Image::new(640, 480, 3, vec![100; 640 * 480 * 3])?;
/// let seen = eval.apply(photo, &mut SampleRng::new(0, 0, 0))?;
/// assert_eq!((seen.width(), seen.height()), (224, 224));
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct ImagePipeline {
    pub(crate) channels: usize,
    pub(crate) channels_first: bool,
    pub(crate) interpolation: Interpolation,
    pub(crate) exif: bool,
    pub(crate) reducing_gap: Option<f64>,
    pub(crate) limits: Limits,
    pub(crate) source_size: Option<ImageSize>,
    /// The normalized value of each byte in each channel.
    pub(crate) normalize: Option<Normalize>,
    pub(crate) steps: Vec<Step>,
}

#[derive(Clone)]
pub(crate) struct Normalize {
    mean: [f32; 3],
    std: [f32; 3],
    pub(crate) tables: Arc<[[f32; 256]; 3]>,
}

#[derive(Clone)]
pub(crate) enum Step {
    Geometric(GeometricStep),
    Other(Arc<dyn ImageTransform>),
}

impl ImagePipeline {
    fn new(channels: usize) -> ImagePipeline {
        ImagePipeline {
            channels,
            channels_first: true,
            interpolation: Interpolation::default(),
            exif: false,
            reducing_gap: Some(2.0),
            limits: Limits::default(),
            source_size: None,
            normalize: None,
            steps: Vec::new(),
        }
    }

    /// RGB images. Gray values are repeated, alpha is dropped, and CMYK is converted like Pillow's
    /// `convert("RGB")`.
    pub fn rgb() -> ImagePipeline {
        ImagePipeline::new(3)
    }

    /// Gray images. For a JPEG, the stored luma is used; other colors are weighted like Pillow's
    /// `convert("L")`.
    pub fn gray() -> ImagePipeline {
        ImagePipeline::new(1)
    }

    /// RGBA images; alpha is 255 if a file has none.
    pub fn rgba() -> ImagePipeline {
        ImagePipeline::new(4)
    }

    /// A random part, resized to `size`: 8 % to 100 % of the area, with a ratio of width to height
    /// from 3/4 to 4/3.
    pub fn random_resized_crop(self, size: impl Into<ImageSize>) -> ImagePipeline {
        self.random_resized_crop_of(size, (0.08, 1.0), (3.0 / 4.0, 4.0 / 3.0))
    }

    /// Like [`random_resized_crop`](ImagePipeline::random_resized_crop), with a fraction of the
    /// area in `scale` and a ratio of width to height in `ratio`. They are drawn like those of
    /// torchvision's `RandomResizedCrop`: the area uniformly, the ratio uniformly in its logarithm.
    /// After ten attempts that do not fit, the crop is the largest centered part.
    pub fn random_resized_crop_of(
        self,
        size: impl Into<ImageSize>,
        scale: (f64, f64),
        ratio: (f64, f64),
    ) -> ImagePipeline {
        self.geometric(GeometricStep::RandomResizedCrop { size: size.into(), scale, ratio })
    }

    /// Resizes the image so that the shorter side has `side` pixels. The longer side is rounded
    /// down.
    pub fn resize(self, side: usize) -> ImagePipeline {
        self.geometric(GeometricStep::Resize(side))
    }

    /// Resizes the image to a size, ignoring its proportions.
    pub fn resize_exact(self, size: impl Into<ImageSize>) -> ImagePipeline {
        self.geometric(GeometricStep::ResizeExact(size.into()))
    }

    /// Crops the middle of the image. If the image is smaller, it is padded with black.
    pub fn center_crop(self, size: impl Into<ImageSize>) -> ImagePipeline {
        self.geometric(GeometricStep::CenterCrop(size.into()))
    }

    /// Crops a random part of this size from the image with `padding` black pixels on each side.
    pub fn random_crop(self, size: impl Into<ImageSize>, padding: usize) -> ImagePipeline {
        self.geometric(GeometricStep::RandomCrop { size: size.into(), padding })
    }

    /// Flips left and right with this probability.
    pub fn horizontal_flip(self, probability: f64) -> ImagePipeline {
        self.geometric(GeometricStep::HorizontalFlip(probability))
    }

    /// Flips top and bottom with this probability.
    pub fn vertical_flip(self, probability: f64) -> ImagePipeline {
        self.geometric(GeometricStep::VerticalFlip(probability))
    }

    /// Adds any other step.
    pub fn then(mut self, transform: impl ImageTransform) -> ImagePipeline {
        self.steps.push(Step::Other(Arc::new(transform)));
        self
    }

    /// The kernel for all resizing; bilinear unless set.
    pub fn interpolation(mut self, interpolation: Interpolation) -> ImagePipeline {
        self.interpolation = interpolation;
        self
    }

    /// Writes the field pixel by pixel (HWC) instead of channel by channel (CHW).
    pub fn channels_last(mut self) -> ImagePipeline {
        self.channels_first = false;
        self
    }

    /// Whether to turn images by their EXIF orientation; off unless set, as in torchvision.
    pub fn exif_orientation(mut self, turn: bool) -> ImagePipeline {
        self.exif = turn;
        self
    }

    /// How much larger than its target a part of a JPEG must stay when the decoder shrinks it. The
    /// decoder uses the smallest of 1/2, 1/4 and 1/8 of the size that leaves `gap` times the target
    /// in both directions, and the resize does the rest. `None` turns this off. The default is 2,
    /// as in Pillow's `thumbnail`; with a larger gap, the result is closer to resizing the full
    /// size. Only libjpeg-turbo shrinks images (feature `turbojpeg`); without it the gap has no
    /// effect.
    pub fn reducing_gap(mut self, gap: Option<f64>) -> ImagePipeline {
        self.reducing_gap = gap;
        self
    }

    /// The maximum number of pixels that a file's header may declare, and that steps may produce,
    /// before memory is allocated for them. The default is 89,478,485; above this number, Pillow
    /// warns of a decompression bomb.
    pub fn max_pixels(mut self, pixels: u64) -> ImagePipeline {
        self.limits.pixels = pixels;
        self
    }

    /// Reads the header of a file, within [`max_pixels`](ImagePipeline::max_pixels), without
    /// decoding pixels.
    ///
    /// ```
    /// use fulmen_images::{Encoding, Image, ImagePipeline, encode_image};
    ///
    /// let file = encode_image(&Image::new(60, 40, 3, vec![120; 60 * 40 * 3])?, Encoding::Png)?;
    /// let header = ImagePipeline::rgb().header(&file)?;
    /// assert_eq!((header.size.height, header.size.width, header.extension), (40, 60, "png"));
    /// assert_eq!(header.channels, 3);
    /// # Ok::<(), fulmen_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// A file in a different format; one that is truncated; an image that is too large.
    pub fn header(&self, file: &[u8]) -> Result<Header> {
        decode::header(file, &self.limits)
    }

    /// Accepts JPEGs with invalid data, as Pillow does; the affected pixels are wrong. Truncated
    /// files are still errors.
    ///
    /// By default, such a JPEG is an error. libjpeg-turbo (feature `turbojpeg`) finds damage only
    /// in the data it reads. It does not read the rows below a crop, so with a random crop it finds
    /// some damage only in some epochs. Code that reads whole images, such as a cache of them or
    /// `fulmen data presize`, finds all of it. The Rust decoder always reads whole images; in a
    /// progressive JPEG, it may not notice that a scan ends too early.
    pub fn keep_damaged(mut self) -> ImagePipeline {
        self.limits.keep_damaged = true;
        self
    }

    /// Writes `f32` values, `(value / 255 - mean) / std`, for red, green and blue. Gray uses the
    /// first element of `mean` and `std`; alpha is only divided by 255.
    ///
    /// `f32` values take four times the memory and transfer time of `u8`, so normalize in the
    /// model's program if possible. An [`Image`](crate::Image) returned by
    /// [`decode`](ImagePipeline::decode) or [`apply`](ImagePipeline::apply) has bytes and is not
    /// normalized.
    pub fn normalize(mut self, mean: [f32; 3], std: [f32; 3]) -> ImagePipeline {
        let tables = std::array::from_fn(|channel| {
            std::array::from_fn(|value| (value as f32 / 255.0 - mean[channel]) / std[channel])
        });
        self.normalize = Some(Normalize { mean, std, tables: Arc::new(tables) });
        self
    }

    /// Sets the size of all files, for pipelines without a step that decides the size.
    pub fn source_size(mut self, size: impl Into<ImageSize>) -> ImagePipeline {
        self.source_size = Some(size.into());
        self
    }

    fn geometric(mut self, step: GeometricStep) -> ImagePipeline {
        self.steps.push(Step::Geometric(step));
        self
    }

    /// The size of the result, if the steps decide it.
    pub fn output_size(&self) -> Option<ImageSize> {
        self.steps.iter().fold(self.source_size, |size, step| match step {
            Step::Geometric(step) => step.output_size(size),
            Step::Other(step) => {
                step.output_size(size.map(|size| (size.height, size.width))).map(ImageSize::from)
            }
        })
    }

    /// Checks the options.
    pub(crate) fn check(&self) -> Result<()> {
        if self.reducing_gap.is_some_and(|gap| gap.is_nan() || gap < 1.0) {
            return Err(Error::usage("ImagePipeline::reducing_gap: the gap must be at least 1"));
        }
        if let Some(Normalize { mean, std, .. }) = &self.normalize
            && !(mean.iter().all(|mean| mean.is_finite())
                && std.iter().all(|std| std.is_finite() && *std > 0.0))
        {
            return Err(Error::usage(
                "ImagePipeline::normalize: means must be finite, and deviations above 0",
            ));
        }
        self.steps.iter().try_for_each(|step| match step {
            Step::Geometric(step) => step.check(),
            Step::Other(step) => step.check(),
        })
    }

    /// The field that [`write`](ImagePipeline::write) fills: `u8[channels, height, width]`, or
    /// `u8[height, width, channels]`; `f32` if values are normalized.
    ///
    /// # Errors
    /// Invalid options; steps that leave the size to the file, since all samples of a batch must
    /// have the same size.
    pub fn field(&self, name: impl Into<String>) -> Result<Field> {
        self.check()?;
        let Some(ImageSize { height, width }) = self.output_size() else {
            return Err(Error::usage(format!(
                "{self} keeps the size of images, but a batch needs one size: add random_resized_crop, \
                 resize_exact, or resize and center_crop; or say with source_size that all files have the same"
            )));
        };
        let shape = if self.channels_first {
            [self.channels, height, width]
        } else {
            [height, width, self.channels]
        };
        let dtype = if self.normalize.is_some() { DType::F32 } else { DType::U8 };
        Ok(Field::new(name, dtype, shape))
    }
}

impl fmt::Display for ImagePipeline {
    /// Prints all options and steps in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let channels = match self.channels {
            1 => "gray",
            3 => "rgb",
            _ => "rgba",
        };
        let layout = if self.channels_first { "CHW" } else { "HWC" };
        write!(f, "ImagePipeline({channels}, {layout}, {}", self.interpolation)?;
        if let Some(gap) = self.reducing_gap {
            write!(f, ", reducing_gap={gap}")?;
        }
        if self.exif {
            f.write_str(", exif_orientation")?;
        }
        if let Some(ImageSize { height, width }) = self.source_size {
            write!(f, ", source_size=({height}, {width})")?;
        }
        if self.limits.pixels != Limits::default().pixels {
            write!(f, ", max_pixels={}", self.limits.pixels)?;
        }
        if self.limits.keep_damaged {
            f.write_str(", keep_damaged")?;
        }
        if let Some(Normalize { mean, std, .. }) = &self.normalize {
            write!(f, ", normalize(mean={mean:?}, std={std:?})")?;
        }
        for step in &self.steps {
            match step {
                Step::Geometric(step) => write!(f, ", {step}")?,
                Step::Other(step) => write!(f, ", {}", step.describe())?,
            }
        }
        f.write_str(")")
    }
}

impl fmt::Debug for ImagePipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
