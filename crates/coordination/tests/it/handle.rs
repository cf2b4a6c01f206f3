//! The guarantees and the errors of the handle, with one process, or with two as threads of this
//! process.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use fulmen_coordination::{Builder, Coordination, Process, Result, Timeouts};

const SOON: Duration = Duration::from_secs(120);

fn builder(process: Process) -> Builder {
    Coordination::builder(process).timeouts(Timeouts { join: SOON, heartbeat: SOON })
}

/// Process 0, and a function that joins at its address on other threads.
fn with_others<T: Send + 'static>(
    count: usize,
    others: Vec<Box<dyn FnOnce(String) -> T + Send>>,
) -> (Result<Coordination>, Vec<T>) {
    let (send_address, addresses) = channel();
    let zero = thread::spawn(move || {
        builder(Process::new(0, count, "127.0.0.1:0")?)
            .on_listening(move |a| send_address.send(a.to_owned()).unwrap())
            .join()
    });
    let address = addresses.recv().unwrap();
    let others: Vec<_> = others
        .into_iter()
        .map(|other| {
            let address = address.clone();
            thread::spawn(move || other(address))
        })
        .collect();
    let others = others.into_iter().map(|other| other.join().unwrap()).collect();
    (zero.join().unwrap(), others)
}

/// The value of `look` once it exists.
fn soon<T>(look: impl Fn() -> Option<T>) -> T {
    let begun = std::time::Instant::now();
    loop {
        if let Some(value) = look() {
            return value;
        }
        assert!(begun.elapsed() < SOON, "it never comes");
        thread::sleep(Duration::from_millis(5));
    }
}

fn pair() -> (Coordination, Coordination) {
    let (zero, mut one) =
        with_others(2, vec![Box::new(|address| builder(Process::new(1, 2, address)?).join())]);
    (zero.unwrap(), one.remove(0).unwrap())
}

#[test]
fn a_handle_is_send_and_sync() {
    fn check<T: Clone + Send + Sync + 'static>() {}
    check::<Coordination>();
}

#[test]
fn a_single_process_needs_no_other() {
    let alone = Coordination::builder(Process::single()).join().unwrap();
    assert!(alone.coordinator().starts_with("127.0.0.1:"));
    alone.barrier("b", SOON).unwrap();
    alone.check_consistent("fit", &BTreeMap::from([("a".into(), "b".into())]), SOON).unwrap();
    alone.put("k", b"v").unwrap();
    assert_eq!(alone.get("k", SOON).unwrap(), b"v");
    alone.shutdown(SOON).unwrap();
    let after = alone.barrier("b", SOON).unwrap_err();
    assert!(after.is_usage() && after.to_string().contains("has ended"), "{after}");
}

#[test]
fn a_value_is_waited_for_and_cannot_change() {
    let (zero, one) = pair();
    let waiting = one.clone();
    let got = thread::spawn(move || waiting.get("late", SOON));
    zero.put("late", "value").unwrap();
    assert_eq!(got.join().unwrap().unwrap(), b"value");
    one.put("late", "value").unwrap();
    let changed = one.put("late", "other").unwrap_err();
    assert!(
        changed.is_conflict()
            && changed.to_string().contains("has a different value, from process 0"),
        "{changed}"
    );
    let none = zero.get("never", Duration::from_millis(50)).unwrap_err();
    assert!(none.is_timeout() && none.to_string().contains("`never` within 0.05 s"), "{none}");
    // None of this was a failure of the run.
    zero.health().unwrap();
    assert_eq!(zero.processes(), one.processes());
}

#[test]
fn a_large_value_arrives_and_one_that_is_too_large_is_refused() {
    let (zero, one) = pair();
    let large = vec![7u8; 16 << 20];
    zero.put("blob", &large).unwrap();
    assert!(one.get("blob", SOON).unwrap() == large);
    let error = zero.put("more", vec![0u8; (16 << 20) + 1]).unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("16777217 bytes"), "{error}");
    assert!(zero.put("", "x").unwrap_err().is_usage());
    assert!(zero.get(&"k".repeat(1025), SOON).unwrap_err().is_usage());
}

#[test]
fn a_barrier_names_who_is_missing() {
    let (zero, one) = pair();
    let error = zero.barrier("b", Duration::from_millis(100)).unwrap_err();
    assert!(error.is_timeout() && error.processes() == [1], "{error:?}");
    assert!(
        error.to_string().contains("process 1 (") && error.to_string().contains("barrier `b`"),
        "{error}"
    );
    // No process passes a barrier that the others have given up.
    assert_eq!(one.barrier("b", SOON).unwrap_err(), error);
    let other = one.clone();
    let passes = thread::spawn(move || other.barrier("b", SOON));
    zero.barrier("b", SOON).unwrap();
    passes.join().unwrap().unwrap();
}

