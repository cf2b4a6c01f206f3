//! The time to compile a model whose equal layers are one `scan`.
//!
//! `scan` compares the scan with the same number of unrolled layers, in XLA's compilers alone.
//! `deep` compares the Trainer's whole step of a deep decoder with that of a few unrolled layers.

pub(crate) mod deep_decoder;
pub(crate) mod scan;
