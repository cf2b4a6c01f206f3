//! What one step of a pipeline of pictures is.
//!
//! Not here: the steps, and the geometric ones, which the decoder takes part in (`geometry`).

use crate::Picture;
use fulmen_data::{Result, SampleRandom};

/// One step from picture to picture.
///
/// ```
/// use fulmen_images::{Picture, PictureTransform};
/// use fulmen_data::{Result, SampleRandom};
///
/// /// Makes some pictures negative.
/// struct Invert(f64);
///
/// impl PictureTransform for Invert {
///     fn apply(&self, mut picture: Picture, random: &mut SampleRandom) -> Result<Picture> {
///         if random.chance(self.0) {
///             picture.pixels_mut().iter_mut().for_each(|value| *value = 255 - *value);
///         }
///         Ok(picture)
///     }
///     fn describe(&self) -> String {
///         format!("Invert(probability={})", self.0)
///     }
/// }
///
/// let grey = Picture::new(2, 1, 1, vec![0, 200])?;
/// let negative = Invert(1.0).apply(grey, &mut SampleRandom::new(0, 0, 0))?;
/// assert_eq!(negative.pixels(), [255, 55]);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
pub trait PictureTransform: Send + Sync + 'static {
    /// Makes one picture of another. Its random numbers come from `random` alone: only then is the result the same on any
    /// number of workers.
    fn apply(&self, picture: Picture, random: &mut SampleRandom) -> Result<Picture>;

    /// The name and all options in one line, as `RandomRotation(degrees=10)`. It tells whether pictures that were kept
    /// elsewhere are still those that this makes. Change it (a number of its own) when what it does changes: a cache knows it
    /// by this line alone.
    fn describe(&self) -> String;

    /// Refuses options that no picture can be changed with: a negative factor, a probability of 2. A pipeline asks when it
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
