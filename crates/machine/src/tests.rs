//! Tests with real processes that hold a fake TPU: a file as the device, and a shell that is named
//! `libtpu.so`, so that the kernel maps a file of that name.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

use std::fs::{self, File, FileTimes, Permissions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

use crate::{LockFile, Outcome, Plan, Process, Tpu};

/// The time limit of a wait. A process that takes longer is stuck.
const LONG: Duration = Duration::from_secs(60);

struct Machine {
    folder: TempDir,
}

/// A process that ends when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Machine {
    fn new() -> Machine {
        let folder = tempfile::tempdir().unwrap();
        // Let other users read the folder: their processes run from it.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        for name in ["dev", "tmp"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        fs::write(folder.path().join("dev/accel0"), "").unwrap();
        // Another process writes the file. The kernel refuses to run a file while a process has it
        // open for writing: this one, or a child that another test has just forked.
        assert!(
            Command::new("cp")
                .arg("/bin/sh")
                .arg(folder.path().join("libtpu.so"))
                .status()
                .unwrap()
                .success()
        );
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn tpu(&self) -> Tpu {
        let folder = self.folder.path().canonicalize().unwrap();
        Tpu {
            device_files: vec![folder.join("dev/accel0")],
            libraries: folder.clone(),
            root: folder,
        }
    }

    /// The shell that is named `libtpu.so`.
    fn shell(&self, script: &str) -> Command {
        let mut command = Command::new(self.path("libtpu.so"));
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    fn lock_file(&self) -> PathBuf {
        let path = self.path("tmp/libtpu_lockfile");
        fs::write(&path, "").unwrap();
        path
    }
}

/// Starts a process, and returns once it has printed its first line.
fn start(command: &mut Command) -> (Running, String) {
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (Running(child), line.trim().to_owned())
}

fn holder(tpu: &Tpu, pid: u32) -> Process {
    tpu.holders().processes.into_iter().find(|process| process.pid == pid).unwrap()
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        thread::sleep(Duration::from_millis(10));
    }
}

/// Ends the processes that hold the TPU, and returns how each ended.
fn end(tpu: &Tpu, grace: Duration) -> Vec<Outcome> {
    let report = Plan::new(tpu.holders(), &[], false).execute(tpu, grace);
    assert!(report.is_free(), "{report:?}");
    report.outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// A script that ends on request, or when its pipe is closed.
const WAITS: &str = "echo ready; read line";

/// A script that ends with code 75 on SIGTERM. Not every shell runs a trap while it reads, so this
/// one loops.
const ENDS_IN_ORDER: &str = "trap 'exit 75' TERM; echo ready; while :; do :; done";

#[test]
fn the_inventory_has_the_kind_the_chips_and_the_version_in_use() {
    let machine = Machine::new();
    let tpu = machine.tpu();
    let none = tpu.inventory(&crate::Holders::default());
    assert_eq!((none.kind, none.chips), (None, 0));
    assert!(none.to_string().starts_with("kind not reported"), "{none}");
    let pci = |address: &str, vendor: &str, device: &str| {
        let folder = machine.path(&format!("sys/bus/pci/devices/{address}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("vendor"), vendor).unwrap();
        fs::write(folder.join("device"), device).unwrap();
    };
    // Two chips of two devices each, a network card of Google, and another maker's device.
    for address in ["0000:00:04.0", "0000:00:04.1", "0000:00:05.0", "0000:00:05.1"] {
        pci(address, "0x1ae0\n", "0x0076\n");
    }
    pci("0000:00:06.0", "0x1ae0\n", "0x0042\n");
    pci("0000:00:07.0", "0x8086\n", "0x0063\n");
    let mut holders = crate::Holders::default();
    let inventory = tpu.inventory(&holders);
    assert_eq!((inventory.kind, inventory.chips), (Some("tpu7x"), 2));
    assert!(inventory.libtpu.is_none_or(|libtpu| !libtpu.is_used));
    // pip's folders.
    fs::create_dir_all(machine.path("site/libtpu")).unwrap();
    fs::create_dir_all(machine.path("site/libtpu-0.0.51.dist-info")).unwrap();
    let (_running, _) = start(&mut machine.shell(WAITS));
    holders = tpu.holders();
    holders.processes[0].libraries = vec![machine.path("site/libtpu/libtpu.so")];
    let inventory = tpu.inventory(&holders);
    assert_eq!(inventory.to_string(), "2 TPU chips, tpu7x; libtpu 0.0.51");
    holders.processes[0].libraries = vec![machine.path("other/libtpu.so")];
    let text = tpu.inventory(&holders).to_string();
    assert!(text.ends_with("other/libtpu.so has no package"), "{text}");
}

#[test]
fn holders_are_found_with_their_files() {
    let machine = Machine::new();
    let tpu = machine.tpu();
    assert!(tpu.holders().processes.is_empty());
    let (mapping, _) = start(&mut machine.shell(WAITS));
    // It opens the device by itself: what this process has open, a child that another test has just
    // forked has open too.
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "echo ready; exec sleep 600 <\"$0\""]).arg(machine.path("dev/accel0"));
    let (opening, _) = start(command.stdin(Stdio::null()).stdout(Stdio::piped()));
    wait_until(|| {
        let holders = tpu.holders().processes;
        holders.iter().any(|it| it.pid == opening.0.id() && it.command == "sleep 600")
    });

    let process = holder(&tpu, mapping.0.id());
    assert_eq!(process.libraries, [tpu.root.join("libtpu.so")]);
    assert_eq!((&process.devices[..], process.uid), (&[][..], geteuid().as_raw()));
    assert_eq!(process.parent, std::process::id());
    assert!(process.command.contains("libtpu.so -c echo ready; read line"), "{}", process.command);
    assert!(process.age < LONG && process.start_ticks > 0, "{process:?}");
    let process = holder(&tpu, opening.0.id());
    assert_eq!(
        (&process.devices, &process.libraries[..], &process.command[..]),
        (&tpu.device_files, &[][..], "sleep 600")
    );
    // The test's own process has opened the file too, but is not listed.
    assert_eq!(tpu.holders().processes.len(), 2);
}

#[test]
fn busy_and_idle_processes_differ_and_steps_are_counted() {
    let machine = Machine::new();
    let written = |steps: &str, seconds: u64| {
        let path = machine.path("progress");
        fs::write(&path, steps).unwrap();
        let times = FileTimes::new()
            .set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000 + seconds));
        File::options().write(true).open(path).unwrap().set_times(times).unwrap();
    };
    written("10", 0);
    let (busy, _) = start(&mut machine.shell("echo ready; while :; do :; done"));
    let mut command = machine.shell(WAITS);
    // The name is relative to the working folder of the process.
    let (idle, _) =
        start(command.env("FULMEN_PROGRESS_FILE", "progress").current_dir(machine.folder.path()));
    let mut watch = machine.tpu().watch();
    let mut refresh = || watch.refresh().0;
    let find = |activities: &[crate::ProcessActivity], child: &Running| {
        activities.iter().find(|it| it.process.pid == child.0.id()).unwrap().clone()
    };
    let first = refresh();
    assert_eq!(
        (find(&first, &busy).progress(), find(&first, &idle).load),
        ("just seen".into(), None)
    );
    wait_until(|| find(&refresh(), &busy).progress().starts_with("uses "));
    wait_until(|| {
        find(&refresh(), &idle).progress().starts_with("uses no processor; step 10, the last one ")
    });
    let waiting = find(&refresh(), &idle);
    assert_eq!((waiting.steps, waiting.step_time), (Some(0), None));

    written("30", 2);
    let trains = find(&refresh(), &idle);
    assert_eq!((trains.steps, trains.step_time), (Some(20), Some(Duration::from_millis(100))));
    assert!(
        trains.progress().starts_with("trains; step 30, 100 ms a step, the last one "),
        "{}",
        trains.progress()
    );
    written("no number", 3);
    assert_eq!(find(&refresh(), &idle).process.step, None);
}

