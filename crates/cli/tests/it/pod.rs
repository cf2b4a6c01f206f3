//! `fulmen pod run --virtual`: runs over several processes on this machine.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use fulmen_data::{DataLoader, Dataset, Field, Result, Sample};
use fulmen_nn::optim::Sgd;
use fulmen_nn::{Linear, Module};
use fulmen_tensor::{DType, Devices};
use fulmen_trainer::{Actions, Callback, LogPoint, Progress, Trainer, TrainingFn, TrainingModule};
use tempfile::TempDir;

use crate::programs::write_script;

#[derive(Module)]
struct Line {
    fc: Linear,
}

struct Numbers;

impl Dataset for Numbers {
    fn len(&self) -> usize {
        240
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::F32, [1])]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        sample.write_value(0, (index as f32).sin())
    }
}

/// Whether a variable names this process.
fn is_named_by(variable: &str) -> bool {
    let own = std::env::var("FULMEN_PROCESS_ID");
    std::env::var(variable).is_ok_and(|index| own.is_ok_and(|own| own == index))
}

/// Prints the losses, with all their digits.
struct PrintLosses;

impl Callback for PrintLosses {
    fn name(&self) -> &'static str {
        "PrintLosses"
    }
    fn on_log(&mut self, point: &LogPoint, _: &mut Actions) {
        println!("\nloss {} {:?}", point.global_step, point.get("train_loss").unwrap());
        if point.global_step == 5 && is_named_by("KILLED") {
            Command::new("kill").arg("-KILL").arg(std::process::id().to_string()).status().unwrap();
        }
    }
}

/// In one process, sleeps forever before a step of the second epoch. A restarted run does not.
struct Hangs;

impl Callback for Hangs {
    fn name(&self) -> &'static str {
        "Hangs"
    }
    fn on_train_batch_start(&mut self, progress: &Progress) {
        let is_first_start = std::env::var_os("FULMEN_RESUME").is_none();
        while progress.global_step == HANGS_AFTER && is_first_start && is_named_by("HANGS") {
            sleep(Duration::MAX);
        }
    }
}

const HANGS_AFTER: u64 = 14;

/// A loop of one's own. Before its last step, one process validates, which the others do after it.
fn own_loop(trainer: &mut Trainer, module: &impl TrainingModule, loader: &DataLoader) {
    let mut step = trainer.train_step(module, loader).unwrap();
    let validation = step.eval_step(loader).unwrap();
    for (index, batch) in step.batches().enumerate() {
        if index == 9 && is_named_by("OTHER_ORDER") {
            validation.run(&step).unwrap();
        }
        step.run(&batch.unwrap()).unwrap();
    }
    validation.run(&step).unwrap();
    step.block_until_ready().unwrap();
}

/// The training program of the tests.
#[test]
#[ignore = "a program for the other tests"]
fn member() {
    let Some(devices) = std::env::var_os("DEVICES") else { return };
    let devices: Devices = devices.to_str().unwrap().parse().unwrap();
    let loader = DataLoader::builder(Numbers).batch_size(24).num_workers(1).build().unwrap();
    let line = Line { fc: Linear::new(1, 2) };
    let module = TrainingFn::new(
        &line,
        |line, batch, _| (line.fc.forward(&batch.get("x")) - 0.5).pow(2.0).mean_all(),
        |_| Sgd::new(0.1),
    )
    .validation_step(|line, batch, cx| {
        cx.log("sum", &line.fc.forward(&batch.get("x")).sum(-1));
    });
    let epochs = std::env::var("EPOCHS").map_or(1, |text| text.parse().unwrap());
    let root = std::env::var("ROOT").unwrap_or("runs".into());
    let trainer = Trainer::builder().devices(devices).max_epochs(epochs).default_root_dir(root);
    let trainer = trainer.enable_progress_bar(false).log_every_n_steps(1);
    if std::env::var_os("OTHER_ORDER").is_some() {
        return own_loop(&mut trainer.build().unwrap(), &module, &loader);
    }
    let mut trainer = trainer.callback(PrintLosses).callback(Hangs).build().unwrap();
    trainer.fit(&module, &loader, None).unwrap();
}

const MEMBER: [&str; 4] = ["--exact", "pod::member", "--ignored", "--nocapture"];

