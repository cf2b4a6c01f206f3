//! Downloads, with scripts instead of pip.
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use tempfile::TempDir;

use super::*;

const MEMBER: &str = "fake/plugin.so";
const CONTENT: &[u8] = b"not really a plugin";
/// The SHA-256 of the content.
const CONTENT_SHA256: &str = "71d402c77edd048e3f32e29db4d929996568d7f6df307662ef7fb5f59eb785f0";

fn package(sha256: &str) -> Package<'_> {
    Package {
        description: "the fake",
        name: "fake",
        version: "1",
        sha256,
        megabytes: 1,
        member: MEMBER,
        member_sha256: CONTENT_SHA256,
        wheel: &[],
        note: "",
        variable: "FULMEN_PJRT_PLUGIN",
        on_request: None,
    }
}

/// A cache folder, a wheel and its hash.
struct Stage {
    folder: TempDir,
    sha256: String,
}

impl Stage {
    fn new() -> Stage {
        let folder = tempfile::tempdir().unwrap();
        let mut wheel =
            zip::ZipWriter::new(File::create(folder.path().join("fake-1.whl")).unwrap());
        wheel.start_file(MEMBER, zip::write::SimpleFileOptions::default()).unwrap();
        wheel.write_all(CONTENT).unwrap();
        wheel.finish().unwrap();
        let sha256 = hash::of_file(&folder.path().join("fake-1.whl")).unwrap();
        Self { folder, sha256 }
    }

    /// `$wheel` is the wheel, `$dest` the download folder, and `$log` a file that is kept.
    fn pip(&self, body: &str) -> Vec<OsString> {
        let script = self.folder.path().join("pip");
        let folder = self.folder.path().display();
        // The folder follows `--dest`.
        let text = format!(
            "#!/bin/sh\nwheel='{folder}/fake-1.whl'; log='{folder}/log'; all=\"$*\"\n\
             while [ $# -gt 1 ]; do [ \"$1\" = --dest ] && dest=\"$2\"; shift; done\n{body}\n"
        );
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        vec!["/bin/sh".into(), script.into()]
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    fn fetcher(&self, pip: Vec<OsString>) -> Fetcher<'_> {
        Fetcher { cache: self.cache(), pip, offline: false, package: package(&self.sha256) }
    }

    /// The paths of everything below the cache folder.
    fn files(&self) -> Vec<String> {
        fn walk(folder: &Path, root: &Path, paths: &mut Vec<String>) {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                paths.push(entry.path().strip_prefix(root).unwrap().display().to_string());
                walk(&entry.path(), root, paths);
            }
        }
        let mut paths = Vec::new();
        walk(&self.cache(), &self.cache(), &mut paths);
        paths.sort();
        paths
    }

    fn fails(&self, pip: Vec<OsString>, expected: &[&str]) {
        let error = self.fetcher(pip).get().unwrap_err();
        assert!(error.is_fetch(), "{error:?}");
        for expected in expected {
            assert!(error.to_string().contains(expected), "{error}");
        }
        assert_eq!(self.files(), ["pjrt", "pjrt/.lock"], "nothing is left behind");
    }
}

#[test]
fn on_other_systems_the_error_lists_the_alternatives() {
    let error = unpublished("macos", "aarch64").to_string();
    assert!(error.contains("macos on aarch64, only for Linux on x86-64"), "{error}");
    assert!(error.contains(".devcontainer") && error.contains("FULMEN_PJRT_PLUGIN"), "{error}");
}

#[test]
fn a_good_download_is_put_in_place_and_used_again() {
    let stage = Stage::new();
    let pip = stage.pip("echo x >> \"$log\"; cp \"$wheel\" \"$dest\"");
    for _ in 0..2 {
        let path = stage.fetcher(pip.clone()).get().unwrap();
        assert_eq!(path, stage.cache().join("pjrt/fake-1/plugin.so"));
        assert_eq!(fs::read(path).unwrap(), CONTENT);
    }
    assert_eq!(fs::read(stage.folder.path().join("log")).unwrap(), b"x\n", "it is fetched once");
    assert_eq!(stage.files(), ["pjrt", "pjrt/.lock", "pjrt/fake-1", "pjrt/fake-1/plugin.so"]);
}

