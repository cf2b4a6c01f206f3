//! [`SpectralNorm`]: a layer whose weight is divided by its largest singular value.

use std::fmt;

use fulmen_tensor::internal::global_norm;
use fulmen_tensor::{AsTensor, DType, Refusal, Scope, Tensor, random};

use super::{
    Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d, Embedding, Linear,
};
use crate::library::NN;
use crate::precision::precision;
use crate::{Buffer, Forward, Module, Parameter, TrainingMode, Visit};

/// A layer with one weight `[out, …]`, or an embedding `[rows, width]`, that [`SpectralNorm`] can
/// normalize.
pub trait Weighted: Forward + Clone {
    /// The parameter `weight`.
    fn weight(&self) -> &Parameter;

    /// The same layer with a different weight of the same type.
    #[must_use]
    fn with_weight(&self, weight: Parameter) -> Self;

    /// The output axis of the weight: 0 except for transposed convolutions.
    fn out_axis(&self) -> usize {
        0
    }
}

macro_rules! weighted {
    ($($layer:ty: $axis:literal),*) => {$(
        impl Weighted for $layer {
            fn weight(&self) -> &Parameter {
                &self.weight
            }
            fn with_weight(&self, weight: Parameter) -> $layer {
                let mut layer = self.clone();
                layer.weight = weight;
                layer
            }
            fn out_axis(&self) -> usize {
                $axis
            }
        }
    )*};
}
weighted!(Linear: 0, Embedding: 0, Conv1d: 0, Conv2d: 0, Conv3d: 0);
weighted!(ConvTranspose1d: 1, ConvTranspose2d: 1, ConvTranspose3d: 1);

/// A layer whose weight is divided by an estimate of its largest singular value, which bounds the
/// layer's Lipschitz constant by 1 (Miyato et al. 2018, "Spectral Normalization for Generative
/// Adversarial Networks"). Like PyTorch's `nn.utils.spectral_norm`.
///
/// The weight counts as a matrix `[out, rest]`. In training mode, each call makes one step of power
/// iteration, `v = normalize(Wᵀu)`, `u = normalize(W v)`; evaluation mode keeps `u` and `v`. The
/// gradient flows through `u·W v` with both fixed.
///
/// Parameters and buffers have PyTorch's names: `weight_orig`, `weight_u` and `weight_v` next to
/// the layer's others. [`parametrization_names`](SpectralNorm::parametrization_names) switches to
/// those of `nn.utils.parametrizations.spectral_norm`. `u` and `v` start with fixed random numbers,
/// so evaluation is meaningful only after some training steps.
///
/// ```
/// use fulmen_nn::{Linear, Module, SpectralNorm};
/// use fulmen_tensor::{DType, Tensor};
///
/// let layer = SpectralNorm::new(Linear::new(8, 4)).n_power_iterations(20);
/// layer.initialize(0);
/// let names: Vec<String> = layer.state().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["weight_orig", "bias", "weight_u", "weight_v"]);
///
/// let zero = Tensor::zeros(DType::F32, [1, 8]);
/// let unit = layer.weight();
/// assert_eq!(layer.forward(&zero).shape().dims(), [1, 4]);
/// assert_eq!(unit.shape().dims(), [4, 8]);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct SpectralNorm<L> {
    layer: L,
    u: Buffer,
    v: Buffer,
    steps: usize,
    eps: f64,
    mode: TrainingMode,
    names: [&'static str; 3],
}

impl<L: Weighted> SpectralNorm<L> {
    /// One step of power iteration in each call, `eps` 1e-12.
    #[track_caller]
    pub fn new(layer: L) -> SpectralNorm<L> {
        let _scope = NN.open();
        let ty = layer.weight().ty();
        let out = ty.shape.get(layer.out_axis()).copied().unwrap_or(1);
        let rest = ty.shape.num_elements().checked_div(out).unwrap_or(0);
        let key = random::key(0);
        let u = random::normal(&key, DType::F32, [out]);
        let v = random::normal(&random::fold_in(&key, 1), DType::F32, [rest]);
        let u = Buffer::new(normalize(&u, 1e-12));
        let v = Buffer::new(normalize(&v, 1e-12));
        let names = ["weight_orig", "weight_u", "weight_v"];
        SpectralNorm { layer, u, v, steps: 1, eps: 1e-12, mode: TrainingMode::new(), names }
    }

