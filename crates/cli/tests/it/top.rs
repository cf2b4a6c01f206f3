//! `fulmen ps`, `kill` and `top`: the screen, and the commands on a machine without a TPU.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use expect_test::{expect, expect_file};
use fulmen_cli::top::{Screen, Snapshot};
use fulmen_machine::{
    CoresInUse, DeviceMetrics, Inventory, Latency, Level, Libtpu, Percentiles, Process,
    ProcessActivity, RunMetrics, RuntimeState, Step, StepRange,
};
use fulmen_tui::svg;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::Value;

/// A snapshot of four devices with a training run.
fn look(turn: u32) -> Snapshot {
    let wave = f64::from(turn % 12) / 12.0;
    let device = |id: i64| DeviceMetrics {
        duty_cycle: Some(78.0 + 4.0 * id as f64 + 9.0 * wave),
        memory_used: Some((11 << 30) + (id as u64) * 400_000_000),
        memory_total: Some(16 << 30),
        bandwidth: Some(48.0 + 3.0 * wave),
        idle_seconds: Some(0.0),
        queued: Some(2),
        program_mean: Some(310_250.0),
        program_times: (id > 0).then_some(Percentiles {
            p50: 310_000.0,
            p90: 331_000.0,
            p95: 340_000.0,
            p999: 400_000.0,
        }),
        ..DeviceMetrics::new(id)
    };
    let process = Process {
        pid: 4211,
        start_ticks: 1,
        age: Duration::from_secs(8000),
        parent: 1,
        state: 'S',
        uid: 1000,
        user: "anna".into(),
        command: "./train fit --max-epochs 10".into(),
        devices: vec!["/dev/accel0".into()],
        libraries: vec!["/opt/libtpu.so".into()],
        cpu: Duration::from_secs(900),
        step: Some(Step { count: 1200, written: SystemTime::now() + Duration::from_secs(3600) }),
    };
    let step_time = Some(Duration::from_micros(310_250));
    let watched = ProcessActivity { process, load: Some(0.4), steps: Some(3), step_time };
    Snapshot {
        metrics: Ok((0..4).map(device).collect()),
        run: None,
        processes: vec![watched],
        unseen: 0,
        inventory: Some(Inventory {
            kind: Some("v5e"),
            chips: 4,
            libtpu: Some(Libtpu {
                path: "/opt/libtpu-0.0.51/libtpu.so".into(),
                version: Some("0.0.51".into()),
                is_used: true,
            }),
        }),
        state: None,
    }
}

fn drawn(screen: &Screen, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    terminal
}

