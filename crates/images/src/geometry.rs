//! Crops, resizes and flips in a row, folded into one view of the source: which part, resized to what, of which again a part.
//!
//! A view is known before any pixel is, so that the decoder can leave out what is not seen.
//!
//! Not here: decoding (`decode`) and sampling (`resize`).

use std::fmt;

use fulmen_data::{Error, Result, SampleRng};

/// Height and width. A single number is both.
///
/// ```
/// use fulmen_images::ImageSize;
///
/// assert_eq!(ImageSize::from(224), ImageSize::from((224, 224)));
/// assert_eq!(ImageSize::from((2, 3)).height, 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImageSize {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl From<usize> for ImageSize {
    fn from(side: usize) -> ImageSize {
        ImageSize { height: side, width: side }
    }
}

impl From<(usize, usize)> for ImageSize {
    /// From height and width.
    fn from((height, width): (usize, usize)) -> ImageSize {
        ImageSize { height, width }
    }
}

impl fmt::Display for ImageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.height, self.width)
    }
}

/// A step that moves pixels and changes no colours.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Geometric {
    RandomResizedCrop {
        size: ImageSize,
        scale: (f64, f64),
        ratio: (f64, f64),
    },
    /// The shorter side to this length.
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

/// The biggest side that can be asked for.
const MOST: usize = 1 << 16;

impl Geometric {
    /// Finds options that make no sense.
    pub(crate) fn check(&self) -> Result<()> {
        let size = |size: ImageSize| match (1..=MOST).contains(&size.height) && (1..=MOST).contains(&size.width) {
            true => Ok(()),
            false => Err(Error::usage(format!("{self}: a side is not between 1 and {MOST} pixels"))),
        };
        let range = |name: &str, (low, high): (f64, f64), most: f64| match 0.0 < low && low <= high && high <= most {
            true => Ok(()),
            false => {
                Err(Error::usage(format!("{self}: the {name} is not from small to great, above 0 and up to {most}")))
            }
        };
        let chance = |chance: f64| match (0.0..=1.0).contains(&chance) {
            true => Ok(()),
            false => Err(Error::usage(format!("{self}: a probability is between 0 and 1"))),
        };
        match *self {
            Geometric::RandomResizedCrop { size: sides, scale, ratio } => {
                size(sides)?;
                range("scale", scale, 1.0)?;
                range("ratio", ratio, 1e6)
            }
            Geometric::Resize(side) => size(side.into()),
            Geometric::ResizeExact(sides) | Geometric::CenterCrop(sides) => size(sides),
            Geometric::RandomCrop { size: sides, padding } => {
                size(sides)?;
                size(padding.saturating_add(1).into())
            }
            Geometric::HorizontalFlip(probability) | Geometric::VerticalFlip(probability) => chance(probability),
        }
    }

    /// The size that comes out, from the one that goes in.
    pub(crate) fn output_size(&self, input: Option<ImageSize>) -> Option<ImageSize> {
        match *self {
            Geometric::RandomResizedCrop { size, .. } | Geometric::RandomCrop { size, .. } => Some(size),
            Geometric::ResizeExact(size) | Geometric::CenterCrop(size) => Some(size),
            Geometric::Resize(side) => input.map(|input| shorter_side(input, side)),
            Geometric::HorizontalFlip(_) | Geometric::VerticalFlip(_) => input,
        }
    }
}

impl fmt::Display for Geometric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Geometric::RandomResizedCrop { size, scale, ratio } => {
                write!(f, "RandomResizedCrop(size={size}, scale={scale:?}, ratio={ratio:?})")
            }
            Geometric::Resize(side) => write!(f, "Resize(size={side})"),
            Geometric::ResizeExact(size) => write!(f, "Resize(size={size})"),
            Geometric::CenterCrop(size) => write!(f, "CenterCrop(size={size})"),
            Geometric::RandomCrop { size, padding } => write!(f, "RandomCrop(size={size}, padding={padding})"),
            Geometric::HorizontalFlip(p) => write!(f, "RandomHorizontalFlip(p={p})"),
            Geometric::VerticalFlip(p) => write!(f, "RandomVerticalFlip(p={p})"),
        }
    }
}

