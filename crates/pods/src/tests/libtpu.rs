//! The script that puts libtpu on a host, on this machine: with a small library, a home directory
//! and a pip of its own. Out of scope: several hosts (`super::tpu_hosts`).

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use tempfile::TempDir;

use super::programs::write_script;
use crate::libtpu::{Answer, Libtpu, LibtpuOption, Source};
use crate::libtpu_wheel::LibtpuWheel;

/// A pip that counts its calls. Others that want the file have time to ask for it.
const PIP: &str = r#"[ "$1 $2 $3" = "-m pip download" ] || exit 9
echo call >>"$WHEEL.calls"
sleep 0.3
while [ $# -gt 1 ]; do [ "$1" = --dest ] && cp "$WHEEL" "$2/libtpu-0.0.51-any.whl"; shift; done
[ "$1" = libtpu==0.0.51 ]"#;

/// A host: a home directory, and programs that it finds first.
pub(super) struct Stage {
    folder: TempDir,
    pub(super) library: Vec<u8>,
    wheel: Vec<u8>,
    pub(super) libtpu: Libtpu,
}

/// The output of a program that gets this input.
fn filter(program: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = thread::spawn(move || stdin.write_all(&input).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "{program}");
    output.stdout
}

/// A library and its hash.
fn library(seed: u32) -> (Vec<u8>, String) {
    let mut library = b"\x7fELF".to_vec();
    let mut state = seed;
    for _ in 0..300_000 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        library.push((state >> 24) as u8 & 0x3f);
    }
    let sum = filter("sha256sum", &[], &library);
    (library, String::from_utf8(sum).unwrap()[..64].to_owned())
}

