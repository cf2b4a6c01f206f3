//! Checkpoints in object stores, simulated by a server on loopback that fails on request.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fulmen_files::Location;

use super::common::{DividedTensor, SMALL, local, read_all, write, write_process};
use super::keyless;
use super::s3::{Answer, Request, S3};
use crate::{
    Checkpoint, CheckpointWriter, CloudStore, Dtype, MergeOptions, RetentionPolicy, Store, copy,
    list, merge, newest, prune, remove_unfinished, verify,
};

/// A shard that is sent in two parts.
const LARGE: [DividedTensor<'static>; 1] = [("embedding", Dtype::U64, &[700, 1000], &[1, 1])];

/// A location in a bucket of a server that requires no keys.
pub(super) fn store(url: &str, location: &str, give_up_after: Duration) -> Arc<dyn Store> {
    let options =
        keyless::options(url, location).read_ahead(2, 5 << 20).give_up_after(give_up_after);
    Arc::new(CloudStore::new(Location::from(location).with_options(options)))
}

fn newest_step(store: &Arc<dyn Store>, tensors: &[DividedTensor<'_>]) -> Option<u64> {
    newest(store, |checkpoint| {
        read_all(checkpoint, tensors).map(|()| checkpoint.manifest().run.step)
    })
    .unwrap()
    .0
}

/// Checks all operations on checkpoints at an empty location in a bucket.
pub(super) fn check_location(store: &Arc<dyn Store>, location: &str) {
    assert!(list(store).unwrap().is_empty());
    for step in 1..=3 {
        let tensors: &[DividedTensor<'_>] = if step == 3 { &LARGE } else { &SMALL };
        write(store, step, tensors, 2).unwrap();
    }
    let (step, skipped) = newest(store, |checkpoint| {
        read_all(checkpoint, &LARGE).map(|()| checkpoint.manifest().run.step)
    })
    .unwrap();
    assert_eq!(step, Some(3), "{skipped:?}");
    let checkpoint = Checkpoint::open(store.clone(), "step_3").unwrap();
    assert!(verify(&checkpoint).is_empty());
    merge(&checkpoint, &**store, "merged", &MergeOptions::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    copy(&checkpoint, local(folder.path())).unwrap();
    copy(&Checkpoint::open(local(folder.path()), "step_3").unwrap(), store.clone()).unwrap();
    read_all(&Checkpoint::open(store.clone(), "step_3").unwrap(), &LARGE).unwrap();
    assert_eq!(
        prune(store, &RetentionPolicy { last: 2, ..RetentionPolicy::default() }).unwrap(),
        ["step_1"]
    );
    let writer = CheckpointWriter::new(store.clone(), "step_4").unwrap();
    write_process(&writer, &SMALL, 0, 2).unwrap();
    remove_unfinished(store).unwrap();
    let names: Vec<String> = list(store).unwrap().into_iter().map(|listed| listed.name).collect();
    assert_eq!(names, ["step_3", "step_2", "merged"]);
    let error = Checkpoint::open(store.clone(), "step_1").unwrap_err();
    assert!(
        error.is_not_found() && error.to_string().starts_with(&format!("{location}/step_1: ")),
        "{error}"
    );
}

#[test]
fn checkpoints_are_written_read_merged_copied_and_removed_in_a_bucket() {
    let server = S3::start(|_| Answer::Serve);
    for location in ["s3://b/run", "gs://g/deep/run"] {
        check_location(&store(&server.url(), location, Duration::from_secs(60)), location);
    }
    assert_eq!(server.uploads(), 0);
    assert!(server.seen().iter().any(|request| request.query("partNumber").is_some()));
}

/// The server's reaction to a request, by its number since failures were requested.
struct Faults {
    answer: Answer,
    first: usize,
    /// Whether all requests from the first on fail, or only the first.
    all: bool,
    requests: usize,
}

fn faulty() -> (S3, Arc<Mutex<Option<Faults>>>) {
    let faults: Arc<Mutex<Option<Faults>>> = Arc::default();
    let shared = faults.clone();
    let server = S3::start(move |_: &Request| match &mut *shared.lock().unwrap() {
        Some(faults) => {
            faults.requests += 1;
            let fails = faults.requests > faults.first
                && (faults.all || faults.requests == faults.first + 1);
            if fails { faults.answer } else { Answer::Serve }
        }
        None => Answer::Serve,
    });
    (server, faults)
}

const ANSWERS: [Answer; 5] = [
    Answer::Status(500),
    Answer::Status(429),
    Answer::Cut(7),
    // The request is executed, but its answer is lost; the connection is cut before the request is
    // executed.
    Answer::Lose,
    Answer::LoseLate(Duration::ZERO),
];

/// Runs with each of these answers on a separate server, all at the same time, because most of the
/// time is spent waiting.
fn for_each(answers: &[Answer], check: impl Fn(Answer, &S3, &Mutex<Option<Faults>>) + Sync) {
    std::thread::scope(|scope| {
        for &answer in answers {
            let check = &check;
            scope.spawn(move || {
                let (server, faults) = faulty();
                check(answer, &server, &faults);
            });
        }
    });
}

#[test]
fn a_request_that_fails_once_is_retried() {
    for_each(&ANSWERS, |answer, server, faults| {
        let store = store(&server.url(), "s3://b/run", Duration::from_secs(60));
        for first in 0.. {
            *faults.lock().unwrap() = Some(Faults { answer, first, all: false, requests: 0 });
            write(&store, first as u64, &SMALL, 1)
                .unwrap_or_else(|error| panic!("{answer:?} {first}: {error}"));
            let requests = faults.lock().unwrap().take().unwrap().requests;
            read_all(&Checkpoint::open(store.clone(), &format!("step_{first}")).unwrap(), &SMALL)
                .unwrap();
            if requests <= first {
                assert!(first >= 4, "{first}");
                break;
            }
        }
    });
}

/// Lets all requests from a number on fail, for each number, while step 2 is written.
fn fails_from_any_request_on(
    answer: Answer,
    server: &S3,
    faults: &Mutex<Option<Faults>>,
    tensors: &[DividedTensor<'_>],
) {
    let location = "s3://b/run";
    let [store, patient] =
        [20, 60_000].map(|ms| store(&server.url(), location, Duration::from_millis(ms)));
    write(&patient, 1, tensors, 1).unwrap();
    let mut failed = 0;
    for first in 0.. {
        *faults.lock().unwrap() = Some(Faults { answer, first, all: true, requests: 0 });
        let result = write(&store, 2, tensors, 1);
        let requests = faults.lock().unwrap().take().unwrap().requests;
        // Whatever `write` returns, a checkpoint that loads has the right bits. A commit whose
        // answer was lost has taken effect.
        let step = newest_step(&patient, tensors);
        let Err(error) = result else {
            assert_eq!(step, Some(2));
            // An error after the manifest is written is not a failure.
            if requests <= first {
                break;
            }
            crate::remove(&patient, "step_2").unwrap();
            continue;
        };
        let text = error.to_string();
        assert!(
            step == Some(1) || answer == Answer::Lose && step == Some(2),
            "{answer:?} {first}: {step:?} {text}"
        );
        assert!(
            text.starts_with(location)
                && text.contains("given up after")
                && text.contains("check that"),
            "{text}"
        );
        crate::remove(&patient, "step_2").unwrap();
        failed += 1;
    }
    // Most answers have no body that could be cut.
    assert!(failed > 2 || failed > 0 && answer == ANSWERS[2], "{answer:?}: {failed}");
}

#[test]
fn a_store_that_keeps_failing_is_reported_and_an_older_checkpoint_loads() {
    for_each(&ANSWERS, |answer, server, faults| {
        fails_from_any_request_on(answer, server, faults, &SMALL)
    });
}

#[test]
fn an_interrupted_upload_in_parts_is_reported_and_an_older_checkpoint_loads() {
    let answers = [Answer::Status(500), Answer::LoseLate(Duration::ZERO)];
    for_each(&answers, |answer, server, faults| {
        fails_from_any_request_on(answer, server, faults, &LARGE)
    });
}
