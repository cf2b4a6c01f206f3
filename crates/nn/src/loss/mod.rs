//! Losses: what a model is trained to make small. A file a family; PyTorch's names, defaults and reductions.
//!
//! A loss is a function ([`cross_entropy`]) and, where there is something to set, a struct of settings
//! ([`CrossEntropyLoss`]), which may stand in a module's fields. 16-bit floats are computed with as f32, and the loss is
//! f32 then. Tensors that must agree in shape are never broadcast to each other: that is seldom meant.
//!
//! # Padding
//!
//! With [`Reduction::None`] there is one loss an element, and the caller takes the mean of those that count: in a training
//! step with `batch.mean(&losses)`, or with [`masked_mean`] for another mask, over the tokens of a batch, say. What is masked adds nothing to the loss or to the gradient.

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
mod margin;
mod mask;
mod reduction;

pub use binary::{
    BceLoss, BceWithLogitsLoss, SigmoidFocalLoss, binary_cross_entropy, binary_cross_entropy_with_logits,
    sigmoid_focal_loss,
};
pub use cosine::{CosineEmbeddingLoss, cosine_embedding_loss, cosine_similarity};
pub use cross_entropy::{CrossEntropyLoss, NllLoss, cross_entropy, nll_loss};
pub use ctc::{CtcLoss, ctc_loss};
pub use distance::{HuberLoss, SmoothL1Loss, huber_loss, l1_loss, mse_loss, smooth_l1_loss};
pub use gan::GanLoss;
pub use kl_div::{KlDivLoss, kl_div};
pub use likelihood::{GaussianNllLoss, PoissonNllLoss, gaussian_nll_loss, poisson_nll_loss};
pub use margin::{
    HingeEmbeddingLoss, MarginRankingLoss, TripletMarginLoss, hinge_embedding_loss, margin_ranking_loss,
    triplet_margin_loss,
};
pub use mask::masked_mean;
pub use reduction::Reduction;

/// Losses have no parameters, so they may stand in a module's fields as settings do.
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
    GanLoss,
    GaussianNllLoss,
    HingeEmbeddingLoss,
    HuberLoss,
    KlDivLoss,
    MarginRankingLoss,
    NllLoss,
    PoissonNllLoss,
    SigmoidFocalLoss,
    SmoothL1Loss,
    TripletMarginLoss,
);
