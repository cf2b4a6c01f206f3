//! [`ConditionalBatchNorm2d`]: batch normalization whose weight and bias depend on a class.

use std::fmt;

use fulmen_tensor::{AsTensor, Tensor};

use super::batch_norm::Norm;
use super::running_stats::RunningStats;
use crate::library::{NN, live};
use crate::{Embedding, Init, Module, Parameter, TrainingMode};

/// Normalizes each channel of images `[batch, channels, height, width]` by the statistics of the
/// batch, like [`BatchNorm2d`](crate::BatchNorm2d), and then scales and shifts it by numbers from a
/// table with a row for each class. Used in the generators of class-conditional GANs.
///
/// This is the form of Miyato and Koyama, "cGANs with Projection Discriminator" (2018), after
/// Dumoulin et al., "A Learned Representation for Artistic Style" (2017): `gammas[class]·(x −
/// mean)/√(var + eps) + betas[class]`, with two tables `[classes, channels]`, initially ones and
/// zeros. SAGAN uses it too. BigGAN computes both from a shared embedding by linear layers, and
/// adds 1 to the first.
///
/// ```
/// use fulmen_nn::{ConditionalBatchNorm2d, Module};
/// use fulmen_tensor::{DType, Tensor};
///
/// let bn = ConditionalBatchNorm2d::new(64, 10);
/// bn.initialize(0);
/// assert_eq!(bn.parameters()[0].0, "gammas.weight");
/// let y = bn.forward(&Tensor::zeros(DType::F32, [8, 64, 4, 4]), &Tensor::zeros(DType::I32, [8]));
/// assert_eq!(y.ty().to_string(), "f32[8, 64, 4, 4]");
/// ```
#[derive(Clone, Debug, Module)]
#[must_use]
pub struct ConditionalBatchNorm2d {
    /// The scales of each class, `[classes, channels]`; initially ones.
    pub gammas: Embedding,
    /// The shifts of each class, `[classes, channels]`; initially zeros.
    pub betas: Embedding,
    #[module(flatten)]
    running: RunningStats,
    features: usize,
    eps: f64,
    momentum: Option<f64>,
    mode: TrainingMode,
}

impl ConditionalBatchNorm2d {
    /// `eps` 1e-5, `momentum` 0.1.
    #[track_caller]
    pub fn new(features: usize, num_classes: usize) -> ConditionalBatchNorm2d {
        let _scope = NN.open();
        let mut gammas = Embedding::new(num_classes, features);
        let mut betas = Embedding::new(num_classes, features);
        gammas.weight = Parameter::new([num_classes, features], Init::ones());
        betas.weight = Parameter::new([num_classes, features], Init::zeros());
        let running = RunningStats::new(features);
        let mode = TrainingMode::new();
        ConditionalBatchNorm2d {
            gammas,
            betas,
            running,
            features,
            eps: 1e-5,
            momentum: Some(0.1),
            mode,
        }
    }

    /// The constant added to the variance.
    pub fn eps(mut self, eps: f64) -> ConditionalBatchNorm2d {
        self.eps = eps;
        self
    }

    /// The weight of the newest batch in the running statistics; with `None` they are the means
    /// over all batches.
    pub fn momentum(mut self, momentum: impl Into<Option<f64>>) -> ConditionalBatchNorm2d {
        self.momentum = momentum.into();
        self
    }

    /// The input `[batch, channels, height, width]`, normalized, with the scales and shifts of the
    /// integer `classes` `[batch]`. A class outside the table gives NaN.
    ///
    /// Poisoned if the input and the classes do not fit each other or the layer, and, in training
    /// mode, if a channel has a single value.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor, classes: impl AsTensor) -> Tensor {
        NN.record(self, || {
            let x = x.as_tensor();
            let classes = classes.as_tensor();
            live(&[x, classes])?;
            let norm = Norm {
                running: Some(&self.running),
                features: self.features,
                eps: self.eps,
                momentum: self.momentum,
                training: self.mode.is_training(),
                spatial: 2,
            };
            norm.check(x)?;
            if classes.shape().dims() != [x.size(0)] || !classes.dtype().is_integer() {
                let classes = classes.ty();
                let x = x.ty();
                return Err(format!(
                    "the classes {classes} must be one integer for each sample of {x}"
                )
                .into());
            }
            let shape = [x.size(0), self.features, 1, 1];
            let gamma = self.gammas.forward(classes).reshape(shape);
            let beta = self.betas.forward(classes).reshape(shape);
            Ok(norm.apply(x, Some(&gamma), Some(&beta)))
        })
    }
}

impl fmt::Display for ConditionalBatchNorm2d {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConditionalBatchNorm2d({})", self.features)
    }
}
