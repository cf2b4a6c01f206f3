//! Manifests and Arrow files of caches, of any bytes and of sound ones that were damaged: nothing
//! may panic, allocate what a header merely claims, or give a column outside the file.

#![no_main]

use std::sync::OnceLock;

use fulmen_cache::{CacheExt, cache_info};
use fulmen_data::{DType, Dataset, Field, Fingerprint, Result, Sample};
use libfuzzer_sys::{Corpus, fuzz_target};

mod memory;

/// Fields of each kind that Arrow has for them.
struct Small;

impl Dataset for Small {
    fn len(&self) -> usize {
        5
    }
    fn fields(&self) -> Vec<Field> {
        vec![
            Field::new("image", DType::U8, [3, 2]),
            Field::new("label", DType::I32, []),
            Field::new("half", DType::Bf16, [2]),
        ]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        sample.write(0, &[index as u8; 6])?;
        sample.write_value(1, index as i32)?;
        sample.write(2, &[0; 4])
    }
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("small", "1");
        Ok(())
    }
}

/// The manifest and the first part of a sound cache.
fn sound() -> &'static (Vec<u8>, Vec<u8>) {
    static SOUND: OnceLock<(Vec<u8>, Vec<u8>)> = OnceLock::new();
    SOUND.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("fulmen-fuzz-cache-{}", std::process::id()));
        let made = Small.cache(&folder).variants(2).part_bytes(40).open().expect("a cache");
        let read = |name: &str| std::fs::read(made.path().join(name)).expect("a file of the cache");
        let sound = (read("cache.json"), read("part-00000.arrow"));
        assert_eq!(cache_info(&folder).expect("the cache").len(), 1);
        std::fs::remove_dir_all(&folder).expect("removing the cache");
        sound
    })
}

/// Changes bytes at places: three bytes of `changes` each.
fn damage(bytes: &[u8], changes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for change in changes.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
        match bytes.len() {
            length if at < length => bytes[at] = change[2],
            // Or cuts the end off.
            length => bytes.truncate(length - length.min(usize::from(change[2]))),
        }
    }
    bytes
}

fuzz_target!(|input: &[u8]| -> Corpus {
    let (manifest, part) = sound();
    let Some((&kind, rest)) = input.split_first() else { return Corpus::Reject };
    let (manifest, part) = match kind % 6 {
        0 => (rest.to_vec(), part.clone()),
        1 => (damage(manifest, rest), part.clone()),
        2 => (manifest.clone(), rest.to_vec()),
        3 | 4 => (manifest.clone(), damage(part, rest)),
        // A footer of any bytes, with an end that fits it.
        _ => {
            let mut file = part[..part.len() / 2].to_vec();
            file.extend_from_slice(rest);
            file.extend_from_slice(&(rest.len() as u32).to_le_bytes());
            file.extend_from_slice(b"ARROW1");
            (manifest.clone(), file)
        }
    };
    memory::bounded(&part, |part| fulmen_cache::fuzz(&manifest, 0, part));
    Corpus::Keep
});
