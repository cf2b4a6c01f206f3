//! Tests the coordinator's rules, without sockets and without waiting.

use expect_test::{Expect, expect};

use super::*;

const LIMIT: Duration = Duration::from_secs(10);

fn run(count: usize) -> Coordinator {
    Coordinator::new(count, "r", &[], LIMIT)
}

fn join(index: u32, count: u32) -> wire::Join {
    wire::Join {
        version: wire::VERSION,
        caller: wire::Caller { index, session: u64::from(index) + 100 },
        count,
        run_id: "r".into(),
        host: format!("host-{index}"),
        pid: index + 1000,
    }
}

/// A run that all processes have joined.
fn full(count: u32, now: Instant) -> Coordinator {
    let mut coordinator = run(count as usize);
    (0..count).for_each(|index| coordinator.join(&join(index, count), now).unwrap());
    coordinator
}

fn key(purpose: Purpose, name: &str) -> BarrierKey {
    (purpose, name.to_owned(), 0)
}

fn facts(program: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("program".to_owned(), program.to_owned())])
}

fn refuses(request: wire::Join, expect: Expect) {
    let mut coordinator = run(2);
    coordinator.join(&join(0, 2), Instant::now()).unwrap();
    let failure = coordinator.join(&request, Instant::now()).unwrap_err();
    assert!(!failure.ends_run);
    expect.assert_eq(&failure.message);
    // A process that waits for process 1 in vain gets the failure.
    coordinator.arrive(&key(Purpose::Join, ""), 0, &BTreeMap::new());
    let late = coordinator.time_out(&key(Purpose::Join, ""), LIMIT).unwrap_err();
    assert!(
        late.ends_run && late.processes == [1] && late.message.contains(&failure.message),
        "{}",
        late.message
    );
}

#[test]
fn a_process_of_another_run_or_version_is_refused() {
    refuses(
        wire::Join { version: 7, ..join(1, 2) },
        expect![
            "process 1 (host-1, pid 1001) was not admitted to the run: it speaks version 7 of the protocol and the \
             coordinator 1; run the same build in all processes"
        ],
    );
    refuses(
        wire::Join { run_id: "old".into(), ..join(1, 2) },
        expect![
            "process 1 (host-1, pid 1001) was not admitted to the run: it belongs to the run `old` and the coordinator to `r` (FULMEN_RUN_ID); is a process of another run still there?"
        ],
    );
    refuses(
        join(1, 3),
        expect![
            "process 1 (host-1, pid 1001) was not admitted to the run: it expects 3 processes and the coordinator 2; give all of them the same number"
        ],
    );
    refuses(
        wire::Join {
            caller: wire::Caller { index: 0, session: 1 },
            host: "host-b".into(),
            ..join(0, 2)
        },
        expect![
            "process 0 (host-b, pid 1000) was not admitted to the run: process 0 (host-0, pid 1000) has that index; give each process its own"
        ],
    );
    refuses(
        wire::Join { caller: wire::Caller { index: 2, session: 1 }, ..join(1, 2) },
        expect![
            "process 2 (host-1, pid 1001) was not admitted to the run: its index is not below the number of processes, 2"
        ],
    );
}

#[test]
fn a_repeated_request_changes_nothing() {
    let now = Instant::now();
    let mut coordinator = full(2, now);
    coordinator.join(&join(1, 2), now).unwrap();
    let barrier = key(Purpose::Barrier, "b");
    coordinator.arrive(&barrier, 0, &BTreeMap::new());
    coordinator.arrive(&barrier, 0, &BTreeMap::new());
    assert!(coordinator.outcome(&barrier).is_none());
    coordinator.arrive(&barrier, 1, &BTreeMap::new());
    assert!(coordinator.outcome(&barrier).unwrap().is_ok());
    coordinator.arrive(&barrier, 1, &BTreeMap::new());
    assert!(coordinator.outcome(&barrier).unwrap().is_ok());
    coordinator.put(0, "k", "v".into()).unwrap();
    coordinator.put(1, "k", "v".into()).unwrap();
    assert_eq!(coordinator.get("k").unwrap(), "v");
}

#[test]
fn a_value_is_put_once() {
    let mut coordinator = full(2, Instant::now());
    coordinator.put(0, "k", "v".into()).unwrap();
    let failure = coordinator.put(1, "k", "w".into()).unwrap_err();
    expect![
        "the key `k` already has a different value, from process 0 (host-0, pid 1000); a value is put once"
    ]
    .assert_eq(&failure.message);
    assert_eq!(coordinator.get("k").unwrap(), "v");
}

