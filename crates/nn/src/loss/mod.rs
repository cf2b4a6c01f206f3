//! Losses, one file for each family, with PyTorch's names, defaults and reductions.
//!
//! A loss is a function ([`cross_entropy`]) and, if there are settings, a struct
//! ([`CrossEntropyLoss`]), which can be a field of a module. For 16-bit floats, the loss is
//! computed in f32 and has that dtype. Tensors that must have the same shape are never broadcast,
//! because that is rarely intended.
//!
//! # Padding
//!
//! With [`Reduction::None`] there is one loss for each element, and the caller takes the mean of
//! the relevant ones: in a training step with `batch.mean(&losses)`, or with [`masked_mean`] for
//! another mask, for example over the tokens of a batch. Masked elements do not affect the loss or
//! the gradient.
//!
//! # Weights
//!
//! A mean over the elements that count (an ignored target, a mask, weighted classes) brings its
//! weight, the number that its sum was divided by. So means over several batches join to the mean
//! over all their elements. For a mean of your own, call [`with_weight`].

mod binary;
mod check;
mod classes;
mod cosine;
mod cross_entropy;
mod ctc;
mod distance;
mod gan;
mod kl_div;
mod likelihood;
mod linear_cross_entropy;
mod load_balancing;
mod margin;
mod mask;
mod method;
mod preference;
mod reduction;

pub use binary::{
    BceLoss, BceWithLogitsLoss, SigmoidFocalLoss, binary_cross_entropy,
    binary_cross_entropy_with_logits, sigmoid_focal_loss,
};
pub use cosine::{CosineEmbeddingLoss, cosine_embedding_loss, cosine_similarity};
pub use cross_entropy::{CrossEntropyLoss, NllLoss, cross_entropy, nll_loss};
pub use ctc::{CtcLoss, ctc_loss};
pub use distance::{HuberLoss, SmoothL1Loss, huber_loss, l1_loss, mse_loss, smooth_l1_loss};
pub use gan::GanLoss;
pub use kl_div::{KlDivLoss, kl_div};
pub use likelihood::{GaussianNllLoss, PoissonNllLoss, gaussian_nll_loss, poisson_nll_loss};
pub use linear_cross_entropy::{LinearCrossEntropyLoss, linear_cross_entropy};
pub use load_balancing::load_balancing_loss;
pub use margin::{
    HingeEmbeddingLoss, MarginRankingLoss, TripletMarginLoss, hinge_embedding_loss,
    margin_ranking_loss, triplet_margin_loss,
};
pub use mask::{masked_mean, with_weight};
pub use method::LossMethod;
pub use preference::{DpoLoss, DpoLossType, DpoOutput, SequenceLogProbs};
pub use reduction::Reduction;

/// Losses have no parameters, so they can be fields of a module like other settings.
macro_rules! settings {
    ($($loss:ty),* $(,)?) => {$(
        impl crate::Module for $loss {
            fn visit(&self, _: &mut crate::Visit<'_>) {}
        }
    )*};
}
settings!(
    Reduction,
    BceLoss,
    BceWithLogitsLoss,
    CosineEmbeddingLoss,
    CrossEntropyLoss,
    CtcLoss,
    DpoLoss,
    GanLoss,
    GaussianNllLoss,
    HingeEmbeddingLoss,
    HuberLoss,
    KlDivLoss,
    LinearCrossEntropyLoss,
    MarginRankingLoss,
    NllLoss,
    PoissonNllLoss,
    SigmoidFocalLoss,
    SmoothL1Loss,
    TripletMarginLoss,
);
