//! Random bytes as an IDX file: nothing may panic, hang, or take memory for what is only claimed.

#![no_main]

use libfuzzer_sys::fuzz_target;

mod memory;

fuzz_target!(|bytes: &[u8]| memory::bounded(bytes, fulmen_data::fuzzing::idx));
