//! Events: callbacks, panics in them, and the order of dropping.

use std::sync::mpsc;
use std::time::Duration;

use crate::common::*;

const SOON: Duration = Duration::from_secs(20);

#[test]
fn a_callback_is_called_once_with_the_outcome() {
    let client = client(1);
    let (send, receive) = mpsc::channel();
    let event = put(&client, &[1.0], 0).ready().unwrap();
    for i in 0..3 {
        let send = send.clone();
        event.on_ready(move |outcome| send.send((i, outcome.is_ok())).unwrap()).unwrap();
    }
    drop((event, send));
    let mut called = receive.iter().collect::<Vec<_>>();
    called.sort_unstable();
    assert_eq!(called, [(0, true), (1, true), (2, true)]);
}

#[test]
fn the_outcome_is_not_queried_too_early() {
    let client = client(1);
    let event = put(&client, &[1.0], 0).ready().unwrap();
    // Before it is ready this must be `None`; the plugin itself would end the process.
    while event.outcome().unwrap().is_none() {
        std::thread::yield_now();
    }
    assert!(event.is_ready().unwrap());
    event.wait().unwrap();
    event.clone().wait().unwrap();
    event.outcome().unwrap().unwrap().unwrap();
}

#[test]
fn a_panic_in_a_callback_is_caught() {
    if !is_child() {
        // In a separate process, because the panic is printed on standard error.
        in_child("events::a_panic_in_a_callback_is_caught", &[]);
        return;
    }
    let client = client(1);
    let event = put(&client, &[1.0], 0).ready().unwrap();
    let (send, receive) = mpsc::channel::<()>();
    event
        .on_ready(move |_| {
            let _held = send;
            panic!("in a callback");
        })
        .unwrap();
    assert!(receive.recv_timeout(SOON).is_err());
    assert_eq!(get(&put(&client, &[2.0], 0)), [2.0], "the client still works");
}

/// The panic's payload panics again when it is dropped.
struct Twice;

impl Drop for Twice {
    fn drop(&mut self) {
        panic!("in a payload");
    }
}

#[test]
fn a_panic_with_a_payload_that_panics_is_caught() {
    if !is_child() {
        let text = in_child("events::a_panic_with_a_payload_that_panics_is_caught", &[]);
        assert!(!text.contains("in a payload"), "{text}");
        return;
    }
    let client = client(1);
    let event = put(&client, &[1.0], 0).ready().unwrap();
    let (send, receive) = mpsc::channel::<()>();
    event
        .on_ready(move |_| {
            let _held = send;
            std::panic::panic_any(Twice);
        })
        .unwrap();
    assert!(matches!(receive.recv_timeout(SOON), Err(mpsc::RecvTimeoutError::Disconnected)));
    assert_eq!(get(&put(&client, &[2.0], 0)), [2.0], "the client still works");
}

#[test]
fn the_last_reference_to_a_client_can_be_dropped_in_a_callback() {
    let (send, receive) = mpsc::channel();
    for _ in 0..20 {
        let client = client(2);
        let program = compile(&client, &increment(""));
        let x = put(&client, &[0.0; 4], 0);
        let execution = run(&program, vec![(&x).into()]);
        let done = execution.device_complete_events[0].clone();
        let send = send.clone();
        // The callback holds the last references, so it closes the client on the client's own
        // thread.
        let everything = (client, program, x, execution);
        done.on_ready(move |outcome| {
            drop(everything);
            send.send(outcome.is_ok()).unwrap();
        })
        .unwrap();
    }
    for _ in 0..20 {
        assert!(receive.recv_timeout(SOON).unwrap());
    }
}

#[test]
fn objects_can_be_dropped_in_any_order() {
    let client = client(1);
    let program = compile(&client, &increment(""));
    let x = put(&client, &[1.0; 4], 0);
    let execution = run(&program, vec![(&x).into()]);
    drop(client);
    drop(x);
    drop(program);
    let device = execution.outputs[0][0].device().clone();
    assert_eq!(get(&execution.outputs[0][0]), [2.0; 4]);
    drop(execution);
    assert_eq!(device.id(), 0);
}
