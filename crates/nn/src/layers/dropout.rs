//! Dropout: random zeros in training mode. [`Dropout`] drops elements, [`Dropout1d`] and its
//! variants drop channels, [`DropPath`] drops samples, and [`AlphaDropout`] preserves mean and
//! variance.
//!
//! The Trainer gives these layers a new random key in each step; outside of it, call
//! [`Module::set_random_key`](crate::Module::set_random_key). After
//! [`Module::eval`](crate::Module::eval) they return their input.

use fulmen_tensor::{AsTensor, Refusal, Tensor, Tree, random};

use crate::activation::{SELU_ALPHA, SELU_SCALE};
use crate::library::NN;
use crate::precision::wide;
use crate::{Module, RandomStream, TrainingMode};

/// The common part of all dropouts: a probability, the mode, the random numbers.
#[derive(Clone, Debug, Module)]
struct DropoutState {
    p: f64,
    mode: TrainingMode,
    random: RandomStream,
}

/// Which elements a dropout keeps, drawn only where they are used.
#[derive(Clone, Debug, Tree)]
pub(crate) struct Draw {
    /// The key of the draw.
    pub(crate) key: Tensor,
    /// The probability of dropping an element.
    #[tree(skip)]
    pub(crate) p: f64,
}

/// What to do with an input.
enum DropoutMask {
    /// Return it unchanged, also if it is poisoned.
    KeepAll,
    /// Drop everything.
    DropAll,
    /// Keep the elements that are true.
    Keep(Tensor),
}

impl DropoutState {
    fn new(p: f64) -> DropoutState {
        DropoutState { p, mode: TrainingMode::new(), random: RandomStream::new() }
    }

    /// Draws which elements of `x` to keep, one for each element of `shape`, which broadcasts to
    /// the shape of `x`.
    fn draw(&self, shape: &[usize]) -> Result<DropoutMask, Refusal> {
        Ok(match self.start_draw()? {
            None => DropoutMask::KeepAll,
            Some(Draw { p: 1.0, .. }) => DropoutMask::DropAll,
            Some(Draw { key, p }) => DropoutMask::Keep(random::bernoulli(&key, 1.0 - p, shape)),
        })
    }

    /// The next draw; `None` if it keeps all elements.
    fn start_draw(&self) -> Result<Option<Draw>, Refusal> {
        if !(0.0..=1.0).contains(&self.p) {
            return Err(
                format!("the probability must be between 0 and 1, but it is {}", self.p).into()
            );
        }
        if !self.is_active() {
            return Ok(None);
        }
        // No number decides if everything is dropped.
        let key = if self.p == 1.0 { random::key(0) } else { self.random.next_key() };
        Ok(Some(Draw { key, p: self.p }))
    }

    fn is_active(&self) -> bool {
        self.mode.is_training() && self.p != 0.0
    }

    /// Drops elements as drawn for `shape`, and divides the rest by `1 − p`.
    fn drop(&self, x: &Tensor, shape: &[usize]) -> Result<Tensor, Refusal> {
        Ok(match self.draw(shape)? {
            DropoutMask::KeepAll => x.clone(),
            DropoutMask::DropAll => x * 0.0,
            DropoutMask::Keep(mask) => mask.select(&(x / (1.0 - self.p)), &x.zeros_like()),
        })
    }
}

/// The first `outer` axes unchanged, the others with size 1.
fn outer_shape(x: &Tensor, outer: usize) -> Vec<usize> {
    x.shape().iter().enumerate().map(|(axis, &size)| if axis < outer { size } else { 1 }).collect()
}

/// In training mode, each element becomes 0 with probability `p` and is otherwise divided by `1 −
/// p`. In evaluation mode, the input is returned unchanged. Like PyTorch's `nn.Dropout`.
///
/// The Trainer sets a new random key in each step; outside of it, call [`Module::set_random_key`].
///
/// ```
/// use fulmen_nn::{Dropout, Module};
/// use fulmen_tensor::{DType, Tensor, random};
///
/// let dropout = Dropout::new(0.5);
/// let x = Tensor::ones(DType::F32, [1000]);
/// dropout.set_random_key(&random::key(0));
/// let kept = dropout.forward(&x).eval()?.to_vec::<f32>()?.into_iter().filter(|&y| y == 2.0).count();
/// assert!((400..600).contains(&kept));
///
/// dropout.eval();
/// assert!(dropout.forward(&x).is(&x));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
pub struct Dropout(#[module(flatten)] DropoutState);

impl Dropout {
    /// Drops each element with probability `p`.
    pub fn new(p: f64) -> Dropout {
        Dropout(DropoutState::new(p))
    }

    /// Applies the dropout.
    ///
    /// Poisoned if `p` is not a probability, or if there is no random key in training mode.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record("Dropout", || {
            let x = x.as_tensor().live()?;
            self.0.drop(x, x.shape())
        })
    }

    /// Whether it drops elements: in training mode, if `p` is not 0.
    ///
    /// ```
    /// use fulmen_nn::{Dropout, Module};
    ///
    /// let dropout = Dropout::new(0.1);
    /// assert!(dropout.is_active() && !Dropout::new(0.0).is_active());
    /// dropout.eval();
    /// assert!(!dropout.is_active());
    /// ```
    pub fn is_active(&self) -> bool {
        self.0.is_active()
    }

    /// The draw that [`forward`](Dropout::forward) would make; `None` if it keeps all elements.
    pub(crate) fn start_draw(&self) -> Result<Option<Draw>, Refusal> {
        self.0.start_draw()
    }
}

