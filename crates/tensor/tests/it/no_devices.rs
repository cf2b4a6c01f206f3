//! Errors for missing devices, which say where the runtime looked. Each case runs in a separate
//! process with its own environment variables.

use std::process::Command;

use fulmen_pjrt::diagnosis::device_files;
use fulmen_pjrt::locate::{Platform, locate};
use fulmen_tensor::{Accelerator, Devices, Runtime};

/// The output of opening this accelerator, in a process with these environment variables.
fn output(test: &str, variables: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("FULMEN_TEST_CHILD", "1")
        .env("FULMEN_PJRT_PLUGIN", "")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Runs in the process that `output` starts: opens the accelerator and prints the error.
fn is_child(accelerator: Accelerator) -> bool {
    let is_child = std::env::var_os("FULMEN_TEST_CHILD").is_some();
    if is_child {
        let error = Runtime::open(accelerator, &Devices::auto()).err().unwrap();
        assert!(error.is_devices(), "{error}");
        println!("{error}");
    }
    is_child
}

fn has_parts(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

#[test]
fn without_a_plugin_all_that_was_looked_at_is_told() {
    if is_child(Accelerator::Tpu) || !device_files(Platform::Tpu).is_empty() {
        return;
    }
    let variables = [
        ("TPU_LIBRARY_PATH", "/no/such/libtpu.so"),
        ("XRT_TPU_CONFIG", "tpu_worker;0;10.0.0.2:8470"),
    ];
    let text = output("no_devices::without_a_plugin_all_that_was_looked_at_is_told", &variables);
    has_parts(
        &text,
        &[
            "looking for a PJRT plugin for `tpu`: No TPU devices were found. Looked at:\n",
            "\n  /dev/accel*: not found\n",
            "\n  there is no PJRT plugin at /no/such/libtpu.so, the path named by the environment variable",
            "\n  the environment variable XRT_TPU_CONFIG is set but obsolete",
        ],
    );
    assert_eq!(text.matches("/no/such/libtpu.so").count(), 1, "it is said once: {text}");
}

#[test]
fn with_a_plugin_but_no_tpu_its_own_words_come_last() {
    if is_child(Accelerator::Tpu) || !device_files(Platform::Tpu).is_empty() {
        return;
    }
    let Some(plugin) = crate::libtpu::libtpu() else { return };
    let path = plugin.path().to_str().unwrap();
    let text = output(
        "no_devices::with_a_plugin_but_no_tpu_its_own_words_come_last",
        &[("TPU_LIBRARY_PATH", path)],
    );
    has_parts(
        &text,
        &[
            "starting the device runtime: No TPU devices were found. Looked at:\n",
            &format!("\n  the plugin {path}: speaks PJRT API 0."),
            "\n  then: opening the devices of",
        ],
    );
}

#[test]
fn auto_does_not_compute_on_the_cpu_of_a_machine_with_a_tpu() {
    if is_child(Accelerator::Auto) || !device_files(Platform::Tpu).is_empty() {
        return;
    }
    let test = "no_devices::auto_does_not_compute_on_the_cpu_of_a_machine_with_a_tpu";
    let worker = ("TPU_WORKER_ID", "0");
    let no_file = tempfile::NamedTempFile::new().unwrap();
    let no_plugin = no_file.path().to_str().unwrap();
    for (path, problem) in [
        ("/no/such/libtpu.so", "looking for a PJRT plugin for `tpu`"),
        (no_plugin, "loading the PJRT plugin"),
    ] {
        let text = output(test, &[("TPU_LIBRARY_PATH", path), worker]);
        let reason = "the accelerator `auto` is `tpu` on this machine, because the environment variable TPU_WORKER_ID \
                      is set; to compute on the CPU, set the accelerator to `cpu`";
        has_parts(&text, &[problem, reason]);
    }
}

#[test]
fn a_plugin_for_cpus_is_not_used_for_a_tpu() {
    if is_child(Accelerator::Tpu) {
        return;
    }
    let cpu = locate(Platform::Cpu, None).unwrap();
    let text = output(
        "no_devices::a_plugin_for_cpus_is_not_used_for_a_tpu",
        &[("FULMEN_PJRT_PLUGIN", cpu.to_str().unwrap())],
    );
    has_parts(&text, &["is for CPUs, expected one for `tpu`"]);
}
