//! `fulmen selftest`: on one device, on eight and on a virtual pod, and what it finds on a device with
//! a fault.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Runs the command. Returns its exit code, what it printed, and its report.
fn selftest(arguments: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String, Value) {
    run(Command::new(env!("CARGO_BIN_EXE_fulmen")), arguments, variables)
}

/// Runs the command in each process of a virtual pod. The variable is only for process 1.
fn on_pod(
    shape: &str,
    arguments: &[&str],
    variable: Option<(&str, &str)>,
) -> (Option<i32>, String, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fulmen"));
    command.args(["pod", "run", "--virtual", shape, "--"]);
    if let Some((name, value)) = variable {
        let script =
            format!("[ $FULMEN_PROCESS_ID = 0 ] || export {name}={value}; exec \"$0\" \"$@\"");
        command.args(["/bin/sh", "-c", &script]);
    }
    command.arg(env!("CARGO_BIN_EXE_fulmen"));
    run(command, arguments, &[])
}

fn run(
    mut command: Command,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> (Option<i32>, String, Value) {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("report.json");
    let html = folder.path().join("report.html");
    command.args(["selftest", "--accelerator", "cpu"]).args(arguments);
    command.arg("--json").arg(&json).arg("--html").arg(&html);
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8(printed).unwrap();
    let report = std::fs::read_to_string(json).unwrap_or_else(|e| panic!("{e}: {printed}"));
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.contains("fulmen selftest") && !page.contains("<script"), "{page}");
    let home = std::env::var("HOME").unwrap();
    let private = folder.path().to_str().unwrap();
    for text in [&report, &page] {
        assert!(!text.contains(&home) && !text.contains(private), "{text}");
    }
    let report = serde_json::from_str(&report).unwrap();
    assert_fits_schema(&report);
    (output.status.code(), printed, report)
}

fn part<'a>(report: &'a Value, name: &str) -> &'a Value {
    let parts = report["parts"].as_array().unwrap();
    parts.iter().find(|part| part["name"] == name).unwrap()
}

/// Checks a report against the keywords that its schema uses.
fn assert_fits_schema(report: &Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../selftest/report.schema.json");
    let schema: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut wrong = Vec::new();
    fit(report, &schema, "report", &mut wrong);
    assert!(wrong.is_empty(), "{wrong:#?}");
    let mut other = report.clone();
    other["parts"][0]["ending"]["kind"] = "vanished".into();
    other["parts"][0]["secret"] = Value::Bool(true);
    fit(&other, &schema, "report", &mut wrong);
    assert_eq!(wrong.len(), 2, "{wrong:?}");
}

fn fit(value: &Value, schema: &Value, place: &str, wrong: &mut Vec<String>) {
    const KNOWN: [&str; 9] = [
        "$schema",
        "title",
        "description",
        "type",
        "enum",
        "items",
        "properties",
        "required",
        "additionalProperties",
    ];
    let keywords = schema.as_object().unwrap();
    assert!(keywords.keys().all(|key| KNOWN.contains(&key.as_str())), "{place}: {keywords:?}");
    let is = |name: &Value| match name.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("the type {other}"),
    };
    let fits = match &schema["type"] {
        Value::Null => true,
        Value::Array(types) => types.iter().any(is),
        name => is(name),
    };
    let listed = schema["enum"].as_array().is_none_or(|all| all.contains(value));
    if !fits || !listed {
        wrong.push(format!("{place} is {value}"));
    }
    for item in value.as_array().into_iter().flatten() {
        fit(item, &schema["items"], &format!("{place}[]"), wrong);
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        if value.get(name.as_str().unwrap()).is_none() {
            wrong.push(format!("{place} has no {name}"));
        }
    }
    for (name, field) in value.as_object().into_iter().flatten() {
        let place = format!("{place}.{name}");
        match (schema["properties"].get(name), &schema["additionalProperties"]) {
            (Some(schema), _) => fit(field, schema, &place, wrong),
            (None, other) if other.is_object() => fit(field, other, &place, wrong),
            (None, _) => wrong.push(format!("{place} is not in the schema")),
        }
    }
}

