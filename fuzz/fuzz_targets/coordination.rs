//! Random bytes at the coordinator's port, as a handshake, and as the frames and the requests of
//! processes that have passed it: nothing may panic, hang, or take memory for what is only claimed, and nobody is
//! let in.

#![no_main]

use libfuzzer_sys::fuzz_target;

mod memory;

fuzz_target!(|bytes: &[u8]| {
    memory::bounded(bytes, fulmen_coordination::fuzzing::handshake);
    memory::bounded(bytes, fulmen_coordination::fuzzing::frames);
    memory::bounded(bytes, fulmen_coordination::fuzzing::requests);
});
