//! The end of a process while devices still compute.
#![allow(unsafe_code, reason = "only an exit handler sees the end of a process")]

use std::mem;
use std::sync::OnceLock;

use crate::common::*;
use fulmen_pjrt::{CompileOptions, Event};

const VALUES: usize = 65536;

/// Computes sines of `x`, more often on a device with a higher number, and not at all on the first.
const UNEVEN: &str = "
    func.func @main(%x: tensor<65536xf32>) -> tensor<65536xf32> {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %each = stablehlo.constant dense<60> : tensor<i32>
      %id = stablehlo.replica_id : tensor<ui32>
      %replica = stablehlo.convert %id : (tensor<ui32>) -> tensor<i32>
      %n = stablehlo.multiply %replica, %each : tensor<i32>
      %i:2 = stablehlo.while(%step = %zero, %y = %x) : tensor<i32>, tensor<65536xf32>
      cond {
        %more = stablehlo.compare LT, %step, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      } do {
        %next = stablehlo.add %step, %one : tensor<i32>
        %sine = stablehlo.sine %y : tensor<65536xf32>
        stablehlo.return %next, %sine : tensor<i32>, tensor<65536xf32>
      }
      return %i#1 : tensor<65536xf32>
    }";

/// The end of the execution on the last device.
static LAST: OnceLock<Event> = OnceLock::new();

extern "C" fn report() {
    println!("at the end: {}", LAST.get().is_some_and(|event| event.is_ready().unwrap_or(false)));
}

#[test]
fn a_process_that_ends_waits_for_the_devices_that_still_compute() {
    const TEST: &str = "exit::a_process_that_ends_waits_for_the_devices_that_still_compute";
    if !is_child() {
        let text = in_child(TEST, &[]);
        assert!(
            text.contains("ready before the end: false") && text.contains("at the end: true"),
            "{text}"
        );
        return;
    }
    // Registered before the plugin starts, so that it runs after the handler under test.
    // SAFETY: the function has no arguments, does not unwind, and is never unloaded.
    unsafe { libc::atexit(report) };
    let client = client(8);
    let program = client.compile(UNEVEN, &CompileOptions::new().replicas(8)).unwrap();
    let values = vec![0.5f32; VALUES];
    let arguments = (0..8).map(|device| vec![put(&client, &values, device).into()]).collect();
    let execution = program.execute(arguments).unwrap();
    assert_eq!(get(&execution.outputs[0][0]), values);
    let last = LAST.get_or_init(|| execution.device_complete_events[7].clone());
    println!("ready before the end: {}", last.is_ready().unwrap());
    // A process keeps its client, whose end would wait.
    mem::forget((client, program, execution));
}