/// `UPDATE_EXPECT=1 cargo test -p fulmen-cli --test it top::` updates the book's image.
#[test]
fn the_screen_is_the_books_image() {
    let mut screen = Screen::new("127.0.0.1:8431, every 1 s".into(), Level::Basic);
    (0..70).for_each(|turn| screen.update(look(turn)));
    let terminal = drawn(&screen, 96, 23);
    expect![[r#"
        "fulmen top  127.0.0.1:8431, every 1 s                                                           "
        "┌ TPU ─────────────────────────────────────────────────────────────────────────────────────────┐"
        "│4 TPU chips, v5e; libtpu 0.0.51                                                               │"
        "└──────────────────────────────────────────────────────────────────────────────────────────────┘"
        "┌ Devices ─────────────────────────────────────────────────────────────────────────────────────┐"
        "│device duty cycle                   HBM                                                       │"
        "│0      █████████████████    84.8 %  █████████████▊       11.0 of 16.0 GiB                     │"
        "│1      █████████████████▊   88.8 %  ██████████████▎      11.4 of 16.0 GiB                     │"
        "│2      ██████████████████▌  92.8 %  ██████████████▋      11.7 of 16.0 GiB                     │"
        "│3      ███████████████████▍ 96.8 %  ███████████████▏     12.1 of 16.0 GiB                     │"
        "└──────────────────────────────────────────────────────────────────────────────────────────────┘"
        "┌ Duty cycle, mean of all devices ─────────────────────────────────────────────────────────────┐"
        "│▄▄▄▄▄▅▅▅▅▅▆▆▄▄▄▄▄▅▅▅▅▅▆▆▄▄▄▄▄▅▅▅▅▅▆▆▄▄▄▄▄▅▅▅▅▅▆▆▄▄▄▄▄▅▅▅▅▅▆▆▄▄▄▄▄▅▅▅▅▅                        │"
        "│██████████████████████████████████████████████████████████████████████                        │"
        "│██████████████████████████████████████████████████████████████████████                        │"
        "└──────────────────────────────────────────────────────────────────────────────────────────────┘"
        "┌ Processes that hold the TPU ─────────────────────────────────────────────────────────────────┐"
        "│process  user       progress                              command                             │"
        "│4211     anna       trains; step 1200, 310 ms a step      ./train fit --max-epochs 10         │"
        "│                                                                                              │"
        "│                                                                                              │"
        "└──────────────────────────────────────────────────────────────────────────────────────────────┘"
        "q quits                                                                                         "
    "#]]
    .assert_eq(&terminal.backend().to_string());
    expect_file!["../../../../docs/src/top.svg"].assert_eq(&svg(terminal.backend().buffer()));
}

#[test]
fn level_2_shows_more_and_missing_values_have_reasons() {
    let mut screen = Screen::new("127.0.0.1:8431".into(), Level::Detailed);
    assert!(drawn(&screen, 120, 20).backend().to_string().contains("Looking …"));
    screen.update(look(0));
    let text = drawn(&screen, 132, 24).backend().to_string();
    for part in ["bandwidth", "48.0 %", "0.0 s", "310.2 ms, 90 % under 331.0", "anna"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let why = "127.0.0.1:8431: no process with libtpu serves metrics there";
    screen.update(Snapshot {
        metrics: Err(why.into()),
        run: None,
        processes: Vec::new(),
        unseen: 7,
        inventory: None,
        state: Some(RuntimeState::default()),
    });
    let text = drawn(&screen, 100, 30).backend().to_string();
    for part in ["cores in use: not reported", "latencies: not reported", "idle: not reported"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains(why) && text.contains("TPU; 7 could not be inspected"), "{text}");
    // The terminal is too small for any content.
    drawn(&screen, 5, 2);
}

#[test]
fn the_lines_match_the_screen() {
    expect![[r#"
        4 TPU chips, v5e; libtpu 0.0.51
        device 0: duty cycle 78.0 %, HBM 11.0 of 16.0 GiB, bandwidth 48.0 %, idle for 0.0 s, 2 programs queued, programs take 310.2 ms
        device 1: duty cycle 82.0 %, HBM 11.4 of 16.0 GiB, bandwidth 48.0 %, idle for 0.0 s, 2 programs queued, programs take 310.2 ms, 90 % under 331.0 ms
        device 2: duty cycle 86.0 %, HBM 11.7 of 16.0 GiB, bandwidth 48.0 %, idle for 0.0 s, 2 programs queued, programs take 310.2 ms, 90 % under 331.0 ms
        device 3: duty cycle 90.0 %, HBM 12.1 of 16.0 GiB, bandwidth 48.0 %, idle for 0.0 s, 2 programs queued, programs take 310.2 ms, 90 % under 331.0 ms
        process 4211 of anna: trains; step 1200, 310 ms a step; ./train fit --max-epochs 10"#]].assert_eq(&look(0).lines().join("\n"));
}

#[test]
fn a_training_reports_its_input_wait() {
    let step_time = Some(Duration::from_micros(310_250));
    let run = RunMetrics {
        epoch: 1,
        global_step: 1200,
        step_time,
        input_wait: Some(0.042),
        steps: None,
        mfu: None,
    };
    let mut screen = Screen::new("127.0.0.1:8431".into(), Level::Basic);
    let expected_line = "epoch 1, step 1200, 310 ms a step, waits for input 4.2 % of the time";
    for (run, expected_line) in
        [(Ok(run), expected_line), (Err("no answer".to_owned()), "no answer")]
    {
        let look = Snapshot { run: Some(run), ..look(0) };
        assert!(look.lines()[5].ends_with(expected_line), "{:?}", look.lines());
        screen.update(look);
        let text = drawn(&screen, 96, 26).backend().to_string();
        assert!(text.contains("┌ Training ─") && text.contains(expected_line), "{text}");
    }
}

#[test]
fn level_2_has_steps_idle_share_cores_and_latencies() {
    let times = Percentiles { p50: 24.0, p90: 72.0, p95: 80.0, p999: 80.0 };
    let latency = |name, unit, groups| Latency { name, unit, groups };
    let state = RuntimeState {
        cores: Some(CoresInUse { used: 3, all: 4 }),
        latencies: vec![
            latency("buffer_transfer_latency", "us", vec![("8MB+".to_owned(), times)]),
            latency("grpc_tcp_delivery_rate", "Mbps", vec![(String::new(), times)]),
            latency("host_compute_latency", "us", Vec::new()),
        ],
    };
    let steps = StepRange {
        count: 40,
        min: Duration::from_millis(250),
        mean: Duration::from_millis(310),
        max: Duration::from_millis(900),
    };
    let run = RunMetrics {
        epoch: 1,
        global_step: 1200,
        step_time: None,
        input_wait: None,
        steps: Some(steps),
        mfu: Some(0.375),
    };
    let look = Snapshot { run: Some(Ok(run)), state: Some(state), ..look(0) };
    expect![[r#"
        4 TPU chips, v5e; libtpu 0.0.51
        step time: 310 ms (mean of 40 steps), 250 ms (min), 900 ms (max), as the training reports
        idle: 16.0 % of the time, the mean of all devices
        cores in use: 3 of 4 TensorCores
        matrix units: 37.5 % of the peak (throughput/mfu of the training)
        buffer transfer latency of 8MB+: 50 % under 24.0 us, 90 % under 72.0 us, 95 % under 80.0 us, 99.9 % under 80.0 us
        grpc tcp delivery rate: 50 % under 24.0 Mbps, 90 % under 72.0 Mbps, 95 % under 80.0 Mbps, 99.9 % under 80.0 Mbps
        not reported: host compute latency"#]].assert_eq(&look.lines()[..8].join("\n"));
    let mut screen = Screen::new("127.0.0.1:8431".into(), Level::Detailed);
    screen.update(look.clone());
    let text = drawn(&screen, 132, 34).backend().to_string();
    for line in &look.lines()[..8] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let silent = Snapshot { run: None, ..look };
    expect![[r#"
        step time: not reported: libtpu does not know steps; `--run` reads a training's
        idle: 16.0 % of the time, the mean of all devices
        cores in use: 3 of 4 TensorCores
        matrix units: not reported: libtpu does not send it; a training with the callback ThroughputMonitor does, read with `--run`"#]].assert_eq(&silent.lines()[1..5].join("\n"));
}

fn fulmen(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fulmen"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn the_commands_say_who_holds_the_tpu() {
    let output = fulmen(&["ps", "--json", "--watch", "0.01"]);
    let holders: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        output.status.success() && holders["processes"].is_array() && holders["unseen"].is_u64(),
        "{holders}"
    );
    // No process is ended, because this one does not hold a TPU.
    let this = std::process::id().to_string();
    let output = fulmen(&["kill", "--yes", &this]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains(&format!(
            "process {this} does not hold the TPU; `fulmen ps` shows those that do"
        )),
        "{error}"
    );
    let output = fulmen(&["kill", "--dry_run", "--json"]);
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        output.status.success() && plan["ended"].is_array() && plan["spared"].is_array(),
        "{plan}"
    );
}

/// A shell that is named `libtpu.so`, so that the kernel maps a file with that name.
#[test]
fn one_process_is_shown_and_ended() {
    let folder = tempfile::tempdir().unwrap();
    let shell = folder.path().canonicalize().unwrap().join("libtpu.so");
    assert!(Command::new("cp").arg("/bin/sh").arg(&shell).status().unwrap().success());
    let mut child =
        Command::new(&shell).args(["-c", "read line"]).stdin(Stdio::piped()).spawn().unwrap();
    let pid = child.id().to_string();
    let shown = String::from_utf8(fulmen(&["ps", "--watch", "0.01"]).stdout).unwrap();
    let (_, of_this) = shown.split_once(&format!("process {pid} of ")).unwrap();
    assert!(
        of_this.contains(&format!("{0} -c read line\n  holds {0}\n  ", shell.display())),
        "{shown}"
    );
    // There is no terminal, so the command cannot ask.
    let output = fulmen(&["kill", &pid]);
    assert_eq!((output.status.code(), child.try_wait().unwrap()), (Some(2), None), "{output:?}");
    let output = fulmen(&["kill", "--yes", "--json", &pid]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success(), "{report}");
    assert_eq!(
        (&report["ended"][0]["pid"], &report["ended"][0]["outcome"]),
        (&child.id().into(), &"ended".into())
    );
    assert!(!child.wait().unwrap().success());
}

#[test]
fn without_a_server_top_says_so_and_fails() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let top =
        |more: &[&str]| fulmen(&[&["top", "--address", &address, "--count", "1"], more].concat());
    let output = top(&[]);
    let text = String::from_utf8_lossy(&output.stdout);
    let why = format!("{address}: no process with libtpu serves metrics there");
    assert!(text.lines().nth(1) == Some(&why) && output.status.code() == Some(1), "{text}");
    let look: Value = serde_json::from_slice(&top(&["--json", "--level", "2"]).stdout).unwrap();
    assert_eq!((&look["error"], look["devices"].as_array().map(Vec::len)), (&why.into(), Some(0)));
    assert!(look["tpu"].is_object() && look["cores_in_use"].is_null(), "{look}");
    let wrong = String::from_utf8_lossy(&top(&["--duration-ms", "0"]).stderr).into_owned();
    assert!(wrong.contains("--duration-ms"), "{wrong}");
    let wrong = String::from_utf8_lossy(&top(&["--interval", "0"]).stderr).into_owned();
    assert!(wrong.contains("expected a number of seconds above 0"), "{wrong}");
}

/// A training's endpoint that notes the requests and answers with these metrics.
fn training(metrics: &'static str) -> (String, mpsc::Receiver<String>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let (sender, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for mut connection in listener.incoming().map_while(Result::ok) {
            let mut request = String::new();
            BufReader::new(&connection).read_line(&mut request).unwrap();
            if sender.send(request).is_err() {
                return;
            }
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n", metrics.len());
            write!(connection, "{head}Connection: close\r\n\r\n{metrics}").unwrap();
        }
    });
    (port, requests)
}

#[test]
fn a_measurement_asks_the_training_for_the_steps_of_its_time() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let (port, requests) = training(
        "fulmen_latest_step_seconds{statistic=\"min\"} 0.25\n\
         fulmen_latest_step_seconds{statistic=\"mean\"} 0.5\n\
         fulmen_latest_step_seconds{statistic=\"max\"} 1\nfulmen_latest_steps 7\n\
         fulmen_epoch 1\nfulmen_global_step 9\n# EOF\n",
    );
    let top = |more: &[&str]| {
        let fixed = ["top", "--address", &address, "--count", "1", "--run", &port, "--level", "2"];
        fulmen(&[&fixed, more].concat())
    };
    let output = top(&["--duration-ms", "30"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let steps =
        "step time: 500 ms (mean of 7 steps), 250 ms (min), 1.00 s (max), as the training reports";
    assert!(output.status.success() && text.lines().any(|line| line == steps), "{text}");
    // The first request only begins the measurement.
    assert!(requests.recv().unwrap().contains("window_ms=60000"));
    assert!(requests.recv().unwrap().contains("window_ms=30 "));
    let look: Value = serde_json::from_slice(&top(&["--json"]).stdout).unwrap();
    assert_eq!(look["run"]["latest_steps"]["max_s"], 1.0, "{look}");
    assert!(requests.recv().unwrap().contains("window_ms=60000"));
}
