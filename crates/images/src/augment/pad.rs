//! Padding.
//!
//! Out of scope: how the padding is filled (`functional`).

use crate::functional::{self, Padding, PaddingMode};
use crate::{BoundingBox, Image, ImageTransform, Pair};
use fulmen_data::{Error, Result, SampleRng};

/// Pads an image (torchvision's `Pad`), with black unless [`padding_mode`](Pad::padding_mode) is
/// set.
///
/// ```
/// use fulmen_images::{Pad, ImageTransform};
/// use fulmen_images::functional::PaddingMode;
///
/// assert_eq!(Pad::new(4).describe(), "Pad(left=4, top=4, right=4, bottom=4, mode=Constant(0))");
/// assert_eq!(
///     Pad::new((1, 2)).padding_mode(PaddingMode::Reflect).describe(),
///     "Pad(left=1, top=2, right=1, bottom=2, mode=Reflect)"
/// );
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Pad {
    padding: Padding,
    mode: PaddingMode,
}

impl Pad {
    /// Pads with a number of pixels: a single number for all sides, a pair for left and right, top
    /// and bottom, or `[left, top, right, bottom]`.
    pub fn new(padding: impl Into<Padding>) -> Pad {
        Pad { padding: padding.into(), mode: PaddingMode::default() }
    }

    /// What fills the padding.
    #[must_use]
    pub fn padding_mode(mut self, mode: PaddingMode) -> Pad {
        self.mode = mode;
        self
    }
}

impl ImageTransform for Pad {
    fn apply(&self, image: Image, _: &mut SampleRng) -> Result<Image> {
        functional::pad(&image, self.padding, &self.mode)
    }

    /// The mask is filled with 0 instead of a color.
    fn apply_pair(&self, mut pair: Pair, random: &mut SampleRng) -> Result<Pair> {
        pair.image = self.apply(pair.image, random)?;
        let mode = match &self.mode {
            PaddingMode::Constant(_) => PaddingMode::default(),
            other if pair.boxes.is_empty() => other.clone(),
            other => {
                return Err(Error::usage(format!(
                    "Pad fills with {other:?}, which repeats objects outside of their boxes; fill with a color, or \
                     leave the boxes out"
                )));
            }
        };
        let mask = pair.mask.map(|mask| functional::pad(&mask, self.padding, &mode));
        pair.mask = mask.transpose()?;
        let right = self.padding.left as f32;
        let down = self.padding.top as f32;
        for b in &mut pair.boxes {
            let BoundingBox { x_min, y_min, x_max, y_max } = *b;
            *b = BoundingBox::new(x_min + right, y_min + down, x_max + right, y_max + down);
        }
        Ok(pair)
    }

    fn output_size(&self, input: Option<(usize, usize)>) -> Option<(usize, usize)> {
        let Padding { left, top, right, bottom } = self.padding;
        let (height, width) = input?;
        Some((
            height.checked_add(top)?.checked_add(bottom)?,
            width.checked_add(left)?.checked_add(right)?,
        ))
    }

    fn describe(&self) -> String {
        let Padding { left, top, right, bottom } = self.padding;
        let mode = match &self.mode {
            PaddingMode::Constant(fill) => format!("Constant({fill})"),
            other => format!("{other:?}"),
        };
        format!("Pad(left={left}, top={top}, right={right}, bottom={bottom}, mode={mode})")
    }
}
