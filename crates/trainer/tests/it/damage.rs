//! Damaged and forged checkpoints are rejected, with a message that names the tensor or the field.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fulmen_trainer::callbacks::{EarlyStopping, Mode, ModelCheckpoint};
use fulmen_trainer::{FitSummary, Result, TrainerBuilder, load_arguments};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::common::{DROP_LAST, Net, shard, train_loader, trainer, val_loader};

const EPOCHS: u64 = 2;

fn fit(builder: TrainerBuilder) -> Result<FitSummary> {
    let callbacks = builder
        .callback(ModelCheckpoint::new().monitor("val_loss", Mode::Min))
        .callback(EarlyStopping::new("val_loss", Mode::Min));
    callbacks.build()?.fit(&Net::new(), &train_loader(40, DROP_LAST), Some(&val_loader(19)))
}

/// The last checkpoint of a run of two epochs of five steps.
fn checkpoint(folder: &Path) -> PathBuf {
    fit(trainer(folder).max_epochs(EPOCHS).seed(7u64)).unwrap().last_checkpoint.unwrap()
}

fn refusal(folder: &Path, path: &Path) -> Result<String, Box<FitSummary>> {
    match fit(trainer(folder).max_epochs(EPOCHS).ckpt_path(path)) {
        Ok(summary) => Err(Box::new(summary)),
        Err(error) => {
            assert!(error.is_checkpoint(), "{error}");
            let message = error.to_string();
            assert!(message.contains(path.to_str().unwrap()), "{message}");
            Ok(message)
        }
    }
}

#[test]
fn a_flipped_bit_in_a_checkpoint_is_rejected_with_the_name_of_its_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let path = checkpoint(folder.path());
    let file = shard(&path);
    let whole = std::fs::read(&file).unwrap();
    let data = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let header: BTreeMap<String, Value> = serde_json::from_slice(&whole[8..data]).unwrap();
    let flipped = |file: &Path, whole: &[u8], byte: usize, bit: usize| {
        let mut bytes = whole.to_owned();
        bytes[byte] ^= 1 << bit;
        std::fs::write(file, bytes).unwrap();
        let what =
            format!("bit {bit} of byte {byte} of {}, the data begins at {data}", whole.len());
        let message = refusal(folder.path(), &path);
        std::fs::write(file, whole).unwrap();
        message.unwrap_or_else(|_| panic!("{what}: the damaged checkpoint was accepted"))
    };
    let mut tensors = 0;
    for (name, entry) in header.iter().filter(|(name, _)| *name != "__metadata__") {
        let offset = |i: usize| data + entry["data_offsets"][i].as_u64().unwrap() as usize;
        let start = offset(0);
        let end = offset(1);
        for (byte, bit) in [(start, 0), ((start + end) / 2, 3), (end - 1, 7)] {
            let message = flipped(&file, &whole, byte, bit);
            assert!(
                message.contains(&format!("`{name}`")) && message.contains("use another one"),
                "{name}: {message}"
            );
        }
        tensors += 1;
    }
    assert!(tensors > 10, "{tensors}");
    // Flip bytes in the length of the header, in the table of tensors, and in the manifest.
    for byte in (0..8).chain((8..data).step_by(97)) {
        let message = flipped(&file, &whole, byte, byte % 8);
        assert!(message.contains("header"), "byte {byte}: {message}");
    }
    let manifest = path.join("manifest.json");
    let whole = std::fs::read(&manifest).unwrap();
    for byte in (0..whole.len()).step_by(397) {
        let message = flipped(&manifest, &whole, byte, byte % 8);
        assert!(message.contains("manifest"), "byte {byte}: {message}");
    }
    std::fs::remove_file(file).unwrap();
    let message = refusal(folder.path(), &path).unwrap();
    assert!(message.contains("the shard shard_0") && message.contains("is missing"), "{message}");
}

#[test]
fn weights_of_a_damaged_checkpoint_are_not_tested() {
    let folder = tempfile::tempdir().unwrap();
    let path = checkpoint(folder.path());
    let mut bytes = std::fs::read(shard(&path)).unwrap();
    // The weights begin after the header, and the Trainer's own counters are at the end of the
    // file.
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[data..].iter_mut().for_each(|byte| *byte ^= 1);
    std::fs::write(shard(&path), bytes).unwrap();
    let mut trainer = trainer(folder.path()).build().unwrap();
    let weights = fulmen_trainer::Weights::File(path);
    let error = trainer.test(&Net::new(), &val_loader(19), weights).unwrap_err();
    assert!(error.is_checkpoint() && error.to_string().contains("checksum"), "{error}");
}

/// Writes a checkpoint with a changed manifest and matching checksums.
fn forge(from: &Path, to: &Path, change: impl FnOnce(&mut Value)) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir(to).unwrap();
    let shard = shard(from);
    std::fs::copy(&shard, to.join(shard.file_name().unwrap())).unwrap();
    let frame: Value =
        serde_json::from_slice(&std::fs::read(from.join("manifest.json")).unwrap()).unwrap();
    let mut manifest = frame["manifest"].clone();
    change(&mut manifest);
    let manifest = manifest.to_string();
    let sha256: String =
        Sha256::digest(&manifest).iter().map(|byte| format!("{byte:02x}")).collect();
    std::fs::write(
        to.join("manifest.json"),
        format!("{{\"sha256\":\"{sha256}\",\"manifest\":{manifest}}}"),
    )
    .unwrap();
}