impl Stage {
    pub(super) fn new() -> Stage {
        let folder = tempfile::tempdir().unwrap();
        for name in ["home", "bin"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let (library, sha256) = library(7);
        // A gzip file is a header of 10 bytes, the compressed bytes, the checksum and the size.
        let gzip = filter("gzip", &["-nc"], &library);
        let compressed = &gzip[10..gzip.len() - 8];
        let crc32 = u32::from_le_bytes(gzip[gzip.len() - 8..][..4].try_into().unwrap());
        let before = b"the head of a zip file";
        let wheel = [&before[..], compressed, b"its end", &[0; 50_000]].concat();
        let wheel_description = LibtpuWheel {
            version: "0.0.51".into(),
            megabytes: 1,
            offset: before.len() as u64,
            compressed_bytes: compressed.len() as u64,
            crc32,
            bytes: library.len() as u64,
            sha256,
            pip_arguments: vec!["--only-binary=:all:".into(), "libtpu==0.0.51".into()],
            oldest_version: "0.0.29".into(),
        };
        let libtpu = Libtpu { option: LibtpuOption::Install, wheel: wheel_description };
        let stage = Stage { folder, library, wheel, libtpu };
        stage.program("python3", "echo 'No module named pip' >&2; exit 1");
        stage
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A program of the host.
    pub(super) fn program(&self, name: &str, script: &str) {
        let path = self.path("bin").join(name);
        write_script(&path, &format!("#!/bin/bash\n{script}\n"));
    }

    /// Lets the host's pip download a wheel with this content.
    fn publish(&self, wheel: &[u8]) {
        fs::write(self.path("wheel"), wheel).unwrap();
        self.program("python3", PIP);
    }

    /// How often pip was called.
    fn downloads(&self) -> usize {
        fs::read_to_string(self.path("wheel.calls")).unwrap_or_default().lines().count()
    }

    /// A file of the home directory.
    fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path("home").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Runs the script. Returns its answer, or its message.
    pub(super) fn run(&self, source: Source, input: &[u8]) -> Result<Answer, String> {
        let search =
            std::env::join_paths([&self.path("bin"), Path::new("/usr/bin"), Path::new("/bin")]);
        let mut child = Command::new("sh")
            .args(["-c", &self.libtpu.command(source).unwrap()])
            .env_clear()
            .envs([("HOME", self.path("home").into_os_string()), ("PATH", search.unwrap())])
            .envs([("WHEEL", self.path("wheel").into_os_string()), ("LC_ALL", OsString::from("C"))])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A script that fails early reads no input.
        let _ = child.stdin.take().unwrap().write_all(input);
        let output = child.wait_with_output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        if output.status.success() {
            Ok(Answer::parse(&String::from_utf8(output.stdout).unwrap()))
        } else {
            Err(message)
        }
    }

    pub(super) fn own(&self) -> PathBuf {
        self.path("home/.cache/fulmen/pjrt/libtpu-0.0.51/libtpu.so")
    }

    /// Checks that programs find the right library, and that nothing else was left.
    pub(super) fn has_library(&self) {
        let link = self.path("home/.fulmen/pods/libtpu-0.0.51/libtpu.so");
        assert!(fs::read(link).unwrap() == self.library, "another library");
        self.has_no_leftovers();
    }

    pub(super) fn has_no_leftovers(&self) {
        for folder in [".cache/fulmen/pjrt", ".fulmen/pods/libtpu-0.0.51"] {
            let entries = fs::read_dir(self.path("home").join(folder)).into_iter().flatten();
            for entry in entries {
                let name = entry.unwrap().file_name().into_string().unwrap();
                let known = ["libtpu-0.0.51", ".lock", "libtpu.so"];
                assert!(known.contains(&name.as_str()), "{folder} has {name}");
            }
        }
    }
}

#[test]
fn a_host_downloads_libtpu_once() {
    let stage = Stage::new();
    stage.publish(&stage.wheel);
    assert_eq!(stage.run(Source::Fetch, b"").unwrap().state, "downloaded");
    stage.has_library();
    assert_eq!(fs::read(stage.own()).unwrap(), stage.library);
    assert_eq!(stage.run(Source::Fetch, b"").unwrap().state, "present");
    assert_eq!(stage.downloads(), 1);
    // A file that lost power left half written, or that somebody damaged.
    for damaged in [&stage.library[..1000], &[&b"x"[..], &stage.library[1..]].concat()] {
        fs::write(stage.own(), damaged).unwrap();
        assert_eq!(stage.run(Source::Fetch, b"").unwrap().state, "downloaded");
        stage.has_library();
    }
    // A killed download.
    stage.write(".cache/fulmen/pjrt/.fetching-Ab12/libtpu.so", b"half");
    fs::remove_file(stage.own()).unwrap();
    stage.run(Source::Fetch, b"").unwrap();
    stage.has_library();
}

#[test]
fn two_programs_that_install_at_once_download_once() {
    let stage = Stage::new();
    stage.publish(&stage.wheel);
    let states = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let state = stage.run(Source::Fetch, b"").unwrap().state;
                states.lock().unwrap().push(state);
            });
        }
    });
    let mut states = states.into_inner().unwrap();
    states.sort();
    assert_eq!(states, ["downloaded", "present", "present"]);
    assert_eq!(stage.downloads(), 1);
    stage.has_library();
}

#[test]
fn a_wrong_or_short_download_is_not_installed() {
    let stage = Stage::new();
    let mut other = stage.wheel.clone();
    other[100] ^= 1;
    for wheel in [&other[..], &stage.wheel[..stage.wheel.len() / 3]] {
        stage.publish(wheel);
        let missing = stage.run(Source::Fetch, b"").unwrap().missing.unwrap();
        let expected =
            "what pip got is not the published libtpu 0.0.51: the SHA-256 of the library is ";
        assert!(missing.starts_with(expected), "{missing}");
        assert!(missing.ends_with(&format!(", not {}", stage.libtpu.wheel.sha256)), "{missing}");
        assert!(!stage.own().exists());
        stage.has_no_leftovers();
    }
    assert_eq!(stage.downloads(), 2);
    let message = stage.run(Source::Alone, b"").unwrap_err();
    assert!(message.contains("error cannot download libtpu 0.0.51: what pip got "), "{message}");
    assert!(message.contains("Give this machine pip and a network, or the path"), "{message}");
}