const QUICK: [&str; 6] = ["--only", "matmul", "--part", "device", "--part", "operations"];

#[test]
fn one_device_and_eight_pass_and_reports_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for devices in ["1", "8"] {
        let (code, printed, report) =
            selftest(&[&QUICK[..], &["--devices", devices]].concat(), &[]);
        assert!(code == Some(0) && printed.contains("\npassed: 2 parts, "), "{code:?} {printed}");
        assert_eq!(part(&report, "device")["facts"]["devices"], devices);
        assert!(part(&report, "operations")["comparisons"].as_u64() > Some(5), "{report}");
        let not_tested = part(&report, "operations")["skipped"].as_array().unwrap().len();
        assert_eq!(not_tested, if devices == "1" { 1 } else { 0 }, "{report}");
        let file = folder.path().join(devices);
        std::fs::write(&file, report.to_string()).unwrap();
        files.push(file);
    }
    let mut compare = Command::new(env!("CARGO_BIN_EXE_fulmen"));
    let output = compare.args(["selftest", "--compare"]).args(&files).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && printed.contains("device: devices: 1 → 8"), "{printed}");
}

const POD: [&str; 8] =
    ["--part", "device", "--part", "operations", "--only", "matmul", "--part", "training"];

#[test]
#[ignore = "slow: ci/slow"]
fn the_processes_of_a_virtual_pod_test_their_devices_together() {
    let parts = [&POD[..], &["--part", "transfers", "--part", "speed"]].concat();
    let (code, printed, report) = on_pod("2x2", &parts, None);
    assert_eq!(code, Some(0), "{printed}");
    assert_eq!(printed.matches("passed: 5 parts, ").count(), 1, "{printed}");
    let facts = &part(&report, "device")["facts"];
    assert!(facts["devices"] == "4" && facts["processes"] == "2", "{report}");
    // Both processes compare, and nothing is left out.
    assert!(part(&report, "operations")["comparisons"].as_u64() > Some(10), "{report}");
    for name in ["device", "operations", "training"] {
        let skipped = part(&report, name)["skipped"].as_array().unwrap();
        assert!(skipped.iter().all(|what| what.as_str().unwrap().contains("topology")), "{report}");
    }
    assert_eq!(part(&report, "training")["comparisons"], 12, "six runs in each process: {report}");
    let measured = part(&report, "speed")["measurements"].as_array().unwrap();
    let of =
        |end: &str| measured.iter().filter(|m| m["name"].as_str().unwrap().ends_with(end)).count();
    assert!(of(" in process 1") > 5 && of("bytes of one") == 1, "{report}");
}

#[test]
fn a_broken_host_of_a_virtual_pod_is_named_and_stops_no_part() {
    let parts = ["--part", "device", "--part", "operations", "--only", "tanh", "--part", "random"];
    let fault = ("FULMEN_VIRTUAL_POD_FAULT", "flip-bit:tanh");
    let (code, printed, report) = on_pod("2x1", &parts[..6], Some(fault));
    assert_ne!(code, Some(0), "{printed}");
    let found = part(&report, "operations")["failures"].as_array().unwrap();
    let is_named = |f: &Value| f["setting"].as_str().unwrap().ends_with("process 1");
    assert!(!found.is_empty() && found.iter().all(is_named), "{report}");

    let fault = ("FULMEN_VIRTUAL_POD_FAULT", "abort:tanh");
    let (code, printed, report) = on_pod("2x1", &parts, Some(fault));
    assert_ne!(code, Some(0), "{printed}");
    let operations = part(&report, "operations");
    assert_eq!(operations["ending"]["name"], "SIGABRT", "{report}");
    assert!(operations["doing"].to_string().contains("tanh"), "{report}");
    assert!(part(&report, "random")["passed"] == true, "{report}");
}