#[test]
fn pip_and_the_message_select_the_same_wheel() {
    let stage = Stage::new();
    let mut fetcher = stage.fetcher(stage.pip("echo \"$all\" > \"$log\"; exit 1"));
    fetcher.package.wheel = &["--python-version", "3.13", "--abi", "cp313"];
    fetcher.package.variable = "TPU_LIBRARY_PATH";
    let error = fetcher.get().unwrap_err().to_string();
    let flags = "--only-binary=:all: --python-version 3.13 --abi cp313 fake==1` on a machine with a network";
    assert!(
        error.contains(flags) && error.contains("or set TPU_LIBRARY_PATH to its path"),
        "{error}"
    );
    let arguments = fs::read_to_string(stage.folder.path().join("log")).unwrap();
    assert!(arguments.starts_with("download --no-deps"), "{arguments}");
    assert!(arguments.contains(
        "--only-binary=:all: --ignore-requires-python --python-version 3.13 --abi cp313 --dest"
    ));
}

/// `python3 -m pip` runs a `pip.py` of the current folder, so the current folder must be our own.
#[test]
fn pip_runs_in_the_folder_to_download_to() {
    let stage = Stage::new();
    let pip =
        stage.pip("[ \"$(pwd -P)\" = \"$(cd \"$dest\" && pwd -P)\" ] || exit 1; cp \"$wheel\" .");
    stage.fetcher(pip).get().unwrap();
}

#[test]
fn a_file_that_cannot_be_put_in_place_leaves_nothing() {
    let stage = Stage::new();
    // A file name cannot be this long, but that of a zip member can.
    let member = format!("fake/{}.so", "x".repeat(300));
    let mut wheel =
        zip::ZipWriter::new(File::create(stage.folder.path().join("fake-1.whl")).unwrap());
    wheel.start_file(&member, zip::write::SimpleFileOptions::default()).unwrap();
    wheel.write_all(CONTENT).unwrap();
    wheel.finish().unwrap();
    let sha256 = hash::of_file(&stage.folder.path().join("fake-1.whl")).unwrap();
    let mut fetcher = stage.fetcher(stage.pip("cp \"$wheel\" \"$dest\""));
    fetcher.package = Package { sha256: &sha256, member: &member, ..fetcher.package };
    let error = fetcher.get().unwrap_err();
    assert!(error.to_string().contains("cannot write the plugin"), "{error}");
    assert_eq!(stage.files(), ["pjrt", "pjrt/.lock"]);
}

#[test]
fn a_cut_off_download_leaves_nothing() {
    let stage = Stage::new();
    let pip = stage.pip("head -c 60 \"$wheel\" > \"$dest/fake-1.whl\"");
    stage.fails(
        pip,
        &["was cut off, or is not the published file", &stage.sha256, "Nothing was left behind"],
    );
}

#[test]
fn a_wrong_hash_leaves_nothing() {
    let stage = Stage::new();
    let pip = stage.pip("cp \"$wheel\" \"$dest\"; echo more >> \"$dest/fake-1.whl\"");
    stage.fails(pip, &["its SHA-256 is", "Nothing was left behind"]);
}

#[test]
fn a_failing_pip_is_quoted() {
    let stage = Stage::new();
    let pip =
        stage.pip("echo half > \"$dest/fake-1.whl\"; echo 'ERROR: no route to host' >&2; exit 1");
    stage.fails(
        pip,
        &["pip failed (exit status: 1): ERROR: no route to host", "pip download --no-deps fake==1"],
    );
}

#[test]
fn a_pip_that_leaves_no_wheel_is_an_error() {
    let stage = Stage::new();
    stage.fails(stage.pip("exit 0"), &["pip reported success but left no wheel of fake 1"]);
}

