//! The memory that a merge needs.

use std::fs;

use crate::{
    Checkpoint, CheckpointWriter, Dtype, MergeOptions, Part, Rectangle, Run, merge, verify,
};

use super::common::local;

/// The peak memory of this process in MB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1000
}

#[test]
#[ignore = "writes 4 GB; run it alone, since it measures the process"]
fn a_checkpoint_of_2_gb_is_written_verified_and_merged_within_300_mb() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    let writer = CheckpointWriter::new(store.clone(), "step_1").unwrap();
    let rows = 65_536u64;
    let columns = 8_192u64;
    let piece: Vec<u8> = (0..8u32 << 20).map(|i| i as u8).collect();
    let mut shards = Vec::new();
    for process in 0..8 {
        let rectangle = Rectangle::new([0, process * columns / 8], [rows, columns / 8]);
        let part = Part::slice("w", Dtype::F32, [rows, columns], rectangle);
        let mut shard = writer.shard(&format!("shard_{process}.safetensors"), vec![part]).unwrap();
        while shard.next_part().is_some() {
            shard.write(&piece).unwrap();
        }
        shards.push(shard.commit().unwrap());
    }
    writer.commit(Run::default(), shards).unwrap();
    let checkpoint = Checkpoint::open(store.clone(), "step_1").unwrap();
    assert!(checkpoint.manifest().bytes() > 2_000_000_000);
    assert!(verify(&checkpoint).is_empty());
    merge(&checkpoint, &*store, "merged", &MergeOptions::default()).unwrap();
    assert!(
        fs::metadata(folder.path().join("merged/model.safetensors")).unwrap().len() > 2_000_000_000
    );
    let peak = peak();
    println!("{peak} MB");
    assert!(peak <= 300, "{peak} MB");
}
