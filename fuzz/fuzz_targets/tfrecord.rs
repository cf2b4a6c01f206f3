//! Random bytes as a TFRecord file, as records in one, and as a `tf.train.Example`: nothing may
//! panic, hang, or take memory for what is only claimed.

#![no_main]

use libfuzzer_sys::fuzz_target;

mod memory;

fuzz_target!(|bytes: &[u8]| memory::bounded(bytes, fulmen_shards::fuzzing::tfrecord));
