//! Runs over three real hosts. They need root, `ip` and `sshd`, which makes them `#[ignore]`d:
//! `cargo test -p fulmen-pods -- --include-ignored`.

pub(crate) mod hosts;
mod libtpu;
mod libtpu_with_pip;
mod mishaps;
mod programs;
mod terminals;
mod tpu_hosts;

use std::fs;
use std::time::Duration;

use fulmen_coordination::{Coordination, Process};
use fulmen_signals::Signal;

use crate::{Error, Providers, VirtualPodPlugins};
use hosts::{Hosts, is_an_argument, is_in_a_file, parse, secret_of, wait_until};

const HOMES: [&str; 3] = ["64m"; 3];

/// The plugins of this machine. No test has a TPU VM.
pub(crate) const PROVIDERS: Providers = Providers {
    tpu_hosts: |tpu| Err(Error::new(format!("{} is unknown", tpu.name))),
    tpu_hosts_command: |tpu| format!("gcloud describe {}", tpu.name),
    libtpu: fulmen_pjrt::fetch::libtpu,
    virtual_pod: |_| {
        let failed = |error: std::io::Error| Error::new(error.to_string());
        let plugin = fulmen_virtual_pod::library().map_err(failed)?;
        let cpu_plugin = fulmen_virtual_pod::cpu_plugin()?;
        Ok(VirtualPodPlugins { plugin, cpu_plugin })
    },
};

#[test]
fn a_tpu_vm_that_is_not_found_is_an_error_with_the_alternative() {
    let pod = parse(&["status", "--tpu", "none"]);
    let ended = crate::run(pod, PROVIDERS, &mut Vec::new(), || Ok(std::sync::mpsc::channel().1));
    assert_eq!(ended.unwrap_err().to_string(), "none is unknown; or pass --hosts");
}

