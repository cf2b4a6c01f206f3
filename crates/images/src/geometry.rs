//! Combines a sequence of crops, resizes and flips into one view of the source: a crop of the
//! source, the size to which it is resized, and a window of the result.
//!
//! The view is known before decoding, so the decoder can skip what is not visible.
//!
//! Out of scope: decoding (`decode`) and sampling (`resize`).

use std::fmt;

use fulmen_data::{Error, Result, SampleRng};

/// Height and width. A single number sets both.
///
/// ```
/// use fulmen_images::ImageSize;
///
/// assert_eq!(ImageSize::from(224), ImageSize::from((224, 224)));
/// assert_eq!(ImageSize::from((2, 3)).height, 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImageSize {
    /// The height.
    pub height: usize,
    /// The width.
    pub width: usize,
}

impl From<usize> for ImageSize {
    fn from(side: usize) -> ImageSize {
        ImageSize { height: side, width: side }
    }
}

impl From<(usize, usize)> for ImageSize {
    /// Height and width.
    fn from((height, width): (usize, usize)) -> ImageSize {
        ImageSize { height, width }
    }
}

impl fmt::Display for ImageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.height, self.width)
    }
}

/// A step that moves pixels without changing their colors.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GeometricStep {
    RandomResizedCrop {
        size: ImageSize,
        scale: (f64, f64),
        ratio: (f64, f64),
    },
    /// Resizes the shorter side to this length.
    Resize(usize),
    ResizeExact(ImageSize),
    CenterCrop(ImageSize),
    RandomCrop {
        size: ImageSize,
        padding: usize,
    },
    HorizontalFlip(f64),
    VerticalFlip(f64),
}

/// The largest side that can be requested.
const MAX_SIDE: usize = 1 << 16;

impl GeometricStep {
    /// Checks the options.
    pub(crate) fn check(&self) -> Result<()> {
        let size = |size: ImageSize| {
            if (1..=MAX_SIDE).contains(&size.height) && (1..=MAX_SIDE).contains(&size.width) {
                Ok(())
            } else {
                Err(Error::usage(format!("{self}: a side is not between 1 and {MAX_SIDE} pixels")))
            }
        };
        let range = |name: &str, (low, high): (f64, f64), max: f64| {
            if 0.0 < low && low <= high && high <= max {
                Ok(())
            } else {
                Err(Error::usage(format!(
                    "{self}: the {name} must be ascending, above 0 and at most {max}"
                )))
            }
        };
        let chance = |chance: f64| {
            if (0.0..=1.0).contains(&chance) {
                Ok(())
            } else {
                Err(Error::usage(format!("{self}: a probability must be between 0 and 1")))
            }
        };
        match *self {
            GeometricStep::RandomResizedCrop { size: sides, scale, ratio } => {
                size(sides)?;
                range("scale", scale, 1.0)?;
                range("ratio", ratio, 1e6)
            }
            GeometricStep::Resize(side) => size(side.into()),
            GeometricStep::ResizeExact(sides) | GeometricStep::CenterCrop(sides) => size(sides),
            GeometricStep::RandomCrop { size: sides, padding } => {
                size(sides)?;
                size(padding.saturating_add(1).into())
            }
            GeometricStep::HorizontalFlip(probability)
            | GeometricStep::VerticalFlip(probability) => chance(probability),
        }
    }

    /// The size after this step for a given input size, if it can be known.
    pub(crate) fn output_size(&self, input: Option<ImageSize>) -> Option<ImageSize> {
        match *self {
            GeometricStep::RandomResizedCrop { size, .. }
            | GeometricStep::RandomCrop { size, .. } => Some(size),
            GeometricStep::ResizeExact(size) | GeometricStep::CenterCrop(size) => Some(size),
            GeometricStep::Resize(side) => input.map(|input| shorter_side(input, side)),
            GeometricStep::HorizontalFlip(_) | GeometricStep::VerticalFlip(_) => input,
        }
    }
}

impl fmt::Display for GeometricStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GeometricStep::RandomResizedCrop { size, scale, ratio } => {
                write!(f, "RandomResizedCrop(size={size}, scale={scale:?}, ratio={ratio:?})")
            }
            GeometricStep::Resize(side) => write!(f, "Resize(size={side})"),
            GeometricStep::ResizeExact(size) => write!(f, "Resize(size={size})"),
            GeometricStep::CenterCrop(size) => write!(f, "CenterCrop(size={size})"),
            GeometricStep::RandomCrop { size, padding } => {
                write!(f, "RandomCrop(size={size}, padding={padding})")
            }
            GeometricStep::HorizontalFlip(p) => write!(f, "RandomHorizontalFlip(p={p})"),
            GeometricStep::VerticalFlip(p) => write!(f, "RandomVerticalFlip(p={p})"),
        }
    }
}

