//! Random rotation, affine maps and perspective.
//!
//! Out of scope: the resampling (`functional`).

use super::factor_range::{FactorRange, draw};
use super::{check_probability, options, resampling_options, with_name};
use crate::functional::{self, Affine, Fill, check_interpolation};
use crate::{Image, ImageTransform, Interpolation, Pair};
use fulmen_data::{Error, Result, SampleRng};

const ALL: (f64, f64) = (f64::NEG_INFINITY, f64::INFINITY);

fn around_zero(amount: FactorRange) -> (f64, f64) {
    amount.around(0.0, f64::NEG_INFINITY)
}

fn center_text(center: Option<(f64, f64)>) -> String {
    center.map_or("middle".to_owned(), |(x, y)| format!("{x}/{y}"))
}

/// Rotates an image by a random angle (torchvision's `RandomRotation`).
///
/// ```
/// use fulmen_images::{Interpolation, ImageTransform, RandomRotation};
///
/// let rotation = RandomRotation::new(15.0).interpolation(Interpolation::Bilinear).fill([124, 116, 104]);
/// assert!(rotation.describe().starts_with("RandomRotation(degrees=15, interpolation=bilinear"));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RandomRotation {
    degrees: FactorRange,
    interpolation: Interpolation,
    expand: bool,
    center: Option<(f64, f64)>,
    fill: Fill,
}

impl RandomRotation {
    /// Rotates counterclockwise by a random angle. `degrees` is a range, or one number `d` for the
    /// range from `-d` to `d`.
    pub fn new(degrees: impl Into<FactorRange>) -> RandomRotation {
        RandomRotation {
            degrees: degrees.into(),
            interpolation: Interpolation::Nearest,
            expand: false,
            center: None,
            fill: Fill::default(),
        }
    }

    resampling_options!();

    options! {
        /// Whether to enlarge the result so that it holds the whole rotated image. The results then
        /// differ in size.
        expand(expand: bool) = expand;
        /// The center of the rotation, x and y from the upper left corner; the middle of the image
        /// unless set.
        center(x: f64, y: f64) = Some((x, y));
    }
}

impl ImageTransform for RandomRotation {
    fn check(&self) -> Result<()> {
        with_name("RandomRotation", check_interpolation(self.interpolation))?;
        with_name("RandomRotation", self.degrees.check("range of degrees", 0.0, ALL))
    }

    fn apply(&self, image: Image, random: &mut SampleRng) -> Result<Image> {
        self.check()?;
        let angle = draw(random, around_zero(self.degrees));
        functional::rotate(&image, angle, self.interpolation, self.expand, self.center, &self.fill)
    }

    fn apply_pair(&self, pair: Pair, random: &mut SampleRng) -> Result<Pair> {
        self.check()?;
        let angle = draw(random, around_zero(self.degrees));
        let size = pair.size();
        let rotate = |image: &Image, mode, fill: &Fill| {
            functional::rotate(image, angle, mode, self.expand, self.center, fill)
        };
        let image = rotate(&pair.image, self.interpolation, &self.fill)?;
        let mask = pair.mask.map(|mask| rotate(&mask, Interpolation::Nearest, &Fill::default()));
        let boxes = functional::rotate_boxes(&pair.boxes, size, angle, self.expand, self.center)?;
        Ok(Pair { image, mask: mask.transpose()?, boxes })
    }

    fn output_size(&self, input: Option<(usize, usize)>) -> Option<(usize, usize)> {
        input.filter(|_| !self.expand)
    }

    fn describe(&self) -> String {
        format!(
            "RandomRotation(degrees={}, interpolation={}, expand={}, center={}, fill={})",
            self.degrees,
            self.interpolation,
            self.expand,
            center_text(self.center),
            self.fill
        )
    }
}

/// Rotates, translates, scales and shears an image, each by a random amount (torchvision's
/// `RandomAffine`).
#[derive(Clone, Debug, PartialEq)]
pub struct RandomAffine {
    degrees: FactorRange,
    translate: Option<(f64, f64)>,
    scale: Option<(f64, f64)>,
    shear: Option<FactorRange>,
    shear_y: Option<FactorRange>,
    interpolation: Interpolation,
    fill: Fill,
    center: Option<(f64, f64)>,
}

