//! `fulmen ps`, `kill` and `top`: the screen, and the commands on a machine without a TPU.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use expect_test::{expect, expect_file};
use fulmen_cli::top::{Screen, Snapshot};
use fulmen_machine::{DeviceMetrics, Level, Process, ProcessActivity, RunMetrics, Step};
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
        program_p90: if id == 0 { None } else { Some(331_000.0) },
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
    let terminal = drawn(&screen, 96, 20);
    expect![[r#"
        "fulmen top  127.0.0.1:8431, every 1 s                                                           "
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
    let text = drawn(&screen, 132, 20).backend().to_string();
    for part in ["bandwidth", "48.0 %", "0.0 s", "310.2 ms, 90 % under 331.0", "anna"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let why = "127.0.0.1:8431: no process with libtpu serves metrics there";
    screen.update(Snapshot {
        metrics: Err(why.into()),
        run: None,
        processes: Vec::new(),
        unseen: 7,
    });
    let text = drawn(&screen, 100, 16).backend().to_string();
    assert!(text.contains(why) && text.contains("TPU; 7 could not be inspected"), "{text}");
    // The terminal is too small for any content.
    drawn(&screen, 5, 2);
}

#[test]
fn the_lines_match_the_screen() {
    expect![[r#"
        device 0: duty cycle 78.0 %, HBM 11.0 of 16.0 GiB, bandwidth 48.0 %, idle for 0.0 s, 2 programs queued, programs take 310.2 ms
        device 1: duty cycle 82.0 %, HBM 11.4 of 16.0 GiB, bandwidth 48.0 %, idle for 0.0 s, 2 programs queued, programs take 310.2 ms, 90 % under 331.0 ms
        device 2: duty cycle 86.0 %, HBM 11.7 of 16.0 GiB, bandwidth 48.0 %, idle for 0.0 s, 2 programs queued, programs take 310.2 ms, 90 % under 331.0 ms
        device 3: duty cycle 90.0 %, HBM 12.1 of 16.0 GiB, bandwidth 48.0 %, idle for 0.0 s, 2 programs queued, programs take 310.2 ms, 90 % under 331.0 ms
        process 4211 of anna: trains; step 1200, 310 ms a step; ./train fit --max-epochs 10"#]].assert_eq(&look(0).lines().join("\n"));
}

#[test]
fn a_training_reports_its_input_wait() {
    let step_time = Some(Duration::from_micros(310_250));
    let run = RunMetrics { epoch: 1, global_step: 1200, step_time, input_wait: Some(0.042) };
    let mut screen = Screen::new("127.0.0.1:8431".into(), Level::Basic);
    let expected_line = "epoch 1, step 1200, 310 ms a step, waits for input 4.2 % of the time";
    for (run, expected_line) in
        [(Ok(run), expected_line), (Err("no answer".to_owned()), "no answer")]
    {
        let look = Snapshot { run: Some(run), ..look(0) };
        assert!(look.lines()[4].ends_with(expected_line), "{:?}", look.lines());
        screen.update(look);
        let text = drawn(&screen, 96, 23).backend().to_string();
        assert!(text.contains("┌ Training ─") && text.contains(expected_line), "{text}");
    }
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
    let output = fulmen(&["kill", "--dry-run", "--json"]);
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
    assert!(text.starts_with(&why) && output.status.code() == Some(1), "{text}");
    let look: Value = serde_json::from_slice(&top(&["--json", "--level", "2"]).stdout).unwrap();
    assert_eq!((&look["error"], look["devices"].as_array().map(Vec::len)), (&why.into(), Some(0)));
    let wrong = String::from_utf8_lossy(&top(&["--interval", "0"]).stderr).into_owned();
    assert!(wrong.contains("expected a number of seconds above 0"), "{wrong}");
}
