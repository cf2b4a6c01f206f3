//! `fulmen checkpoint`: showing, verifying, merging and comparing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use fulmen_checkpoint::{CheckpointWriter, Dtype, LocalStore, Part, Rectangle, Run};
use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::optim::Adam;
use fulmen_nn::weights::{Strictness, load_weights};
use fulmen_nn::{Linear, Module};
use fulmen_tensor::Accelerator;
use fulmen_trainer::callbacks::ModelCheckpoint;
use fulmen_trainer::{Trainer, TrainingFn};

/// Runs the program; returns whether it succeeded, and its output.
fn fulmen(arguments: &[&str], paths: &[&Path]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fulmen"));
    let output = command.arg("checkpoint").args(arguments).args(paths).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// A checkpoint with a weight in two parts and an optimizer's state.
fn write(folder: &Path, step: u64, last: f32) {
    let writer =
        CheckpointWriter::new(Arc::new(LocalStore::new(folder)), &format!("step_{step}")).unwrap();
    let halves =
        [0, 2].map(|start| Part::slice("w", Dtype::F32, [4], Rectangle::new([start], [2])));
    let state = Part::whole("optimizer/exp_avg/w", Dtype::F32, [4]);
    let [first, second] = halves;
    let mut shards = Vec::new();
    for (file, parts) in [("a.safetensors", vec![first, state]), ("b.safetensors", vec![second])] {
        let mut shard = writer.shard(file, parts).unwrap();
        while let Some(part) = shard.next_part() {
            let count = part.bytes() / 4;
            let second = part.rectangle().offset == [2];
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
    let first = folder.path().join("step_1");
    let second = folder.path().join("step_2");
    write(folder.path(), 1, 8.0);
    write(folder.path(), 2, 8.5);

    let (done, text) = fulmen(&["show"], &[&first]);
    assert!(
        done && text.contains("step 1")
            && text.contains("w: F32 [4], 2 parts")
            && text.contains("data=2"),
        "{text}"
    );
    let (done, text) = fulmen(&["show"], &[folder.path()]);
    assert!(done && text.find("step_2") < text.find("step_1"), "{text}");

    let (done, text) = fulmen(&["diff"], &[&first, &second]);
    assert!(
        !done
            && text.contains("step: 1 and 2")
            && text.contains("w: different in 1 of 4 elements, by at most 5e-1"),
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

/// A layer that learns a line.
#[derive(Module)]
struct Line {
    fc: Linear,
}

#[test]
fn the_trainers_checkpoints_are_shown_verified_merged_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let x: Vec<f32> = (0..16).map(|i| i as f32 / 16.0).collect();
    let data = TensorDataset::builder()
        .array("x", [16, 1], x.clone())
        .array("y", [16, 1], x)
        .build()
        .unwrap();
    let loader = DataLoader::builder(data).batch_size(4).build().unwrap();
    let line = Line { fc: Linear::new(1, 1) };
    let module = TrainingFn::new(
        &line,
        |line, batch, _| (line.fc.forward(&batch.get("x")) - batch.get("y")).pow(2.0).mean_all(),
        |_| Adam::new(0.1),
    );
    let trainer = Trainer::builder()
        .accelerator(Accelerator::Cpu)
        .devices(2)
        .max_epochs(2)
        .enable_progress_bar(false)
        .default_root_dir(folder.path())
        .callback(ModelCheckpoint::new().keep_all(true));
    let hyperparameters = BTreeMap::from([("width", 1)]);
    trainer.hyperparameters(&hyperparameters).build().unwrap().fit(&module, &loader, None).unwrap();

    let checkpoints = folder.path().join("version_0/checkpoints");
    let [first, last] = ["epoch=0-step=4", "last"].map(|name| checkpoints.join(name));
    let (done, text) = fulmen(&["show"], &[&last]);
    for expected in [
        "step 8, epoch 2",
        "mesh: data=2",
        "options.max_epochs: \"2\"",
        "hyperparameters.width: 1",
        "fc.weight: F32 [1, 1]",
        "optimizer/exp_avg/fc.weight: F32 [1, 1]",
    ] {
        assert!(done && text.contains(expected), "{expected}: {text}");
    }
    let (done, text) = fulmen(&["show"], &[&checkpoints]);
    assert!(
        done && text.contains("last: step 8") && text.contains("epoch=0-step=4: step 4"),
        "{text}"
    );
    let (done, text) = fulmen(&["verify"], &[&last]);
    assert!(done, "{text}");
    let (done, text) = fulmen(&["diff"], &[&first, &last]);
    assert!(!done && text.contains("fc.weight: different in 1 of 1 element"), "{text}");

    // The merged weights are a weight file of the module.
    let merged = folder.path().join("merged");
    let (done, text) = fulmen(&["merge", "--weights-only"], &[&last, &merged]);
    assert!(done, "{text}");
    let loaded = Line { fc: Linear::new(1, 1) };
    load_weights(&loaded, &merged, Strictness::Strict).unwrap();
    let weight = |line: &Line| line.fc.weight.get().eval().unwrap().to_f64();
    assert_eq!(weight(&loaded), weight(&line));
}
