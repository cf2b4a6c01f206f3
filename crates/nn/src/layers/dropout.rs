//! Dropout: random zeros while training, of elements ([`Dropout`]), of whole channels ([`Dropout1d`] and its kin), of
//! whole samples ([`DropPath`]), and such that mean and variance stay ([`AlphaDropout`]).
//!
//! The Trainer gives these layers a fresh random key each step; outside of one, call
//! [`Module::set_random_key`](crate::Module::set_random_key). After [`Module::eval`](crate::Module::eval) they pass on
//! what comes in.

use fulmen_tensor::{AsTensor, Refusal, Tensor, random};

use crate::activation::{SELU_ALPHA, SELU_SCALE};
use crate::precision::wide;
use crate::record::NN;
use crate::{Module, RandomStream, TrainingMode};

/// What all dropouts have: a probability, the switch, the random numbers.
#[derive(Clone, Debug, Module)]
struct Chance {
    p: f64,
    mode: TrainingMode,
    random: RandomStream,
}

/// What is to be done with an input.
enum Fate {
    /// Nothing; or it is poisoned.
    Stay,
    /// All is dropped.
    Vanish,
    /// What is true is kept.
    Keep(Tensor),
}

impl Chance {
    fn new(p: f64) -> Chance {
        Chance { p, mode: TrainingMode::new(), random: RandomStream::new() }
    }

    /// Draws what of `x` is kept, one for each element of `shape`, which broadcasts to that of `x`.
    fn draw(&self, shape: &[usize]) -> Result<Fate, Refusal> {
        if !(0.0..=1.0).contains(&self.p) {
            return Err(format!("a probability lies between 0 and 1, not {}", self.p).into());
        }
        if !self.mode.is_training() || self.p == 0.0 {
            return Ok(Fate::Stay);
        }
        if self.p == 1.0 {
            return Ok(Fate::Vanish);
        }
        Ok(Fate::Keep(random::bernoulli(&self.random.next_key(), 1.0 - self.p, shape)))
    }

    /// Drops what is drawn for each element of `shape`, and divides the rest by `1 − p`.
    fn drop(&self, x: &Tensor, shape: &[usize]) -> Result<Tensor, Refusal> {
        Ok(match self.draw(shape)? {
            Fate::Stay => x.clone(),
            Fate::Vanish => x * 0.0,
            Fate::Keep(kept) => kept.select(&(x / (1.0 - self.p)), &x.zeros_like()),
        })
    }
}

/// The axes that `outer` counts as they are, those behind with size 1.
fn whole(x: &Tensor, outer: usize) -> Vec<usize> {
    x.shape().iter().enumerate().map(|(axis, &size)| if axis < outer { size } else { 1 }).collect()
}

/// While training, each element is 0 with probability `p` and else divided by `1 − p`; otherwise nothing happens. As
/// PyTorch's `nn.Dropout`.
///
/// The Trainer gives it a fresh random key each step; outside of one, call [`Module::set_random_key`].
///
/// ```
/// use fulmen_nn::{Dropout, Module};
/// use fulmen_tensor::{DType, Tensor, random};
///
/// let (dropout, x) = (Dropout::new(0.5), Tensor::ones(DType::F32, [1000]));
/// dropout.set_random_key(&random::key(0));
/// let kept = dropout.forward(&x).eval()?.to_vec::<f32>()?.into_iter().filter(|&y| y == 2.0).count();
/// assert!((400..600).contains(&kept));
///
/// dropout.eval();
/// assert!(dropout.forward(&x).is(&x));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
pub struct Dropout(#[module(flatten)] Chance);

impl Dropout {
    /// Drops each element with probability `p`.
    pub fn new(p: f64) -> Dropout {
        Dropout(Chance::new(p))
    }

    /// The input with its zeros.
    ///
    /// Poisoned where `p` is not a probability, and while training without a random key.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record("Dropout", || {
            let x = x.as_tensor().live()?;
            self.0.drop(x, x.shape())
        })
    }
}