#[test]
fn no_pip_and_no_python_say_what_to_install() {
    let stage = Stage::new();
    let pip = stage.pip("echo '/usr/bin/python3: No module named pip' >&2; exit 1");
    stage.fails(
        pip,
        &["Python has no pip; install it (`python3 -m ensurepip`", "set FULMEN_PJRT_PLUGIN"],
    );
    let nothing = vec!["/no/such/python3".into()];
    stage.fails(
        nothing,
        &["cannot run pip, because /no/such/python3 does not exist; install Python 3 with pip"],
    );
}

#[test]
fn offline_runs_nothing_and_says_what_to_do() {
    let stage = Stage::new();
    let pip = stage.pip("echo x >> \"$log\"");
    let mut fetcher = stage.fetcher(pip);
    fetcher.offline = true;
    let error = fetcher.get().unwrap_err();
    let target = stage.cache().join("pjrt/fake-1/plugin.so");
    for expected in
        ["FULMEN_OFFLINE forbids", "pip download --no-deps fake==1", target.to_str().unwrap()]
    {
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert_eq!(stage.files(), [""; 0]);
    assert!(!stage.folder.path().join("log").exists());
}

#[test]
fn an_unwritable_cache_folder_is_an_error() {
    let stage = Stage::new();
    // A file replaces the folder; root could write to any folder.
    fs::write(stage.cache(), b"").unwrap();
    let error = stage.fetcher(stage.pip("exit 0")).get().unwrap_err();
    assert!(error.to_string().contains("set XDG_CACHE_HOME to another folder"), "{error}");
}

#[test]
fn leftovers_of_a_killed_process_are_removed() {
    let stage = Stage::new();
    let old = stage.cache().join("pjrt/.fetching-1");
    fs::create_dir_all(&old).unwrap();
    fs::write(old.join("half.whl"), b"x").unwrap();
    stage.fetcher(stage.pip("cp \"$wheel\" \"$dest\"")).get().unwrap();
    assert!(!old.exists());
}

#[test]
fn a_damaged_file_is_fetched_again_and_a_whole_one_is_not() {
    let stage = Stage::new();
    let fetcher = stage.fetcher(stage.pip("echo x >> \"$log\"; cp \"$wheel\" \"$dest\""));
    let path = fetcher.get().unwrap();
    assert!(!fetcher.repair().unwrap());
    fs::write(&path, b"not really a plugiN").unwrap();
    assert!(fetcher.repair().unwrap());
    assert_eq!(fs::read(&path).unwrap(), CONTENT);
    assert!(!fetcher.repair().unwrap());
    assert_eq!(fs::read(stage.folder.path().join("log")).unwrap(), b"x\nx\n");
}

#[test]
fn a_file_is_hashed_when_its_size_or_time_has_changed() {
    let stage = Stage::new();
    let fetcher = stage.fetcher(stage.pip("echo x >> \"$log\"; cp \"$wheel\" \"$dest\""));
    let path = fetcher.get().unwrap();
    let record = path.with_extension("so.verified");
    let fetched = || fs::read(stage.folder.path().join("log")).unwrap().len() / 2;
    fetcher.verify_if_changed().unwrap();
    assert!(fs::read_to_string(&record).unwrap().starts_with(CONTENT_SHA256));
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let write = |content: &str, modified| {
        fs::write(&path, content).unwrap();
        File::open(&path).unwrap().set_modified(modified).unwrap();
    };
    write("not really a plugiN", modified);
    fetcher.verify_if_changed().unwrap();
    assert_eq!(fetched(), 1, "it is not read");
    write("not really a plugiN", modified + std::time::Duration::from_nanos(1));
    fetcher.verify_if_changed().unwrap();
    assert_eq!((fetched(), fs::read(&path).unwrap()), (2, CONTENT.to_vec()));
    write("not really a plug", fs::metadata(&path).unwrap().modified().unwrap());
    fetcher.verify_if_changed().unwrap();
    assert_eq!((fetched(), fs::read(&path).unwrap()), (3, CONTENT.to_vec()));

    // In a folder that cannot be written, it is hashed each time.
    fs::remove_file(&record).unwrap();
    fs::create_dir(&record).unwrap();
    fetcher.verify_if_changed().unwrap();
    write("not really a plugiN", fs::metadata(&path).unwrap().modified().unwrap());
    fetcher.verify_if_changed().unwrap();
    assert_eq!((fetched(), fs::read(&path).unwrap()), (4, CONTENT.to_vec()));
}

#[test]
fn a_damaged_file_that_cannot_be_fetched_again_is_an_error_that_says_both() {
    let stage = Stage::new();
    let path = stage.fetcher(stage.pip("cp \"$wheel\" \"$dest\"")).get().unwrap();
    fs::write(&path, b"not really a plugiN").unwrap();
    let damaged =
        format!("the fake in the cache folder is damaged: the SHA-256 of {} is", path.display());
    let no_network = stage.pip("echo 'ERROR: no route to host' >&2; exit 1");
    let error = stage.fetcher(no_network.clone()).repair().unwrap_err();
    assert!(error.is_fetch());
    assert!(
        error.to_string().contains(&damaged) && error.to_string().contains("no route to host"),
        "{error}"
    );

    let mut offline = stage.fetcher(no_network.clone());
    offline.offline = true;
    let error = offline.repair().unwrap_err();
    assert!(error.is_corrupt());
    let advice =
        "FULMEN_OFFLINE forbids fetching it again; run `python3 -m pip download --no-deps fake==1`";
    assert!(error.to_string().contains(&damaged) && error.to_string().contains(advice), "{error}");

    let mut on_request = stage.fetcher(no_network);
    on_request.package.on_request = Some("`fulmen plugin install fake`");
    let error = on_request.repair().unwrap_err();
    assert!(
        error.is_corrupt()
            && error
                .to_string()
                .contains("delete the file and fetch it again: `fulmen plugin install fake`"),
        "{error}"
    );
    assert_eq!(
        fs::read(path).unwrap(),
        b"not really a plugiN",
        "the file stays until there is a better one"
    );
}

#[test]
fn threads_at_once_fetch_once() {
    let stage = Stage::new();
    let pip = stage.pip("echo x >> \"$log\"; sleep 0.2; cp \"$wheel\" \"$dest\"");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                assert_eq!(fs::read(stage.fetcher(pip.clone()).get().unwrap()).unwrap(), CONTENT)
            });
        }
    });
    assert_eq!(fs::read(stage.folder.path().join("log")).unwrap(), b"x\n");
}

