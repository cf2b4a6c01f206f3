//! The integration tests of the crate, in one binary: linking is most of what a test costs to
//! build.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod attention_blocks;
mod augment;
mod common;
mod dropout;
mod experts;
mod far_means;
mod generation;
mod layers;
mod linear_cross_entropy;
mod losses;
mod metrics;
mod mixed_precision;
mod modules;
mod optimizers;
mod reference_activations;
mod reference_attention;
mod reference_autocast;
mod reference_half;
mod reference_initial_values;
mod reference_layers;
mod reference_losses;
mod reference_metrics;
mod reference_norms;
mod reference_optimizers;
mod reference_recurrent;
mod reference_schedules;
mod reference_spatial;
mod reference_transformer;
mod stablehlo;
mod state_dict;
mod tying;
mod weights;
