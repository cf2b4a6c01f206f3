//! Random bytes as a tar file, as they are and with right checksums in what looks like headers:
//! nothing may panic, hang, or take memory for what is only claimed.

#![no_main]

use libfuzzer_sys::fuzz_target;

mod memory;

/// Gives each block that is marked as a header the right checksum, without which it would be
/// refused at once.
fn repaired(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for block in bytes.chunks_exact_mut(512).filter(|block| &block[257..262] == b"ustar") {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    bytes
}

fuzz_target!(|bytes: &[u8]| {
    memory::bounded(bytes, fulmen_shards::fuzzing::tar);
    let repaired = repaired(bytes);
    if repaired != bytes {
        memory::bounded(&repaired, fulmen_shards::fuzzing::tar);
    }
});