#[test]
fn a_barrier_fails_for_all_or_for_none() {
    let mut coordinator = full(3, Instant::now());
    let barrier = key(Purpose::Barrier, "b");
    coordinator.arrive(&barrier, 1, &BTreeMap::new());
    let failure = coordinator.time_out(&barrier, Duration::from_millis(1500)).unwrap_err();
    expect!["process 0 (host-0, pid 1000), process 2 (host-2, pid 1002) have not reached the barrier `b` within 1.5 s; 1 of 3 processes wait there"]
        .assert_eq(&failure.message);
    assert_eq!((failure.processes.as_slice(), failure.ends_run), ([0, 2].as_slice(), false));
    // Processes that arrive later do not pass the barrier.
    for index in [0, 2] {
        coordinator.arrive(&barrier, index, &BTreeMap::new());
        assert_eq!(coordinator.outcome(&barrier), Some(Err(failure.clone())));
    }
    // The failed barrier does not affect another barrier.
    let again = (Purpose::Barrier, "b".to_owned(), 1);
    (0..3).for_each(|index| coordinator.arrive(&again, index, &BTreeMap::new()));
    assert_eq!(coordinator.outcome(&again), Some(Ok(())));
}

#[test]
fn past_barriers_are_forgotten() {
    let mut coordinator = full(2, Instant::now());
    for generation in 0..1000 {
        let barrier = (Purpose::Barrier, "step".to_owned(), generation);
        (0..2).for_each(|index| coordinator.arrive(&barrier, index, &BTreeMap::new()));
        assert_eq!(coordinator.outcome(&barrier), Some(Ok(())));
    }
    assert_eq!(coordinator.barriers.len(), 2);
}

#[test]
fn another_program_ends_the_run() {
    let mut coordinator = full(3, Instant::now());
    let barrier = key(Purpose::Agreement, "fit");
    for (index, program) in [(2, "b"), (0, "a"), (1, "a")] {
        coordinator.arrive(&barrier, index, &facts(program));
    }
    let failure = coordinator.outcome(&barrier).unwrap().unwrap_err();
    assert_eq!(
        (failure.kind(), failure.processes.as_slice()),
        (FailureKind::Disagreement, [2].as_slice())
    );
    expect!["the processes do not agree on `fit`: `program`: process 2 (host-2, pid 1002) has b, the other 2 have a. Start all of them from one build, with the same configuration and data"]
        .assert_eq(&failure.message);
    assert_eq!(coordinator.failure(), Some(&failure));
    // The coordinator stays until all processes know.
    (0..3).for_each(|index| {
        assert!(!coordinator.all_notified());
        coordinator.notify_failure(index);
    });
    assert!(coordinator.all_notified());
}

#[test]
fn a_silent_process_is_lost() {
    let start = Instant::now();
    let mut coordinator = full(4, start);
    let caller = |index: u32| join(index, 4).caller;
    [0, 2]
        .into_iter()
        .for_each(|index| coordinator.heartbeat(caller(index), start + LIMIT).unwrap());
    coordinator.expire_members(start + LIMIT);
    assert!(coordinator.failure().is_none());
    coordinator.expire_members(start + LIMIT + Duration::from_millis(1));
    let failure = coordinator.failure().unwrap().clone();
    expect!["process 1 (host-1, pid 1001), process 3 (host-3, pid 1003) have not sent a heartbeat for 10 s: killed, stopped, or on a host that is not reachable; see its last output"]
        .assert_eq(&failure.message);
    assert_eq!((failure.kind(), failure.ends_run), (FailureKind::PeerSilent, true));
    // The coordinator does not wait for processes that are gone.
    [0, 2].into_iter().for_each(|index| coordinator.notify_failure(index));
    assert!(coordinator.all_notified());
    // Consequences of a failure do not replace it.
    coordinator.leave(0, "", None);
    assert_eq!(coordinator.failure(), Some(&failure));
}

#[test]
fn a_suspended_coordinator_does_not_expire_members() {
    let start = Instant::now();
    let mut coordinator = full(2, start);
    coordinator.reset_deadlines(start + LIMIT * 5);
    coordinator.expire_members(start + LIMIT * 6);
    assert!(coordinator.failure().is_none());
}

#[test]
fn leaving_early_ends_the_run_for_all() {
    let mut coordinator = full(2, Instant::now());
    coordinator.leave(1, "the loss is NaN", None);
    expect!["process 1 (host-1, pid 1001) ended: the loss is NaN"]
        .assert_eq(&coordinator.failure().unwrap().message);
    let late = coordinator.join(&join(1, 2), Instant::now()).unwrap_err();
    expect!["the run is over: process 1 (host-1, pid 1001) ended: the loss is NaN"]
        .assert_eq(&late.message);
    assert_eq!(late.signal, None);

    let mut coordinator = full(2, Instant::now());
    coordinator.leave(1, "SIGTERM before its first step", Some(15));
    let late = coordinator.join(&join(1, 2), Instant::now()).unwrap_err();
    assert_eq!(late.signal, Some(15));
}