/// The processes run this test binary again, with the stage's folder in a variable.
#[test]
fn processes_at_once_fetch_once() {
    const VARIABLE: &str = "FULMEN_FETCH_TEST_STAGE";
    if let Some(folder) = env::var_os(VARIABLE) {
        let folder = PathBuf::from(folder);
        let sha256 = hash::of_file(&folder.join("fake-1.whl")).unwrap();
        let package = package(&sha256);
        let pip = vec!["/bin/sh".into(), folder.join("pip").into()];
        let path =
            Fetcher { cache: folder.join("cache"), pip, offline: false, package }.get().unwrap();
        assert_eq!(fs::read(path).unwrap(), CONTENT);
        return;
    }
    let stage = Stage::new();
    stage.pip("echo x >> \"$log\"; sleep 0.2; cp \"$wheel\" \"$dest\"");
    let children = (0..3)
        .map(|_| {
            Command::new(env::current_exe().unwrap())
                .args(["--exact", "fetch::tests::processes_at_once_fetch_once"])
                .env(VARIABLE, stage.folder.path())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect::<Vec<_>>();
    for child in children {
        let child = child.wait_with_output().unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
        assert!(String::from_utf8_lossy(&child.stdout).contains("1 passed"));
    }
    assert_eq!(fs::read(stage.folder.path().join("log")).unwrap(), b"x\n");
}
