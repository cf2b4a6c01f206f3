//! The pool of large blocks, `FULMEN_CPU_POOL`.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use fulmen_pjrt::{Client, ElementType, LoadedExecutable};

/// A length that no other test uses.
const LENGTH: usize = 1_234_567;

fn count() -> (usize, usize) {
    fulmen_cpu_pool::count(LENGTH * 8)
}

fn broadcast(client: &Client) -> LoadedExecutable {
    let text = format!(
        "func.func @main(%x: tensor<f64>) -> tensor<{LENGTH}xf64> {{
           %y = stablehlo.broadcast_in_dim %x, dims = [] : (tensor<f64>) -> tensor<{LENGTH}xf64>
           return %y : tensor<{LENGTH}xf64>
         }}"
    );
    compile(client, &text)
}

/// Runs the program twice, and returns the numbers of used and spare blocks while there is a result.
fn used_and_spare(client: &Client) -> Vec<(usize, usize)> {
    let program = broadcast(client);
    let run = |value: f64| {
        let device = &client.devices()[0];
        let bytes = value.to_ne_bytes();
        let x = client.buffer_from_host(&bytes, ElementType::F64, &[], device).unwrap();
        let result = run(&program, vec![(&x).into()]).outputs.remove(0).remove(0);
        let read = result.read().unwrap().wait().unwrap();
        assert!(read.len() == LENGTH * 8 && read.ends_with(&bytes));
        let counts = count();
        drop(result);
        // A thread of the plugin may hold the block for a moment longer.
        let start = Instant::now();
        while count().0 > 0 && start.elapsed() < Duration::from_secs(10) {
            thread::yield_now();
        }
        counts
    };
    vec![run(1.5), run(2.5)]
}

#[test]
fn a_plugin_reuses_the_blocks_of_the_pool() {
    if is_child() {
        let clients = thread::scope(|scope| {
            let opened = [1, 2].map(|devices| scope.spawn(move || client(devices)));
            opened.map(|client| client.join().unwrap())
        });
        for client in &clients {
            assert_eq!(used_and_spare(client), [(1, 0), (1, 0)]);
            assert_eq!(count(), (0, 1));
        }
        // A block of another size returns this one to the system.
        let large = vec![0; 64 << 20];
        let device = &clients[0].devices()[0];
        let dims = [large.len()];
        let buffer = clients[0].buffer_from_host(&large, ElementType::U8, &dims, device).unwrap();
        buffer.read().unwrap().wait().unwrap();
        assert_eq!(count(), (0, 0));
        return;
    }
    let text =
        in_child("pool::a_plugin_reuses_the_blocks_of_the_pool", &[("FULMEN_CPU_POOL", "1")]);
    assert!(!text.contains("has no effect"), "{text}");
}

#[test]
fn the_pool_is_off_unless_asked_for() {
    if is_child() {
        assert_eq!(used_and_spare(&client(1)), [(0, 0), (0, 0)]);
        return;
    }
    for value in ["", "0"] {
        in_child("pool::the_pool_is_off_unless_asked_for", &[("FULMEN_CPU_POOL", value)]);
    }
}

#[test]
fn another_value_is_refused() {
    if is_child() {
        for error in
            [plugin().create_client(&[]).unwrap_err(), fulmen_pjrt::check_variables().unwrap_err()]
        {
            assert!(error.is_usage());
            says(&error, &["FULMEN_CPU_POOL is \"yes\"; set it to 1"]);
        }
        return;
    }
    in_child("pool::another_value_is_refused", &[("FULMEN_CPU_POOL", "yes")]);
}