#[test]
fn a_process_whose_others_do_not_come_is_told_what_to_do() {
    let address = "127.0.0.1:1";
    let variables = [
        ("FULMEN_COORDINATOR", address),
        ("FULMEN_PROCESS_ID", "1"),
        ("FULMEN_NUM_PROCESSES", "2"),
        ("FULMEN_JOIN_TIMEOUT", "1"),
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_fulmen"));
    let output = command.args(["selftest", "--accelerator", "cpu"]).envs(variables).output();
    let output = output.unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    let advice = "FULMEN_NUM_PROCESSES=1 tests this host alone";
    assert!(!output.status.success() && printed.contains(advice), "{printed}");
}

#[test]
fn a_full_test_compares_every_dtype() {
    let arguments = ["--full", "--part", "operations", "--only", "log1p"];
    let (code, printed, _) = selftest(&arguments, &[]);
    assert_eq!(code, Some(0), "{printed}");
}

/// A logarithm that cancels differs in f16 by much of itself, and f64 has larger neighbors than f32.
#[test]
fn what_rounding_makes_of_other_dtypes_is_no_failure() {
    for name in ["logaddexp2", "nextafter"] {
        let (code, printed, report) =
            selftest(&["--full", "--part", "operations", "--only", name], &[]);
        assert_eq!(code, Some(0), "{printed}");
        assert!(part(&report, "operations")["comparisons"].as_u64() > Some(2), "{printed}");
    }
}

#[test]
fn invalid_options_are_refused() {
    for (arguments, message) in [
        (
            &["--part", "nothing"][..],
            "device, operations, random, kernels, transfers, training, speed",
        ),
        (&["--devices", "0"], "at least one"),
        (&["--quick", "--full"], "--full"),
        (&["--accelerator", "abacus"], "abacus"),
        (&["--timeout", "0"], "--timeout"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fulmen"));
        let output = command.arg("selftest").args(arguments).output().unwrap();
        let printed = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && printed.contains(message), "{printed}");
    }
}

#[test]
fn a_part_that_cannot_open_the_plugin_stops_no_other() {
    let arguments = ["--part", "device", "--part", "random", "--part", "transfers"];
    let (code, printed, report) = selftest(&arguments, &[("FULMEN_PJRT_PLUGIN", "/dev/null")]);
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("\nFAILED: device, random, transfers (3 failures"), "{printed}");
    let failure = &part(&report, "random")["failures"][0]["message"];
    assert!(failure.as_str().unwrap().contains("/dev/null"), "{report}");
}

/// Runs the command on a virtual pod of one process, whose devices are broken in this way.
fn on_broken_devices(fault: &str, devices: &str, arguments: &[&str]) -> (String, Value) {
    let plugin = fulmen_virtual_pod::library().unwrap();
    let variables = [
        ("FULMEN_PJRT_PLUGIN", plugin.to_str().unwrap()),
        ("FULMEN_VIRTUAL_POD", &format!("1x{devices}")),
        ("FULMEN_VIRTUAL_POD_FAULT", fault),
    ];
    let (code, printed, report) =
        selftest(&[arguments, &["--devices", devices]].concat(), &variables);
    assert_eq!(code, Some(1), "{fault}: {printed}");
    (printed, report)
}

/// The failures of a part: names and messages.
fn failures(report: &Value, name: &str) -> Vec<(String, String)> {
    let failures = part(report, name)["failures"].as_array().unwrap();
    let text = |failure: &Value, field: &str| failure[field].as_str().unwrap().to_owned();
    failures.iter().map(|failure| (text(failure, "name"), text(failure, "message"))).collect()
}

