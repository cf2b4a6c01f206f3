//! How long a barrier and a large value take. It is a measurement, and runs only when asked for.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use fulmen_coordination::{Coordination, Process};

use crate::common::TOKEN;

const LONG: Duration = Duration::from_secs(120);

/// A run whose processes are threads of this one.
fn run_of(count: usize) -> Vec<Coordination> {
    let (send_address, addresses) = channel();
    let process = |index: usize, address: &str| {
        Process::new(index, count, address).unwrap().with_run_token(TOKEN).unwrap()
    };
    let zero = Coordination::builder(process(0, "127.0.0.1:0"))
        .on_listening(move |address| send_address.send(address.to_owned()).unwrap());
    let mut joining = vec![thread::spawn(move || zero.join().unwrap())];
    let address = addresses.recv().unwrap();
    for index in 1..count {
        let builder = Coordination::builder(process(index, &address));
        joining.push(thread::spawn(move || builder.join().unwrap()));
    }
    joining.into_iter().map(|process| process.join().unwrap()).collect()
}

/// The time of one call, from calls that all processes make together.
fn time_of(run: &[Coordination], calls: u32, call: impl Fn(&Coordination, u32) + Sync) -> Duration {
    let start = Instant::now();
    thread::scope(|scope| {
        for process in run {
            let call = &call;
            scope.spawn(move || (0..calls).for_each(|n| call(process, n)));
        }
    });
    start.elapsed() / calls
}

#[test]
#[ignore = "a measurement: cargo test --release -p fulmen-coordination --test it round_trips -- --ignored --nocapture"]
fn the_time_of_a_barrier_and_of_a_large_value() {
    for count in [2, 64] {
        let run = run_of(count);
        let barrier = time_of(&run, 200, |process, _| process.barrier("step", LONG).unwrap());
        println!("{count} processes: {barrier:?} for a barrier");
        run[0].put("blob", vec![7; 16 << 20]).unwrap();
        let value = time_of(&run, 1, |process, _| drop(process.get("blob", LONG).unwrap()));
        println!("{count} processes: {value:?} until all have a value of 16 MiB");
        thread::scope(|scope| {
            run.iter().for_each(|process| drop(scope.spawn(|| process.shutdown(LONG).unwrap())));
        });
    }
}
