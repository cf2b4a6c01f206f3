//! Transforms that combine others: all or none of them, one of them, or all in random order.
//!
//! Out of scope: applying transforms in a fixed order (`ImagePipeline::then`).

use super::{check_probability, with_name};
use crate::{Image, ImageTransform, Pair};
use fulmen_data::{Error, Result, SampleRng};

/// The transforms of a container.
#[derive(Default)]
struct TransformList(Vec<Box<dyn ImageTransform>>);

impl TransformList {
    fn check(&self, name: &str) -> Result<()> {
        if self.0.is_empty() {
            return Err(Error::usage(format!(
                "{name} has no transforms; add them with .then(...)"
            )));
        }
        self.0.iter().try_for_each(|transform| with_name(name, transform.check()))
    }

    /// The size of the result, if every transform keeps the size.
    fn preserved_size(&self, input: Option<(usize, usize)>) -> Option<(usize, usize)> {
        input.filter(|_| self.0.iter().all(|transform| transform.output_size(input) == input))
    }

    fn describe(&self) -> String {
        let all: Vec<String> = self.0.iter().map(|transform| transform.describe()).collect();
        format!("[{}]", all.join(", "))
    }
}

/// Applies all its transforms in order, or none of them (torchvision's `RandomApply`).
///
/// ```
/// use fulmen_images::{GaussianBlur, ImageTransform, RandomApply};
///
/// let sometimes = RandomApply::new(0.2).then(GaussianBlur::new(5));
/// assert_eq!(sometimes.describe(), "RandomApply(p=0.2, [GaussianBlur(kernel_size=5x5, sigma=0.1..2)])");
/// ```
pub struct RandomApply {
    p: f64,
    transforms: TransformList,
}

impl RandomApply {
    /// Applies the transforms with the probability `p`; torchvision's default is 0.5.
    pub fn new(p: f64) -> RandomApply {
        RandomApply { p, transforms: TransformList::default() }
    }

    /// Adds a transform.
    #[must_use]
    pub fn then(mut self, transform: impl ImageTransform) -> RandomApply {
        self.transforms.0.push(Box::new(transform));
        self
    }
}

impl ImageTransform for RandomApply {
    fn check(&self) -> Result<()> {
        check_probability("RandomApply", self.p)?;
        self.transforms.check("RandomApply")
    }

    fn apply(&self, mut image: Image, random: &mut SampleRng) -> Result<Image> {
        self.check()?;
        if random.bernoulli(self.p) {
            for transform in &self.transforms.0 {
                image = transform.apply(image, random)?;
            }
        }
        Ok(image)
    }

    fn apply_pair(&self, mut pair: Pair, random: &mut SampleRng) -> Result<Pair> {
        self.check()?;
        if random.bernoulli(self.p) {
            for transform in &self.transforms.0 {
                pair = transform.apply_pair(pair, random)?;
            }
        }
        Ok(pair)
    }

    fn output_size(&self, input: Option<(usize, usize)>) -> Option<(usize, usize)> {
        self.transforms.preserved_size(input)
    }

    fn describe(&self) -> String {
        format!("RandomApply(p={}, {})", self.p, self.transforms.describe())
    }
}

/// Applies one of its transforms (torchvision's `RandomChoice`).
///
/// ```
/// use fulmen_images::{ImageTransform, RandomChoice, RandomInvert, RandomRotation};
///
/// let one = RandomChoice::new().or(RandomRotation::new(30.0)).or_weighted(2.0, RandomInvert::new().p(1.0));
/// assert!(one.check().is_ok());
/// ```
#[derive(Default)]
pub struct RandomChoice {
    weights: Vec<f64>,
    transforms: TransformList,
}

impl RandomChoice {
    /// Starts without transforms.
    pub fn new() -> RandomChoice {
        RandomChoice::default()
    }

    /// Adds a transform, with the weight 1.
    #[must_use]
    pub fn or(self, transform: impl ImageTransform) -> RandomChoice {
        self.or_weighted(1.0, transform)
    }

