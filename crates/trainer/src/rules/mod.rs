//! What a step computes beside the user's step and the optimizer's, each rule by itself: accumulation of gradients, clipping,
//! averages of weights, and the count of batches that they share.

pub(crate) mod accumulate;
pub(crate) mod averaging;
pub(crate) mod clip;
pub(crate) mod epoch;