macro_rules! channels {
    ($($(#[$doc:meta])* $name:ident, $layouts:literal, |$rank:ident| $outer:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        pub struct $name(#[module(flatten)] Chance);

        impl $name {
            /// Drops each channel with probability `p`.
            pub fn new(p: f64) -> $name {
                $name(Chance::new(p))
            }

            /// The input without the channels that were dropped.
            ///
            /// Poisoned where the input has another number of axes or `p` is not a probability, and while training
            /// without a random key.
            #[track_caller]
            pub fn forward(&self, x: impl AsTensor) -> Tensor {
                NN.record(stringify!($name), || {
                let x = x.as_tensor().live()?;
                let $rank = x.rank();
                match $outer {
                    Some(outer) => self.0.drop(x, &whole(x, outer)),
                    None => Err(format!("the input {} is not {}", x.ty(), $layouts).into()),
                }
                })
            }
        }
    )*};
}

channels! {
    /// While training, each channel of `[batch, channels, length]` or `[channels, length]` is all 0 with probability `p`
    /// and else divided by `1 − p`. As PyTorch's `nn.Dropout1d`.
    Dropout1d, "[batch, channels, length] or [channels, length]",
        |rank| match rank { 2 => Some(1), 3 => Some(2), _ => None };

    /// While training, each channel of `[batch, channels, height, width]` is all 0 with probability `p` and else divided
    /// by `1 − p`. As PyTorch's `nn.Dropout2d`, which takes three axes as `[batch, channels, length]`.
    ///
    /// ```
    /// use fulmen_nn::{Dropout2d, Module};
    /// use fulmen_tensor::{DType, Tensor, random};
    ///
    /// let dropout = Dropout2d::new(0.5);
    /// dropout.set_random_key(&random::key(0));
    /// let y = dropout.forward(&Tensor::ones(DType::F32, [4, 8, 2, 2])).eval()?.to_vec::<f32>()?;
    /// assert!(y.chunks(4).all(|channel| channel == [0.0; 4] || channel == [2.0; 4]));
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    Dropout2d, "[batch, channels, height, width]", |rank| match rank { 3 | 4 => Some(2), _ => None };

    /// While training, each channel of `[batch, channels, depth, height, width]`, or of one such sample without its batch
    /// axis, is all 0 with probability `p` and else divided by `1 − p`. As PyTorch's `nn.Dropout3d`.
    Dropout3d, "[batch, channels, depth, height, width] or [channels, depth, height, width]",
        |rank| match rank { 4 => Some(1), 5 => Some(2), _ => None };
}

/// Dropout that keeps mean 0 and variance 1, for networks of [`selu`](crate::activation::selu): a dropped element becomes
/// the value that SELU has at −∞, and then all are scaled and shifted. As PyTorch's `nn.AlphaDropout`.
///
/// With `d = −scale·alpha` of SELU: `a·x + b` where kept, `a·d + b` where dropped, `a = ((1 − p)(1 + p·d²))^−½`,
/// `b = −a·p·d`.
///
/// ```
/// use fulmen_nn::{AlphaDropout, Module};
/// use fulmen_tensor::{DType, Tensor, random};
///
/// let dropout = AlphaDropout::new(0.3);
/// dropout.set_random_key(&random::key(0));
/// let x = random::normal(&random::key(1), DType::F32, [10_000]);
/// let y = dropout.forward(&x);
/// let (mean, var) = (y.mean_all().eval()?.to_f64()[0], y.var(&[0]).eval()?.to_f64()[0]);
/// assert!(mean.abs() < 0.05 && (var - 1.0).abs() < 0.05);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
pub struct AlphaDropout(#[module(flatten)] Chance);

impl AlphaDropout {
    /// Drops each element with probability `p`.
    pub fn new(p: f64) -> AlphaDropout {
        AlphaDropout(Chance::new(p))
    }

    /// The input with what was dropped replaced.
    ///
    /// Poisoned where `p` is not a probability, and while training without a random key.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record("AlphaDropout", || {
            let x = x.as_tensor().live()?;
            let kept = match self.0.draw(x.shape())? {
                Fate::Stay => return Ok(x.clone()),
                Fate::Vanish => return Ok(x * 0.0),
                Fate::Keep(kept) => kept,
            };
            let (p, dropped) = (self.0.p, -SELU_SCALE * SELU_ALPHA);
            let a = ((1.0 - p) * (1.0 + p * dropped * dropped)).sqrt().recip();
            let b = -a * p * dropped;
            let wide = wide(x);
            let replaced = Tensor::full(wide.dtype(), [], a * dropped + b);
            Ok(kept.select(&(&wide * a + b), &replaced).to_dtype(x.dtype()))
        })
    }
}

/// Stochastic depth: while training, each sample (an index of the first axis) is all 0 with probability `p` and else
/// divided by `1 − p`. On the branch of a residual block, so that the block is skipped. As timm's `DropPath`.
///
/// ```
/// use fulmen_nn::{DropPath, Module};
/// use fulmen_tensor::{DType, Tensor, random};
///
/// let drop = DropPath::new(0.5);
/// drop.set_random_key(&random::key(0));
/// let y = drop.forward(&Tensor::ones(DType::F32, [16, 3])).eval()?.to_vec::<f32>()?;
/// assert!(y.chunks(3).all(|sample| sample == [0.0; 3] || sample == [2.0; 3]));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
pub struct DropPath {
    #[module(flatten)]
    chance: Chance,
    scale_by_keep: bool,
}

impl DropPath {
    /// Drops each sample with probability `p`.
    pub fn new(p: f64) -> DropPath {
        DropPath { chance: Chance::new(p), scale_by_keep: true }
    }

    /// Whether the samples that are kept are divided by `1 − p`; they are by default.
    pub fn scale_by_keep(mut self, scale: bool) -> DropPath {
        self.scale_by_keep = scale;
        self
    }

    /// The input without the samples that were dropped.
    ///
    /// Poisoned where `p` is not a probability, and while training without a random key.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record("DropPath", || {
            let x = x.as_tensor().live()?;
            let shape = whole(x, 1);
            if self.scale_by_keep {
                return self.chance.drop(x, &shape);
            }
            Ok(match self.chance.draw(&shape)? {
                Fate::Stay => x.clone(),
                Fate::Vanish => x * 0.0,
                Fate::Keep(kept) => kept.select(x, &x.zeros_like()),
            })
        })
    }
}