/// The size whose shorter side has this length. The longer side is rounded down, as in torchvision.
pub(crate) fn shorter_side(size: ImageSize, side: usize) -> ImageSize {
    let ImageSize { height, width } = size;
    // Sides are below 2^32, so the product is exact.
    let longer = |long: usize, short: usize| {
        (side as u64 * long as u64 / short.max(1) as u64).max(1) as usize
    };
    if width <= height {
        ImageSize { height: longer(height, width), width: side }
    } else {
        ImageSize { height: side, width: longer(width, height) }
    }
}

/// A rectangle of pixels. Pixels outside the image are black.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rect {
    pub(crate) x: isize,
    pub(crate) y: isize,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

impl Rect {
    pub(crate) fn all(size: ImageSize) -> Rect {
        Rect { x: 0, y: 0, width: size.width, height: size.height }
    }

    pub(crate) fn size(&self) -> ImageSize {
        ImageSize { height: self.height, width: self.width }
    }

    pub(crate) fn right(&self) -> isize {
        self.x + self.width as isize
    }

    pub(crate) fn bottom(&self) -> isize {
        self.y + self.height as isize
    }

    /// The intersection of two rectangles, if it is not empty.
    pub(crate) fn intersection(&self, other: &Rect) -> Option<Rect> {
        let x = self.x.max(other.x);
        let y = self.y.max(other.y);
        let right = self.right().min(other.right());
        let bottom = self.bottom().min(other.bottom());
        (x < right && y < bottom).then(|| Rect {
            x,
            y,
            width: (right - x) as usize,
            height: (bottom - y) as usize,
        })
    }

    fn is_inside(&self, size: ImageSize) -> bool {
        self.x >= 0
            && self.y >= 0
            && self.right() <= size.width as isize
            && self.bottom() <= size.height as isize
    }
}

/// The orientation of an image relative to another: transposed first, then mirrored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Orientation {
    pub(crate) transpose: bool,
    /// Mirrored horizontally.
    pub(crate) flip_x: bool,
    /// Mirrored vertically.
    pub(crate) flip_y: bool,
}

impl Orientation {
    /// The size of an image after it is oriented.
    pub(crate) fn size(&self, size: ImageSize) -> ImageSize {
        if self.transpose { ImageSize { height: size.width, width: size.height } } else { size }
    }

    /// Maps a rectangle of the oriented image back to the original image, whose size is `size`.
    fn map_back(&self, rect: Rect, size: ImageSize) -> Rect {
        let oriented = self.size(size);
        let Rect { mut x, mut y, width, height } = rect;
        if self.flip_x {
            x = oriented.width as isize - x - width as isize;
        }
        if self.flip_y {
            y = oriented.height as isize - y - height as isize;
        }
        if self.transpose {
            Rect { x: y, y: x, width: height, height: width }
        } else {
            Rect { x, y, width, height }
        }
    }
}

/// A view of a source: the part `crop` of the source is resized to `size`, the part `window` of the
/// result is cut out, and this part is oriented.
///
/// Pixels outside `crop` have no influence. Where the window extends beyond `size`, the view is
/// black.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct View {
    pub(crate) crop: Rect,
    pub(crate) size: ImageSize,
    pub(crate) window: Rect,
    pub(crate) orientation: Orientation,
}

impl View {
    /// A view of the whole source, unchanged.
    pub(crate) fn all(size: ImageSize) -> View {
        View {
            crop: Rect::all(size),
            size,
            window: Rect::all(size),
            orientation: Orientation::default(),
        }
    }

    /// The size of the view.
    pub(crate) fn output(&self) -> ImageSize {
        self.orientation.size(self.window.size())
    }

    pub(crate) fn is_resized(&self) -> bool {
        self.size != self.crop.size()
    }

    /// Converts a view of the oriented source to a view of the stored source.
    pub(crate) fn reorient(&self, orientation: Orientation, source: ImageSize) -> View {
        let crop = orientation.map_back(self.crop, source);
        // `Orientation::size` is its own inverse: it swaps height and width, or changes nothing.
        let size = orientation.size(self.size);
        let window = orientation.map_back(self.window, size);
        let Orientation { flip_x, flip_y, .. } = self.orientation;
        let flips = Orientation {
            transpose: orientation.transpose,
            flip_x: orientation.flip_x != flip_x,
            flip_y: orientation.flip_y != flip_y,
        };
        View { crop, size, window, orientation: flips }
    }