#[test]
fn a_wrong_bit_and_too_few_digits_are_found_in_their_operation() {
    for (fault, name) in [("flip-bit:tanh", "tanh"), ("low-precision:sqrt", "sqrt")] {
        let arguments = ["--part", "device", "--part", "operations", "--only", name];
        let (printed, report) = on_broken_devices(fault, "1", &arguments);
        assert!(printed.contains("\nFAILED: operations ("), "{printed}");
        let found = failures(&report, "operations");
        assert!(!found.is_empty() && found.iter().all(|f| f.0.starts_with(name)), "{found:?}");
        let all = part(&report, "operations")["failures"].as_array().unwrap();
        assert!(all.iter().all(|failure| failure["ulps"].as_f64() > Some(50.0)), "{report}");
        assert!(all[0]["program"].as_str().unwrap().contains("stablehlo"), "{report}");
    }
}

#[test]
fn a_wrong_bit_of_a_kernel_is_found_and_names_it() {
    let kernels = ["--part", "kernels"];
    let (printed, report) = on_broken_devices("flip-bit:flash_attention", "2", &kernels);
    assert!(printed.contains("\nFAILED: kernels (3 failures; 34 comparisons agree"), "{printed}");
    let found = failures(&report, "kernels");
    let is_named = |f: &(String, String)| f.0.starts_with("flash_attention: causal, grouped heads");
    assert!(found.iter().all(|f| is_named(f) && f.0.ends_with(", means")), "{found:?}");
    let first = &part(&report, "kernels")["failures"][0];
    assert!(first["program"].as_str().unwrap().contains("stablehlo"), "{report}");
}

#[test]
fn a_dropped_donation_and_memory_that_is_not_there_are_found() {
    let transfers = ["--part", "transfers"];
    let (_, report) = on_broken_devices("drop-donation:next", "1", &transfers);
    let found = failures(&report, "transfers");
    assert!(found.len() == 1 && found[0].1.contains("the donation was dropped"), "{found:?}");

    let (_, report) = on_broken_devices("out-of-memory:flip", "1", &transfers);
    let found = failures(&report, "transfers");
    assert!(found.len() == 1 && found[0].0.starts_with("an array of"), "{found:?}");
    assert!(found[0].1.contains("out of memory"), "{found:?}");
}

#[test]
fn devices_in_a_wrong_order_are_found() {
    let device = ["--part", "device"];
    let (_, report) = on_broken_devices("swap-devices:places", "2", &device);
    let found = failures(&report, "device");
    assert!(found.len() == 1 && found[0].0 == "each part of a value is on its device", "{found:?}");
    assert!(found[0].1.contains("holds the bytes"), "{found:?}");

    let (_, report) = on_broken_devices("reorder-devices", "2", &device);
    let found = failures(&report, "device");
    assert!(found.len() == 1 && found[0].0.starts_with("the topology lists"), "{found:?}");
    assert!(found[0].1.contains("the ids [0, 1], and the client [1, 0]"), "{found:?}");
    // A mesh has the order of the ids.
    let first = part(&report, "device")["facts"]["device 0"].as_str().unwrap();
    assert!(first.contains("id=0"), "{first}");
}

#[test]
#[ignore = "slow: ci/slow"]
fn an_event_that_is_too_early_and_one_that_never_comes_are_found() {
    let arguments = ["--part", "operations", "--only", "tanh"];
    let (_, report) = on_broken_devices("early-event:tanh", "1", &arguments);
    let found = failures(&report, "operations");
    let is_early =
        |f: &(String, String)| f.0.starts_with("tanh: ") && f.1.contains("before they were");
    assert!(!found.is_empty() && found.iter().all(is_early), "{found:?}");

    let arguments = ["--part", "device", "--timeout", "5"];
    let (printed, report) = on_broken_devices("lost-event:places", "1", &arguments);
    assert!(printed.contains("\nFAILED: device (1 failure"), "{printed}");
    let found = failures(&report, "device");
    assert_eq!(found[0].0, "each part of a value is on its device");
    assert!(found[0].1.contains("still working after 5 seconds"), "{found:?}");
}

