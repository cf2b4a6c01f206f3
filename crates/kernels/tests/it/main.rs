//! The kernels against formulas of plain operations, planted mistakes, and libtpu.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

mod attention;
mod compiled;
mod language;
mod linear_cross_entropy;
mod random_case;
mod rms_norm;

#[path = "../../../pjrt/tests/it/common/libtpu.rs"]
mod libtpu;

#[path = "../../../tensor/tests/it/kept_answers.rs"]
mod kept_answers;
