//! The trait of a pipeline's steps.
//!
//! Out of scope: the steps, and the geometric steps that the decoder takes part in (`geometry`).

use crate::{Image, Pair};
use fulmen_data::{Error, Result, SampleRng};

/// One step from image to image.
///
/// ```
/// use fulmen_images::{Image, ImageTransform};
/// use fulmen_data::{Result, SampleRng};
///
/// /// Makes some images negative.
/// struct Invert(f64);
///
/// impl ImageTransform for Invert {
///     fn apply(&self, mut image: Image, random: &mut SampleRng) -> Result<Image> {
///         if random.bernoulli(self.0) {
///             image.pixels_mut().iter_mut().for_each(|value| *value = 255 - *value);
///         }
///         Ok(image)
///     }
///     fn describe(&self) -> String {
///         format!("Invert(probability={})", self.0)
///     }
/// }
///
/// let gray = Image::new(2, 1, 1, vec![0, 200])?;
/// let negative = Invert(1.0).apply(gray, &mut SampleRng::new(0, 0, 0))?;
/// assert_eq!(negative.pixels(), [255, 55]);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
pub trait ImageTransform: Send + Sync + 'static {
    /// Transforms an image. Random numbers must come only from `random`, so that the result is the
    /// same with any number of workers.
    fn apply(&self, image: Image, random: &mut SampleRng) -> Result<Image>;

    /// Transforms an image together with its mask and its boxes, for a
    /// [`PairPipeline`](crate::PairPipeline). A transform that moves pixels must move all of them by
    /// the same random numbers. One that only changes colors changes `pair.image`.
    ///
    /// # Errors
    /// By default, a pair with a mask or boxes is an error.
    fn apply_pair(&self, mut pair: Pair, random: &mut SampleRng) -> Result<Pair> {
        if pair.mask.is_some() || !pair.boxes.is_empty() {
            return Err(Error::usage(format!(
                "{} does not say what it does to masks and boxes; implement ImageTransform::apply_pair for it (one \
                 that only changes colors changes `pair.image`)",
                self.describe()
            )));
        }
        pair.image = self.apply(pair.image, random)?;
        Ok(pair)
    }

    /// The name and all options in one line, such as `RandomRotation(degrees=10)`. A cache
    /// identifies the transform by this line. Change the line, for example with a version number,
    /// when the behavior changes.
    fn describe(&self) -> String;

    /// Checks the options: a negative factor or a probability of 2 is an error. A pipeline checks
    /// its steps when it is built. Without a pipeline, errors appear when the transform is applied.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// The height and width of the result for a given input size, if known. The default is the
    /// input size.
    fn output_size(&self, input: Option<(usize, usize)>) -> Option<(usize, usize)> {
        input
    }
}
