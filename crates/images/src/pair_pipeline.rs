//! [`PairPipeline`]: the steps of an [`ImagePipeline`] for an image together with its mask and its
//! boxes.
//!
//! Out of scope: what a step does to them ([`ImageTransform::apply_pair`](crate::ImageTransform)).

use std::fmt;
use std::ops::Range;

use crate::geometry::View;
use crate::pair::{Pair, size_of, view_boxes, view_mask};
use crate::pipeline::Step;
use crate::render::{render_view, with_scratch};
use crate::{BoundingBox, Image, ImagePipeline, ImageSize};
use fulmen_data::{DType, Error, Field, Result, Sample, SampleRng};

/// Passes an image, its mask and its boxes through the same steps with the same random numbers, as
/// torchvision's `transforms.v2` does with `tv_tensors`.
///
/// | step | image | mask | boxes |
/// | --- | --- | --- | --- |
/// | crops, resizes, flips, [`Pad`](crate::Pad) | as in [`ImagePipeline`] | moved; outside of the image it is 0 | moved, and cut at the edges |
/// | [`RandomRotation`](crate::RandomRotation), [`RandomAffine`](crate::RandomAffine) | interpolated | nearest, filled with 0 | the smallest boxes around the moved corners |
/// | [`RandomPerspective`](crate::RandomPerspective) | interpolated | nearest, filled with 0 | an error |
/// | colors, blur, [`RandomErasing`](crate::RandomErasing) | changed | unchanged | unchanged |
/// | [`RandomApply`](crate::RandomApply) and the like | as its transforms | | |
/// | [`AutoAugment`](crate::AutoAugment) and the like | an error, as in torchvision | | |
/// | your own [`ImageTransform`](crate::ImageTransform) | its `apply_pair` | | |
///
/// A mask is never interpolated. Its values, those of the image and the boxes are torchvision's.
/// [`normalize`](ImagePipeline::normalize) is for the image alone.
///
/// ```
/// use fulmen_images::{BoundingBox, ColorJitter, Image, ImagePipeline, Pair, PairPipeline};
/// use fulmen_data::SampleRng;
///
/// let steps = ImagePipeline::rgb().horizontal_flip(1.0).then(ColorJitter::new().brightness(0.4));
/// let train = PairPipeline::new(steps.resize_exact((4, 4)));
/// let pair = Pair::new(Image::black(4, 2, 3)?)
///     .mask(Image::new(4, 2, 1, vec![1, 0, 0, 0, 1, 0, 0, 2])?)
///     .boxes([BoundingBox::new(0.0, 0.0, 1.0, 2.0)]);
/// let seen = train.apply(pair, &mut SampleRng::new(0, 0, 0))?; // seed, epoch, index
/// let mask = seen.mask.ok_or("there is a mask")?;
/// assert_eq!([mask.row(0), mask.row(3)], [[0, 0, 0, 1], [2, 0, 0, 1]]);
/// assert_eq!(seen.boxes, [BoundingBox::new(3.0, 0.0, 4.0, 4.0)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct PairPipeline {
    pipeline: ImagePipeline,
}

impl PairPipeline {
    /// The steps of this pipeline.
    pub fn new(pipeline: ImagePipeline) -> PairPipeline {
        PairPipeline { pipeline }
    }

    /// The field of the images; see [`ImagePipeline::field`].
    ///
    /// # Errors
    /// Those of [`ImagePipeline::field`].
    pub fn image_field(&self, name: impl Into<String>) -> Result<Field> {
        self.pipeline.field(name)
    }

    /// The field of the masks, `u8[height, width]`.
    ///
    /// # Errors
    /// Those of [`ImagePipeline::field`].
    pub fn mask_field(&self, name: impl Into<String>) -> Result<Field> {
        let name = name.into();
        self.pipeline.field(&*name)?;
        let size = self.pipeline.output_size();
        let ImageSize { height, width } =
            size.ok_or_else(|| Error::usage("the pipeline keeps the size of images"))?;
        Ok(Field::new(name, DType::U8, [height, width]))
    }

