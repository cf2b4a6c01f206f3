//! Hosts with the device files of four TPU chips, and the real libtpu, which finds no chip behind
//! them. A program of Fulmen must fail on such a host, whatever is installed there.

use std::path::PathBuf;

use super::hosts::Hosts;

/// The example that is trained, with the digits of the checkout.
fn mnist() -> String {
    let tests = std::env::current_exe().unwrap();
    let program = tests.ancestors().nth(2).unwrap().join("mnist");
    assert!(program.is_file(), "{}: cargo build --package mnist", program.display());
    program.display().to_string()
}

fn digits() -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/mnist/data");
    folder.canonicalize().unwrap().display().to_string()
}

#[test]
#[ignore = "needs root, sshd and mnist: cargo build -p mnist; cargo test -p fulmen-pods -- --include-ignored"]
fn a_rented_tpu_never_trains_on_the_cpu() {
    let hosts = Hosts::new(["2g"]);
    hosts.add_tpu(0);
    let program = mnist();
    let digits = format!("--data-dir={}", digits());
    let run = |options: &[&str]| {
        let fit = ["--", &program, "fit", "--max-epochs=1", "--default-root-dir=run", &digits];
        // The connection is fast.
        let plain = ["--ssh-option", "Compression=no"];
        let (ended, text) = hosts.pod("run", &[options, &plain, &fit].concat()).end();
        assert!(!text.contains("epoch"), "it trained:\n{text}");
        (ended, text)
    };
    // Without libtpu, it is not the CPU that trains.
    let (ended, text) = run(&[]);
    assert_eq!(ended, Ok(2), "{text}");
    let reason = "the accelerator `auto` is `tpu` on this machine, because /dev/accel0 exists";
    assert!(text.contains(reason), "{text}");
    let (ended, text) = run(&["--libtpu", "none"]);
    assert_eq!(ended, Ok(2), "{text}");
    assert!(text.contains("no PJRT plugin for tpu was found"), "{text}");
    assert!(!text.contains("`auto`"), "{text}");

    // The host has no network, so this machine sends libtpu. It loads, and finds no chip. What Google's
    // metadata server would say, which libtpu asks for minutes, is in variables.
    let variables = [
        "--env=TPU_SKIP_MDS_QUERY=1",
        "--env=TPU_ACCELERATOR_TYPE=v5litepod-4",
        "--env=TPU_WORKER_ID=0",
        "--env=TPU_WORKER_HOSTNAMES=localhost",
    ];
    for how in ["copied from this machine", "was there"] {
        let (ended, text) = run(&[&["--libtpu", "install"], &variables[..]].concat());
        assert_eq!(ended, Ok(2), "{text}");
        assert!(text.contains(&format!("[pod] libtpu 0.0.51: {how}")), "{text}");
        let home = hosts.home();
        let plugin =
            format!("{}/.fulmen/pods/libtpu-0.0.51/libtpu.so: speaks PJRT API 0.", home.display());
        assert!(text.contains(&plugin), "{text}");
        assert!(text.contains("TPU initialization failed: No jellyfish device found"), "{text}");
    }
    hosts.wait_until_idle();
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn a_host_that_cannot_have_libtpu_is_named_and_nothing_starts() {
    let hosts = Hosts::new(["64m", "100m", "64m"]);
    let here = fulmen_pjrt::fetch::libtpu().unwrap();
    let name = "~/.cache/fulmen/pjrt/libtpu-0.0.51/libtpu.so";
    for host in [0, 2] {
        let here = here.display();
        hosts.run_on(host, &format!("mkdir -p $(dirname {name}); ln -s {here} {name}"));
    }
    let program = hosts.script(0);
    let start = ["--", program.as_str(), "echo began with $TPU_LIBRARY_PATH"];
    let (ended, text) = hosts.pod("run", &[&["--libtpu", "install"], &start[..]].concat()).end();
    let error = ended.unwrap_err().to_string();
    let cache = hosts.home().join(".cache/fulmen/pjrt");
    let expected = format!("worker 1 (host-b): No space left on device: {} has ", cache.display());
    assert!(error.starts_with(&expected), "{error}");
    assert!(error.contains(" MiB free, and libtpu takes 548 MiB; "), "{error}");
    assert!(!error.contains("host-a") && !text.contains("began"), "{error}\n{text}");

    let path = hosts.shared("libtpu.so").display().to_string();
    let (ended, _) = hosts.pod("run", &[&["--libtpu", path.as_str()], &start[..]].concat()).end();
    let error = ended.unwrap_err().to_string();
    for host in ["worker 0 (host-a)", "worker 1 (host-b)", "worker 2 (host-c)"] {
        assert!(error.contains(&format!("{host}: there is no libtpu at {path} ")), "{error}");
    }
    std::fs::write(&path, "\x7fELF").unwrap();
    let text = hosts.pod("run", &[&["--libtpu", path.as_str()], &start[..]].concat()).ends_with(0);
    assert_eq!(text.matches(&format!("] began with {path}\n")).count(), 3, "{text}");
    let line = format!("[pod] {path}: version unknown, on host-a, host-b, host-c\n");
    assert!(text.contains(&line), "{text}");
    hosts.wait_until_idle();
}