#[test]
fn a_dry_run_prints_every_command_and_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train");
    fs::write(&path, "abc").unwrap();
    let program = path.display().to_string();
    let run = |hosts: &str| {
        let arguments = [
            "run",
            "--dry-run",
            "--hosts",
            hosts,
            "--env",
            "KEY=hidden",
            "--",
            &program,
            "fit",
            "it's",
        ];
        let mut out = Vec::new();
        let ended =
            crate::run(parse(&arguments), PROVIDERS, &mut out, || Ok(std::sync::mpsc::channel().1));
        (ended, String::from_utf8(out).unwrap())
    };
    let (ended, text) = run("me@a,b,b");
    assert_eq!(ended, Ok(0));
    // Two hosts are checked and copied to; three workers are started and followed.
    assert_eq!(text.matches("ssh -oBatchMode=yes").count(), 2 * 2 + 2 * 3, "{text}");
    assert_eq!(
        text.matches("# standard input: FULMEN_RUN_TOKEN, FULMEN_COORDINATOR").count(),
        3,
        "{text}"
    );
    assert!(!text.contains("hidden"), "{text}");
    let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let secrets = text
        .replace(hash, "")
        .split(|c: char| !c.is_ascii_hexdigit())
        .filter(|word| word.len() > 32)
        .count();
    assert_eq!(secrets, 0, "{text}");

    let error = run("a,-oProxyCommand=x").0.unwrap_err();
    assert!(
        error.is_usage()
            && error.to_string().contains("`-oProxyCommand=x` is not a valid host name"),
        "{error}"
    );
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn a_program_is_copied_once_and_started_on_all_hosts_with_merged_output_and_a_secret() {
    let hosts = Hosts::new(HOMES);
    let program = hosts.script(0);
    let run = hosts.pod("run", &["--run", "r1", "--", &program, "forever"]);
    run.prints("resume never", 3);
    let pid = hosts.program(1);
    let secret = secret_of(pid);
    let home = hosts.home_of(pid);
    assert!(secret.len() == 64 && secret == secret_of(hosts.program(2)), "one secret for all");
    assert!(!is_an_argument(&secret), "an argument list shows the secret");
    assert!(!is_in_a_file(&home.join(".fulmen"), &secret), "a file has the secret");
    let copied = || {
        let entries = fs::read_dir(home.join(".fulmen/pods/bin")).unwrap();
        entries
            .map(|entry| std::os::unix::fs::MetadataExt::ino(&entry.unwrap().metadata().unwrap()))
            .collect::<Vec<_>>()
    };
    let before = copied();
    run.signals.send(Signal::Interrupt).unwrap();
    let text = run.ends_with(130);
    assert!(!text.contains(&secret), "the output has the secret");
    for worker in 0..3 {
        assert!(
            text.contains(&format!("[worker {worker}] process {worker} of 3 at 198.1")),
            "{text}"
        );
        assert!(text.contains(&format!("[worker {worker}] saving")), "{text}");
    }
    hosts.wait_until_idle();

    let run = hosts.pod(
        "run",
        &[
            "--env",
            "SAYS=it's  so",
            "--",
            &program,
            "echo \"$SAYS\"; [ $me = 2 ] && sleep 0.5 && forever; sleep 1",
        ],
    );
    run.prints("it's  so", 3);
    // One worker continues alone; a process that the program left behind ends with it.
    let home = hosts.home_of(hosts.program(2));
    let entries = fs::read_dir(home.join(".fulmen/pods/bin")).unwrap();
    assert_eq!((before.len(), entries.count()), (1, 1), "the same program was copied again");
    run.signals.send(Signal::Terminate).unwrap();
    run.ends_with(75);
    hosts.wait_until_idle();
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn the_plugins_of_a_virtual_pod_are_copied_to_its_hosts() {
    let hosts = Hosts::new(["1g"; 3]);
    let program = hosts.script(0);
    let shows = r#"for file in $FULMEN_PJRT_PLUGIN $FULMEN_VIRTUAL_POD_CPU_PLUGIN; do
        read -r hash _ < <(sha256sum $file); [ ${file##*/} = $hash ] && echo has $file
    done; echo pod $FULMEN_VIRTUAL_POD"#;
    let run = || {
        let text = hosts.pod("run", &["--virtual", "3x2", "--", &program, shows]).ends_with(0);
        let copied = format!("] has {}/.fulmen/pods/bin/", hosts.home().display());
        assert_eq!(text.matches(&copied).count(), 6, "{text}");
        assert_eq!(text.matches("] pod 3x2\n").count(), 3, "{text}");
    };
    run();
    run();
    // A user's own variable counts.
    let options = ["--virtual", "3x2", "--env", "FULMEN_PJRT_PLUGIN=mine", "--", &program];
    let text = hosts.pod("run", &[&options[..], &["echo $FULMEN_PJRT_PLUGIN"]].concat());
    assert_eq!(text.ends_with(0).matches("] mine\n").count(), 3);
    hosts.wait_until_idle();
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn all_end_when_one_fails_and_its_code_is_that_of_the_run() {
    let hosts = Hosts::new(HOMES);
    let program = hosts.script(0);
    let text = hosts
        .pod("run", &["--", &program, "[ $me = 1 ] && exit 3; sleep 300 & forever"])
        .ends_with(3);
    assert!(text.ends_with("[pod] worker 1 (host-b) exited with code 3\n"), "{text}");
    hosts.wait_until_idle();

    let run = hosts.pod("run", &["--grace", "2", "--", &program, "trap '' TERM; forever"]);
    run.prints("resume never", 3);
    hosts.signal(1, "KILL");
    let text = run.ends_with(137);
    assert!(
        text.ends_with("[pod] worker 1 (host-b) was killed by signal 9, exit code 137\n"),
        "{text}"
    );
    hosts.wait_until_idle();
    let text = hosts.pod("run", &["--", &program, "echo done"]).ends_with(0);
    assert_eq!(text.matches("] done").count(), 3, "{text}");
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn a_host_that_is_unreachable_or_a_process_that_is_frozen_is_named() {
    let hosts = Hosts::new(HOMES);
    let program = hosts.script(0);
    let options = ["--lost-timeout", "20", "--stuck-timeout", "10", "--grace", "2", "--", &program];
    let run = hosts.pod("run", &[&options[..], &["forever"]].concat());
    run.prints("resume never", 3);
    hosts.signal(2, "STOP");
    let text = run.ends_with(75);
    assert!(
        text.contains(
            "[pod] worker 2 (host-c) is stuck: its process is stopped (SIGSTOP) for 10 s\n"
        ),
        "{text}"
    );
    hosts.wait_until_idle();

    // The coordinator notifies the others, which fail before this machine knows.
    let steps = "i=0; while [ $i -lt $((5 + 2 * me)) ]; do echo $((++i)) >$FULMEN_PROGRESS_FILE; sleep 0.1; done; forever";
    let run = hosts.pod("run", &[&options[..], &[steps]].concat());
    let text = run.ends_with(75);
    assert!(
        text.contains(
            "[pod] worker 0 (host-a) is stuck: it makes no progress for 10 s, at step 5\n"
        ),
        "{text}"
    );
    hosts.wait_until_idle();

    // Of several at one step, it is the silent one.
    let disconnected = hosts.shared("disconnected");
    let step = format!(
        "[ $me = 2 ] || until [ -e {} ]; do sleep 0.1; done; echo 5 >$FULMEN_PROGRESS_FILE; echo at step 5; forever",
        disconnected.display()
    );
    let run = hosts.pod("run", &[&options[..], &[step.as_str()]].concat());
    run.prints("resume never", 3);
    run.prints("[worker 2] at step 5", 1);
    hosts.connect(2, false);
    fs::write(disconnected, "").unwrap();
    run.prints(
        "[pod] worker 2 (host-c) is stuck: it makes no progress for 10 s, at step 5; ending",
        1,
    );
    hosts.connect(2, true);
    run.ends_with(75);
    hosts.wait_until_idle();

    let fails = format!(
        "[ $me = 1 ] && forever; until [ -e {} ]; do sleep 0.1; done; exit 1",
        hosts.shared("gone").display()
    );
    let run = hosts.pod("run", &[&options[..], &[fails.as_str()]].concat());
    run.prints("resume never", 3);
    hosts.connect(1, false);
    fs::write(hosts.shared("gone"), "").unwrap();
    let text = run.ends_with(75);
    assert!(text.contains("[pod] worker 1 (host-b) is lost: no sign of life for "), "{text}");
    // The program ends by itself on the disconnected host.
    hosts.wait_until_idle();
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn a_lost_connection_is_reopened_and_no_output_is_lost_or_repeated() {
    let hosts = Hosts::new(["64m"]);
    let program = hosts.script(0);
    let counts = "for i in {1..60}; do echo line $i; sleep 0.05; done; printf end; exit 6";
    let run = hosts.pod("run", &["--", &program, counts]);
    run.prints("line 3\n", 1);
    hosts.disconnect(0);
    let text = run.ends_with(6);
    assert!(text.contains("[pod] worker 0 (host-a): the connection is lost: "), "{text}");
    let lines: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("[worker 0] line ")).collect();
    assert!(text.contains("[worker 0] end\n"), "{text}");
    assert_eq!(lines, (1..=60).map(|i| i.to_string()).collect::<Vec<_>>(), "{text}");
    hosts.wait_until_idle();
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn a_host_with_a_full_disk_or_an_older_glibc_is_named_before_anything_starts() {
    let hosts = Hosts::new(["64m", "64k", "64m"]);
    let program = hosts.script(200_000);
    let (ended, text) = hosts.pod("run", &["--", &program, "echo started"]).end();
    let error = ended.unwrap_err().to_string();
    assert!(
        error.starts_with("worker 1 (host-b): ")
            && error.contains("No space left on device; free space"),
        "{error}"
    );
    assert!(!error.contains("host-a") && !text.contains("started"), "{error}\n{text}");
    // The program fills the disk when it runs. Its exit code is known nevertheless, and that some of its
    // output may be lost.
    let small = hosts.script(0);
    let fill = "[ $me != 1 ] && forever; cat /dev/zero >~/full; echo it is full; exit 9";
    let text = hosts.pod("run", &["--", &small, fill]).ends_with(9);
    assert!(text.contains("worker 1 (host-b) exited with code 9"), "{text}");
    let lost = "[worker 1] No space left on device: lines of this program may be missing, because";
    assert!(text.contains(lost), "{text}");

    hosts.replace(2, "getconf", "echo glibc 2.19");
    let binary = fs::canonicalize("/bin/ls").unwrap();
    let (ended, _) = hosts.pod("run", &["--", &binary.display().to_string()]).end();
    let error = ended.unwrap_err().to_string();
    assert!(error.contains("worker 2 (host-c): it has glibc 2.19, but "), "{error}");
    hosts.wait_until_idle();
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn a_second_ctrl_c_kills() {
    let hosts = Hosts::new(HOMES);
    let program = hosts.script(0);
    let run = hosts.pod("run", &["--", &program, "trap 'echo waiting' INT; forever"]);
    run.prints("resume never", 3);
    run.signals.send(Signal::Interrupt).unwrap();
    run.prints("waiting", 3);
    run.signals.send(Signal::Interrupt).unwrap();
    let text = run.ends_with(130);
    assert!(text.contains("[pod] Ctrl-C: killing all workers\n"), "{text}");
    hosts.wait_until_idle();
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn a_detached_run_continues_and_can_be_followed_queried_and_stopped() {
    let hosts = Hosts::new(HOMES);
    let program = hosts.script(0);
    let go = hosts.shared("go");
    let waits = format!(
        "echo 7 >$FULMEN_PROGRESS_FILE; until [ -e {} ]; do sleep 0.1; done; echo went; exit $((me == 1))",
        go.display()
    );
    hosts.pod("run", &["--detach", "--run", "r1", "--", &program, &waits]).ends_with(0);
    wait_until("all have reported their step", || {
        let text = hosts.pod("status", &[]).ends_with(0);
        text.matches("running, step 7").count() == 3
    });
    let text = hosts.pod("status", &["--json", "r1"]).ends_with(0);
    let rows: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&rows[2]["worker"], &rows[2]["host"], &rows[2]["state"]),
        (&2.into(), &"host-c".into(), &"running".into())
    );
    // A follower may leave.
    let follow = hosts.pod("logs", &["--follow"]);
    follow.prints("resume never", 3);
    follow.signals.send(Signal::Interrupt).unwrap();
    follow.ends_with(0);
    let follow = hosts.pod("logs", &["--follow"]);
    follow.prints("resume never", 3);
    fs::write(&go, "").unwrap();
    let text = follow.ends_with(1);
    assert!(
        text.contains("[worker 0] went") && text.contains("worker 1 (host-b) exited with code 1"),
        "{text}"
    );
    let text = hosts.pod("logs", &["-n", "1", "r1"]).ends_with(0);
    assert_eq!(text, "[worker 0] went\n[worker 1] went\n[worker 2] went\n");
    let text = hosts.pod("status", &["r1"]).ends_with(0);
    assert!(text.contains("r1 worker 2 (host-c): ended with code 0, step 7"), "{text}");

    for (run, program_does, grace, code) in [
        ("r2", "forever", "100", "ended with code 75"),
        ("r3", "trap '' TERM; forever", "1", "ended with code 137"),
    ] {
        hosts.pod("run", &["--detach", "--run", run, "--", &program, program_does]).ends_with(0);
        wait_until("they have begun", || {
            hosts.pod("logs", &[run]).ends_with(0).matches("resume never").count() == 3
        });
        hosts.pod("stop", &["--grace", grace, run]).ends_with(0);
        let text = hosts.pod("status", &[run]).ends_with(0);
        assert_eq!(text.matches(code).count(), 3, "{text}");
    }
    let (ended, _) = hosts.pod("stop", &["r4"]).end();
    assert_eq!(ended.unwrap_err().to_string(), "there is no run r4 on host-a, host-b, host-c");
    let text = hosts.pod("exec", &["--", "sh", "-c", "echo it\\'s here; exit 4"]).ends_with(4);
    assert!(
        text.contains("[worker 2] it's here")
            && text.contains("[pod] worker 0 (host-a) exited with code 4"),
        "{text}"
    );
    hosts.wait_until_idle();
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn exit_code_75_and_a_lost_host_restart_the_run_from_its_checkpoint() {
    let hosts = Hosts::new(HOMES);
    let program = hosts.script(0);
    let saved = hosts.shared("saved");
    let saves = format!(
        "[ $FULMEN_RESUME ] && cat {0} && exit 0; echo found >{0}; exit 75",
        saved.display()
    );
    let text = hosts.pod("run", &["--max-restarts", "2", "--", &program, &saves]).ends_with(0);
    assert!(
        text.contains("exited with code 75; restart 1 of 2, from the last checkpoint"),
        "{text}"
    );
    assert_eq!(
        (text.matches("resume auto").count(), text.matches("found").count()),
        (3, 3),
        "{text}"
    );

    let text = hosts.pod("run", &["--max-restarts", "1", "--", &program, "exit 75"]).ends_with(75);
    assert!(text.ends_with("exited with code 75; after 1 restart\n"), "{text}");

    let options = ["--lost-timeout", "20", "--grace", "2", "--max-restarts", "1", "--", &program];
    let waits = "[ $FULMEN_RESUME ] && exit 0; forever";
    let run = hosts.pod("run", &[&options[..], &[waits]].concat());
    run.prints("resume never", 3);
    hosts.connect(0, false);
    run.prints("restart 1 of 1", 1);
    hosts.connect(0, true);
    let text = run.ends_with(0);
    assert!(text.contains("worker 0 (host-a) is lost: no sign of life"), "{text}");
    hosts.wait_until_idle();
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn each_chip_runs_a_program_of_its_own() {
    let hosts = Hosts::new(HOMES);
    let program = hosts.script(0);
    let says = "sleep 0.$2; echo $2 chip $TPU_VISIBLE_CHIPS alone; [ $2 = 1 ] && exit 5; [ $2 = 4 ] && [ -z \"$FULMEN_RESUME\" ] && exit 75; exit 0";
    let arguments =
        ["--each-chip", "--chips", "2", "--max-restarts", "1", "--", &program, says, "{index}"];
    let text = hosts.pod("run", &arguments).ends_with(5);
    for (worker, chip) in [(0, 0), (1, 1), (2, 0), (3, 1), (4, 0), (5, 1)] {
        assert!(text.contains(&format!("[worker {worker}] {worker} chip {chip} alone")), "{text}");
        assert!(
            text.contains(&format!("[worker {worker}] process 0 of 1 at 127.0.0.1:0")),
            "{text}"
        );
    }
    assert!(
        text.contains("worker 1 (host-a) exited with code 5\n")
            && text.contains("worker 4 (host-c) exited with code 75; restart 1"),
        "{text}"
    );
    assert_eq!(text.matches("chip").count(), 7, "{text}");
    hosts.wait_until_idle();
}

#[test]
#[ignore = "needs root and sshd: cargo test -p fulmen-pods -- --include-ignored"]
fn processes_find_one_another_at_the_coordinator() {
    let hosts = Hosts::new(["512m"; 3]);
    let program = std::env::current_exe().unwrap().display().to_string();
    let meets = "tests::meets_the_other_processes";
    let text = hosts
        .pod("run", &["--", &program, "--ignored", "--nocapture", "--exact", meets])
        .ends_with(0);
    for worker in 0..3 {
        assert!(
            text.contains(&format!("[worker {worker}] process {worker} has met 3 processes\n")),
            "{text}"
        );
    }
    hosts.wait_until_idle();
}

/// The program of the processes of [`processes_find_one_another_at_the_coordinator`].
#[test]
#[ignore = "a program for another test; it needs other processes"]
fn meets_the_other_processes() {
    let process = Process::from_env(|name| std::env::var_os(name)).unwrap();
    let run = Coordination::builder(process.clone()).join().unwrap();
    let limit = Duration::from_secs(60);
    run.put(&format!("met/{}", process.index()), "yes").unwrap();
    let met = (0..process.count())
        .filter(|index| run.get(&format!("met/{index}"), limit).unwrap() == b"yes")
        .count();
    println!("\nprocess {} has met {met} processes", process.index());
    run.shutdown(limit).unwrap();
}