    /// Decodes the file of an image and of its mask ([`ImagePipeline::decode_mask`]), and applies
    /// all steps.
    ///
    /// # Errors
    /// Those of [`ImagePipeline::decode`]; a mask of another size than its image; a step that does
    /// not support masks or boxes.
    pub fn decode(
        &self,
        image: &[u8],
        mask: Option<&[u8]>,
        boxes: impl IntoIterator<Item = BoundingBox>,
        random: &mut SampleRng,
    ) -> Result<Pair> {
        self.pipeline.check()?;
        let mask = mask.map(|file| self.pipeline.decode_mask(file)).transpose()?;
        let same_random = random.clone();
        let first = with_scratch(|scratch| self.pipeline.decode_first(image, random, scratch))?;
        if let Some(mask) = &mask {
            Pair::check_mask(mask, first.source)?;
        }
        let targets = Targets { mask, boxes: boxes.into_iter().collect() };
        let targets = self.move_targets(0..first.done, first.source, targets, same_random)?;
        let Targets { mask, boxes } = targets;
        self.finish(Pair { image: first.image, mask, boxes }, first.done, random)
    }

    /// Applies all steps to a decoded image, its mask and its boxes.
    ///
    /// # Errors
    /// Those of [`decode`](PairPipeline::decode).
    pub fn apply(&self, mut pair: Pair, random: &mut SampleRng) -> Result<Pair> {
        self.pipeline.check()?;
        if let Some(mask) = &pair.mask {
            Pair::check_mask(mask, pair.size())?;
        }
        pair.image = pair.image.with_channels(self.pipeline.channels)?;
        self.finish(pair, 0, random)
    }

    /// Applies the steps from `done` on.
    fn finish(&self, mut pair: Pair, mut done: usize, random: &mut SampleRng) -> Result<Pair> {
        while let Some(step) = self.pipeline.steps.get(done) {
            match step {
                Step::Other(step) => {
                    pair = step.apply_pair(pair, random)?;
                    if let Some(mask) = &pair.mask {
                        Pair::check_mask(mask, pair.size()).map_err(|error| {
                            Error::content(format!("{}: {error}", step.describe()))
                        })?;
                    }
                    done += 1;
                }
                Step::Geometric(_) => {
                    let same_random = random.clone();
                    let size = pair.size();
                    let (view, next) = self.pipeline.view(size, done, random)?;
                    let image = render_view(&view, &pair.image, &self.pipeline)?;
                    let targets = Targets { mask: pair.mask, boxes: pair.boxes };
                    let targets = self.move_targets(done..next, size, targets, same_random)?;
                    pair = Pair { image, mask: targets.mask, boxes: targets.boxes };
                    done = next;
                }
            }
        }
        Ok(pair)
    }

    /// Moves what belongs to an image of `size` through consecutive geometric steps, one by one: the
    /// nearest value of a mask depends on their order. `random` is that of the image before these
    /// steps.
    fn move_targets(
        &self,
        steps: Range<usize>,
        mut size: ImageSize,
        mut targets: Targets,
        mut random: SampleRng,
    ) -> Result<Targets> {
        for step in &self.pipeline.steps[steps] {
            let Step::Geometric(step) = step else { continue };
            let mut view = View::all(size);
            view.push(step, &mut random)?;
            targets = Targets {
                mask: targets.mask.map(|mask| view_mask(&view, &mask)).transpose()?,
                boxes: view_boxes(&view, &targets.boxes),
            };
            size = view.output();
        }
        Ok(targets)
    }

    /// Writes an image and its mask into the fields of a sample. Boxes, whose number differs from
    /// sample to sample, are left to you.
    ///
    /// # Errors
    /// An image or a mask of another size than its field; a pair without a mask.
    pub fn write(
        &self,
        pair: &Pair,
        sample: &mut Sample<'_>,
        image_field: usize,
        mask_field: usize,
    ) -> Result<()> {
        self.pipeline.put_image(&pair.image, sample, image_field)?;
        let Some(mask) = &pair.mask else {
            return Err(Error::field("the pair has no mask for its field"));
        };
        let size = size_of(mask);
        let shape = [size.height, size.width];
        match sample.fields().get(mask_field) {
            Some(field) if field.shape != shape => Err(Error::field(format!(
                "the mask is {shape:?}, but field `{field}` takes another shape"
            ))),
            _ => sample.write(mask_field, mask.pixels()),
        }
    }
}

impl fmt::Display for PairPipeline {
    /// Prints all options and steps in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PairPipeline({})", self.pipeline)
    }
}

impl fmt::Debug for PairPipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What belongs to an image.
struct Targets {
    mask: Option<Image>,
    boxes: Vec<BoundingBox>,
}

/// An image after the first steps, which the decoder takes part in.
pub(crate) struct FirstView {
    pub(crate) image: Image,
    /// The size of the source, after its EXIF orientation.
    pub(crate) source: ImageSize,
    /// The number of completed steps.
    pub(crate) done: usize,
}
