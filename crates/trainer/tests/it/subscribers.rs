//! Messages and spans in subscribers of `tracing`: the one of `init_logging`, and one of the program.

use std::fmt::Debug;
use std::path::Path;
use std::process::Output;
use std::sync::{Arc, Mutex};

use fulmen_trainer::{Profiler, Trainer, init_logging, run_layer};
use tracing::field::Field;
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id};
use tracing::{Dispatch, Event, Metadata, Subscriber, dispatcher};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry;

use crate::common::{DROP_LAST, Net, isolated, itself, train_loader, trainer};

const CHILD: &str = "FULMEN_TEST_CHILD";

/// A warning of each fit of [`traced`].
const WARNING: &str = "dump_dir: cannot write `training step` to /dev/null/dump: ";

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs a test in a process of its own, because a process has one subscriber.
fn run_alone(test: &str) -> Output {
    let name = format!("subscribers::{test}");
    let output = itself().args(["--exact", &name, "--nocapture"]).env(CHILD, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    output
}

/// A Trainer whose fits have a trace and a warning.
fn traced(folder: &Path) -> Trainer {
    let builder = trainer(folder).runtime(isolated()).max_epochs(1).dump_dir("/dev/null/dump");
    builder.profiler(Profiler::Host).build().unwrap()
}

fn fit(trainer: &mut Trainer) -> fulmen_trainer::Result<()> {
    trainer.fit(&Net::new(), &train_loader(40, DROP_LAST), None).map(drop)
}

/// Counts a text in the files of the run.
fn count(trainer: &Trainer, file: &str, text: &str) -> usize {
    let path = trainer.run_dir().unwrap().join(file);
    std::fs::read_to_string(path).unwrap().matches(text).count()
}

/// The level, target and fields of each event, and the thread, level, name and fields of each span.
#[derive(Clone, Default)]
struct Seen {
    events: Arc<Mutex<Vec<String>>>,
    spans: Arc<Mutex<Vec<String>>>,
}

fn line(
    metadata: &Metadata<'_>,
    record: impl FnOnce(&mut dyn FnMut(&Field, &dyn Debug)),
) -> String {
    let mut line = format!("{} {} {}", metadata.level(), metadata.target(), metadata.name());
    record(&mut |field, value| line += &format!(" {field}={value:?}"));
    line
}

impl<S: Subscriber> Layer<S> for Seen {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let line = line(event.metadata(), |mut visit| event.record(&mut visit));
        self.events.lock().unwrap().push(line);
    }

    fn on_new_span(&self, span: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        let line = line(span.metadata(), |mut visit| span.record(&mut visit));
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        self.spans.lock().unwrap().push(format!("{thread}: {line}"));
    }
}

#[test]
fn a_subscriber_of_the_program_sees_the_spans_of_a_step_and_a_warning() {
    let test = "a_subscriber_of_the_program_sees_the_spans_of_a_step_and_a_warning";
    if !is_child() {
        let stderr = String::from_utf8(run_alone(test).stderr).unwrap();
        assert!(!stderr.contains("dump_dir") && !stderr.contains("trace"), "{stderr}");
        return;
    }
    let seen = Seen::default();
    let subscriber = registry().with(run_layer()).with(seen.clone());
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = traced(folder.path());
    fit(&mut trainer).unwrap();

    let of = |lines: &Mutex<Vec<String>>, start: &str| {
        let lines = lines.lock().unwrap();
        lines.iter().filter(|line| line.starts_with(start)).cloned().collect::<Vec<String>>()
    };
    let warnings = of(&seen.events, "WARN fulmen_trainer::session ");
    assert!(warnings.iter().any(|line| line.contains(WARNING)), "{:?}", seen.events);
    let this = std::thread::current().name().unwrap().to_owned();
    let steps = of(&seen.spans, &format!("{this}: DEBUG fulmen_trainer::fit step "));
    let numbers: Vec<&str> = steps.iter().filter_map(|line| line.split("number=").nth(1)).collect();
    assert_eq!(numbers, ["1", "2", "3", "4", "5"]);
    for (start, at_least) in [
        (&*format!("{this}: DEBUG fulmen_trainer::fit wait for batch"), 5),
        (&*format!("{this}: DEBUG fulmen_tensor::compiled launch program=\""), 5),
        (&*format!("{this}: DEBUG fulmen::devices program program=\""), 5),
        ("fulmen-data-", 5),
        ("fulmen-transfer: DEBUG fulmen_data::loader::device transfer number=", 5),
    ] {
        let spans = of(&seen.spans, start).len();
        assert!(spans >= at_least, "{start}: {spans} of {:?}", seen.spans);
    }
    assert_eq!(count(&trainer, "run.log", &format!("warning: {WARNING}")), 1);
    assert_eq!(count(&trainer, "trace.json", r#""name":"step""#), 5);
}

#[test]
fn without_a_subscriber_messages_are_printed_once() {
    let test = "without_a_subscriber_messages_are_printed_once";
    if !is_child() {
        let stderr = String::from_utf8(run_alone(test).stderr).unwrap();
        let warning = format!("\nwarning: {WARNING}");
        assert_eq!(stderr.matches(&warning).count(), 1, "{stderr}");
        assert_eq!(stderr.matches("\nThe trace of the run is ").count(), 1, "{stderr}");
        assert!(!stderr.contains("of another program"), "{stderr}");
        return;
    }
    // A Trainer calls it too.
    init_logging();
    init_logging();
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = traced(folder.path());
    tracing::warn!(target: "another", "of another program");
    fit(&mut trainer).unwrap();
    assert_eq!(count(&trainer, "run.log", &format!("warning: {WARNING}")), 1);
    assert_eq!(count(&trainer, "trace.json", r#""name":"step""#), 5);
    tracing::subscriber::set_global_default(registry()).unwrap_err();
}

#[test]
fn a_trace_without_the_layer_for_it_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = traced(folder.path());
    let mut error = |subscriber: Dispatch| {
        let fitted = dispatcher::with_default(&subscriber, || fit(&mut trainer));
        fitted.unwrap_err().to_string()
    };
    let missing = error(registry().into());
    let expected = "profiler: this process has a subscriber of `tracing` that records no spans for traces; add the layer \
                    fulmen_trainer::run_layer()";
    assert!(missing.starts_with(expected), "{missing}");
    let hidden = error(registry().with(run_layer()).with(LevelFilter::INFO).into());
    let expected = "profiler: a filter of this process's subscriber of `tracing` hides the spans";
    assert!(hidden.starts_with(expected), "{hidden}");
}
