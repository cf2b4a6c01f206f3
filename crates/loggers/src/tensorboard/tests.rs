//! Reads our event files with TensorBoard's reader.

use std::path::Path;
use std::process::Command;

use super::*;
use crate::Histogram;

/// Writes a run with each kind of value.
fn write_run(folder: &Path) {
    let mut logger = TensorBoardLogger::new();
    logger.start(folder).unwrap();
    let hyperparameters =
        serde_json::json!({ "lr": 0.5, "name": "wide", "augment": true, "sizes": [1, 2] });
    logger.log_hyperparams(hyperparameters.as_object().unwrap()).unwrap();
    for step in [5, 10] {
        let metrics = vec![("train_loss".to_owned(), 1.0 / step as f64), ("zero".to_owned(), 0.0)];
        let arrays = vec![
            ("recall".to_owned(), LoggedArray::Vector(vec![0.25, 0.5])),
            (
                "confusion".to_owned(),
                LoggedArray::Matrix(vec![vec![4.0, 0.0, 1.0], vec![0.0, 0.0, 0.0]]),
            ),
        ];
        let histogram = Histogram {
            low: -1.0,
            high: 2.0,
            sum: 1.5,
            sum_squares: 4.0,
            counts: vec![2, 0, 1],
            non_finite: 0,
        };
        let media = vec![
            (
                "images".to_owned(),
                Media::Image(Images { shape: [2, 3, 1, 2], pixels: (0..12).collect() }),
            ),
            ("texts".to_owned(), Media::Text(vec!["first".into(), "zweiter ü".into()])),
            ("weights".to_owned(), Media::Histogram(histogram)),
        ];
        logger
            .log(&LogPoint { global_step: step, metrics, arrays, media, ..LogPoint::default() })
            .unwrap();
    }
    logger.finalize(Status::Finished).unwrap();
}

#[test]
fn the_records_are_whole_and_hold_the_logged_values() {
    let folder = tempfile::tempdir().unwrap();
    write_run(folder.path());
    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let mut bytes = &std::fs::read(file).unwrap()[..];
    let mut events = Vec::new();
    while !bytes.is_empty() {
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let event = Event::decode(&bytes[12..12 + length]).unwrap();
        let (record, rest) = bytes.split_at(length + 16);
        assert_eq!(event.record(), record, "length, checksums and event");
        events.push(event);
        bytes = rest;
    }
    assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
    let values: Vec<_> =
        events[1..].iter().map(|event| &event.summary.as_ref().unwrap().value).collect();
    let tags: Vec<_> = values[1].iter().map(|value| value.tag.as_str()).collect();
    assert_eq!(
        tags,
        ["train_loss", "zero", "recall/0", "recall/1", "confusion", "images", "texts", "weights"]
    );
    assert_eq!(
        (events[3].step, values[2][0].simple_value, values[2][1].simple_value),
        (10, Some(0.1), Some(0.0))
    );
    let image = values[1][4].image.as_ref().unwrap();
    assert_eq!((image.height, image.width, image.colorspace), (2, 3, 1));
}

/// Needs the Python interpreter in `FULMEN_TEST_TENSORBOARD`, with the package `tensorboard`.
#[test]
#[ignore = "needs TensorBoard: FULMEN_TEST_TENSORBOARD=python3 cargo test -p fulmen-loggers -- --ignored"]
fn tensorboards_reader_sees_each_kind() {
    let python = std::env::var_os("FULMEN_TEST_TENSORBOARD")
        .expect("FULMEN_TEST_TENSORBOARD: a Python with tensorboard");
    let folder = tempfile::tempdir().unwrap();
    write_run(folder.path());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reference/read_events.py");
    let output = Command::new(python).arg(script).arg(folder.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.ends_with("all kinds are seen\n"), "{text}");
}
