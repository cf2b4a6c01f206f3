//! What a Trainer asks of other processes, with threads in their place; and the end of one that hangs, in a process of its
//! own.

use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;

use super::*;

/// The variable that tells a process of this test program where to join.
const JOIN: &str = "FULMEN_TEST_JOIN";

fn join(process: Process, on_listening: impl FnOnce(&str) + Send + 'static) -> Hosts {
    let patience = Duration::from_secs(60);
    let timeouts = Timeouts { join: patience, heartbeat: patience };
    let joining = Coordination::builder(process).timeouts(timeouts).on_listening(on_listening);
    Hosts {
        coordination: joining.join().unwrap(),
        patience,
        turns: AtomicU64::new(0),
        well: AtomicBool::new(true),
        alike: AtomicBool::new(false),
    }
}

/// Runs the same in three processes, each a thread, and gives what each of them got.
fn in_three<T: Send + 'static>(play: impl Fn(&Hosts) -> T + Clone + Send + 'static) -> Vec<T> {
    let (tell, told) = channel();
    let first = play.clone();
    let zero = thread::spawn(move || {
        let process = Process::new(0, 3, "127.0.0.1:0").unwrap();
        first(&join(process, move |address| tell.send(address.to_owned()).unwrap()))
    });
    let address = told.recv().unwrap();
    let others = [1, 2].map(|index| {
        let (play, address) = (play.clone(), address.clone());
        thread::spawn(move || play(&join(Process::new(index, 3, address).unwrap(), |_| {})))
    });
    [zero].into_iter().chain(others).map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn what_the_first_process_made_is_everybodys() {
    let paths = in_three(|hosts| {
        let make = |n: usize| Ok(PathBuf::from(format!("version_{}_{n}", hosts.process().index())));
        (hosts.broadcast("run_dir", || make(1)).unwrap(), hosts.broadcast("run_dir", || make(2)).unwrap())
    });
    assert_eq!(paths, vec![("version_0_1".into(), "version_0_2".into()); 3]);
}

#[test]
fn all_get_the_same_answer_whoever_wants_it() {
    let answers = in_three(|hosts| {
        let mine = hosts.process().index();
        (0..5).map(|step| hosts.any("interrupt", mine == 1 && step == 3).unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(answers, vec![[false, false, false, true, false]; 3]);
}

#[test]
fn who_waits_for_a_device_hears_of_a_failure() {
    let ends = in_three(|hosts| {
        if hosts.process().index() == 2 {
            hosts.fail(&Error::usage("the disk is full"));
            return String::new();
        }
        let error = hosts.wait_until(|| false).unwrap_err();
        assert!(error.is_coordination());
        error.to_string()
    });
    assert!(ends[..2].iter().all(|end| end.contains("process 2 (") && end.ends_with("the disk is full")), "{ends:?}");
}

#[test]
fn a_process_that_hangs_in_a_device_ends_when_another_is_gone() {
    if let Some(address) = std::env::var_os(JOIN) {
        let hosts = join(Process::new(1, 2, address.to_str().unwrap()).unwrap(), |_| {});
        let _fit = hosts.guard_for(Duration::from_millis(10));
        thread::sleep(Duration::from_secs(120));
        return;
    }
    let (tell, told) = channel();
    let zero = thread::spawn(move || {
        let process = Process::new(0, 2, "127.0.0.1:0").unwrap();
        join(process, move |address| tell.send(address.to_owned()).unwrap())
    });
    let name = "hosts::tests::a_process_that_hangs_in_a_device_ends_when_another_is_gone";
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", name, "--nocapture"]).env(JOIN, told.recv().unwrap());
    let child = thread::spawn(move || child.output().unwrap());
    let hosts = zero.join().unwrap();
    let hung = hosts.guard_for(Duration::ZERO);
    // What ended in time is not ended again: this process itself must go on.
    drop(hung);
    hosts.fail(&Error::usage("the disk is full"));
    let output = child.join().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("process 0 (") && said.contains("the disk is full"), "{said}");
    assert!(said.contains("so this process ends itself"), "{said}");
}