#[test]
fn a_plugin_that_crashes_in_the_third_part_stops_no_other() {
    let arguments = ["--part", "device", "--part", "random", "--part", "transfers"];
    let (printed, report) = on_broken_devices("abort:flip", "1", &arguments);
    assert!(printed.contains("\nFAILED: transfers (1 failure"), "{printed}");
    let found = failures(&report, "transfers");
    assert!(found[0].0.starts_with("an array of"), "{found:?}");
    assert!(found[0].1.contains("crashed with signal 6 (SIGABRT)"), "{found:?}");
    // The rest of the part ran too.
    let comparisons = |devices: &Value| part(devices, "transfers")["comparisons"].as_u64().unwrap();
    let (_, other) = on_broken_devices("out-of-memory:flip", "1", &["--part", "transfers"]);
    assert_eq!(comparisons(&report), comparisons(&other));
    assert!(part(&report, "random")["passed"] == true, "{report}");
}

#[test]
fn a_test_that_is_ended_leaves_its_report_and_no_process() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("report.json");
    let plugin = fulmen_virtual_pod::library().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fulmen"));
    command.args(["selftest", "--accelerator", "cpu", "--part", "device", "--part", "transfers"]);
    command.arg("--json").arg(&json).env("TMPDIR", folder.path());
    command.env("FULMEN_PJRT_PLUGIN", plugin).env("FULMEN_VIRTUAL_POD", "1x1");
    let mut ended = command.env("FULMEN_VIRTUAL_POD_FAULT", "lost-event:flip").spawn().unwrap();
    let read = || std::fs::read_to_string(&json).ok();
    wait_until("the first part is in the report", || read().is_some());
    ended.kill().unwrap();
    ended.wait().unwrap();
    let report: Value = serde_json::from_str(&read().unwrap()).unwrap();
    assert_fits_schema(&report);
    assert!(
        report["parts"].as_array().unwrap().len() == 1 && report["passed"] == false,
        "{report}"
    );
    let own = folder.path().as_os_str().as_encoded_bytes();
    let runs = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = processes.filter_map(|it| std::fs::read(it.path().join("cmdline")).ok());
        lines.into_iter().any(|line| line.windows(own.len()).any(|part| part == own))
    };
    wait_until("no process runs", || !runs());
}

#[track_caller]
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(120), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_operation_that_crashes_the_plugin_hides_no_other() {
    let arguments = ["--part", "operations", "--only", "tan"];
    let (printed, report) = on_broken_devices("abort:tanh", "1", &arguments);
    assert_eq!(part(&report, "operations")["ending"]["kind"], "finished", "{printed}");
    let found = part(&report, "operations")["failures"].as_array().unwrap();
    for failure in found {
        assert!(failure["name"].as_str().unwrap().starts_with("tanh: "), "{failure}");
        assert!(
            failure["message"].as_str().unwrap().contains("crashed with signal 6"),
            "{failure}"
        );
        assert!(failure["program"].as_str().unwrap().contains("stablehlo.tanh"), "{failure}");
    }
    assert!(found.len() >= 3, "each case of tanh: {report}");
    let (_, whole) = on_broken_devices("out-of-memory:tanh", "1", &arguments);
    let comparisons = |report: &Value| part(report, "operations")["comparisons"].as_u64().unwrap();
    assert!(comparisons(&report) > 5, "{report}");
    assert_eq!(comparisons(&report), comparisons(&whole));
}

#[test]
#[ignore = "takes minutes: cargo test --release -p fulmen-cli --test it -- --ignored the_whole_selftest"]
fn the_whole_selftest_passes_on_one_device_eight_and_a_virtual_pod() {
    for devices in ["1", "8"] {
        let (code, printed, _) = selftest(&["--full", "--devices", devices], &[]);
        assert_eq!(code, Some(0), "{printed}");
        println!("{printed}");
    }
    let (code, printed, _) = on_pod("2x4", &["--full"], None);
    assert_eq!(code, Some(0), "{printed}");
    println!("{printed}");
}
