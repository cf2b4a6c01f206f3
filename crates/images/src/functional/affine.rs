//! Rotation, translation, scaling and shear.
//!
//! Out of scope: perspective (`perspective`), and interpolation (`warp`).

use super::warp::{check_interpolation, to_fixed_point, warp};
use super::{Fill, check_finite};
use crate::geometry::Orientation;
use crate::render::orient;
use crate::{BoundingBox, Image, ImageSize, Interpolation};
use fulmen_data::{Error, Result};

/// An affine map about a center: a shear along x, a shear along y, a scaling, a rotation and a
/// translation, in this order. The default map changes nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine {
    /// The angle of the rotation in degrees, clockwise.
    pub angle: f64,
    /// The translation in pixels: to the right, and down.
    pub translate: (f64, f64),
    /// The factor of all lengths.
    pub scale: f64,
    /// The angles in degrees by which vertical lines (along x) and horizontal lines (along y) lean.
    pub shear: (f64, f64),
    /// The fixed point before the translation: x and y from the upper left corner; by default the
    /// middle of the image.
    pub center: Option<(f64, f64)>,
}

impl Default for Affine {
    fn default() -> Affine {
        Affine { angle: 0.0, translate: (0.0, 0.0), scale: 1.0, shear: (0.0, 0.0), center: None }
    }
}

impl Affine {
    fn check(&self) -> Result<()> {
        check_finite("angle", self.angle)?;
        for (name, (x, y)) in [
            ("translation", self.translate),
            ("shear", self.shear),
            ("center", self.center.unwrap_or_default()),
        ] {
            check_finite(name, x)?;
            check_finite(name, y)?;
        }
        if self.scale.is_finite() && self.scale > 0.0 {
            Ok(())
        } else {
            Err(Error::usage(format!("the scale is {}; it must be above 0", self.scale)))
        }
    }

    /// The map of points of an image of `size`, in pixels from the upper left corner.
    fn forward(&self, size: ImageSize) -> impl Fn(f64, f64) -> (f64, f64) + use<> {
        let middle_x = size.width as f64 / 2.0;
        let middle_y = size.height as f64 / 2.0;
        let [a, b, dx, c, d, dy] = self.inverse((size.width, size.height));
        let determinant = a * d - b * c;
        move |x, y| {
            let x = x - middle_x - dx;
            let y = y - middle_y - dy;
            let to_x = (d * x - b * y) / determinant;
            let to_y = (a * y - c * x) / determinant;
            (to_x + middle_x, to_y + middle_y)
        }
    }

    /// The inverse map for an image of `size`, in pixels from the middle of the image:
    /// `x' = m[0]·x + m[1]·y + m[2]`, `y' = m[3]·x + m[4]·y + m[5]`.
    fn inverse(&self, size: (usize, usize)) -> [f64; 6] {
        let rotation = self.angle.to_radians();
        let lean_x = self.shear.0.to_radians().tan();
        let lean_y = self.shear.1.to_radians().tan();
        let (sin, cos) = rotation.sin_cos();
        // The columns of rotation times shear along y times shear along x. The determinant of this
        // matrix is 1.
        let a = cos + sin * lean_y;
        let c = sin - cos * lean_y;
        let b = -sin - a * lean_x;
        let d = cos - c * lean_x;
        let inverse = [d, -b, -c, a].map(|entry| entry / self.scale);
        let (center_x, center_y) = match self.center {
            Some((x, y)) => (x - size.0 as f64 / 2.0, y - size.1 as f64 / 2.0),
            None => (0.0, 0.0),
        };
        let from_x = center_x + self.translate.0;
        let from_y = center_y + self.translate.1;
        [
            inverse[0],
            inverse[1],
            center_x - inverse[0] * from_x - inverse[1] * from_y,
            inverse[2],
            inverse[3],
            center_y - inverse[2] * from_x - inverse[3] * from_y,
        ]
    }
}

/// Applies an affine map to an image. Points outside the image have the fill's color.
///
/// The result is torchvision's, with two differences. At a point exactly between two pixels,
/// torchvision's f32 arithmetic may select either pixel; this function selects the even one. Where
/// image and fill are mixed along a slanting edge ([`Bilinear`](Interpolation::Bilinear)),
/// torchvision counts the outside twice; this function returns what torchvision computes without a
/// fill for an image that is padded with the fill.
///
/// ```
/// use fulmen_images::{Interpolation, Image};
/// use fulmen_images::functional::{Affine, Fill, affine};
///
/// let image = Image::new(3, 1, 1, vec![10, 20, 30])?;
/// let right = Affine { translate: (1.0, 0.0), ..Affine::default() };
/// let moved = affine(&image, &right, Interpolation::Nearest, &Fill::from(7))?;
/// assert_eq!(moved.pixels(), [7, 10, 20]);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
///
/// # Errors
/// A scale that is not positive, numbers that are not finite, a fill with a different number of
/// channels, an interpolation other than nearest and bilinear.
pub fn affine(image: &Image, map: &Affine, mode: Interpolation, fill: &Fill) -> Result<Image> {
    map.check()?;
    let size = (image.width(), image.height());
    resample(image, size, map.inverse(size), mode, fill)
}