fn this_program() -> String {
    std::env::current_exe().unwrap().display().to_string()
}

fn losses(text: &str, prefix: &str) -> Vec<String> {
    let prefix = format!("{prefix}loss ");
    text.lines().filter_map(|line| line.strip_prefix(&prefix)).map(str::to_owned).collect()
}

/// A user with an empty home directory, in a folder with a script.
struct User {
    home: TempDir,
    folder: TempDir,
    fulmen: PathBuf,
}

impl User {
    fn new() -> User {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("train");
        let text = r#"#!/bin/bash
trap 'echo saving; exit 130' INT
trap 'echo saving; exit 75' TERM
me=$FULMEN_PROCESS_ID
forever() { while :; do sleep 0.05; done; }
# Others can wait for the end of this worker.
say_pid() { echo $$ >pid_$me.new && mv pid_$me.new pid_$me; }
end() { say_pid; exit $1; }
crash() { say_pid; kill -$1 $$; }
wait_for_end_of() {
  until [ -e pid_$1 ]; do sleep 0.05; done
  while kill -0 $(cat pid_$1) 2>/dev/null; do sleep 0.05; done
}
wait_for_start_of_all() { until [ -e begun_0 ] && [ -e begun_1 ] && [ -e begun_2 ]; do sleep 0.05; done; }
echo "process $me of $FULMEN_NUM_PROCESSES, pod $FULMEN_VIRTUAL_POD, in $PWD, resume ${FULMEN_RESUME-never}"
: >begun_$me
eval "$1"
"#;
        write_script(&script, text);
        let fulmen = env!("CARGO_BIN_EXE_fulmen").into();
        User { home: tempfile::tempdir().unwrap(), folder, fulmen }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        // Without the downloads of the real user, it would download the CPU plugin.
        let cache = fulmen_pjrt::fetch::cache_folder().unwrap();
        let mut command = Command::new("env");
        command.arg("--default-signal=INT,TERM,HUP").arg(&self.fulmen).arg("pod").args(arguments);
        command.env("HOME", self.home.path()).env("XDG_CACHE_HOME", cache.parent().unwrap());
        command.current_dir(self.folder.path());
        command
    }

    /// Runs `fulmen pod` to its end, and returns its exit code and its output.
    fn pod(&self, arguments: &[&str]) -> (i32, String) {
        ended(&mut self.command(arguments))
    }

    /// Like [`User::pod`]. After five minutes, the run counts as one that never ends.
    fn pod_within_limit(&self, arguments: &[&str]) -> (i32, String) {
        let pod = self.command(arguments);
        let mut command = Command::new("timeout");
        command.args(["--kill-after", "30", "300"]).arg(pod.get_program()).args(pod.get_args());
        command.envs(pod.get_envs().filter_map(|(name, value)| Some((name, value?))));
        ended(command.current_dir(self.folder.path()))
    }

    /// The processes of this user that run.
    fn processes(&self) -> Vec<String> {
        processes_with_home(self.home.path())
    }

    fn check(&self, arguments: &[&str], code: i32) -> String {
        let (ended, text) = self.pod(arguments);
        assert_eq!(ended, code, "{arguments:?}: {text}");
        text
    }
}

/// The ids of the processes with this home directory.
fn processes_with_home(home: &Path) -> Vec<String> {
    let variable = format!("HOME={}", home.display());
    let has_home = |path: &PathBuf| {
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
    };
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    processes.filter(has_home).map(name).collect()
}

