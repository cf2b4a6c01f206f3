//! The integration tests of the crate, in one binary, since linking dominates the build time of a
//! test.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod autocast;
mod child_process;
mod compile_cache;
mod control_flow;
mod control_flow_faults;
mod convolutions;
mod deep;
mod evals;
mod faults;
mod fold_in;
mod gamma;
mod gather;
mod gradient_flow;
mod index_checks;
mod kept_answers;
mod large_norms;
#[path = "../../../pjrt/tests/it/common/libtpu.rs"]
mod libtpu;
mod lines;
mod many_devices;
mod no_devices;
mod notes;
mod operations;
mod passes;
mod precision;
mod printing;
mod programs;
mod promotion;
mod recomputed_values;
mod shape_rules;
mod sharded_programs;
mod sharding;
mod stored_values;
mod test_programs;
mod transformer;
mod trees;