    /// Adds a step. Returns false, without drawing random numbers or changing the view, if the step
    /// needs pixels first: a second resize, or a resize of a window.
    pub(crate) fn push(&mut self, step: &GeometricStep, random: &mut SampleRng) -> Result<bool> {
        let resizes = match step {
            GeometricStep::RandomResizedCrop { .. } => true,
            GeometricStep::Resize(side) => shorter_side(self.output(), *side) != self.output(),
            GeometricStep::ResizeExact(size) => *size != self.output(),
            _ => false,
        };
        if resizes && (self.is_resized() || !self.window.is_inside(self.size)) {
            return Ok(false);
        }
        match *step {
            GeometricStep::RandomResizedCrop { size, scale, ratio } => {
                let crop = random_resized_crop(self.output(), scale, ratio, random);
                self.crop(crop);
                self.resize(size);
            }
            GeometricStep::Resize(side) if resizes => {
                self.resize(shorter_side(self.output(), side))
            }
            GeometricStep::ResizeExact(size) if resizes => self.resize(size),
            GeometricStep::Resize(_) | GeometricStep::ResizeExact(_) => {}
            GeometricStep::CenterCrop(size) => self.crop(center(self.output(), size)),
            GeometricStep::RandomCrop { size, padding } => {
                let crop = random_crop(self.output(), size, padding, random)?;
                self.crop(crop);
            }
            GeometricStep::HorizontalFlip(probability) => {
                self.orientation.flip_x ^= random.bernoulli(probability)
            }
            GeometricStep::VerticalFlip(probability) => {
                self.orientation.flip_y ^= random.bernoulli(probability)
            }
        }
        Ok(true)
    }

    /// Restricts the view to a part of it.
    fn crop(&mut self, part: Rect) {
        let part = self.orientation.map_back(part, self.window.size());
        self.window = Rect { x: self.window.x + part.x, y: self.window.y + part.y, ..part };
    }

    /// Resizes the view, which must not be resized yet and must lie inside the source.
    fn resize(&mut self, size: ImageSize) {
        let Rect { x, y, width, height } = self.window;
        self.crop = Rect { x: self.crop.x + x, y: self.crop.y + y, width, height };
        self.size = self.orientation.size(size);
        self.window = Rect::all(self.size);
    }
}

/// torchvision's rule: ten attempts to find a part with this fraction of the area and this ratio of
/// width to height; if they fail, the largest centered part with an allowed ratio.
fn random_resized_crop(
    ImageSize { height, width }: ImageSize,
    scale: (f64, f64),
    ratio: (f64, f64),
    random: &mut SampleRng,
) -> Rect {
    let area = height as f64 * width as f64;
    for _ in 0..10 {
        let target = area * random.uniform(scale.0, scale.1);
        let aspect = random.uniform(ratio.0.ln(), ratio.1.ln()).exp();
        let w = (target * aspect).sqrt().round_ties_even() as usize;
        let h = (target / aspect).sqrt().round_ties_even() as usize;
        if (1..=width).contains(&w) && (1..=height).contains(&h) {
            let y = random.below(height - h + 1) as isize;
            let x = random.below(width - w + 1) as isize;
            return Rect { x, y, width: w, height: h };
        }
    }
    let aspect = width as f64 / height as f64;
    let (w, h) = if aspect < ratio.0 {
        (width, (width as f64 / ratio.0).round_ties_even() as usize)
    } else if aspect > ratio.1 {
        ((height as f64 * ratio.1).round_ties_even() as usize, height)
    } else {
        (width, height)
    };
    let w = w.clamp(1, width);
    let h = h.clamp(1, height);
    Rect { x: ((width - w) / 2) as isize, y: ((height - h) / 2) as isize, width: w, height: h }
}

/// torchvision's center: half a pixel is rounded to even. If the image is smaller than the crop, it
/// moves right and down.
fn center(outer: ImageSize, size: ImageSize) -> Rect {
    let start = |all: usize, part: usize| {
        if part > all {
            -(((part - all) / 2) as isize)
        } else {
            ((all - part) as f64 / 2.0).round_ties_even() as isize
        }
    };
    Rect {
        x: start(outer.width, size.width),
        y: start(outer.height, size.height),
        width: size.width,
        height: size.height,
    }
}

fn random_crop(
    outer: ImageSize,
    size: ImageSize,
    padding: usize,
    random: &mut SampleRng,
) -> Result<Rect> {
    let room = |all: usize, part: usize| (all + 2 * padding).checked_sub(part);
    let (Some(rows), Some(columns)) =
        (room(outer.height, size.height), room(outer.width, size.width))
    else {
        return Err(Error::content(format!(
            "RandomCrop(size={size}, padding={padding}) does not fit into an image of {} x {} pixels; resize before \
             it, or pad more",
            outer.width, outer.height
        )));
    };
    let y = random.below(rows + 1) as isize - padding as isize;
    let x = random.below(columns + 1) as isize - padding as isize;
    Ok(Rect { x, y, width: size.width, height: size.height })
}
