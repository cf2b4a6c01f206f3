//! Executes a pipeline: the geometric steps at the start become one view, the decoder decodes what
//! the view shows, and the other steps follow image by image.
//!
//! Each thread keeps its memory between images.
//!
//! Out of scope: the pipeline's options (`pipeline`).

use std::cell::Cell;

use fast_image_resize::Resizer;
use fulmen_data::internal::quantity;

use super::decode::{self, Buffers};
use super::geometry::{ImageSize, Orientation, Rect, View};
use super::pair_pipeline::FirstView;
use super::pipeline::{ImagePipeline, Step};
use super::resize::{self, Pixels};
use crate::Image;
use fulmen_data::{Error, Result, Sample, SampleRng, Stage};

/// The state of a thread.
#[derive(Default)]
pub(crate) struct Scratch {
    buffers: Buffers,
    resizer: Resizer,
    /// The pixels of the view, not oriented.
    rendered: Vec<u8>,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// Lends the thread's scratch to `work`. If `work` decodes other images, they get a new scratch.
pub(crate) fn with_scratch<T>(work: impl FnOnce(&mut Scratch) -> T) -> T {
    let mut scratch = SCRATCH.take().unwrap_or_default();
    let result = work(&mut scratch);
    scratch.trim();
    SCRATCH.set(Some(scratch));
    result
}

impl Scratch {
    /// Frees the memory of an unusually large image.
    fn trim(&mut self) {
        const MAX_KEPT_BYTES: usize = 64 << 20;
        for buffer in [&mut self.buffers.raw, &mut self.buffers.pixels, &mut self.rendered] {
            if buffer.capacity() > MAX_KEPT_BYTES {
                *buffer = Vec::new();
            }
        }
        if self.resizer.size_of_internal_buffers() > MAX_KEPT_BYTES {
            self.resizer.reset_internal_buffers();
        }
    }
}

/// The work that remains after the first view is sampled into the scratch.
struct RenderedView {
    size: ImageSize,
    orientation: Orientation,
    /// The size of the source, after its EXIF orientation.
    source: ImageSize,
    /// The number of completed steps.
    done: usize,
}

impl ImagePipeline {
    /// Decodes the bytes of a file and applies all steps. An [`Image`] has bytes, pixel by pixel,
    /// because [`normalize`](ImagePipeline::normalize) and
    /// [`channels_last`](ImagePipeline::channels_last) only affect how a field is written.
    ///
    /// # Errors
    /// Bytes that are not a complete JPEG, PNG or WebP file; more pixels than
    /// [`max_pixels`](ImagePipeline::max_pixels); errors of the steps. The messages do not include
    /// the file's name.
    pub fn decode(&self, file: &[u8], random: &mut SampleRng) -> Result<Image> {
        self.check()?;
        with_scratch(|scratch| {
            let rendered = self.begin(file, random, scratch)?;
            self.finish(image(&rendered, self.channels, scratch)?, rendered.done, random)
        })
    }

    /// Applies all steps to a decoded image. Like [`decode`](ImagePipeline::decode), it does not
    /// normalize.
    ///
    /// # Errors
    /// Errors of the steps.
    pub fn apply(&self, image: Image, random: &mut SampleRng) -> Result<Image> {
        self.check()?;
        self.finish(image.with_channels(self.channels)?, 0, random)
    }

    /// Decodes the bytes of a file, applies all steps with the sample's random numbers, and writes
    /// the result into a field, which must have the shape of [`ImagePipeline::field`].
    ///
    /// # Errors
    /// Those of [`decode`](ImagePipeline::decode); an image of a different size than the field's.
    pub fn write(&self, file: &[u8], sample: &mut Sample<'_>, field: usize) -> Result<()> {
        // The generator is cloned, because the sample itself is needed for its clock.
        let mut random = sample.random().clone();
        let result = with_scratch(|scratch| {
            let rendered =
                sample.timed(Stage::Decode, || self.begin(file, &mut random, scratch))?;
            if rendered.done == self.steps.len() {
                let RenderedView { size, orientation, .. } = rendered;
                return self.write_field(&scratch.rendered, size, orientation, sample, field);
            }
            let image = sample.timed(Stage::Transform, || {
                self.finish(image(&rendered, self.channels, scratch)?, rendered.done, &mut random)
            })?;
            self.put_image(&image, sample, field)
        });
        *sample.random() = random;
        result
    }