#[test]
fn a_disagreement_of_two_names_both() {
    let (zero, one) = pair();
    let facts = |length: &str| BTreeMap::from([("batches".to_owned(), length.to_owned())]);
    let other = one.clone();
    let disagrees = thread::spawn(move || other.check_consistent("fit", &facts("20"), SOON));
    let error = zero.check_consistent("fit", &facts("10"), SOON).unwrap_err();
    assert!(error.is_disagreement() && error.processes() == [0, 1], "{error:?}");
    assert_eq!(disagrees.join().unwrap().unwrap_err(), error);
    // The run is over, and the handle has the error.
    assert_eq!(one.barrier("b", SOON).unwrap_err(), error);
    assert_eq!(one.health().unwrap_err(), error);
}

#[test]
fn the_others_learn_about_a_failure_or_an_early_end() {
    let (zero, one) = pair();
    let waiting = zero.clone();
    let waits = thread::spawn(move || waiting.barrier("b", SOON));
    one.fail("the loss is NaN");
    let error = waits.join().unwrap().unwrap_err();
    assert!(error.is_peer_lost() && error.processes() == [1], "{error:?}");
    assert!(error.to_string().ends_with("ended: the loss is NaN"), "{error}");
    assert_eq!(error.signal(), None);

    let (zero, one) = pair();
    let waiting = one.clone();
    let waits = thread::spawn(move || waiting.barrier("b", SOON));
    zero.fail_before_exit("SIGTERM before its first step", Some(15));
    let error = waits.join().unwrap().unwrap_err();
    assert!(error.is_peer_lost() && error.processes() == [0], "{error:?}");
    assert_eq!(error.signal(), Some(15));

    let (zero, one) = pair();
    let (send, called) = channel();
    one.on_failure(move |error| send.send(error.clone()).unwrap());
    drop(zero);
    let error = called.recv_timeout(SOON).unwrap();
    assert!(error.is_peer_lost() && error.to_string().contains("process 0 ("), "{error}");
    assert!(error.to_string().contains("left the run before its end"), "{error}");
    assert_eq!(one.health().unwrap_err(), error);
}

#[test]
fn all_stop_after_the_same_turn_although_one_is_ahead() {
    let (zero, one) = pair();
    let fast = one.halt("a");
    let slow = zero.halt("a");
    for _ in 0..100 {
        assert_eq!(fast.poll().unwrap(), None);
    }
    slow.request("SIGTERM");
    fast.request("SIGHUP");
    let run = |halt: fulmen_coordination::Halt, before: usize| {
        thread::spawn(move || {
            (before + 1..).find_map(|turn| Some((turn, halt.poll().unwrap()?))).unwrap()
        })
    };
    let fast = run(fast, 100);
    let slow = run(slow, 0);
    let ends = (fast.join().unwrap(), slow.join().unwrap());
    assert!(ends.0 == ends.1 && ends.0.0 > 100, "{ends:?}");
}

#[test]
fn a_process_without_further_turns_delays_no_other() {
    let (zero, one) = pair();
    let over = zero.halt("a");
    let other = one.halt("a");
    assert_eq!((over.poll().unwrap(), other.poll().unwrap()), (None, None));
    other.request("SIGTERM");
    assert_eq!(zero.get("halt/a", SOON).unwrap(), b"SIGTERM");
    drop(over);
    // The remaining process learns that the turn after the latest is the last, although the other
    // process has ended.
    assert_eq!(soon(|| other.poll().unwrap()), "SIGTERM");

    // One process has ended its last turn when the other is asked to stop: the other continues to
    // its last turn.
    let over = zero.halt("b");
    let other = one.halt("b");
    drop(over);
    assert_eq!(one.get("halt/b", SOON).unwrap(), b"");
    other.request("SIGTERM");
    assert_eq!(other.poll().unwrap(), None);
}

#[test]
fn a_run_that_fails_ends_the_turns() {
    let (zero, one) = pair();
    let halt = one.halt("a");
    zero.fail("the disk is full");
    let error = soon(|| halt.poll().err());
    assert!(error.to_string().contains("the disk is full"));
}