fn ended(command: &mut Command) -> (i32, String) {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

#[test]
fn four_processes_on_this_machine_train_as_one_process_does() {
    let one = tempfile::tempdir().unwrap();
    let mut command = Command::new(this_program());
    let (code, text) = ended(command.args(MEMBER).current_dir(one.path()).env("DEVICES", "8"));
    let expected = losses(&text, "");
    assert!(code == 0 && expected.len() == 10, "{text}");

    let user = User::new();
    let program = this_program();
    let run = ["run", "--virtual", "4x2", "--env", "DEVICES=auto", "--", &program];
    let text = user.check(&[&run[..], &MEMBER].concat(), 0);
    assert!(text.contains(": 4 workers on localhost\n"), "{text}");
    for worker in 0..4 {
        assert_eq!(losses(&text, &format!("[worker {worker}] ")), expected, "{text}");
    }
    // The programs start in the folder of the command.
    assert!(user.folder.path().join("runs/version_0/config.toml").is_file());
}

#[test]
fn a_run_on_this_machine_ends_and_restarts_as_on_hosts() {
    let user = User::new();
    let run = |options: &[&str], script: &str, code| {
        let all = [&["run", "--virtual", "3x2"], options, &["--", "./train", script]].concat();
        user.check(&all, code)
    };
    let text = run(&[], "[ $me = 1 ] && wait_for_start_of_all && exit 3; forever", 3);
    let folder = user.folder.path().display();
    for worker in 0..3 {
        let line = format!(
            "[worker {worker}] process {worker} of 3, pod 3x2, in {folder}, resume never\n"
        );
        assert!(text.contains(&line), "{text}");
    }
    assert!(text.contains("[worker 0] saving\n"), "{text}");
    assert!(text.ends_with("[pod] worker 1 (localhost) exited with code 3\n"), "{text}");

    let text = run(&["--max-restarts", "1"], "[ $FULMEN_RESUME ] || exit 75", 0);
    assert!(
        text.contains("exited with code 75; restart 1 of 1, from the last checkpoint"),
        "{text}"
    );
    assert_eq!(text.matches("resume auto").count(), 3, "{text}");

    let forget = |worker: usize| {
        fs::remove_file(user.folder.path().join(format!("begun_{worker}"))).unwrap();
    };
    (0..3).for_each(forget);
    let stops = "wait_for_start_of_all; echo $((5 + me)) >$FULMEN_PROGRESS_FILE; forever";
    let text = run(&["--stuck-timeout", "2", "--grace", "1"], stops, 75);
    assert!(
        text.contains("worker 0 (localhost) is stuck: it makes no progress for 2 s, at step 5\n"),
        "{text}"
    );
    assert!(!user.home.path().join(".fulmen/pods/bin").exists(), "this machine needs no copies");
}

#[test]
#[ignore = "slow: ci/slow"]
fn a_crash_is_restarted_until_the_same_step_crashes_three_times() {
    let user = User::new();
    let crashes =
        "echo $((20 + me)) 4 >$FULMEN_PROGRESS_FILE; [ $me = 1 ] && kill -SEGV $$; forever";
    let run = ["run", "--virtual", "3x2", "--max-restarts", "5", "--", "./train"];
    let text = user.check(&[&run[..], &[crashes]].concat(), 139);
    let crashed = "[pod] worker 1 (localhost) was killed by signal 11, exit code 139; ";
    for end in [
        "restart 1 of 5 in 1 s, from the last checkpoint\n",
        "restart 2 of 5 in 2 s, from the last checkpoint\n",
        "the run crashed 3 times at step 4, so it is not restarted\n",
    ] {
        assert!(text.contains(&format!("{crashed}{end}")), "{text}");
    }
    // The others fail because worker 1 has crashed.
    let fails =
        "[ $FULMEN_RESUME ] && exit 0; [ $me = 1 ] && crash KILL; wait_for_end_of 1; exit 1";
    let text = user.check(&[&run[..], &[fails]].concat(), 0);
    assert!(
        text.contains("worker 1 (localhost) was killed by signal 9, exit code 137; restart 1"),
        "{text}"
    );
    fs::remove_file(user.folder.path().join("pid_1")).unwrap();
    let wrong = "[ $me = 1 ] && end 2; wait_for_end_of 1; crash ABRT";
    let text = user.check(&[&run[..], &[wrong]].concat(), 2);
    assert!(text.ends_with("[pod] worker 1 (localhost) exited with code 2\n"), "{text}");
}

#[test]
#[ignore = "slow: ci/slow"]
fn a_process_whose_devices_fail_names_the_process_that_died() {
    let user = User::new();
    let program = this_program();
    // A detached run does not end the others.
    let run = ["run", "--virtual", "2x2", "--detach", "--env", "DEVICES=auto", "--env", "KILLED=1"];
    let timeout = ["--env", "FULMEN_HEARTBEAT_TIMEOUT=5", "--", &program];
    user.check(&[&run[..], &timeout, &MEMBER].concat(), 0);
    let text = user.check(&["logs", "--follow"], 137);
    let error = text.lines().find(|line| line.starts_with("[worker 0] called `Result::unwrap()`"));
    let error = error.unwrap_or_else(|| panic!("{text}"));
    assert!(
        error.contains("process 1 (") && error.contains("has not sent a heartbeat for 5 s"),
        "{text}"
    );
}

#[test]
#[ignore = "slow: ci/slow"]
fn a_training_process_that_hangs_is_named_and_a_restart_goes_on_from_the_checkpoint() {
    let user = User::new();
    let program = this_program();
    let run = ["run", "--virtual", "3x2", "--stuck-timeout", "6", "--grace", "2"];
    let variables = ["--env", "DEVICES=auto", "--env", "EPOCHS=3", "--env", "HANGS=1"];
    let command = [&["--", &program][..], &MEMBER].concat();
    let stuck = "[pod] worker 1 (localhost) is stuck: it makes no progress for 6 s, at step 1";

    let (code, text) = user.pod_within_limit(&[&run[..], &variables, &command].concat());
    assert_eq!(code, 75, "{text}");
    assert!(
        text.lines().any(|line| line.starts_with(stuck) && line.ends_with("; ending the others")),
        "{text}"
    );
    let reached = by_step(&losses(&text, "[worker 0] ")).into_keys().last();
    assert!(reached.is_some_and(|step| (11..=HANGS_AFTER).contains(&step)), "{text}");
    assert_eq!(user.processes(), [""; 0], "{text}");

    fs::remove_dir_all(user.folder.path().join("runs")).unwrap();
    let restarts = ["--max-restarts", "1"];
    let (code, text) = user.pod_within_limit(&[&run[..], &restarts, &variables, &command].concat());
    assert_eq!(code, 0, "{text}");
    let (first, second) = text.split_once("; restart 1 of 1, from the last checkpoint\n").unwrap();
    assert!(first.contains(stuck), "{text}");
    // The checkpoint is that of the first epoch.
    let steps = by_step(&losses(second, "[worker 1] ")).into_keys().collect::<Vec<_>>();
    assert_eq!(steps, (11..=30).collect::<Vec<_>>(), "{text}");
    assert_eq!(user.processes(), [""; 0], "{text}");
}

/// The plugin does not compare the processes, like devices.
#[test]
#[ignore = "slow: ci/slow"]
fn programs_in_another_order_wait_forever_until_the_stuck_timeout() {
    let user = User::new();
    let program = this_program();
    let run = ["run", "--virtual", "2x2", "--stuck-timeout", "6", "--grace", "2"];
    let variables = ["--env", "DEVICES=auto", "--env", "OTHER_ORDER=1"];
    let mismatch = ["--env", "FULMEN_VIRTUAL_POD_MISMATCH=hang", "--", &program];
    let all = [&run[..], &variables, &mismatch, &MEMBER].concat();
    let (code, text) = user.pod_within_limit(&all);
    assert_eq!(code, 75, "{text}");
    let stuck = "(localhost) is stuck: it makes no progress for 6 s, at step ";
    assert!(text.lines().last().unwrap().contains(stuck), "{text}");
    assert_eq!(user.processes(), [""; 0], "{text}");
}

/// Hosts that a program named `ssh` simulates: processes with home directories of their own.
struct Hosts {
    user: User,
    names: String,
}

impl Hosts {
    fn new(count: usize) -> Hosts {
        let user = User::new();
        let bin = user.home.path().join("bin");
        fs::create_dir(&bin).unwrap();
        let home = user.home.path().display();
        let address = format!(
            "127.1.{}.{}",
            std::process::id() / 200 % 200 + 1,
            std::process::id() % 200 + 1
        );
        let text = format!(
            r#"#!/bin/bash
while [ "$1" != -- ]; do shift; done
[ -e {home}/$2.down ] && echo "connect to host $2: No route to host" >&2 && exit 255
export HOME={home}/$2 SSH_CONNECTION="{address} 1 {address} 22"
cd "$HOME" && exec sh -c "$3"
"#
        );
        write_script(&bin.join("ssh"), &text);
        let names: Vec<String> = (0..count).map(|index| format!("host-{index}")).collect();
        for name in &names {
            fs::create_dir(user.home.path().join(name)).unwrap();
        }
        Hosts { user, names: names.join(",") }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command =
            self.user.command(&[&["run", "--hosts", &self.names], arguments].concat());
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", self.user.home.path().join("bin").display()));
        command
    }

    /// Takes a host away, with all its processes.
    fn preempt(&self, name: &str) {
        let home = self.user.home.path().join(name);
        fs::write(home.with_extension("down"), "").unwrap();
        for pid in processes_with_home(&home) {
            // It may have ended meanwhile.
            let _ = Command::new("kill").args(["-KILL", &pid]).stderr(Stdio::null()).status();
        }
    }
}

/// The losses by step.
fn by_step(losses: &[String]) -> BTreeMap<u64, f64> {
    let parse = |text: &String| {
        let (step, loss) = text.split_once(' ').unwrap();
        (step.parse().unwrap(), loss.parse().unwrap())
    };
    losses.iter().map(parse).collect()
}

#[test]
#[ignore = "slow: ci/slow"]
fn a_run_continues_on_two_hosts_when_the_third_does_not_come_back() {
    let one = tempfile::tempdir().unwrap();
    let program = this_program();
    let mut command = Command::new(&program);
    command.args(MEMBER).current_dir(one.path()).env("DEVICES", "6").env("EPOCHS", "3");
    let (code, text) = ended(&mut command);
    assert_eq!(code, 0, "{text}");
    let expected = by_step(&losses(&text, ""));
    assert_eq!(expected.len(), 30);

    let hosts = Hosts::new(3);
    let root = format!("ROOT={}/shared", hosts.user.home.path().display());
    let options = ["--virtual", "3x2", "--min-hosts", "2", "--max-restarts", "2"];
    let limits = ["--lost-timeout", "4", "--grace", "3", "--start-timeout", "3", "--env"];
    let variables = [&root, "--env", "DEVICES=auto", "--env", "EPOCHS=3", "--env", "HANGS=2"];
    let all = [&options[..], &limits, &variables, &["--", &program], &MEMBER].concat();
    let mut child = hosts.command(&all).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    let mut text: Vec<String> = Vec::new();
    for line in lines.by_ref() {
        let is_in_second_epoch = line.starts_with("[worker 0] loss 11 ");
        text.push(line);
        if is_in_second_epoch {
            break;
        }
    }
    // The process on the third host stays in this epoch.
    let saved = hosts.user.home.path().join("shared/version_0/checkpoints/last/manifest.json");
    while !saved.exists() {
        assert!(child.try_wait().unwrap().is_none(), "{text:?}");
        sleep(Duration::from_millis(20));
    }
    hosts.preempt("host-2");
    text.extend(lines);
    let text = text.join("\n");
    assert_eq!(child.wait().unwrap().code(), Some(0), "{text}");
    assert!(
        text.contains("[pod] host-2 does not answer within 3 s: connect to host host-2"),
        "{text}"
    );
    assert!(text.contains(": 2 workers on host-0, host-1\n"), "{text}");
    let (before, after) = text.split_once(": 2 workers on").unwrap();
    let resumed = by_step(&losses(after, "[worker 1] "));
    assert!(resumed.len() < 30 && resumed.contains_key(&30), "{text}");
    let mut found = by_step(&losses(before, "[worker 0] "));
    found.extend(resumed);
    assert_eq!(found.len(), 30, "{text}");
    for (step, loss) in found {
        assert!((loss - expected[&step]).abs() <= 1e-5 * expected[&step], "{step}: {loss}\n{text}");
    }
}

#[test]
fn ctrl_c_reaches_all_processes_on_this_machine() {
    let user = User::new();
    let mut command = user.command(&["run", "--virtual", "3x2", "--", "./train", "forever"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    let begun = lines.by_ref().filter(|line| line.contains("resume never")).take(3).count();
    assert_eq!(begun, 3);
    let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(interrupt.unwrap().success());
    let text = lines.collect::<Vec<_>>().join("\n");
    assert_eq!(child.wait().unwrap().code(), Some(130), "{text}");
    assert_eq!(text.matches("] saving").count(), 3, "{text}");
}

#[test]
fn a_detached_run_on_this_machine_can_be_followed_queried_and_stopped() {
    let user = User::new();
    let run = ["run", "--virtual", "2x1", "--detach", "--run", "r1", "--", "./train"];
    let waits = "echo 7 >$FULMEN_PROGRESS_FILE; forever";
    let text = user.check(&[&run[..], &[waits]].concat(), 0);
    assert!(
        text.ends_with(
            "continues without this command. To see its output: fulmen pod logs --follow r1\n"
        ),
        "{text}"
    );
    while user.check(&["status"], 0).matches("running, step 7").count() < 2 {}
    assert_eq!(user.check(&["logs"], 0).matches("resume never").count(), 2);
    let text = user.check(&["stop"], 0);
    assert_eq!(text, "[pod] r1: all workers have ended\n");
    let text = user.check(&["status", "r1"], 0);
    assert_eq!(text.matches("(localhost): ended with code 75").count(), 2, "{text}");
    user.check(&["logs", "--follow", "r1"], 75);
}

#[test]
fn a_pod_that_cannot_be_is_refused_before_anything_starts() {
    let user = User::new();
    for (options, message) in [
        (
            &["--virtual", "0x2"][..],
            "invalid value '0x2' for '--virtual <PROCESSESxDEVICES>': expected",
        ),
        (&["--virtual", "4"], "'4' for '--virtual"),
        (
            &["--virtual", "3x2", "--hosts", "a,b,c,d"],
            "--virtual 3x2 needs 3 hosts, one for each process, but --hosts names 4: a, b, c, d",
        ),
        (
            &["--virtual", "4x2", "--tpu", "pod"],
            "'--virtual <PROCESSESxDEVICES>' cannot be used with '--tpu",
        ),
        (
            &["--virtual", "4x2", "--min-hosts", "5", "--max-restarts", "1"],
            "--min-hosts 5: expected 1 to 4",
        ),
        (&["--virtual", "4x2", "--min-hosts", "2"], "pass --max-restarts too"),
        (&["--virtual", "4x2", "--each-chip"], "cannot be used with '--each-chip'"),
        (&[], "no hosts are given: pass --hosts or --tpu, or --virtual 4x2 to rehearse"),
    ] {
        let text = user.check(&[&["run"], options, &["--", "./train", "exit 0"]].concat(), 2);
        assert!(text.contains(message) && !text.contains("[worker"), "{text}");
    }
    assert!(user.check(&["exec", "--", "ls"], 2).contains("pass --hosts or --tpu"));
    assert!(!user.home.path().join(".fulmen").exists());
}

#[test]
fn of_an_option_given_twice_the_last_one_counts() {
    let user = User::new();
    let names = ["--run", "run-7", "--dry-run", "--run", "run-8", "--", "./train", "exit 0"];
    let text = user.check(&[&["run", "--virtual", "2x1"], &names[..]].concat(), 0);
    assert!(text.contains("run-8") && !text.contains("run-7"), "{text}");
}

/// `cargo install` copies the program without the plugin next to it.
#[test]
fn an_installed_program_builds_the_plugin() {
    let mut user = User::new();
    let bin = user.home.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let plugin = Path::new(&this_program()).with_file_name("libfulmen_virtual_pod.so");
    assert!(plugin.is_file());
    let cargo = bin.join("cargo");
    let message = format!("{{\"filenames\":[\"/x.rlib\",\"{}\"]}}", plugin.display());
    let text =
        format!("#!/bin/bash\necho \"$@\" >\"$(dirname \"$0\")/arguments\"\necho '{message}'\n");
    write_script(&cargo, &text);
    // Another process copies it, as `write_script` writes a script.
    let copied = Command::new("cp").arg(&user.fulmen).arg(bin.join("fulmen")).status().unwrap();
    assert!(copied.success());
    user.fulmen = bin.join("fulmen");
    let run = ["run", "--virtual", "2x2", "--", "./train", "echo $FULMEN_PJRT_PLUGIN"];
    let (code, text) = ended(user.command(&run).env("CARGO", &cargo));
    let line = format!("[worker 1] {}\n", plugin.display());
    assert!(code == 0 && text.contains(&line), "{text}");
    let arguments = fs::read_to_string(bin.join("arguments")).unwrap();
    assert!(
        arguments.starts_with("build --release")
            && arguments.contains("/crates/virtual-pod/Cargo.toml"),
        "{arguments}"
    );
    let (code, text) = ended(user.command(&run).env("CARGO", "/no/such/cargo"));
    assert!(code == 1 && text.contains("cargo cannot build the virtual pod's plugin"), "{text}");
}
