//! What one step of a pipeline of images is.
//!
//! Not here: the steps, and the geometric ones, which the decoder takes part in (`geometry`).

use crate::Image;
use fulmen_data::{Result, SampleRng};

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
/// let grey = Image::new(2, 1, 1, vec![0, 200])?;
/// let negative = Invert(1.0).apply(grey, &mut SampleRng::new(0, 0, 0))?;
/// assert_eq!(negative.pixels(), [255, 55]);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
pub trait ImageTransform: Send + Sync + 'static {
    /// Makes one image of another. Its random numbers come from `random` alone: only then is the result the same on any
    /// number of workers.
    fn apply(&self, image: Image, random: &mut SampleRng) -> Result<Image>;

    /// The name and all options in one line, as `RandomRotation(degrees=10)`. It tells whether images that were kept
    /// elsewhere are still those that this makes. Change it (a number of its own) when what it does changes: a cache knows it
    /// by this line alone.
    fn describe(&self) -> String;

    /// Refuses options that no image can be changed with: a negative factor, a probability of 2. A pipeline asks when it
    /// is built; what is used without one finds out when it is applied.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// The height and width of what it makes, from those of what it is given, where they are known. The same, unless said
    /// otherwise.
    fn output_size(&self, input: Option<(usize, usize)>) -> Option<(usize, usize)> {
        input
    }
}