impl RandomAffine {
    /// Rotates clockwise by an angle from `-degrees` to `degrees`, or by an angle from the range; 0
    /// disables the rotation.
    pub fn new(degrees: impl Into<FactorRange>) -> RandomAffine {
        RandomAffine {
            degrees: degrees.into(),
            translate: None,
            scale: None,
            shear: None,
            shear_y: None,
            interpolation: Interpolation::Nearest,
            fill: Fill::default(),
            center: None,
        }
    }

    resampling_options!();

    options! {
        /// Translates in both directions by a whole number of pixels, up to these fractions of the
        /// width and the height.
        translate(width: f64, height: f64) = Some((width, height));
        /// Scales by a factor in this range.
        scale(least: f64, most: f64) = Some((least, most));
        /// Shears along x by an angle from `-degrees` to `degrees`, or from the range.
        shear(degrees: impl Into<FactorRange>) = Some(degrees.into());
        /// Shears along y: the third and fourth number of torchvision's `shear`.
        shear_y(degrees: impl Into<FactorRange>) = Some(degrees.into());
        /// The center of the map, x and y from the upper left corner; the middle of the image
        /// unless set.
        center(x: f64, y: f64) = Some((x, y));
    }
}

impl RandomAffine {
    /// Draws a map.
    fn draw(&self, image: &Image, random: &mut SampleRng) -> Affine {
        let angle = draw(random, around_zero(self.degrees));
        let size = (image.width() as f64, image.height() as f64);
        let translate = self.translate.map_or((0.0, 0.0), |(x, y)| {
            let mut shift = |max: f64| random.uniform(-max, max).round_ties_even();
            (shift(x * size.0), shift(y * size.1))
        });
        let scale = self.scale.map_or(1.0, |range| draw(random, range));
        let mut lean = |shear: Option<FactorRange>| {
            shear.map_or(0.0, |amount| draw(random, around_zero(amount)))
        };
        let shear = (lean(self.shear), lean(self.shear_y));
        Affine { angle, translate, scale, shear, center: self.center }
    }
}

impl ImageTransform for RandomAffine {
    fn check(&self) -> Result<()> {
        with_name("RandomAffine", check_interpolation(self.interpolation))?;
        with_name("RandomAffine", self.degrees.check("range of degrees", 0.0, ALL))?;
        for (name, shear) in [("shear along x", self.shear), ("shear along y", self.shear_y)] {
            with_name("RandomAffine", shear.map_or(Ok(()), |shear| shear.check(name, 0.0, ALL)))?;
        }
        if let Some((x, y)) = self.translate
            && !((0.0..=1.0).contains(&x) && (0.0..=1.0).contains(&y))
        {
            let message = format!(
                "RandomAffine: the translation by {x} and {y} of the image must be from 0 to 1"
            );
            return Err(Error::usage(message));
        }
        match self.scale {
            Some((low, high)) if !(low > 0.0 && low <= high && high.is_finite()) => {
                Err(Error::usage(format!(
                    "RandomAffine: the scale goes from {low} to {high}; it must be ascending, above 0"
                )))
            }
            _ => Ok(()),
        }
    }

    fn apply(&self, image: Image, random: &mut SampleRng) -> Result<Image> {
        self.check()?;
        let map = self.draw(&image, random);
        functional::affine(&image, &map, self.interpolation, &self.fill)
    }

    fn apply_pair(&self, pair: Pair, random: &mut SampleRng) -> Result<Pair> {
        self.check()?;
        let map = self.draw(&pair.image, random);
        let size = pair.size();
        let image = functional::affine(&pair.image, &map, self.interpolation, &self.fill)?;
        let mask = pair
            .mask
            .map(|mask| functional::affine(&mask, &map, Interpolation::Nearest, &Fill::default()));
        let boxes = functional::affine_boxes(&pair.boxes, size, &map)?;
        Ok(Pair { image, mask: mask.transpose()?, boxes })
    }

    fn describe(&self) -> String {
        let (x, y) = self.translate.unwrap_or_default();
        let scale = self.scale.map_or(FactorRange::One(1.0), FactorRange::from);
        let shear = [self.shear, self.shear_y].map(|shear| shear.unwrap_or(FactorRange::One(0.0)));
        format!(
            "RandomAffine(degrees={}, translate={x}/{y}, scale={scale}, shear={}, shear_y={}, interpolation={}, \
             fill={}, center={})",
            self.degrees,
            shear[0],
            shear[1],
            self.interpolation,
            self.fill,
            center_text(self.center)
        )
    }
}