#[test]
fn a_second_process_with_an_index_is_refused() {
    let join = |address: String| builder(Process::new(1, 2, address)?).join();
    let (zero, ones) = with_others(2, vec![Box::new(join), Box::new(join)]);
    let zero = zero.unwrap();
    let (joined, refused): (Vec<_>, Vec<_>) = ones.into_iter().partition(Result::is_ok);
    let error = refused.into_iter().next().unwrap().unwrap_err();
    assert!(error.is_refused() && error.to_string().contains("has that index"), "{error}");
    // The rejected process did not affect the run.
    let one = joined.into_iter().next().unwrap().unwrap();
    let other = thread::spawn(move || one.shutdown(SOON));
    zero.shutdown(SOON).unwrap();
    other.join().unwrap().unwrap();
}

#[test]
fn a_process_of_another_run_is_refused() {
    let (zero, others) = with_others::<Result<Coordination>>(
        2,
        vec![Box::new(|address| {
            let stranger = builder(Process::new(1, 3, address.clone())?).join().unwrap_err();
            assert!(
                stranger.is_refused() && stranger.to_string().contains("expects 3 processes"),
                "{stranger}"
            );
            let stranger = builder(Process::new(1, 2, address.clone())?.with_run_id("old"))
                .join()
                .unwrap_err();
            assert!(
                stranger.is_refused() && stranger.to_string().contains("the run `old`"),
                "{stranger}"
            );
            builder(Process::new(1, 2, address)?).join()
        })],
    );
    let _pair = (zero.unwrap(), others.into_iter().next().unwrap().unwrap());
}

#[test]
#[ignore = "slow: ci/slow"]
fn a_missing_coordinator_is_an_error() {
    let join = |address: String| {
        let timeouts = Timeouts { join: Duration::from_secs(2), ..Timeouts::default() };
        Coordination::builder(Process::new(1, 2, address).unwrap())
            .timeouts(timeouts)
            .join()
            .unwrap_err()
    };
    // A port that no program gets by chance.
    let error = join("127.0.0.1:1".to_owned());
    assert!(error.is_timeout() && error.processes() == [0], "{error:?}");
    assert!(error.to_string().contains("within 2 s: Connection refused"), "{error}");
    // A server that accepts connections and sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let error = join(silent.local_addr().unwrap().to_string());
    assert!(
        error.is_timeout() && error.to_string().contains("could not reach the coordinator"),
        "{error}"
    );
}

#[test]
fn an_address_in_use_is_an_error() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let process = Process::new(0, 1, taken.local_addr().unwrap().to_string()).unwrap();
    let error = builder(process).join().unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("listens there"), "{error}");
}

#[test]
fn the_coordinator_may_have_a_name_or_a_long_address() {
    let mut hosts = vec!["localhost"];
    // Not every machine supports IPv6.
    hosts.extend(TcpListener::bind("[::1]:0").is_ok().then_some("[::1]"));
    for host in hosts {
        let alone = builder(Process::new(0, 1, format!("{host}:0")).unwrap()).join().unwrap();
        assert!(alone.coordinator().starts_with(&format!("{host}:")), "{}", alone.coordinator());
        alone.barrier("b", SOON).unwrap();
    }
}

#[test]
fn time_outs_are_checked() {
    let join =
        |timeouts| Coordination::builder(Process::single()).timeouts(timeouts).join().unwrap_err();
    assert!(join(Timeouts { heartbeat: Duration::ZERO, ..Timeouts::default() }).is_usage());
    assert!(join(Timeouts { join: Duration::ZERO, ..Timeouts::default() }).is_usage());
    // Any duration is valid; the clock limits it.
    let longest = Timeouts { join: Duration::MAX, heartbeat: Duration::MAX };
    let alone = Coordination::builder(Process::single()).timeouts(longest).join().unwrap();
    alone.barrier("b", Duration::MAX).unwrap();

    let env =
        |text: &'static str| move |name: &str| (name == "FULMEN_JOIN_TIMEOUT").then(|| text.into());
    assert_eq!(Timeouts::from_env(env("2.5")).unwrap().join, Duration::from_millis(2500));
    assert_eq!(Timeouts::from_env(env("")).unwrap(), Timeouts::default());
    for wrong in ["0", "-1", "NaN", "soon"] {
        let error = Timeouts::from_env(env(wrong)).unwrap_err();
        assert!(error.to_string().contains("FULMEN_JOIN_TIMEOUT is `"), "{error}");
    }
}

#[test]
fn a_thread_of_another_runtime_may_wait() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let alone = Coordination::builder(Process::single()).join().unwrap();
        alone.barrier("b", SOON).unwrap();
        alone.put("key", "value").unwrap();
        assert_eq!(alone.get("key", SOON).unwrap(), b"value");
    });
}
