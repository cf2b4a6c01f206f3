//! [`Pair`]: an image with its mask and its boxes, which steps move together.
//!
//! Out of scope: the steps (`pair_pipeline`, `augment`).

use crate::geometry::{Rect, View};
use crate::{Image, ImageSize};
use fulmen_data::{Error, Result};

/// An image with what belongs to its pixels: a mask, boxes, or both.
///
/// ```
/// use fulmen_images::{BoundingBox, Image, Pair};
///
/// let photo = Image::black(6, 4, 3)?;
/// let pair = Pair::new(photo)
///     .mask(Image::black(6, 4, 1)?)
///     .boxes([BoundingBox::from_xywh(1.0, 1.0, 3.0, 2.0)]);
/// assert_eq!(pair.boxes[0].x_max, 4.0);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// The image.
    pub image: Image,
    /// The class of each pixel, or another number for it: 1 channel, and the size of the image.
    pub mask: Option<Image>,
    /// Boxes in pixels of the image. Steps keep their number and order, so that labels stay with
    /// their boxes.
    pub boxes: Vec<BoundingBox>,
}

impl Pair {
    /// An image with neither a mask nor boxes.
    pub fn new(image: Image) -> Pair {
        Pair { image, mask: None, boxes: Vec::new() }
    }

    /// Adds a mask.
    #[must_use]
    pub fn mask(mut self, mask: Image) -> Pair {
        self.mask = Some(mask);
        self
    }

    /// Adds boxes.
    #[must_use]
    pub fn boxes(mut self, boxes: impl IntoIterator<Item = BoundingBox>) -> Pair {
        self.boxes.extend(boxes);
        self
    }

    /// The size of the image.
    pub(crate) fn size(&self) -> ImageSize {
        size_of(&self.image)
    }

    /// Rejects a mask that does not belong to an image of this size.
    pub(crate) fn check_mask(mask: &Image, size: ImageSize) -> Result<()> {
        if mask.channels() != 1 {
            return Err(Error::content(format!(
                "the mask has {} channels, expected 1: one number for each pixel",
                mask.channels()
            )));
        }
        if size_of(mask) != size {
            return Err(Error::content(format!(
                "the mask has {} x {} pixels, but its image {} x {}",
                mask.width(),
                mask.height(),
                size.width,
                size.height
            )));
        }
        Ok(())
    }
}

/// The size of an image.
pub(crate) fn size_of(image: &Image) -> ImageSize {
    ImageSize { height: image.height(), width: image.width() }
}

/// A box by its edges in pixels, from the upper left corner of the image (torchvision's `XYXY`).
///
/// A box that a crop leaves out has no area afterwards. Leave such boxes and their labels out, as
/// torchvision's `SanitizeBoundingBoxes` does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoundingBox {
    /// The left edge.
    pub x_min: f32,
    /// The upper edge.
    pub y_min: f32,
    /// The right edge.
    pub x_max: f32,
    /// The lower edge.
    pub y_max: f32,
}

impl BoundingBox {
    /// A box by its edges.
    pub fn new(x_min: f32, y_min: f32, x_max: f32, y_max: f32) -> BoundingBox {
        BoundingBox { x_min, y_min, x_max, y_max }
    }

    /// A box by its upper left corner, its width and its height, as in COCO.
    pub fn from_xywh(x: f32, y: f32, width: f32, height: f32) -> BoundingBox {
        BoundingBox::new(x, y, x + width, y + height)
    }

    /// The width.
    pub fn width(&self) -> f32 {
        self.x_max - self.x_min
    }

    /// The height.
    pub fn height(&self) -> f32 {
        self.y_max - self.y_min
    }

    /// The area in pixels; 0 for a box outside of the image.
    pub fn area(&self) -> f32 {
        self.width() * self.height()
    }

    /// The part of the box within an image.
    pub(crate) fn clamp(self, size: ImageSize) -> BoundingBox {
        let width = size.width as f32;
        let height = size.height as f32;
        BoundingBox {
            x_min: self.x_min.clamp(0.0, width),
            y_min: self.y_min.clamp(0.0, height),
            x_max: self.x_max.clamp(0.0, width),
            y_max: self.y_max.clamp(0.0, height),
        }
    }

