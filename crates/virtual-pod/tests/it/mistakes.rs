//! Processes that do not launch the same, and processes that are lost.

use std::process::Command;

use crate::processes::Members;

#[test]
fn a_different_program_is_named_in_all_processes() {
    for error in Members::start("3x2", "program", &[]).outputs(0..3) {
        assert!(
            error.contains(
                "virtual pod: at launch 2, processes 0 and 2 launch `step` (fingerprint "
            ),
            "{error}"
        );
        assert!(error.contains("but process 1 launches `evaluate` (fingerprint "), "{error}");
        assert!(error.contains("the same programs in the same order"), "{error}");
    }
}

#[test]
fn programs_with_the_same_name_are_compared_too() {
    for error in Members::start("2x1", "body", &[]).outputs(0..2) {
        assert!(error.contains("process 0 launches `step` (fingerprint "), "{error}");
        assert!(error.contains("but process 1 launches `step` (fingerprint "), "{error}");
    }
}

#[test]
fn a_different_order_is_named() {
    for error in Members::start("2x2", "order", &[]).outputs(0..2) {
        assert!(error.contains("at launch 2, process 0 launches `step`"), "{error}");
        assert!(error.contains("but process 1 launches `evaluate`"), "{error}");
    }
}

#[test]
fn a_different_origin_of_an_argument_is_named() {
    for error in Members::start("3x2", "origin", &[]).outputs(0..3) {
        assert!(
            error.contains(
                "argument 0 of `step` (launch 2) is output 0 of launch 1 in processes 0 and 2, but comes from the host in \
                 process 1"
            ),
            "{error}"
        );
    }
}

#[test]
fn a_lost_process_is_named() {
    let mut members = Members::start("3x2", "lost", &[]);
    members.wait_for("waits");
    members.kill(1);
    for error in members.outputs([0, 2]) {
        assert!(error.contains("virtual pod: process 1 is lost"), "{error}");
        assert!(error.contains("at launch 2, `step`"), "{error}");
    }
}

#[test]
fn a_mistake_hangs_as_on_devices_if_the_setting_says_so() {
    // `fulmen-pjrt` waits for the launches of a platform `cpu` before it closes a client.
    let hang = [("FULMEN_VIRTUAL_POD_MISMATCH", "hang"), ("FULMEN_VIRTUAL_POD_PLATFORM", "abacus")];
    assert_eq!(Members::start("2x2", "hang", &hang).outputs(0..2), ["ready: false"; 2]);
}

/// The error of opening a client with these variables and options.
fn refused(variables: &[(&str, &str)], expected: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "mistakes::opens_alone", "--ignored", "--nocapture"])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(expected), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

/// The process that [`refused`] starts.
#[test]
#[ignore = "a part in the other tests"]
fn opens_alone() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<i64>().ok());
    let mut options = Vec::new();
    for (variable, option) in
        [("NODE", "node_id"), ("NODES", "num_nodes"), ("CPUS", "cpu_device_count")]
    {
        options.extend(number(variable).map(|number| (option, number.into())));
    }
    let opened = fulmen_pjrt::Plugin::load(fulmen_virtual_pod::library().unwrap())
        .and_then(|plugin| plugin.create_client(&options));
    println!("{opened:?}");
}

#[test]
fn invalid_settings_and_options_are_errors() {
    let shape = ("FULMEN_VIRTUAL_POD", "2x2");
    refused(&[("FULMEN_VIRTUAL_POD", "")], "a virtual pod needs FULMEN_VIRTUAL_POD");
    refused(&[shape, ("NODE", "2"), ("NODES", "2")], "node_id is 2, but num_nodes is 2");
    refused(&[shape, ("NODES", "3")], "FULMEN_VIRTUAL_POD has 2 processes, but num_nodes is 3");
    refused(&[shape, ("NODES", "2")], "there is no key-value store");
    refused(&[shape, ("CPUS", "4")], "a virtual pod has no option cpu_device_count");
    refused(
        &[shape, ("FULMEN_VIRTUAL_POD_CPU_PLUGIN", "/no/plugin.so")],
        "there is no PJRT plugin at /no/plugin.so",
    );
    // A process that joins no other has its own devices.
    refused(&[shape], "Ok(Client(cpu, 2 devices))");
    refused(&[shape, ("FULMEN_VIRTUAL_POD_PLATFORM", "abacus")], "Ok(Client(abacus, 2 devices))");
}