#[test]
fn sigterm_ends_a_holder_and_its_lock_file_is_removed() {
    let machine = Machine::new();
    let tpu = machine.tpu();
    let lock = machine.lock_file();
    let (mut child, _) = start(&mut machine.shell(ENDS_IN_ORDER));
    // The child is reaped only after `end`. Until then it is a zombie, which holds nothing.
    assert_eq!(end(&tpu, LONG), [Outcome::Ended]);
    assert_eq!(child.0.wait().unwrap().code(), Some(75));
    assert!(!lock.exists());
}

#[test]
fn a_holder_that_ignores_sigterm_is_killed() {
    let machine = Machine::new();
    let (_child, _) =
        start(&mut machine.shell("trap '' TERM; echo ready; while :; do read line; done"));
    assert_eq!(end(&machine.tpu(), Duration::from_millis(50)), [Outcome::Killed]);
}

#[test]
fn a_stopped_holder_is_continued_so_that_it_can_exit() {
    let machine = Machine::new();
    let tpu = machine.tpu();
    let (mut child, _) = start(&mut machine.shell(ENDS_IN_ORDER));
    let pid = child.0.id();
    kill_process(Pid::from_child(&child.0), Signal::STOP).unwrap();
    wait_until(|| holder(&tpu, pid).state == 'T');
    assert_eq!(end(&tpu, LONG), [Outcome::Ended]);
    assert_eq!(child.0.wait().unwrap().code(), Some(75));
}

