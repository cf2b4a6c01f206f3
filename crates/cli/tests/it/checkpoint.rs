//! `fulmen checkpoint`: shown, verified, merged and compared.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use fulmen_checkpoint::{CheckpointWriter, Dtype, LocalStore, Part, Rectangle, Run};

/// Runs the program, and gives whether it succeeded and what it said.
fn fulmen(arguments: &[&str], paths: &[&Path]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fulmen"));
    let output = command.arg("checkpoint").args(arguments).args(paths).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// A checkpoint of a weight in two parts and of an optimizer's state.
fn write(folder: &Path, step: u64, last: f32) {
    let writer = CheckpointWriter::new(Arc::new(LocalStore::new(folder)), &format!("step_{step}")).unwrap();
    let halves = [0, 2].map(|start| Part::slice("w", Dtype::F32, [4], Rectangle::new([start], [2])));
    let state = Part::whole("optimizer/exp_avg/w", Dtype::F32, [4]);
    let [first, second] = halves;
    let mut shards = vec![];
    for (file, parts) in [("a.safetensors", vec![first, state]), ("b.safetensors", vec![second])] {
        let mut shard = writer.shard(file, parts).unwrap();
        while let Some(part) = shard.next_part() {
            let (count, second) = (part.bytes() / 4, part.rectangle().offset == [2]);
            let values = (0..count).map(|i| if second && i + 1 == count { last } else { i as f32 });
            let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
            shard.write(&bytes).unwrap();
        }
        shards.push(shard.commit().unwrap());
    }
    writer.commit(Run { step, mesh: vec![("data".into(), 2)], ..Run::default() }, shards).unwrap();
}

#[test]
fn the_program_shows_verifies_merges_and_compares_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("step_1"), folder.path().join("step_2"));
    write(folder.path(), 1, 8.0);
    write(folder.path(), 2, 8.5);

    let (done, text) = fulmen(&["show"], &[&first]);
    assert!(
        done && text.contains("step 1") && text.contains("w: F32 [4], 2 parts") && text.contains("data=2"),
        "{text}"
    );
    let (done, text) = fulmen(&["show"], &[folder.path()]);
    assert!(done && text.find("step_2") < text.find("step_1"), "{text}");

    let (done, text) = fulmen(&["diff"], &[&first, &second]);
    assert!(
        !done && text.contains("step: 1 and 2") && text.contains("w: 1 of 4 elements differ, by at most 5e-1"),
        "{text}"
    );
    let (done, text) = fulmen(&["diff"], &[&first, &first]);
    assert!(done && text.contains("no differences"), "{text}");

    let merged = folder.path().join("merged");
    let (done, text) = fulmen(&["merge", "--weights-only"], &[&first, &merged]);
    assert!(done, "{text}");
    let bytes = fs::read(merged.join("model.safetensors")).unwrap();
    let values: Vec<u8> = [0.0f32, 1.0, 0.0, 8.0].into_iter().flat_map(f32::to_le_bytes).collect();
    assert!(bytes.ends_with(&values) && !String::from_utf8_lossy(&bytes).contains("optimizer"));

    let (done, text) = fulmen(&["verify"], &[&first]);
    assert!(done, "{text}");
    let shard = first.join("b.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();
    let (done, text) = fulmen(&["verify"], &[&first]);
    assert!(!done && text.contains("b.safetensors") && text.contains("tensor `w`"), "{text}");
}