macro_rules! channels {
    ($($(#[$doc:meta])* $name:ident, $layouts:literal, |$rank:ident| $outer:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[must_use]
        pub struct $name(#[module(flatten)] DropoutState);

        impl $name {
            /// Drops each channel with probability `p`.
            pub fn new(p: f64) -> $name {
                $name(DropoutState::new(p))
            }

            /// Applies the dropout.
            ///
            /// Poisoned if the input has a different number of axes, if `p` is not a probability,
            /// or if there is no random key in training mode.
            #[track_caller]
            pub fn forward(&self, x: impl AsTensor) -> Tensor {
                NN.record(stringify!($name), || {
                let x = x.as_tensor().live()?;
                let $rank = x.rank();
                match $outer {
                    Some(outer) => self.0.drop(x, &outer_shape(x, outer)),
                    None => Err(format!("the input {} is not {}", x.ty(), $layouts).into()),
                }
                })
            }
        }
    )*};
}

channels! {
    /// In training mode, each channel of `[batch, channels, length]` or `[channels, length]`
    /// becomes 0 with probability `p` and is otherwise divided by `1 − p`. Like PyTorch's
    /// `nn.Dropout1d`.
    Dropout1d, "[batch, channels, length] or [channels, length]",
        |rank| match rank { 2 => Some(1), 3 => Some(2), _ => None };

    /// In training mode, each channel of `[batch, channels, height, width]` becomes 0 with
    /// probability `p` and is otherwise divided by `1 − p`. Like PyTorch's `nn.Dropout2d`, which
    /// treats three axes as `[batch, channels, length]`.
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

    /// In training mode, each channel of `[batch, channels, depth, height, width]`, or of one such
    /// sample without its batch axis, becomes 0 with probability `p` and is otherwise divided by `1
    /// − p`. Like PyTorch's `nn.Dropout3d`.
    Dropout3d, "[batch, channels, depth, height, width] or [channels, depth, height, width]",
        |rank| match rank { 4 => Some(1), 5 => Some(2), _ => None };
}

/// Dropout that preserves mean 0 and variance 1, for networks with
/// [`selu`](crate::activation::selu): a dropped element becomes SELU's limit at −∞, and then all
/// elements are scaled and shifted. Like PyTorch's `nn.AlphaDropout`.
///
/// With `d = −scale·alpha` of SELU: `a·x + b` where kept, `a·d + b` where dropped,
/// `a = ((1 − p)(1 + p·d²))^−½`, `b = −a·p·d`.
///
/// ```
/// use fulmen_nn::{AlphaDropout, Module};
/// use fulmen_tensor::{DType, Tensor, random};
///
/// let dropout = AlphaDropout::new(0.3);
/// dropout.set_random_key(&random::key(0));
/// let x = random::normal(&random::key(1), DType::F32, [10_000]);
/// let y = dropout.forward(&x);
/// let mean = y.mean_all().eval()?.to_f64()[0];
/// let var = y.var(0).eval()?.to_f64()[0];
/// assert!(mean.abs() < 0.05 && (var - 1.0).abs() < 0.05);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
pub struct AlphaDropout(#[module(flatten)] DropoutState);

impl AlphaDropout {
    /// Drops each element with probability `p`.
    pub fn new(p: f64) -> AlphaDropout {
        AlphaDropout(DropoutState::new(p))
    }

    /// Applies the dropout.
    ///
    /// Poisoned if `p` is not a probability, or if there is no random key in training mode.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record("AlphaDropout", || {
            let x = x.as_tensor().live()?;
            let mask = match self.0.draw(x.shape())? {
                DropoutMask::KeepAll => return Ok(x.clone()),
                DropoutMask::DropAll => return Ok(x * 0.0),
                DropoutMask::Keep(mask) => mask,
            };
            let p = self.0.p;
            let dropped = -SELU_SCALE * SELU_ALPHA;
            let a = ((1.0 - p) * (1.0 + p * dropped * dropped)).sqrt().recip();
            let b = -a * p * dropped;
            let wide = wide(x);
            let replaced = Tensor::full(wide.dtype(), [], a * dropped + b);
            Ok(mask.select(&(&wide * a + b), &replaced).to_dtype(x.dtype()))
        })
    }
}

/// Stochastic depth: in training mode, each sample (an index of the first axis) becomes 0 with
/// probability `p` and is otherwise divided by `1 − p`. Use it on the branch of a residual block,
/// so that the block is skipped. Like timm's `DropPath`.
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
#[must_use]
pub struct DropPath {
    #[module(flatten)]
    chance: DropoutState,
    scale_by_keep: bool,
}

impl DropPath {
    /// Drops each sample with probability `p`.
    pub fn new(p: f64) -> DropPath {
        DropPath { chance: DropoutState::new(p), scale_by_keep: true }
    }

    /// Whether to divide the remaining samples by `1 − p`; true by default.
    pub fn scale_by_keep(mut self, scale: bool) -> DropPath {
        self.scale_by_keep = scale;
        self
    }

    /// Applies the dropout.
    ///
    /// Poisoned if `p` is not a probability, or if there is no random key in training mode.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record("DropPath", || {
            let x = x.as_tensor().live()?;
            let shape = outer_shape(x, 1);
            if self.scale_by_keep {
                return self.chance.drop(x, &shape);
            }
            Ok(match self.chance.draw(&shape)? {
                DropoutMask::KeepAll => x.clone(),
                DropoutMask::DropAll => x * 0.0,
                DropoutMask::Keep(mask) => mask.select(x, &x.zeros_like()),
            })
        })
    }
}