#[test]
fn without_pip_or_a_network_the_launcher_sends_it() {
    let stage = Stage::new();
    let missing = stage.run(Source::Fetch, b"").unwrap().missing.unwrap();
    assert_eq!(missing, "pip: No module named pip");
    let message = stage.run(Source::Input, &stage.library[1..]).unwrap_err();
    assert!(message.contains("the copy is damaged: its SHA-256 is "), "{message}");
    assert!(!stage.own().exists());
    assert_eq!(stage.run(Source::Input, &stage.library).unwrap().state, "copied");
    stage.has_library();
}

#[test]
fn the_libtpu_of_an_image_is_used_if_it_is_the_tested_one_and_named_if_not() {
    let stage = Stage::new();
    let site = ".local/lib/python3.10/site-packages";
    let found = stage.write(&format!("{site}/libtpu/libtpu.so"), &stage.library);
    stage.publish(&stage.wheel);
    let answer = stage.run(Source::Fetch, b"").unwrap();
    assert_eq!((answer.state.as_str(), stage.downloads()), ("present", 0));
    stage.has_library();

    for (version, expected) in [
        ("0.0.7", "is not used: it is older than 0.0.29, the first whose PJRT API this version"),
        ("0.0.60", "is not used; to use it, pass --libtpu "),
    ] {
        fs::write(&found, library(8).0).unwrap();
        let description = format!("{site}/libtpu-{version}.dist-info/METADATA");
        let description = stage.write(&description, b"");
        let answer = stage.run(Source::Fetch, b"").unwrap();
        let others = answer.others.join("\n");
        let name = format!("libtpu {version} at {} {expected}", found.display());
        assert!(others.starts_with(&name), "{others}");
        stage.has_library();
        fs::remove_dir_all(description.parent().unwrap()).unwrap();
        fs::remove_file(stage.own()).unwrap();
    }
}

#[test]
fn a_path_of_ones_own_is_checked() {
    let mut stage = Stage::new();
    let path = stage.path("home/a b/libtpu/libtpu.so");
    stage.libtpu.option = path.display().to_string().parse().unwrap();
    let message = stage.run(Source::Fetch, b"").unwrap_err();
    assert!(message.contains(&format!("there is no libtpu at {} ", path.display())), "{message}");
    let pointer = b"version https://git-lfs.github.com/spec/v1\n";
    stage.write("a b/libtpu/libtpu.so", pointer);
    let message = stage.run(Source::Fetch, b"").unwrap_err();
    assert!(message.contains("it does not begin as an ELF file"), "{message}");
    stage.write("a b/libtpu/libtpu.so", &library(8).0);
    assert_eq!(stage.run(Source::Fetch, b"").unwrap().state, "version unknown");
    stage.write("a b/libtpu-0.0.9.dist-info/METADATA", b"");
    let message = stage.run(Source::Fetch, b"").unwrap_err();
    assert!(
        message.contains("libtpu 0.0.9 at ") && message.contains("older than 0.0.29"),
        "{message}"
    );
    fs::rename(
        stage.path("home/a b/libtpu-0.0.9.dist-info"),
        stage.path("home/a b/libtpu-0.0.30.dist-info"),
    )
    .unwrap();
    assert_eq!(stage.run(Source::Fetch, b"").unwrap().state, "version 0.0.30");
    assert!(!stage.path("home/.cache").exists(), "nothing is installed");
}

#[test]
fn a_full_disk_and_another_processor_are_named() {
    let stage = Stage::new();
    stage.publish(&stage.wheel);
    stage.program("df", "echo Filesystem; echo 'tmpfs 100 0 100 0% /'");
    let message = stage.run(Source::Fetch, b"").unwrap_err();
    let expected = "/.cache/fulmen/pjrt has 0 MiB free, and libtpu takes 0 MiB; set XDG_CACHE_HOME";
    assert!(message.contains("error No space left on device: "), "{message}");
    assert!(message.contains(expected), "{message}");
    stage.program("uname", "echo aarch64");
    let message = stage.run(Source::Fetch, b"").unwrap_err();
    assert!(message.contains("x86_64, but this processor is aarch64"), "{message}");
    assert_eq!(stage.downloads(), 0);
}