    /// Like [`write`](ImagePipeline::write), for a decoded image.
    ///
    /// # Errors
    /// Errors of the steps; an image of a different size than the field's.
    pub fn write_image(&self, image: Image, sample: &mut Sample<'_>, field: usize) -> Result<()> {
        let mut random = sample.random().clone();
        let image = sample.timed(Stage::Transform, || {
            self.finish(image.with_channels(self.channels)?, 0, &mut random)
        });
        *sample.random() = random;
        self.put_image(&image?, sample, field)
    }

    pub(crate) fn put_image(
        &self,
        image: &Image,
        sample: &mut Sample<'_>,
        field: usize,
    ) -> Result<()> {
        let size = ImageSize { height: image.height(), width: image.width() };
        if image.channels() != self.channels {
            return Err(Error::field(format!(
                "the steps of {self} made an image of {}, expected {}",
                quantity(image.channels(), "channel"),
                self.channels
            )));
        }
        self.write_field(image.pixels(), size, Orientation::default(), sample, field)
    }

    /// Writes pixels into a field.
    fn write_field(
        &self,
        pixels: &[u8],
        size: ImageSize,
        orientation: Orientation,
        sample: &mut Sample<'_>,
        field: usize,
    ) -> Result<()> {
        let ImageSize { height, width } = orientation.size(size);
        let shape = if self.channels_first {
            [self.channels, height, width]
        } else {
            [height, width, self.channels]
        };
        let declared = sample.fields().get(field);
        if let Some(declared) = declared.filter(|declared| declared.shape != shape) {
            return Err(Error::field(format!(
                "the image is {shape:?}, but field `{declared}` takes a different shape; declare it with \
                 ImagePipeline::field, or give all images one size (random_resized_crop, resize_exact, center_crop)"
            )));
        }
        let target = resize::Target {
            size,
            channels: self.channels,
            orientation,
            channels_first: self.channels_first,
        };
        match &self.normalize {
            None => target.write(pixels, sample.values_mut::<u8>(field)?, |_, value| value),
            Some(normalize) => {
                let tables = &*normalize.tables;
                target.write(
                    pixels,
                    sample.values_mut::<f32>(field)?,
                    |channel, value| match tables.get(channel) {
                        Some(table) => table[usize::from(value)],
                        None => f32::from(value) / 255.0,
                    },
                );
            }
        }
        Ok(())
    }

    /// Decodes what the first geometric steps show and samples it into the scratch.
    fn begin(
        &self,
        file: &[u8],
        random: &mut SampleRng,
        scratch: &mut Scratch,
    ) -> Result<RenderedView> {
        let Scratch { buffers, resizer, rendered } = scratch;
        let mut encoded = decode::open(file, &self.limits)?;
        let stored = encoded.size();
        let orientation = if self.exif { encoded.orientation() } else { Orientation::default() };
        let source = orientation.size(stored);
        let (view, done) = self.view(source, 0, random)?;
        let view = view.reorient(orientation, stored);
        let eighths = if encoded.has_scales() { self.eighths(&view) } else { 8 };
        match resize::needed_part(&view, self.interpolation) {
            Some(rect) => {
                let pixels = encoded.decode(rect, eighths, self.channels, &self.limits, buffers)?;
                resize::render(&view, &pixels, self.interpolation, resizer, rendered)?;
            }
            None => {
                let size = view.window.size();
                rendered.clear();
                decode::lengthen(rendered, size.width * size.height * self.channels)?;
            }
        }
        let size = view.window.size();
        let orientation = view.orientation;
        Ok(RenderedView { size, orientation, source, done })
    }