#[test]
fn after_the_shutdown_all_may_leave() {
    let start = Instant::now();
    let mut coordinator = full(2, start);
    let barrier = key(Purpose::Shutdown, "");
    (0..2).for_each(|index| coordinator.arrive(&barrier, index, &BTreeMap::new()));
    assert_eq!(coordinator.outcome(&barrier), Some(Ok(())));
    coordinator.leave(0, "", None);
    assert!(!coordinator.all_notified());
    coordinator.expire_members(start + LIMIT * 2);
    coordinator.leave(1, "", None);
    assert!(coordinator.failure().is_none() && coordinator.all_notified());
}

#[test]
fn a_process_at_the_end_is_not_awaited_at_a_barrier() {
    let end = key(Purpose::Shutdown, "");
    let agreement = key(Purpose::Agreement, "fit");
    let message = expect![
        "process 1 (host-1, pid 1001) has reached the end of the program and will not arrive at `fit`, where others wait; see the last output there"
    ];
    for order in [[(1, &end), (0, &agreement)], [(0, &agreement), (1, &end)]] {
        let mut coordinator = full(3, Instant::now());
        for (index, barrier) in order {
            assert!(coordinator.failure().is_none());
            coordinator.arrive(barrier, index, &BTreeMap::new());
        }
        let failure = coordinator.failure().unwrap();
        assert_eq!(failure.processes, [1]);
        message.assert_eq(&failure.message);
    }
    // A process that continued to the end after all had arrived at a barrier counts as arrived
    // there.
    let mut coordinator = full(2, Instant::now());
    (0..2).for_each(|index| coordinator.arrive(&agreement, index, &BTreeMap::new()));
    coordinator.arrive(&end, 1, &BTreeMap::new());
    assert!(coordinator.failure().is_none());
}

#[test]
fn an_unknown_process_learns_that_the_coordinator_is_another_one() {
    let mut coordinator = full(2, Instant::now());
    let stranger = wire::Caller { index: 1, session: 5 };
    let failure = coordinator.heartbeat(stranger, Instant::now()).unwrap_err();
    assert!(failure.ends_run);
    expect!["the coordinator does not know process 1: it was restarted, or another run has taken its address; start all processes again"]
        .assert_eq(&failure.message);
    assert!(coordinator.failure().is_none());
}

#[test]
fn a_missing_process_is_named_with_its_host() {
    let hosts = ["a", "b"].map(str::to_owned);
    let mut coordinator = Coordinator::new(2, "r", &hosts, LIMIT);
    coordinator.join(&join(0, 2), Instant::now()).unwrap();
    coordinator.arrive(&key(Purpose::Join, ""), 0, &BTreeMap::new());
    let failure =
        coordinator.time_out(&key(Purpose::Join, ""), Duration::from_secs(2)).unwrap_err();
    expect!["process 1 (b) has not joined within 2 s; 1 of 2 processes have"]
        .assert_eq(&failure.message);
}

#[test]
fn a_process_of_the_next_run_waits() {
    let next = |index: u32| wire::Caller { index, session: 7 };
    let mut coordinator = full(2, Instant::now());
    assert_eq!(coordinator.is_ending(next(1)), None);
    (0..2)
        .for_each(|index| coordinator.arrive(&key(Purpose::Shutdown, ""), index, &BTreeMap::new()));
    expect!["the previous run has not ended for all its processes"]
        .assert_eq(&coordinator.is_ending(next(1)).unwrap());
    assert_eq!(coordinator.is_ending(join(1, 2).caller), None);

    // After a failed run, only processes that know about the failure can join another run.
    let mut coordinator = full(2, Instant::now());
    coordinator.leave(1, "the loss is NaN", None);
    coordinator.notify_failure(1);
    expect!["the previous run is ending: process 1 (host-1, pid 1001) ended: the loss is NaN"]
        .assert_eq(&coordinator.is_ending(next(1)).unwrap());
    assert_eq!(coordinator.is_ending(next(0)), None);
}

#[test]
fn waiting_at_different_barriers_is_an_error() {
    let mut coordinator = full(3, Instant::now());
    coordinator.arrive(&key(Purpose::Agreement, "fit"), 0, &BTreeMap::new());
    coordinator.arrive(&key(Purpose::Agreement, "test"), 1, &BTreeMap::new());
    // Process 2 may still arrive at one of the barriers, and process 1 may continue to the other.
    assert!(coordinator.failure().is_none());
    coordinator.arrive(&key(Purpose::Barrier, "saved"), 2, &BTreeMap::new());
    let failure = coordinator.failure().unwrap();
    assert_eq!(
        (failure.kind(), failure.processes.as_slice()),
        (FailureKind::Disagreement, [0, 1, 2].as_slice())
    );
    expect!["the processes wait for each other at different barriers: process 2 (host-2, pid 1002) at `saved`; process 0 (host-0, pid 1000) at `fit`; process 1 (host-1, pid 1001) at `test`. Start all of them from one build, with the same configuration and data"]
        .assert_eq(&failure.message);
}
