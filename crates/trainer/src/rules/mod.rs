//! What a step computes besides the user's step and the optimizer's, one rule a file: accumulation of gradients, clipping,
//! averages of weights, and the count of batches that they share.

pub(crate) mod accumulate;
pub(crate) mod averaging;
pub(crate) mod clip;
pub(crate) mod epoch;