    /// The steps of power iteration in each call, in training mode.
    pub fn n_power_iterations(mut self, steps: usize) -> SpectralNorm<L> {
        self.steps = steps;
        self
    }

    /// The lower bound of norms that are divisors.
    pub fn eps(mut self, eps: f64) -> SpectralNorm<L> {
        self.eps = eps;
        self
    }

    /// Uses the names that `torch.nn.utils.parametrizations.spectral_norm` gives in a state dict.
    pub fn parametrization_names(mut self) -> SpectralNorm<L> {
        self.names = [
            "parametrizations.weight.original",
            "parametrizations.weight.0._u",
            "parametrizations.weight.0._v",
        ];
        self
    }

    /// The layer, with the trained weight.
    pub fn layer(&self) -> &L {
        &self.layer
    }

    /// The normalized weight. In training mode, this makes a step of power iteration, like
    /// [`forward`](SpectralNorm::forward).
    #[track_caller]
    pub fn weight(&self) -> Tensor {
        NN.record("SpectralNorm", || self.normalize(self.layer.weight().get().live()?))
    }

    fn normalize(&self, weight: &Tensor) -> Result<Tensor, Refusal> {
        let axis = self.layer.out_axis();
        let ty = weight.ty();
        let wide = weight.to_dtype(precision(weight.dtype()));
        let mut order: Vec<isize> =
            (0..ty.shape.rank() as isize).filter(|&a| a != axis as isize).collect();
        order.insert(0, axis as isize);
        let out = self.u.ty().shape[0];
        let rest = self.v.ty().shape[0];
        let matrix = wide.permute(&order).reshape([out, rest]);
        let mut u = self.u.get().to_dtype(wide.dtype());
        let mut v = self.v.get().to_dtype(wide.dtype());
        if self.mode.is_training() {
            let fixed = matrix.detach();
            for _ in 0..self.steps {
                // Sums instead of products: f32-exact on every device.
                v = normalize(&(&fixed * u.unsqueeze(1)).sum(0), self.eps);
                u = normalize(&(&fixed * v.unsqueeze(0)).sum(1), self.eps);
            }
            self.u.set(u.to_dtype(self.u.ty().dtype));
            self.v.set(v.to_dtype(self.v.ty().dtype));
        }
        let largest = (matrix * u.detach().unsqueeze(1) * v.detach().unsqueeze(0)).sum_all();
        Ok((wide / largest).to_dtype(ty.dtype))
    }

    /// Applies the layer with the normalized weight.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record("SpectralNorm", || {
            let x = x.as_tensor().live()?;
            let weight = self.weight();
            weight.live()?;
            let _user = Scope::leave();
            Ok(self.layer.with_weight(Parameter::from_tensor(weight)).forward(x))
        })
    }
}

/// `x/max(|x|, eps)`.
fn normalize(x: &Tensor, eps: f64) -> Tensor {
    x / global_norm(std::slice::from_ref(x)).maximum(eps)
}

impl<L: Module> Module for SpectralNorm<L> {
    fn visit(&self, visit: &mut Visit<'_>) {
        visit.flatten_renamed(&self.layer, "weight", self.names[0]);
        visit.child(self.names[1], &self.u);
        visit.child(self.names[2], &self.v);
        visit.flatten(&self.mode);
    }
}

impl<L: fmt::Display> fmt::Display for SpectralNorm<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpectralNorm({})", self.layer)
    }
}

impl<L: Weighted> Forward for SpectralNorm<L> {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        SpectralNorm::forward(self, x)
    }
}