/// Moves boxes of an image of `size` as [`affine`] moves the image: the smallest boxes around the
/// moved corners, cut at the edges of the image.
///
/// # Errors
/// A scale that is not positive, numbers that are not finite.
pub fn affine_boxes(
    boxes: &[BoundingBox],
    size: ImageSize,
    map: &Affine,
) -> Result<Vec<BoundingBox>> {
    map.check()?;
    let forward = map.forward(size);
    Ok(boxes.iter().map(|b| b.map_corners(&forward).clamp(size)).collect())
}

/// Moves boxes of an image of `size` as [`rotate`] moves the image; see [`affine_boxes`].
///
/// # Errors
/// Numbers that are not finite.
pub fn rotate_boxes(
    boxes: &[BoundingBox],
    size: ImageSize,
    angle: f64,
    expand: bool,
    center: Option<(f64, f64)>,
) -> Result<Vec<BoundingBox>> {
    let map = Affine { angle: -angle, center, ..Affine::default() };
    if !expand {
        return affine_boxes(boxes, size, &map);
    }
    map.check()?;
    let forward = map.forward(size);
    let whole = BoundingBox::new(0.0, 0.0, size.width as f32, size.height as f32);
    // The result begins at the upper left of the rotated image.
    let corner = whole.map_corners(&forward);
    let sides = (size.width, size.height);
    let (width, height) = expanded_size(map.inverse(sides), sides);
    let moved = |b: &BoundingBox| {
        let b = b.map_corners(&forward);
        BoundingBox::new(
            b.x_min - corner.x_min,
            b.y_min - corner.y_min,
            b.x_max - corner.x_min,
            b.y_max - corner.y_min,
        )
        .clamp(ImageSize { height, width })
    };
    Ok(boxes.iter().map(moved).collect())
}

/// Resamples to an image of `size` with the same middle; `matrix` gives the source points.
fn resample(
    image: &Image,
    size: (usize, usize),
    matrix: [f64; 6],
    mode: Interpolation,
    fill: &Fill,
) -> Result<Image> {
    let [a, b, dx, c, d, dy] = matrix;
    // Translates from the middle of one image to that of the other. A pixel's center is at half a
    // pixel.
    let half = |size: usize| size as f64 / 2.0 - 0.5;
    let left = half(size.0);
    let top = half(size.1);
    let to_x = half(image.width()) + dx;
    let to_y = half(image.height()) + dy;
    let step_x = to_fixed_point(a);
    let step_y = to_fixed_point(c);
    warp(image, size, mode, fill, |row| {
        let rows_below = row as f64 - top;
        let start = (
            to_fixed_point(b * rows_below - a * left + to_x),
            to_fixed_point(d * rows_below - c * left + to_y),
        );
        (0..size.0 as i64).map(move |column| {
            let source = |start: i64, step: i64| start.saturating_add(step.saturating_mul(column));
            (source(start.0, step_x), source(start.1, step_y))
        })
    })
}

/// Rotates the image counterclockwise by `angle` degrees about `center` (x and y from the upper
/// left corner; by default the middle). With `expand` the result is large enough for the whole
/// image rotated about its middle.
///
/// Rotations by 0, 90, 180 and 270 degrees about the middle are exact if the size allows it. Other
/// rotations are those of [`affine`].
///
/// # Errors
/// Those of [`affine`].
pub fn rotate(
    image: &Image,
    angle: f64,
    mode: Interpolation,
    expand: bool,
    center: Option<(f64, f64)>,
    fill: &Fill,
) -> Result<Image> {
    let map = Affine { angle: -angle, center, ..Affine::default() };
    map.check()?;
    let size = (image.width(), image.height());
    let quarters =
        [0.0, 90.0, 180.0, 270.0].iter().position(|&turn| turn == angle.rem_euclid(360.0));
    if let (Some(quarters), None) = (quarters, center)
        && (quarters.is_multiple_of(2) || expand || size.0 == size.1)
    {
        check_interpolation(mode)?;
        fill.pixel(image)?;
        return quarter_turns(image, quarters);
    }
    let matrix = map.inverse(size);
    let result = if expand { expanded_size(matrix, size) } else { size };
    resample(image, result, matrix, mode, fill)
}

/// Rotates the image counterclockwise by 90 degrees this number of times.
fn quarter_turns(image: &Image, quarters: usize) -> Result<Image> {
    let transpose = !quarters.is_multiple_of(2);
    let flip_x = quarters >= 2;
    let flip_y = matches!(quarters, 1 | 2);
    let size = ImageSize { height: image.height(), width: image.width() };
    orient(image.pixels(), size, Orientation { transpose, flip_x, flip_y }, image.channels())
}

/// The size of the bounding box of a rotated image.
fn expanded_size(matrix: [f64; 6], size: (usize, usize)) -> (usize, usize) {
    let [a, b, dx, c, d, dy] = matrix;
    let half_width = size.0 as f64 / 2.0;
    let half_height = size.1 as f64 / 2.0;
    let corners = [(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)];
    let span = |half: f64, project: &dyn Fn(f64, f64) -> f64| {
        let ends = corners.map(|(x, y)| project(x * half_width, y * half_height) + half);
        // Rounding errors above a whole number must not add a row.
        let cut = |end: f64| (end * 1e4).trunc() / 1e4;
        let (min, max) =
            ends.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, m), &e| (l.min(e), m.max(e)));
        (cut(max).ceil() - cut(min).floor()) as usize
    };
    (span(half_width, &|x, y| a * x + b * y + dx), span(half_height, &|x, y| c * x + d * y + dy))
}