    /// Decodes an image and applies the first geometric steps.
    pub(crate) fn decode_first(
        &self,
        file: &[u8],
        random: &mut SampleRng,
        scratch: &mut Scratch,
    ) -> Result<FirstView> {
        let rendered = self.begin(file, random, scratch)?;
        let image = image(&rendered, self.channels, scratch)?;
        let RenderedView { source, done, .. } = rendered;
        Ok(FirstView { image, source, done })
    }

    /// The view of all consecutive geometric steps from `from` on, and the first step after them.
    pub(crate) fn view(
        &self,
        size: ImageSize,
        from: usize,
        random: &mut SampleRng,
    ) -> Result<(View, usize)> {
        let mut view = View::all(size);
        let mut done = from;
        while let Some(Step::Geometric(step)) = self.steps.get(done) {
            if !view.push(step, random)? {
                break;
            }
            done += 1;
        }
        // Resizing the shorter side of a narrow strip can make it extremely long.
        let pixels = |size: ImageSize| (size.width as u64).saturating_mul(size.height as u64);
        let output = view.output();
        if pixels(output) > self.limits.pixels.max(pixels(size)) {
            return Err(Error::content(format!(
                "the steps make {} x {} pixels of {} x {}, over the limit of {}; use resize_exact, crop before \
                 augmentations, or raise the limit with ImagePipeline::max_pixels",
                output.width, output.height, size.width, size.height, self.limits.pixels
            )));
        }
        Ok((view, done))
    }

    /// The scale at which to decode a JPEG for a view.
    fn eighths(&self, view: &View) -> usize {
        let Some(gap) = self.reducing_gap.filter(|_| view.is_resized()) else { return 8 };
        let width = view.crop.width as f64 / view.size.width as f64;
        let height = view.crop.height as f64 / view.size.height as f64;
        let room = width.min(height) / gap;
        [1, 2, 4].into_iter().find(|&eighths| 8.0 / eighths as f64 <= room).unwrap_or(8)
    }

    /// Applies the steps from `done` on.
    fn finish(&self, mut image: Image, mut done: usize, random: &mut SampleRng) -> Result<Image> {
        while let Some(step) = self.steps.get(done) {
            match step {
                Step::Other(step) => {
                    image = step.apply(image, random)?;
                    done += 1;
                }
                Step::Geometric(_) => {
                    let size = ImageSize { height: image.height(), width: image.width() };
                    let (view, next) = self.view(size, done, random)?;
                    image = render_view(&view, &image, self)?;
                    done = next;
                }
            }
        }
        Ok(image)
    }
}

/// Renders the part of an image that a view shows.
pub(crate) fn render_view(view: &View, image: &Image, pipeline: &ImagePipeline) -> Result<Image> {
    let channels = image.channels();
    let rect = Rect::all(ImageSize { height: image.height(), width: image.width() });
    let pixels = Pixels {
        bytes: image.pixels(),
        stride: image.width() * channels,
        channels,
        rect,
        eighths: 8,
    };
    let mut rendered = Vec::new();
    resize::render(view, &pixels, pipeline.interpolation, &mut Resizer::new(), &mut rendered)?;
    orient(&rendered, view.window.size(), view.orientation, channels)
}

/// Makes an image of the scratch's content.
fn image(rendered: &RenderedView, channels: usize, scratch: &Scratch) -> Result<Image> {
    orient(&scratch.rendered, rendered.size, rendered.orientation, channels)
}

/// Orients pixels.
pub(crate) fn orient(
    pixels: &[u8],
    size: ImageSize,
    orientation: Orientation,
    channels: usize,
) -> Result<Image> {
    let ImageSize { height, width } = orientation.size(size);
    let mut image = Image::black(width, height, channels)?;
    let to = resize::Target { size, channels, orientation, channels_first: false };
    to.write(pixels, image.pixels_mut(), |_, value| value);
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_great_image_took_is_given_back() {
        with_scratch(|scratch| scratch.rendered.reserve(65 << 20));
        assert_eq!(with_scratch(|scratch| scratch.rendered.capacity()), 0);
        with_scratch(|scratch| scratch.rendered.reserve(1 << 10));
        assert!(with_scratch(|scratch| scratch.rendered.capacity()) >= 1 << 10);
    }
}
