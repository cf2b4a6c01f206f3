//! The record of a fit in its folder: `summary.json`, `report.html`, and an image of the first
//! batch.

use crate::common::DROP_LAST;
use std::path::Path;

use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::{Linear, optim};
use fulmen_report::Run;
use fulmen_trainer::{TrainingFn, Weights};
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
    let train = train_loader(40, DROP_LAST);
    let validation = val_loader(16);
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
fn a_page_has_the_tests_of_its_run_and_names_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let net = Net::new();
    let mut trainer = trainer(folder.path()).max_epochs(1).build().unwrap();
    trainer.fit(&net, &train_loader(40, DROP_LAST), None).unwrap();
    assert!(!read(trainer.run_dir()).1.contains("test_acc"));
    trainer.test(&net, &val_loader(16), Weights::Current).unwrap();
    let (_, page) = read(trainer.run_dir());
    assert!(page.contains("test_acc") && page.contains("Finished; 1 epoch"), "{page}");
    trainer.validate(&net, &val_loader(16)).unwrap();
    assert!(read(trainer.run_dir()).1.contains("val_loss"));
    let program = std::env::current_exe().unwrap();
    let title = format!("<title>{} version_0</title>", program.file_name().unwrap().display());
    assert!(page.contains(&title), "{title}\n{page}");
}

#[test]
fn two_equal_runs_have_no_differences() {
    let folder = tempfile::tempdir().unwrap();
    let runs = [1, 1, 2].map(|epochs| {
        let mut trainer = trainer(folder.path()).max_epochs(epochs).build().unwrap();
        trainer.fit(&Net::new(), &train_loader(16, DROP_LAST), None).unwrap();
        let environment = trainer.run_dir().unwrap().join("environment.json");
        let environment: Value =
            serde_json::from_slice(&std::fs::read(environment).unwrap()).unwrap();
        let variables = environment["variables"].as_object().unwrap();
        // Fulmen sets these for the plugins.
        assert!(!variables.keys().any(|name| name.starts_with("TPU_")), "{variables:?}");
        Run::open(trainer.run_dir().unwrap()).unwrap()
    });
    let differences = |runs: &[Run]| {
        let page = fulmen_report::report(runs);
        let section = page.split("<section id=\"differences\">").nth(1).unwrap();
        section.split("last value").next().unwrap().to_owned()
    };
    let same = differences(&runs[..2]);
    assert!(same.contains("Configuration and environment are the same."), "{same}");
    let other = differences(&runs[1..]);
    assert!(
        other.contains("<td>trainer.max-epochs</td>") && other.matches("<tr>").count() == 3,
        "{other}"
    );
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
