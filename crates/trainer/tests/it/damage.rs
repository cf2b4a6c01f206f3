//! Damaged and forged checkpoints: each is refused, by a message that names the tensor or the field.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fulmen_data::LastBatch;
use fulmen_nn::safetensors;
use fulmen_trainer::callbacks::{EarlyStopping, Mode, ModelCheckpoint};
use fulmen_trainer::{FitSummary, Result, TrainerBuilder};
use serde_json::{Value, json};

use crate::common::{Net, train_loader, trainer, val_loader};

const EPOCHS: u64 = 2;

fn fit(builder: TrainerBuilder) -> Result<FitSummary> {
    let callbacks = builder
        .callback(ModelCheckpoint::new().monitor("val_loss", Mode::Min))
        .callback(EarlyStopping::new("val_loss", Mode::Min));
    callbacks.build()?.fit(&Net::new(), &train_loader(40, LastBatch::Drop), Some(&val_loader(19)))
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
fn a_flipped_bit_in_a_checkpoint_is_refused_with_the_name_of_what_it_hit() {
    let folder = tempfile::tempdir().unwrap();
    let whole = std::fs::read(checkpoint(folder.path())).unwrap();
    let data = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let header: BTreeMap<String, Value> = serde_json::from_slice(&whole[8..data]).unwrap();
    let path = folder.path().join("flipped.safetensors");
    let flipped = |byte: usize, bit: usize| {
        let mut bytes = whole.clone();
        bytes[byte] ^= 1 << bit;
        std::fs::write(&path, bytes).unwrap();
        let what = format!("bit {bit} of byte {byte} of {}, the data begins at {data}", whole.len());
        refusal(folder.path(), &path).unwrap_or_else(|_| panic!("{what}: the damaged checkpoint was taken"))
    };
    let mut tensors = 0;
    for (name, entry) in header.iter().filter(|(name, _)| *name != "__metadata__") {
        let offset = |i: usize| data + entry["data_offsets"][i].as_u64().unwrap() as usize;
        let (start, end) = (offset(0), offset(1));
        for (byte, bit) in [(start, 0), ((start + end) / 2, 3), (end - 1, 7)] {
            let message = flipped(byte, bit);
            assert!(message.contains(&format!("`{name}`")), "{name}: {message}");
        }
        tensors += 1;
    }
    assert!(tensors > 10, "{tensors}");
    // The length of the header, the metadata and the table of tensors.
    for byte in (0..8).chain((8..data).step_by(5)) {
        let message = flipped(byte, byte % 8);
        assert!(message.contains("header") || message.contains('`'), "byte {byte}: {message}");
    }
}

#[test]
fn weights_of_a_damaged_checkpoint_are_not_tested() {
    let folder = tempfile::tempdir().unwrap();
    let path = checkpoint(folder.path());
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let mut trainer = trainer(folder.path()).build().unwrap();
    let weights = fulmen_trainer::Weights::File(path);
    let error = trainer.test(&Net::new(), &val_loader(19), weights).unwrap_err();
    assert!(error.is_checkpoint() && error.to_string().contains("checksum"), "{error}");
}

/// Writes a checkpoint whose training state says something else, with checksums that fit.
fn forge(from: &Path, to: &Path, change: impl FnOnce(&mut Value)) {
    let (tensors, mut metadata) = safetensors::read(from).unwrap();
    let mut document: Value = serde_json::from_str(&metadata["fulmen"]).unwrap();
    change(&mut document);
    metadata.insert("fulmen".into(), document.to_string());
    safetensors::write(to, &tensors.into_iter().collect::<Vec<_>>(), &metadata).unwrap();
}

#[test]
fn a_forged_checkpoint_is_refused_with_the_name_of_the_field() {
    let folder = tempfile::tempdir().unwrap();
    let from = checkpoint(folder.path());
    let path = from.with_file_name("forged.safetensors");
    let no_checkpoint = folder.path().join("notes.txt");
    std::fs::write(&no_checkpoint, "mine").unwrap();
    let nan = f64::NAN.to_bits();
    for (field, value) in [
        ("batch", json!(1_000_000_000)),
        ("batch", json!(6)),
        ("batch", json!(5)),
        ("epoch", json!(u64::MAX)),
        ("epoch", json!(3)),
        ("epoch", json!(-1)),
        ("epoch", json!("2")),
        ("global_step", json!(u64::MAX)),
        ("global_step", json!(11)),
        ("global_step", json!(9)),
        ("seed", Value::Null),
        ("data", json!(["x"])),
        ("accumulate_grad_batches", json!(0)),
        ("accumulate_grad_batches", json!("2")),
        ("weight_averaging", json!(1)),
        ("learning_rate_factor", json!("2")),
        ("learning_rate_factor", json!(nan)),
        ("callbacks", json!([1])),
        ("callbacks", json!("none")),
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
    ] {
        let shown = format!("`{field}` = {value}");
        forge(&from, &path, |document| document[field] = value);
        match refusal(folder.path(), &path) {
            Ok(message) => assert!(message.contains(&format!("`{field}`")), "{shown}: {message}"),
            Err(summary) => panic!("{shown} was taken: {summary:?}"),
        }
    }
    forge(&from, &path, |_| {});
    assert!(refusal(folder.path(), &path).is_err(), "what is as it was is taken");
}

#[test]
fn a_best_checkpoint_of_another_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let from = checkpoint(folder.path());
    let other = fit(trainer(folder.path()).max_epochs(1).seed(8)).unwrap().best_checkpoint.unwrap();
    let path = from.with_file_name("forged.safetensors");
    forge(&from, &path, |document| document["best_checkpoint"] = json!(other));
    let message = refusal(folder.path(), &path).unwrap();
    assert!(message.contains("`best_checkpoint`") && message.contains(other.to_str().unwrap()), "{message}");
}

#[test]
fn what_is_not_a_checkpoint_is_refused_before_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let refused = |path: &Path, expected: &str| {
        let message = refusal(folder.path(), path).unwrap();
        assert!(message.contains(expected), "{message}");
    };
    refused(Path::new("/dev/zero"), "not a regular file");
    assert!(std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
    refused(&path("pipe"), "not a regular file");
    refused(folder.path(), "a folder");
    // A terabyte of which nothing is on the disk.
    let sparse = std::fs::File::create(path("sparse.safetensors")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    refused(&path("sparse.safetensors"), "header");
    let header = br#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let mut start = (header.len() as u64).to_le_bytes().to_vec();
    start.extend(header);
    std::os::unix::fs::FileExt::write_all_at(&sparse, &start, 0).unwrap();
    refused(&path("sparse.safetensors"), "1099511627776");
    let pickle = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/reference/mistral");
    let pt = std::fs::read_dir(pickle).unwrap().map(|entry| entry.unwrap().path());
    let pt: Vec<PathBuf> = pt.filter(|path| path.extension().is_some_and(|e| e == "bin" || e == "pth")).collect();
    assert!(!pt.is_empty());
    for pt in pt {
        refused(&pt, "PyTorch file");
        refused(&pt, "load_weights");
    }
}
