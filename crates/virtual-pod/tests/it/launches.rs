//! Programs over several processes compute what one process computes.

use crate::processes::Members;

/// The values on all devices.
fn values(shape: &str) -> String {
    let count = shape.split_once('x').unwrap().0.parse().unwrap();
    Members::start(shape, "values", &[]).outputs(0..count).concat()
}

#[test]
fn values_are_those_of_one_process_to_the_bit() {
    let eight = values("1x8");
    assert_eq!(eight.lines().count(), 8);
    assert_eq!(values("2x4"), eight);
    assert_eq!(values("4x2"), eight);
    assert_eq!(values("3x2"), values("1x6"));
}

#[test]
fn a_launch_returns_before_the_other_processes_have_launched() {
    let outputs = Members::start("2x2", "early", &[]).outputs(0..2);
    assert_eq!(outputs[0], outputs[1]);
}