/// The size at which the shorter side has a length; the longer one is rounded down, as torchvision does.
pub(crate) fn shorter_side(size: ImageSize, side: usize) -> ImageSize {
    let ImageSize { height, width } = size;
    // Sides are below 2^32, so that the product is exact.
    let longer = |long: usize, short: usize| (side as u64 * long as u64 / short.max(1) as u64).max(1) as usize;
    match width <= height {
        true => ImageSize { height: longer(height, width), width: side },
        false => ImageSize { height: side, width: longer(width, height) },
    }
}

/// A rectangle of pixels. Outside of the image there are none, which is black.
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

    /// What two have in common, if anything.
    pub(crate) fn intersection(&self, other: &Rect) -> Option<Rect> {
        let (x, y) = (self.x.max(other.x), self.y.max(other.y));
        let (right, bottom) = (self.right().min(other.right()), self.bottom().min(other.bottom()));
        (x < right && y < bottom).then(|| Rect { x, y, width: (right - x) as usize, height: (bottom - y) as usize })
    }

    fn is_inside(&self, size: ImageSize) -> bool {
        self.x >= 0 && self.y >= 0 && self.right() <= size.width as isize && self.bottom() <= size.height as isize
    }
}

/// How the pixels of an image lie in another: first transposed, then mirrored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Orientation {
    pub(crate) transpose: bool,
    /// Left and right change places.
    pub(crate) flip_x: bool,
    /// Top and bottom change places.
    pub(crate) flip_y: bool,
}

impl Orientation {
    /// The size of an image that lies so.
    pub(crate) fn size(&self, size: ImageSize) -> ImageSize {
        match self.transpose {
            true => ImageSize { height: size.width, width: size.height },
            false => size,
        }
    }

    /// Where a rectangle of the image that lies so is in the one of this size from which it was made.
    fn back(&self, rect: Rect, size: ImageSize) -> Rect {
        let seen = self.size(size);
        let Rect { mut x, mut y, width, height } = rect;
        if self.flip_x {
            x = seen.width as isize - x - width as isize;
        }
        if self.flip_y {
            y = seen.height as isize - y - height as isize;
        }
        match self.transpose {
            true => Rect { x: y, y: x, width: height, height: width },
            false => Rect { x, y, width, height },
        }
    }
}

/// What is seen of a source: its part `crop`, resized to `size`, of that the part `window`, and that turned and mirrored.
///
/// Nothing outside of `crop` has any influence. Where the window reaches beyond `size`, there is black.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct View {
    pub(crate) crop: Rect,
    pub(crate) size: ImageSize,
    pub(crate) window: Rect,
    pub(crate) orientation: Orientation,
}

impl View {
    /// All of a source of this size, as it is.
    pub(crate) fn all(size: ImageSize) -> View {
        View { crop: Rect::all(size), size, window: Rect::all(size), orientation: Orientation::default() }
    }

    /// The size of what is seen.
    pub(crate) fn output(&self) -> ImageSize {
        self.orientation.size(self.window.size())
    }

    pub(crate) fn is_resized(&self) -> bool {
        self.size != self.crop.size()
    }

    /// The same view of a source whose pixels lie otherwise: this one was made as if they had been oriented first.
    pub(crate) fn reorient(&self, orientation: Orientation, source: ImageSize) -> View {
        let crop = orientation.back(self.crop, source);
        // Its own inverse but for the order of the axes: transposing swaps them.
        let size = orientation.size(self.size);
        let window = orientation.back(self.window, size);
        let Orientation { flip_x, flip_y, .. } = self.orientation;
        let flips = Orientation {
            transpose: orientation.transpose,
            flip_x: orientation.flip_x != flip_x,
            flip_y: orientation.flip_y != flip_y,
        };
        View { crop, size, window, orientation: flips }
    }