/// The parent of the holder has ended and has not been reaped.
#[test]
fn a_holder_with_a_zombie_parent_is_found_and_ended() {
    let machine = Machine::new();
    let tpu = machine.tpu();
    let mut command = Command::new("/bin/sh");
    // A shell gives a process in the background an empty standard input.
    command
        .args(["-c", r#""$0" -c 'while :; do :; done' >/dev/null & echo $!"#])
        .arg(machine.path("libtpu.so"));
    let (parent, pid) = start(command.stdout(Stdio::piped()));
    let pid = pid.parse().unwrap();
    let state = || {
        crate::holders::Stat::read(Path::new(&format!("/proc/{}", parent.0.id()))).unwrap().state
    };
    wait_until(|| state() == 'Z' && tpu.holders().processes.iter().any(|it| it.pid == pid));
    assert_ne!(holder(&tpu, pid).parent, parent.0.id());
    assert_eq!(end(&tpu, LONG), [Outcome::Ended]);
}

/// In this case, `/proc/PID` itself shows a zombie without files.
#[test]
fn a_holder_whose_first_thread_has_ended_is_found_and_ended() {
    let machine = Machine::new();
    let tpu = machine.tpu();
    let source = machine.path("threads.c");
    let code = r#"#include <pthread.h>
        #include <unistd.h>
        static void *wait(void *ready) { write(1, "ready\n", 6); for (;;) pause(); }
        int main(void) { pthread_t thread; pthread_create(&thread, 0, wait, 0); pthread_exit(0); }"#;
    fs::write(&source, code).unwrap();
    let program = machine.path("libtpu.so");
    fs::remove_file(&program).unwrap();
    assert!(
        Command::new("cc")
            .args(["-w", "-pthread", "-o"])
            .args([&program, &source])
            .status()
            .unwrap()
            .success()
    );
    let (child, _) = start(Command::new(&program).stdout(Stdio::piped()));
    wait_until(|| tpu.holders().processes.iter().any(|it| it.state == 'Z'));
    assert_eq!(holder(&tpu, child.0.id()).libraries, [tpu.root.join("libtpu.so")]);
    assert_eq!(end(&tpu, LONG), [Outcome::Ended]);
}

/// Only root can start another user's process.
#[test]
fn another_users_process_is_spared_without_force() {
    if !geteuid().is_root() {
        return;
    }
    let machine = Machine::new();
    let tpu = machine.tpu();
    let lock = machine.lock_file();
    std::os::unix::fs::chown(&lock, Some(65534), None).unwrap();
    let (mut child, _) = start(machine.shell(WAITS).uid(65534));
    let plan = Plan::new(tpu.holders(), &[], false);
    assert!(plan.is_empty(), "{plan:?}");
    let (process, why) = &plan.spared[0];
    assert_eq!((process.pid, process.uid), (child.0.id(), 65534));
    assert!(
        why.starts_with("it belongs to another user, ") && why.ends_with("; --force ends it, too"),
        "{why}"
    );
    assert!(plan.lock.as_ref().unwrap().as_ref().unwrap_err().contains("belongs to another user"));
    let report = plan.execute(&tpu, LONG);
    assert!(!report.is_free() && lock.exists() && child.0.try_wait().unwrap().is_none());

    let report = Plan::new(tpu.holders(), &[], true).execute(&tpu, LONG);
    assert!(report.is_free() && !lock.exists(), "{report:?}");
}

/// When the plan is carried out, another process has the id of a process in the plan.
#[test]
fn a_reused_process_id_is_left_alone() {
    let machine = Machine::new();
    let tpu = machine.tpu();
    let (mut child, _) = start(&mut machine.shell(WAITS));
    let mut plan = Plan::new(tpu.holders(), &[], false);
    plan.processes[0].start_ticks -= 1;
    let report = plan.execute(&tpu, LONG);
    assert_eq!(report.outcomes[0].1, Outcome::Gone);
    assert!(child.0.try_wait().unwrap().is_none() && !report.is_free());

    // The kernel reuses an id if root requests it and no other process takes it first.
    let plan = Plan::new(tpu.holders(), &[], false);
    let pid = child.0.id();
    drop(child);
    for _ in 0..20 {
        if fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).is_err() {
            return;
        }
        let mut other = Running(Command::new("sleep").arg("600").spawn().unwrap());
        if other.0.id() == pid {
            assert_eq!(plan.execute(&tpu, LONG).outcomes[0].1, Outcome::Gone);
            assert!(other.0.try_wait().unwrap().is_none());
            return;
        }
    }
}

#[test]
fn holders_that_were_not_requested_and_ancestors_are_spared() {
    let machine = Machine::new();
    let tpu = machine.tpu();
    let (one, _) = start(&mut machine.shell(WAITS));
    let (mut other, _) = start(&mut machine.shell(WAITS));
    let unknown = std::process::id();
    let plan = Plan::new(tpu.holders(), &[one.0.id(), unknown], false);
    assert_eq!((plan.processes.len(), &plan.unknown_pids[..]), (1, &[unknown][..]));
    let report = plan.execute(&tpu, LONG);
    assert_eq!(report.outcomes[0].1, Outcome::Ended);
    assert!(!report.is_free() && other.0.try_wait().unwrap().is_none());

    let mut holders = tpu.holders();
    holders.processes[0].pid = std::os::unix::process::parent_id();
    let plan = Plan::new(holders, &[], false);
    assert_eq!(plan.spared[0].1, "this command runs inside it; --force ends it, too");
}

#[test]
fn a_lock_file_is_removed_unless_it_is_locked() {
    let machine = Machine::new();
    let tpu = machine.tpu();
    let path = machine.lock_file();
    let file = File::open(&path).unwrap();
    flock(&file, FlockOperation::LockExclusive).unwrap();
    let lock = LockFile::find(&tpu.root).unwrap();
    assert_eq!(
        lock.remove().unwrap_err(),
        format!("cannot remove {}: a process uses it", lock.path.display())
    );
    let report = Plan::new(tpu.holders(), &[], false).execute(&tpu, LONG);
    assert!(matches!(&report.lock, Some((_, Err(_)))) && path.exists(), "{report:?}");
    drop(file);

    let plan = Plan::new(tpu.holders(), &[], false);
    assert!(!plan.is_empty() && plan.processes.is_empty());
    assert!(plan.execute(&tpu, LONG).is_free() && !path.exists());
    assert_eq!(lock.remove(), Ok(()), "it is gone already");
}
