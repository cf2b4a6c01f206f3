//! The folder in which the tests of this workspace keep their compiled programs.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::SystemTime;

use fulmen_tensor::{Accelerator, Devices, Runtime, Tensor};

/// In the child process, the number in the program.
const CHILD: &str = "FULMEN_TEST_PROGRAMS_CHILD";

/// Evaluates a program that has `factor` in its text, in a process of its own.
fn evaluate(factor: f64) {
    let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1)).unwrap();
    let x = runtime.eval(Tensor::from_slice(&[1.0f32, 2.0], [2]) * factor).unwrap();
    assert_eq!(x.to_f64(), [factor, 2.0 * factor]);
    let counts = ["UncachedCompile", "PersistentCacheHit"].map(|n| runtime.metrics().value(n));
    assert_eq!(counts, [1, 0]);
}

#[test]
fn a_kept_program_counts_as_compiled_and_is_not_used_after_a_change() {
    if let Ok(factor) = std::env::var(CHILD) {
        return evaluate(factor.parse().unwrap());
    }
    let folder = tempfile::tempdir().unwrap();
    let run_with = |factor: &str, programs: &str, optimized: &str| {
        let test = "a_kept_program_counts_as_compiled_and_is_not_used_after_a_change";
        let child = Command::new(std::env::current_exe().unwrap())
            .args([&format!("test_programs::{test}"), "--exact"])
            .envs([(CHILD, factor), ("FULMEN_TEST_PROGRAMS", programs)])
            .env("FULMEN_TEST_PROGRAMS_OPTIMIZED", optimized)
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&child.stdout).into_owned();
        assert!(child.status.success() && printed.contains("1 passed"), "{printed}");
    };
    let run = |factor: &str, programs: &str| run_with(factor, programs, "");
    let kept = || -> Vec<PathBuf> {
        let files = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
        files.filter(|file| file.extension().is_some_and(|ending| ending == "xla")).collect()
    };
    let programs = folder.path().to_str().unwrap();
    run("3", "off");
    run("3", "");
    assert_eq!(kept(), [""; 0].map(PathBuf::from));
    run("3", programs);
    let [first] = &kept()[..] else { panic!("{:?}", kept()) };
    let file = || fs::metadata(first).unwrap();
    let inode = file().ino();
    File::open(first).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    run("3", programs);
    // The second run has used the file, and not written it again.
    assert!(file().modified().unwrap() > SystemTime::UNIX_EPOCH);
    assert_eq!((kept().len(), file().ino()), (1, inode));
    run("4", programs);
    assert_eq!(kept().len(), 2);
    // With all optimizations, it is another program.
    run_with("4", programs, "1");
    assert_eq!(kept().len(), 3);
    run_with("4", programs, "1");
    assert_eq!(kept().len(), 3);
}