    /// The smallest box around the four corners after each was moved.
    pub(crate) fn map_corners(&self, to: impl Fn(f64, f64) -> (f64, f64)) -> BoundingBox {
        let BoundingBox { x_min, y_min, x_max, y_max } = *self;
        let corners = [(x_min, y_min), (x_max, y_min), (x_max, y_max), (x_min, y_max)]
            .map(|(x, y)| to(f64::from(x), f64::from(y)));
        let least = |part: fn(&(f64, f64)) -> f64| {
            corners.iter().map(part).fold(f64::INFINITY, f64::min) as f32
        };
        let most = |part: fn(&(f64, f64)) -> f64| {
            corners.iter().map(part).fold(f64::NEG_INFINITY, f64::max) as f32
        };
        BoundingBox::new(least(|p| p.0), least(|p| p.1), most(|p| p.0), most(|p| p.1))
    }
}

/// The boxes of a source as a view shows them.
pub(crate) fn view_boxes(view: &View, boxes: &[BoundingBox]) -> Vec<BoundingBox> {
    let View { crop, size, window, orientation } = view;
    let seen =
        |value: f32, start: isize, length: usize, scaled: usize, first: isize, side: usize| {
            let within = (value - start as f32).clamp(0.0, length as f32);
            let scaled = within * (scaled as f32 / length.max(1) as f32);
            (scaled - first as f32).clamp(0.0, side as f32)
        };
    let x = |value| seen(value, crop.x, crop.width, size.width, window.x, window.width);
    let y = |value| seen(value, crop.y, crop.height, size.height, window.y, window.height);
    let oriented = |b: &BoundingBox| {
        let mut seen = BoundingBox::new(x(b.x_min), y(b.y_min), x(b.x_max), y(b.y_max));
        if orientation.flip_x {
            let width = window.width as f32;
            seen = BoundingBox { x_min: width - seen.x_max, x_max: width - seen.x_min, ..seen };
        }
        if orientation.flip_y {
            let height = window.height as f32;
            seen = BoundingBox { y_min: height - seen.y_max, y_max: height - seen.y_min, ..seen };
        }
        seen
    };
    boxes.iter().map(oriented).collect()
}

/// A mask as a view shows it. Each number is that of one pixel of the source: the one that
/// torchvision chooses for masks (`interpolate(mode="nearest")`). Outside of the source it is 0.
pub(crate) fn view_mask(view: &View, mask: &Image) -> Result<Image> {
    let View { crop, size, window, orientation } = view;
    let columns = sources(
        Axis { crop: span(crop, true), scaled: size.width, window: span(window, true) },
        orientation.flip_x,
    );
    let rows = sources(
        Axis { crop: span(crop, false), scaled: size.height, window: span(window, false) },
        orientation.flip_y,
    );
    let mut seen = Image::black(columns.len(), rows.len(), 1)?;
    let width = columns.len();
    for (y, row) in rows.iter().enumerate() {
        let Some(source) = row.map(|row| mask.row(row)) else { continue };
        let out = &mut seen.pixels_mut()[y * width..][..width];
        for (value, column) in out.iter_mut().zip(&columns) {
            *value = column.map_or(0, |column| source[column]);
        }
    }
    Ok(seen)
}

/// The start and the length of a side.
struct Span {
    start: isize,
    length: usize,
}

fn span(rect: &Rect, is_horizontal: bool) -> Span {
    if is_horizontal {
        Span { start: rect.x, length: rect.width }
    } else {
        Span { start: rect.y, length: rect.height }
    }
}

/// A view along one axis.
struct Axis {
    crop: Span,
    scaled: usize,
    window: Span,
}

/// The column or row of the source from which each column or row of the view comes.
fn sources(axis: Axis, is_flipped: bool) -> Vec<Option<usize>> {
    let Axis { crop, scaled, window } = axis;
    let scale = crop.length as f32 / scaled.max(1) as f32;
    let source = |position: usize| {
        let position = if is_flipped { window.length - 1 - position } else { position };
        let scaled_position = usize::try_from(window.start + position as isize).ok()?;
        let within = match scaled_position {
            position if position >= scaled => return None,
            position if scaled == crop.length => position,
            position => ((position as f32 * scale) as usize).min(crop.length - 1),
        };
        usize::try_from(crop.start + within as isize).ok()
    };
    (0..window.length).map(source).collect()
}