/// Moves the four corners of an image toward its middle, each by a random amount (torchvision's
/// `RandomPerspective`).
#[derive(Clone, Debug, PartialEq)]
pub struct RandomPerspective {
    distortion_scale: f64,
    p: f64,
    interpolation: Interpolation,
    fill: Fill,
}

impl Default for RandomPerspective {
    fn default() -> RandomPerspective {
        RandomPerspective {
            distortion_scale: 0.5,
            p: 0.5,
            interpolation: Interpolation::Bilinear,
            fill: Fill::default(),
        }
    }
}

impl RandomPerspective {
    /// Moves corners by up to half of the way to the middle, with the probability 0.5 and bilinear
    /// interpolation.
    pub fn new() -> RandomPerspective {
        RandomPerspective::default()
    }

    resampling_options!();

    options! {
        /// How far corners move at most, as a fraction of the way to the middle, from 0 to 1.
        distortion_scale(distortion_scale: f64) = distortion_scale;
        /// Sets the probability.
        p(p: f64) = p;
    }
}

/// A perspective map by the corners of the image.
struct CornerMap {
    from: functional::Corners,
    to: functional::Corners,
}

impl RandomPerspective {
    /// Draws a map; `None` if the image stays as it is.
    fn draw(&self, image: &Image, random: &mut SampleRng) -> Option<CornerMap> {
        let width = image.width();
        let height = image.height();
        // An image with fewer than 2 rows or columns does not have four different corners.
        if !random.bernoulli(self.p) || width < 2 || height < 2 {
            return None;
        }
        let reach = |size: usize| (self.distortion_scale * (size / 2) as f64) as usize + 1;
        let mut corner = |right: bool, lower: bool| {
            let mut start = |far: bool, size: usize| {
                let inwards = random.below(reach(size).min(size));
                (if far { size - 1 - inwards } else { inwards }) as f64
            };
            (start(right, width), start(lower, height))
        };
        let right = (width - 1) as f64;
        let bottom = (height - 1) as f64;
        let from = [(0.0, 0.0), (right, 0.0), (right, bottom), (0.0, bottom)];
        // In a small image, three of the random corners may be collinear, so several draws are
        // tried.
        let mut draws = (0..10).map(|_| {
            [corner(false, false), corner(true, false), corner(true, true), corner(false, true)]
        });
        let to = draws.find(|&to| functional::is_possible(from, to))?;
        Some(CornerMap { from, to })
    }
}

impl ImageTransform for RandomPerspective {
    fn check(&self) -> Result<()> {
        check_probability("RandomPerspective", self.p)?;
        with_name("RandomPerspective", check_interpolation(self.interpolation))?;
        if (0.0..=1.0).contains(&self.distortion_scale) {
            Ok(())
        } else {
            Err(Error::usage(format!(
                "RandomPerspective: the distortion scale is {}; it must be from 0 to 1",
                self.distortion_scale
            )))
        }
    }

    fn apply(&self, image: Image, random: &mut SampleRng) -> Result<Image> {
        self.check()?;
        match self.draw(&image, random) {
            Some(CornerMap { from, to }) => {
                functional::perspective(&image, from, to, self.interpolation, &self.fill)
            }
            None => Ok(image),
        }
    }

    fn apply_pair(&self, mut pair: Pair, random: &mut SampleRng) -> Result<Pair> {
        self.check()?;
        if !pair.boxes.is_empty() {
            return Err(Error::usage(
                "RandomPerspective does not move boxes; use RandomAffine, or leave the boxes out",
            ));
        }
        if let Some(CornerMap { from, to }) = self.draw(&pair.image, random) {
            let mask = pair.mask.map(|mask| {
                functional::perspective(&mask, from, to, Interpolation::Nearest, &Fill::default())
            });
            pair.mask = mask.transpose()?;
            pair.image =
                functional::perspective(&pair.image, from, to, self.interpolation, &self.fill)?;
        }
        Ok(pair)
    }

    fn describe(&self) -> String {
        format!(
            "RandomPerspective(distortion_scale={}, p={}, interpolation={}, fill={})",
            self.distortion_scale, self.p, self.interpolation, self.fill
        )
    }
}
