//! [`Forward`], the interface of layers from tensor to tensor, and [`Sequential`], a list of them.

use std::fmt;
use std::panic::Location;

use fulmen_durable::messages::quantity;
use fulmen_tensor::{AsTensor, Scope, Tensor};

use crate::attention::{LearnedPositions, SinusoidalPositions};
use crate::layers::*;
use crate::library::NN;
use crate::{Module, Visit};

/// A module from one tensor to one tensor, for code that holds layers of different types. A layer's
/// own `forward` is the same.
pub trait Forward: Module {
    /// Applies the layer.
    fn forward(&self, x: &Tensor) -> Tensor;
}

impl<F: Forward + ?Sized> Forward for Box<F> {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        (**self).forward(x)
    }
}

/// Layers applied in order, named `0`, `1`, … Like PyTorch's `nn.Sequential`. Messages about a
/// layer of this crate show the line that added it.
///
/// ```
/// use fulmen_nn::{Flatten, Linear, Module, Relu, Sequential};
/// use fulmen_tensor::{DType, Tensor};
///
/// let model = Sequential::new().add(Flatten::new()).add(Linear::new(784, 64)).add(Relu::new()).add(Linear::new(64, 10));
/// model.initialize(0);
/// assert_eq!(model.parameters()[2].0, "3.weight");
/// assert_eq!(model.forward(Tensor::zeros(DType::F32, [8, 1, 28, 28])).ty().to_string(), "f32[8, 10]");
/// ```
#[derive(Default)]
#[must_use]
pub struct Sequential {
    layers: Vec<Box<dyn Forward + Send + Sync>>,
    /// The lines that added the layers.
    lines: Vec<&'static Location<'static>>,
}

impl Sequential {
    /// No layers: `forward` returns its input.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// Adds a layer at the end.
    #[track_caller]
    #[expect(
        clippy::should_implement_trait,
        reason = "a layer is added, as to a list, not a number"
    )]
    pub fn add(mut self, layer: impl Forward + Send + Sync + 'static) -> Sequential {
        self.layers.push(Box::new(layer));
        self.lines.push(Location::caller());
        self
    }

    /// The number of layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether there are no layers.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Applies all layers.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        let mut x = x.as_tensor().clone();
        for (layer, line) in self.layers.iter().zip(&self.lines) {
            let _scope = NN.at(line);
            let _user = Scope::leave();
            x = layer.forward(&x);
        }
        x
    }
}

/// Implements `Forward` for the layers whose `forward` takes one tensor and returns one.
/// `activations.rs` does this for activations.
macro_rules! forward {
    ($($layer:ident $(<$size:ident>)?,)*) => {$(
        impl $(<const $size: usize>)? Forward for $layer $(<$size>)? {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                <$layer $(<$size>)?>::forward(self, x)
            }
        }
    )*};
}

forward! {
    AlphaDropout,
    DropPath,
    Dropout,
    Dropout1d,
    Dropout2d,
    Dropout3d,
    Embedding,
    EmbeddingBag,
    Flatten,
    GroupNorm,
    LayerNorm,
    LearnedPositions,
    Linear,
    LocalResponseNorm,
    MixtureOfExperts,
    PixelShuffle,
    PixelUnshuffle,
    Prelu,
    RmsNorm,
    Rrelu,
    Sequential,
    SinusoidalPositions,
    Unflatten,
    Upsample,
    AdaptiveAvgPool<N>,
    AdaptiveMaxPool<N>,
    AvgPool<N>,
    BatchNorm<N>,
    CircularPad<N>,
    ConstantPad<N>,
    Conv<N>,
    ConvTranspose<N>,
    InstanceNorm<N>,
    MaxPool<N>,
    ReflectionPad<N>,
    ReplicationPad<N>,
    ZeroPad<N>,
}

impl Module for Sequential {
    fn visit(&self, visit: &mut Visit<'_>) {
        visit.flatten(&self.layers);
    }
}

impl fmt::Debug for Sequential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sequential({})", quantity(self.layers.len(), "layer"))
    }
}