    /// Takes in one more step. False, with nothing drawn and changed, for one that needs pixels first: a second resize, or one
    /// of what a window shows.
    pub(crate) fn push(&mut self, step: &Geometric, random: &mut SampleRng) -> Result<bool> {
        let resizes = match step {
            Geometric::RandomResizedCrop { .. } => true,
            Geometric::Resize(side) => shorter_side(self.output(), *side) != self.output(),
            Geometric::ResizeExact(size) => *size != self.output(),
            _ => false,
        };
        if resizes && (self.is_resized() || !self.window.is_inside(self.size)) {
            return Ok(false);
        }
        match *step {
            Geometric::RandomResizedCrop { size, scale, ratio } => {
                let crop = random_resized_crop(self.output(), scale, ratio, random);
                self.cut(crop);
                self.resize(size);
            }
            Geometric::Resize(side) if resizes => self.resize(shorter_side(self.output(), side)),
            Geometric::ResizeExact(size) if resizes => self.resize(size),
            Geometric::Resize(_) | Geometric::ResizeExact(_) => {}
            Geometric::CenterCrop(size) => self.cut(center(self.output(), size)),
            Geometric::RandomCrop { size, padding } => {
                let crop = random_crop(self.output(), size, padding, random)?;
                self.cut(crop);
            }
            Geometric::HorizontalFlip(probability) => self.orientation.flip_x ^= random.bernoulli(probability),
            Geometric::VerticalFlip(probability) => self.orientation.flip_y ^= random.bernoulli(probability),
        }
        Ok(true)
    }

    /// Leaves a part of what is seen.
    fn cut(&mut self, part: Rect) {
        let part = self.orientation.back(part, self.window.size());
        self.window = Rect { x: self.window.x + part.x, y: self.window.y + part.y, ..part };
    }

    /// Resizes what is seen, which has not been resized and is inside.
    fn resize(&mut self, size: ImageSize) {
        let Rect { x, y, width, height } = self.window;
        self.crop = Rect { x: self.crop.x + x, y: self.crop.y + y, width, height };
        self.size = self.orientation.size(size);
        self.window = Rect::all(self.size);
    }
}

/// torchvision's rule: ten tries to find a part with this share of the area and this ratio of width to height, then the
/// greatest part in the middle whose ratio is allowed.
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
    let (w, h) = (w.clamp(1, width), h.clamp(1, height));
    Rect { x: ((width - w) / 2) as isize, y: ((height - h) / 2) as isize, width: w, height: h }
}

/// torchvision's middle: half a pixel goes to the even side, and where the image is smaller, to the right and the bottom.
fn center(of: ImageSize, size: ImageSize) -> Rect {
    let start = |all: usize, part: usize| match part > all {
        true => -(((part - all) / 2) as isize),
        false => ((all - part) as f64 / 2.0).round_ties_even() as isize,
    };
    Rect { x: start(of.width, size.width), y: start(of.height, size.height), width: size.width, height: size.height }
}

fn random_crop(of: ImageSize, size: ImageSize, padding: usize, random: &mut SampleRng) -> Result<Rect> {
    let room = |all: usize, part: usize| (all + 2 * padding).checked_sub(part);
    let (Some(rows), Some(columns)) = (room(of.height, size.height), room(of.width, size.width)) else {
        return Err(Error::content(format!(
            "RandomCrop(size={size}, padding={padding}) does not fit into an image of {} x {} pixels; resize before it, or \
             pad more",
            of.width, of.height
        )));
    };
    let y = random.below(rows + 1) as isize - padding as isize;
    let x = random.below(columns + 1) as isize - padding as isize;
    Ok(Rect { x, y, width: size.width, height: size.height })
}