#[test]
fn a_forged_checkpoint_is_rejected_with_the_name_of_the_field() {
    let folder = tempfile::tempdir().unwrap();
    let from = checkpoint(folder.path());
    let path = from.with_file_name("forged");
    let no_checkpoint = folder.path().join("notes.txt");
    std::fs::write(&no_checkpoint, "mine").unwrap();
    let nan = f64::NAN.to_bits();
    let best = |path: &str| json!({ "ModelCheckpoint": { "best": [[0.5f64.to_bits(), path]] } });
    for (field, value) in [
        ("batch", json!(1_000_000_000)),
        ("batch", json!(6)),
        ("batch", json!(5)),
        ("epoch", json!(u64::MAX)),
        ("epoch", json!(3)),
        ("step", json!(u64::MAX)),
        ("step", json!(11)),
        ("step", json!(9)),
        ("seed", Value::Null),
        ("data", json!(["x"])),
        ("batches_per_step", json!(0)),
        ("batches_per_step", json!("2")),
        ("weight_averaging", json!(1)),
        ("learning_rate_factor", json!("2")),
        ("learning_rate_factor", json!(nan)),
        ("callbacks", json!([1])),
        ("callbacks", json!("none")),
        ("callbacks", best(&format!("{}/../../best", from.display()))),
        ("callbacks", best("..")),
        ("callbacks", json!({ "ModelCheckpoint": { "best": [["0.5", "best"]] } })),
        ("best_checkpoint", json!(from.join("../last"))),
        ("epoch", json!(1u64 << 60)),
        ("best_checkpoint", json!(1)),
        ("best_checkpoint", json!(no_checkpoint)),
        ("best_checkpoint", json!(folder.path())),
        ("log_names", json!([1])),
        ("log_names", json!("train_acc")),
        ("epoch_sums", json!(7)),
        ("epoch_sums", json!([["train_acc"]])),
        ("epoch_sums", json!([["train_acc", [[1], ["x"]]]])),
        ("epoch_sums", json!([["train_acc", [[1]]]])),
        ("epoch_learning_rate", json!("1")),
        ("epoch_bad_step", json!("1")),
        ("values", json!([1])),
        ("values", json!({ "best": "x".repeat(1 << 16) })),
    ] {
        let shown = format!("`{field}` = {value}");
        forge(&from, &path, |manifest| {
            let run = &mut manifest["run"];
            let of_run = run.get(field).is_some();
            (if of_run { run } else { &mut run["training"] })[field] = value;
        });
        match refusal(folder.path(), &path) {
            Ok(message) => {
                let field = if field == "step" { "global_step" } else { field };
                assert!(message.contains(&format!("`{field}`")), "{shown}: {message}");
            }
            Err(summary) => panic!("{shown} was accepted: {summary:?}"),
        }
    }
    forge(&from, &path, |_| {});
    assert!(refusal(folder.path(), &path).is_err(), "an unchanged copy is accepted");
}

#[test]
fn a_newer_or_damaged_manifest_is_reported_and_another_checkpoint_used() {
    let folder = tempfile::tempdir().unwrap();
    let last = checkpoint(folder.path());
    let newest = || {
        let options = trainer(folder.path()).resume("auto").options().unwrap();
        load_arguments(&options).unwrap().unwrap().0
    };
    assert_eq!(newest(), last);
    let manifest = last.join("manifest.json");
    let forged = folder.path().join("forged");
    let whole = std::fs::read(&manifest).unwrap();
    forge(&last, &forged, |manifest| manifest["format_version"] = json!(2));
    let newer = std::fs::read(forged.join("manifest.json")).unwrap();
    for (bytes, says) in [
        (&newer[..], "version 2, and this program reads up to 1"),
        (&whole[..whole.len() / 2], "manifest"),
        (&[][..], "manifest"),
    ] {
        std::fs::write(&manifest, bytes).unwrap();
        let message = refusal(folder.path(), &last).unwrap();
        assert!(message.contains(says), "{message}");
        assert_eq!(newest(), last.with_file_name("best"));
    }
}

#[test]
fn a_best_checkpoint_of_another_run_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let from = checkpoint(folder.path());
    let other = fit(trainer(folder.path()).max_epochs(1).seed(8)).unwrap().best_checkpoint.unwrap();
    let path = from.with_file_name("forged");
    forge(&from, &path, |manifest| manifest["run"]["training"]["best_checkpoint"] = json!(other));
    let message = refusal(folder.path(), &path).unwrap();
    assert!(
        message.contains("`best_checkpoint`") && message.contains(other.to_str().unwrap()),
        "{message}"
    );
}

#[test]
fn other_files_are_rejected_before_they_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let refused = |path: &Path, expected: &str| {
        let message = refusal(folder.path(), path).unwrap();
        assert!(message.contains(expected), "{message}");
    };
    refused(Path::new("/dev/zero"), "not the folder of a checkpoint");
    assert!(std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
    refused(&path("pipe"), "not the folder of a checkpoint");
    refused(folder.path(), "there is no manifest.json");
    // A sparse file of a terabyte.
    std::fs::create_dir(path("sparse")).unwrap();
    std::fs::File::create(path("sparse/manifest.json")).unwrap().set_len(1 << 40).unwrap();
    refused(&path("sparse"), "1099511627776 bytes is too large");
    std::fs::write(path("weights.safetensors"), "").unwrap();
    refused(&path("weights.safetensors"), "load_weights");
}
