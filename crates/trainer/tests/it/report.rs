//! The record of a fit in its folder: `summary.json`, `report.html`, and an image of the first
//! batch.

use crate::common::DROP_LAST;
use std::path::Path;

use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::{Linear, optim};
use fulmen_trainer::TrainingFn;
use serde_json::Value;

use crate::common::*;

fn read(run: Option<&Path>) -> (Value, String) {
    let read = |name: &str| std::fs::read_to_string(run.unwrap().join(name)).unwrap();
    (serde_json::from_str(&read("summary.json")).unwrap(), read("report.html"))
}

#[test]
fn a_fit_records_its_result_and_why_it_failed() {
    let folder = tempfile::tempdir().unwrap();
    let mut net = Net::new();
    let mut trainer =
        trainer(folder.path()).max_epochs(2).log_every_n_steps(1).detect_nan(true).build().unwrap();
    let (train, validation) = (train_loader(40, DROP_LAST), val_loader(16));
    let summary = trainer.fit(&net, &train, &validation).unwrap();
    let (record, page) = read(trainer.run_dir());
    assert_eq!(
        (&record["state"], &record["epochs"], &record["global_step"]),
        (&"finished".into(), &2.into(), &10.into())
    );
    assert_eq!(record["memory"][0]["state"], summary.state_bytes[0]);
    assert!(
        record["flops_per_second"].as_f64().unwrap() > 0.0 && record["peak_flops"].is_null(),
        "{record}"
    );
    let lines = record["lines"].to_string();
    assert!(lines.contains("tests/it/common/mod.rs:"), "{lines}");
    assert!(
        record["model"].to_string().contains("fc1") && record["compilations"].is_array(),
        "{record}"
    );
    for text in [
        "<b>loss</b>",
        "val_loss is ",
        "spent on steps",
        "Finished; 2 epochs, 10 steps",
        "max-epochs = 2",
        "train_seen",
        "fc2",
    ] {
        assert!(page.contains(text), "{text}\n{page}");
    }

    net.learning_rate = 1e38;
    let error = trainer.fit(&net, &train, &validation).unwrap_err().to_string();
    let (record, page) = read(trainer.run_dir());
    assert_eq!((&record["state"], &record["reason"]), (&"failed".into(), &error.as_str().into()));
    assert!(page.contains("Failed: ") && page.contains("<b>loss</b>"), "{page}");
}

#[test]
fn images_of_the_first_batch_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let pixels: Vec<u8> = (0..16 * 64).map(|i| (i % 251) as u8).collect();
    let data = TensorDataset::builder().array("image", [16, 1, 8, 8], pixels).build().unwrap();
    let loader = DataLoader::builder(data).batch_size(4).build().unwrap();
    let line = Linear::new(64, 1);
    let module = TrainingFn::new(
        &line,
        |line, batch, _| {
            line.forward(&batch.get("image").to_dtype(fulmen_tensor::DType::F32).reshape([4, 64]))
                .mean_all()
        },
        |_| optim::Sgd::new(1e-6),
    );
    let mut trainer =
        trainer(folder.path()).max_epochs(1).enable_checkpointing(false).build().unwrap();
    trainer.fit(&module, &loader, None).unwrap();
    let run = trainer.run_dir().unwrap();
    assert!(std::fs::read(run.join("media/first_batch/0.png")).unwrap().starts_with(b"\x89PNG"));
    assert!(read(Some(run)).1.contains("data:image/png;base64,"));
}