    /// Adds a transform. Its probability is `weight` divided by the sum of all weights.
    #[must_use]
    pub fn or_weighted(mut self, weight: f64, transform: impl ImageTransform) -> RandomChoice {
        self.weights.push(weight);
        self.transforms.0.push(Box::new(transform));
        self
    }
}

impl RandomChoice {
    /// Draws a transform.
    fn draw(&self, random: &mut SampleRng) -> Option<&dyn ImageTransform> {
        let mut remaining = random.uniform(0.0, self.weights.iter().sum());
        let mut chosen = None;
        for (weight, transform) in
            self.weights.iter().zip(&self.transforms.0).filter(|(weight, _)| **weight > 0.0)
        {
            chosen = Some(&**transform);
            if remaining < *weight {
                break;
            }
            remaining -= weight;
        }
        // Rounding may leave a remainder, which then selects the last transform.
        chosen
    }
}

impl ImageTransform for RandomChoice {
    fn check(&self) -> Result<()> {
        let sum: f64 = self.weights.iter().sum();
        let possible =
            self.weights.iter().all(|&weight| weight >= 0.0) && sum > 0.0 && sum.is_finite();
        if !possible && !self.weights.is_empty() {
            let message = format!(
                "RandomChoice: the weights {:?} must be finite and not negative, and not all 0",
                self.weights
            );
            return Err(Error::usage(message));
        }
        self.transforms.check("RandomChoice")
    }

    fn apply(&self, image: Image, random: &mut SampleRng) -> Result<Image> {
        self.check()?;
        match self.draw(random) {
            Some(transform) => transform.apply(image, random),
            None => Ok(image),
        }
    }

    fn apply_pair(&self, pair: Pair, random: &mut SampleRng) -> Result<Pair> {
        self.check()?;
        match self.draw(random) {
            Some(transform) => transform.apply_pair(pair, random),
            None => Ok(pair),
        }
    }

    fn output_size(&self, input: Option<(usize, usize)>) -> Option<(usize, usize)> {
        let mut sizes = self.transforms.0.iter().map(|transform| transform.output_size(input));
        let first = sizes.next()??;
        sizes.all(|size| size == Some(first)).then_some(first)
    }

    fn describe(&self) -> String {
        format!("RandomChoice(weights={:?}, {})", self.weights, self.transforms.describe())
    }
}

/// Applies all its transforms in random order (torchvision's `RandomOrder`).
#[derive(Default)]
pub struct RandomOrder {
    transforms: TransformList,
}

impl RandomOrder {
    /// Starts without transforms.
    pub fn new() -> RandomOrder {
        RandomOrder::default()
    }

    /// Adds a transform.
    #[must_use]
    pub fn and(mut self, transform: impl ImageTransform) -> RandomOrder {
        self.transforms.0.push(Box::new(transform));
        self
    }
}

impl ImageTransform for RandomOrder {
    fn check(&self) -> Result<()> {
        self.transforms.check("RandomOrder")
    }

    fn apply(&self, mut image: Image, random: &mut SampleRng) -> Result<Image> {
        self.check()?;
        let mut order: Vec<usize> = (0..self.transforms.0.len()).collect();
        random.shuffle(&mut order);
        for index in order {
            image = self.transforms.0[index].apply(image, random)?;
        }
        Ok(image)
    }

    fn apply_pair(&self, mut pair: Pair, random: &mut SampleRng) -> Result<Pair> {
        self.check()?;
        let mut order: Vec<usize> = (0..self.transforms.0.len()).collect();
        random.shuffle(&mut order);
        for index in order {
            pair = self.transforms.0[index].apply_pair(pair, random)?;
        }
        Ok(pair)
    }

    fn output_size(&self, input: Option<(usize, usize)>) -> Option<(usize, usize)> {
        self.transforms.preserved_size(input)
    }

    fn describe(&self) -> String {
        format!("RandomOrder({})", self.transforms.describe())
    }
}
