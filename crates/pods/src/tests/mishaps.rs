//! What users and machines do to a run: output that nobody reads, names that are taken, hosts that
//! do not answer, containers, shared home directories.

use std::fs;
use std::time::Duration;

use fulmen_signals::Signal;

use super::HOMES;
use super::hosts::{Hosts, Kind, wait_until};

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn a_run_continues_while_nobody_reads_its_output() {
    let hosts = Hosts::new(HOMES);
    let program = hosts.script(0);
    let done = hosts.shared("done");
    // Three times the memory of the waiting lines, and longer than the lease.
    let talks = format!(
        "until [ -e {0} ]; do sleep 0.1; done; for i in {{1..24}}; do head -c 1000000 /dev/zero | tr '\\0' x | fold -w 999; echo; done; sleep 12; touch {0}$me",
        done.display()
    );
    let run = hosts.pod(
        "run",
        &["--run", "r1", "--lost-timeout", "5", "--grace", "1", "--", &program, &talks],
    );
    run.prints("resume never", 3);
    run.reads(false);
    fs::write(&done, "").unwrap();
    wait_until("all programs have ended", || {
        (0..3).all(|me| hosts.shared(&format!("done{me}")).exists())
    });
    hosts.wait_until_idle();
    run.reads(true);
    let text = run.ends_with(0);
    assert!(text.contains("were not printed, because this output was not read"), "{}", text.len());
    // The buffers of the connections, which come on top, grow on a busy machine.
    assert!(text.len() < 40 << 20, "{}", text.len());
    let text = hosts.pod("logs", &["r1"]).ends_with(0);
    assert!(text.matches('x').count() >= 3 * 24_000_000, "{}", text.len());
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn progress_bars_and_lines_without_end_are_printed() {
    let hosts = Hosts::new(["64m"]);
    let program = hosts.script(0);
    let go = hosts.shared("go");
    let bar = format!(
        "for i in 1 2 3 4 5 6; do printf '\\r%d0 %%' $i; sleep 0.3; done; echo; \
         head -c 100000 /dev/zero | tr '\\0' x; until [ -e {} ]; do sleep 0.1; done; exit 4",
        go.display()
    );
    let run = hosts.pod("run", &["--", &program, &bar]);
    run.prints("[worker 0] 10 %\n", 1);
    run.prints("[worker 0] 60 %\n", 1);
    // Before the line ends.
    run.prints("xxx", 1);
    fs::write(&go, "").unwrap();
    let text = run.ends_with(4);
    let printed = text.matches('x').count() - text.matches("exit").count();
    assert_eq!(printed, 100_000);
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn a_container_whose_first_process_reaps_none_reports_exit_codes() {
    let hosts = Hosts::of_kind(Kind::Container, HOMES);
    let program = hosts.script(0);
    let options = ["--lost-timeout", "10", "--max-restarts", "1", "--"];
    let text = hosts.pod("run", &[&options[..], &[&program, "echo last words"]].concat());
    let text = text.ends_with(0);
    assert_eq!(text.matches("] last words\n").count(), 3, "{text}");
    let fails = "[ $me = 1 ] && exit 3; forever";
    let text = hosts.pod("run", &[&options[..], &[&program, fails]].concat()).ends_with(3);
    assert!(text.ends_with("worker 1 (host-b) exited with code 3\n"), "{text}");
    hosts.wait_until_idle();
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn the_name_of_a_running_run_is_taken() {
    let hosts = Hosts::new(HOMES);
    let program = hosts.script(0);
    let first = hosts.pod("run", &["--run", "r1", "--", &program, "forever"]);
    first.prints("resume never", 3);
    let (ended, _) = hosts.pod("run", &["--run", "r1", "--", &program, "exit 0"]).end();
    let error = ended.unwrap_err().to_string();
    assert!(
        error.contains("worker 0 of a run named r1 is already running here")
            && error.contains("fulmen pod stop r1"),
        "{error}"
    );
    let second = hosts.pod("run", &["--run", "r2", "--", &program, "forever"]);
    second.prints("resume never", 3);
    let (ended, _) = hosts.pod("stop", &[]).end();
    let error = ended.unwrap_err().to_string();
    assert_eq!(error, "several runs are running; name one: r1, r2");
    hosts.pod("stop", &["r2"]).ends_with(0);
    second.ends_with(75);
    // The only running run, although the other one is newer.
    hosts.pod("stop", &[]).ends_with(0);
    first.ends_with(75);
    hosts.pod("run", &["--run", "r1", "--", &program, "exit 0"]).ends_with(0);
    hosts.wait_until_idle();
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn commands_reach_all_hosts_that_answer() {
    let hosts = Hosts::new(HOMES);
    let program = hosts.script(0);
    hosts.pod("run", &["--detach", "--run", "r1", "--", &program, "forever"]).ends_with(0);
    wait_until("they have begun", || {
        hosts.pod("logs", &["r1"]).ends_with(0).matches("resume never").count() == 3
    });
    hosts.connect(1, false);
    let (ended, text) = hosts.pod("status", &[]).end();
    let error = ended.unwrap_err().to_string();
    assert!(error.starts_with("host-b: ") && !error.contains("host-a"), "{error}");
    assert_eq!(text.matches("running").count(), 2, "{text}");
    let (ended, text) = hosts.pod("logs", &["r1"]).end();
    assert!(ended.unwrap_err().to_string().starts_with("host-b: "));
    assert_eq!(text.matches("resume never").count(), 2, "{text}");
    let (ended, _) = hosts.pod("stop", &["r1"]).end();
    assert!(ended.unwrap_err().to_string().starts_with("host-b: "));
    hosts.connect(1, true);
    let text = hosts.pod("status", &[]).ends_with(0);
    assert_eq!(text.matches("ended with code 75").count(), 2, "{text}");
    hosts.pod("stop", &[]).ends_with(0);
    hosts.wait_until_idle();
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn ctrl_c_ends_commands_on_the_hosts() {
    let hosts = Hosts::new(HOMES);
    let exec = hosts.pod("exec", &["--", "sh", "-c", "echo begun; sleep 300; echo over"]);
    exec.prints("begun", 3);
    exec.signals.send(Signal::Interrupt).unwrap();
    let text = exec.ends_with(130);
    assert!(!text.contains("over"), "{text}");
    hosts.wait_until_idle();

    let exec = hosts.pod("exec", &["--", "bash", "-c", "trap '' INT; echo begun; sleep 300"]);
    exec.prints("begun", 3);
    exec.signals.send(Signal::Interrupt).unwrap();
    exec.signals.send(Signal::Interrupt).unwrap();
    exec.ends_with(137);
    hosts.wait_until_idle();

    let program = hosts.script(0);
    let run = hosts.pod("run", &["--wait-for", "/never", "--", &program, "exit 0"]);
    hosts.wait_until_busy();
    run.signals.send(Signal::Interrupt).unwrap();
    run.ends_with(130);
    hosts.wait_until_idle();
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn a_copy_that_was_changed_on_a_host_is_replaced() {
    let hosts = Hosts::new(HOMES);
    let program = hosts.script(0);
    let run = hosts.pod("run", &["--", &program, "forever"]);
    run.prints("resume never", 3);
    let bin = hosts.home_of(hosts.program(1)).join(".fulmen/pods/bin");
    let copy = fs::read_dir(&bin).unwrap().next().unwrap().unwrap().path();
    let changed = fs::read_to_string(&copy).unwrap().replace("resume", "changed");
    fs::write(&copy, changed).unwrap();
    run.signals.send(Signal::Terminate).unwrap();
    run.ends_with(75);
    let text = hosts.pod("run", &["--", &program, "exit 0"]).ends_with(0);
    assert_eq!(text.matches("resume never").count(), 3, "{text}");
    hosts.wait_until_idle();
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn hosts_may_share_a_home_directory() {
    let hosts = Hosts::of_kind(Kind::SharedHome, HOMES);
    let program = hosts.script(0);
    let run = hosts.pod("run", &["--run", "r1", "--", &program, "forever"]);
    run.prints("resume never", 3);
    let text = hosts.pod("status", &[]).ends_with(0);
    let expected = "r1 worker 0 (host-a): running\nr1 worker 1 (host-b): running\nr1 worker 2 (host-c): running\n";
    assert_eq!(text, expected);
    hosts.pod("stop", &["r1"]).ends_with(0);
    run.ends_with(75);
    let text = hosts.pod("status", &[]).ends_with(0);
    assert_eq!(text.matches("ended with code 75").count(), 3, "{text}");
    hosts.wait_until_idle();
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn a_mistake_that_does_not_heal_is_not_restarted() {
    let hosts = Hosts::new(HOMES);
    let program = hosts.script(0);
    let long = "x".repeat(300_000);
    let text = hosts.pod("run", &["--max-restarts", "2", "--", &program, &long]).ends_with(1);
    assert!(text.contains("cannot be started: the program ssh: Argument list too long"), "{text}");
    assert!(!text.contains("restart"), "{text}");
    let missing = hosts.shared("missing");
    fs::write(&missing, "#!/usr/bin/no-such-program\n").unwrap();
    let missing = missing.display().to_string();
    let text = hosts.pod("run", &["--max-restarts", "2", "--", &missing]);
    let text = text.ends_with(127);
    assert!(!text.contains("restart"), "{text}");
    hosts.wait_until_idle();
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn a_follower_that_nobody_reads_for_long_prints_all_lines() {
    let hosts = Hosts::new(HOMES);
    let program = hosts.script(0);
    let go = hosts.shared("go");
    // More than waits in memory.
    let talks = format!(
        "until [ -e {0} ]; do sleep 0.1; done; for i in {{1..12000}}; do printf '%0999d\\n' $i; done; touch {0}$me",
        go.display()
    );
    hosts.pod("run", &["--detach", "--run", "r1", "--", &program, &talks]).ends_with(0);
    let follow = hosts.pod("logs", &["--follow", "--lost-timeout", "4", "r1"]);
    follow.prints("resume never", 3);
    follow.reads(false);
    fs::write(&go, "").unwrap();
    wait_until("all programs have ended", || {
        (0..3).all(|me| hosts.shared(&format!("go{me}")).exists())
    });
    // Longer than the time-out.
    std::thread::sleep(Duration::from_secs(8));
    follow.reads(true);
    let text = follow.ends_with(0);
    for worker in 0..3 {
        let prefix = format!("[worker {worker}] 0");
        let lines = text.lines().filter_map(|line| line.strip_prefix(&prefix)?.parse::<u32>().ok());
        assert!(lines.eq(1..=12_000), "{}", text.len());
    }
    hosts.wait_until_idle();
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn two_runs_that_take_one_name_at_the_same_time_do_not_end_each_other() {
    let hosts = Hosts::new(HOMES);
    let program = hosts.script(0);
    let checked = hosts.shared("checked").display().to_string();
    // The first launcher is slow between its check of the name and the start.
    let slow = format!(
        "mkdir {checked} 2>/dev/null && until [ -e {checked}/go ]; do sleep 0.1; done; exec /usr/bin/uname \"$@\""
    );
    hosts.replace(0, "uname", &slow);
    let first = hosts.pod("run", &["--run", "r1", "--", &program, "forever"]);
    wait_until("the first has checked the name", || hosts.shared("checked").exists());
    let second = hosts.pod("run", &["--run", "r1", "--", &program, "forever"]);
    second.prints("resume never", 3);
    fs::write(hosts.shared("checked/go"), "").unwrap();
    let text = first.ends_with(1);
    assert!(text.contains("cannot be started: a run named r1 is already running here"), "{text}");
    second.signals.send(Signal::Terminate).unwrap();
    let text = second.ends_with(75);
    assert_eq!(text.matches("] saving").count(), 3, "{text}");
    hosts.wait_until_idle();
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn the_newest_run_does_not_depend_on_the_clocks_of_the_hosts() {
    let hosts = Hosts::new(HOMES);
    let program = hosts.script(0);
    // The clock of host-b is an hour ahead.
    let date = "[ \"$*\" = +%s ] && echo $(($(/usr/bin/date +%s) + 3600)) && exit\nexec /usr/bin/date \"$@\"";
    let stat = "[ \"$2\" = %Y ] && echo $(($(/usr/bin/stat \"$@\") + 3600)) && exit\nexec /usr/bin/stat \"$@\"";
    hosts.replace(1, "date", date);
    hosts.replace(1, "stat", stat);
    let run = |host: &str, name: &str| {
        let does = format!("echo this is {name}");
        hosts.pod_on(host, "run", &["--run", name, "--", &program, &does]).ends_with(0);
    };
    run("host-b", "older");
    // Ages are whole seconds.
    std::thread::sleep(Duration::from_secs(2));
    run("host-a", "newer");
    let text = hosts.pod("logs", &[]).ends_with(0);
    assert!(text.contains("this is newer") && !text.contains("older"), "{text}");
    hosts.wait_until_idle();
}
