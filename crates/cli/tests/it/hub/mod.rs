//! `fulmen data fetch hf:…` from a hub on the loopback interface.

mod server;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use self::server::{Fault, Files, Hub, commit, sha256};
use crate::pack::program;

const WEIGHTS: &str = "model.safetensors";

/// The files of a small model, with names that an address must encode.
fn model() -> Files {
    let weights = (0..100_000u32).map(|i| (i.wrapping_mul(i) >> 3) as u8).collect();
    let files: [(&str, Vec<u8>); 5] = [
        (".gitattributes", b"*.safetensors filter=lfs\n".to_vec()),
        ("config.json", b"{\"model_type\": \"bert\"}".to_vec()),
        ("empty.txt", Vec::new()),
        (WEIGHTS, weights),
        ("onnx/a b#ä?.json", b"[1]".to_vec()),
    ];
    files.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect()
}

/// The program, which knows only this hub.
fn fetch(hub: &Hub, path: &str, to: &Path) -> Command {
    let mut command = program();
    for name in
        ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "XDG_CACHE_HOME"]
    {
        command.env_remove(name);
    }
    command
        .env("HF_ENDPOINT", &hub.address)
        .env("HF_HOME", "/nonexistent")
        .env("NO_PROXY", "127.0.0.1");
    command.args(["data", "fetch", path, "--to"]).arg(to);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command, and returns its exit status and everything that it printed.
fn run(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

fn succeed(command: &mut Command) -> String {
    let (code, text) = run(command);
    assert_eq!(code, Some(0), "{text}");
    text
}

fn fail(command: &mut Command) -> String {
    let (code, text) = run(command);
    assert!(code.is_some_and(|code| code > 0), "{code:?} {text}");
    text
}

/// The files in a folder, without the record.
fn contents(folder: &Path) -> Files {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                found.insert(name, fs::read(&path).unwrap());
            } else if !path.ends_with(".fulmen-hub") {
                folders.push(path);
            }
        }
    }
    found
}

/// Starts a command and waits until it has written this number of bytes of the weights.
fn wait_for_part(hub: &Hub, command: &mut Command, folder: &Path, bytes: u64) -> Child {
    let hash = sha256(&hub.state().commits[&commit('a')][WEIGHTS]);
    let part = folder.join(format!(".fulmen-hub/{hash}.part"));
    let mut child = command.spawn().unwrap();
    while part.metadata().map_or(0, |metadata| metadata.len()) < bytes {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn a_model_is_fetched_whole_and_only_once() {
    let hub = Hub::start(model());
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("models/bert");
    let text = succeed(&mut fetch(&hub, "hf:owner/name", &to));
    let line = format!(
        "hf:owner/name is in {}: 5 files, 100.0 kB (100.0 kB downloaded), commit aaaa",
        to.display()
    );
    assert!(text.contains(&line), "{text}");
    assert_eq!(contents(&to), model());
    let before = hub.state().hub_requests.len();
    let text = succeed(&mut fetch(&hub, "hf:owner/name", &to));
    assert!(text.contains("(0 bytes downloaded)"), "{text}");
    assert_eq!(hub.state().hub_requests.len(), before);
}

#[test]
fn a_dataset_and_a_part_of_it_are_fetched_by_revision() {
    let hub = Hub::start(model());
    let files = ["a/0.parquet", "a/1.parquet", "a/deep/2.parquet", "b/0.parquet", "README.md"];
    let files: Files =
        files.iter().map(|name| ((*name).to_owned(), name.as_bytes().to_vec())).collect();
    hub.state().commits.insert(commit('b'), files.clone());
    hub.state().branches.insert("refs/convert/parquet".to_owned(), commit('b'));
    let folder = tempfile::tempdir().unwrap();
    let path = |files: &str| format!("hf:datasets/owner/name@refs/convert/parquet{files}");
    let only = |prefix: &str| -> Files {
        files.clone().into_iter().filter(|(name, _)| name.starts_with(prefix)).collect()
    };
    succeed(&mut fetch(&hub, &path("/a/*.parquet"), folder.path()));
    let mut expected = only("a/");
    expected.remove("a/deep/2.parquet");
    assert_eq!(contents(folder.path()), expected);
    succeed(&mut fetch(&hub, &path("/a"), folder.path()));
    assert_eq!(contents(folder.path()), only("a/"));
    let text = fail(&mut fetch(&hub, &path("/c"), folder.path()));
    assert!(
        text.contains("has no such file; it has README.md, a/0.parquet, a/1.parquet"),
        "{text}"
    );
    succeed(&mut fetch(&hub, &path(""), folder.path()));
    assert_eq!(contents(folder.path()), files);
    let targets: Vec<_> = hub.state().hub_requests.iter().map(|it| it.target.clone()).collect();
    assert_eq!(targets[0], "/api/datasets/owner/name/revision/refs%2Fconvert%2Fparquet");
}

#[test]
fn a_cut_connection_is_continued() {
    let hub = Hub::start(model());
    hub.state().faults.extend([Fault::Cut(30_000), Fault::Cut(0), Fault::Cut(20_000)]);
    let folder = tempfile::tempdir().unwrap();
    succeed(&mut fetch(&hub, "hf:owner/name/model.safetensors", folder.path()));
    let ranges = [None, Some("bytes=30000-"), Some("bytes=30000-"), Some("bytes=50000-")];
    assert_eq!(hub.ranges(), ranges.map(|range| range.map(str::to_owned)));
    assert_eq!(contents(folder.path())[WEIGHTS], model()[WEIGHTS]);
    // A server that does not continue files.
    hub.state().faults.extend([Fault::Cut(30_000), Fault::Whole]);
    let folder = tempfile::tempdir().unwrap();
    succeed(&mut fetch(&hub, "hf:owner/name/model.safetensors", folder.path()));
    assert_eq!(hub.ranges().len(), 2);
    assert_eq!(contents(folder.path())[WEIGHTS], model()[WEIGHTS]);
}

#[test]
fn a_killed_run_continues_with_its_commit() {
    let hub = Hub::start(model());
    hub.state().faults.push_back(Fault::Hang(40_000));
    let folder = tempfile::tempdir().unwrap();
    let path = "hf:owner/name/*.safetensors";
    let mut child =
        wait_for_part(&hub, &mut fetch(&hub, path, folder.path()), folder.path(), 40_000);
    // A second run is refused in the meantime.
    let text = fail(&mut fetch(&hub, path, folder.path()));
    assert!(text.contains("is being written by process"), "{text}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(contents(folder.path()), Files::new());
    hub.ranges();

    // The branch moves.
    let other =
        model().into_iter().map(|(name, bytes)| (name, [bytes, b"x".to_vec()].concat())).collect();
    hub.state().commits.insert(commit('b'), other);
    hub.state().branches.insert("main".to_owned(), commit('b'));
    succeed(&mut fetch(&hub, path, folder.path()));
    assert_eq!(hub.ranges(), [Some("bytes=40000-".to_owned())]);
    succeed(&mut fetch(&hub, "hf:owner/name", folder.path()));
    assert_eq!(contents(folder.path()), model());

    // Another commit, revision or repository is refused. The same one may have another name.
    hub.state().branches.insert("v1".to_owned(), commit('a'));
    succeed(&mut fetch(&hub, "hf:owner/name@v1", folder.path()));
    for (path, says) in [
        (format!("hf:owner/name@{}", commit('b')), "commit bbbb"),
        ("hf:owner/other".to_owned(), "fetch hf:owner/other into another folder"),
    ] {
        let text = fail(&mut fetch(&hub, &path, folder.path()));
        assert!(text.contains("has files of hf:owner/name@main, commit aaaa"), "{text}");
        assert!(text.contains(says), "{text}");
    }
    assert_eq!(contents(folder.path()), model());
}

#[test]
fn other_content_than_the_hub_lists_is_not_kept() {
    let hub = Hub::start(model());
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("bert");
    for name in [WEIGHTS, "config.json"] {
        hub.state().faults.push_back(Fault::Corrupt);
        let text = fail(&mut fetch(&hub, &format!("hf:owner/name/{name}"), &to));
        let says = format!("{name}: the download is not the file of the commit");
        assert!(text.contains(&says), "{text}");
        assert!(!to.exists());
    }
    // A part of an earlier run that is damaged, and one that is too long.
    let part = to.join(format!(".fulmen-hub/{}.part", sha256(&model()[WEIGHTS])));
    for bytes in [vec![0; 50_000], vec![0; 100_000], vec![0; 100_001]] {
        fs::create_dir_all(part.parent().unwrap()).unwrap();
        fs::write(&part, bytes).unwrap();
        let text = succeed(&mut fetch(&hub, "hf:owner/name", &to));
        assert_eq!(contents(&to), model(), "{text}");
        fs::remove_dir_all(&to).unwrap();
    }
}

#[test]
fn the_token_is_sent_to_the_hub_only() {
    let hub = Hub::start(model());
    hub.state().token = Some("Bearer hf_secret".to_owned());
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("bert");
    let text = fail(&mut fetch(&hub, "hf:owner/name", &to));
    assert!(text.contains("HTTP 401: Invalid username or password"), "{text}");
    assert!(text.contains("set HF_TOKEN to a token that may read it"), "{text}");
    let text = fail(fetch(&hub, "hf:owner/name", &to).env("HF_TOKEN", "hf_other"));
    assert!(text.contains("the token's permissions") && !text.contains("hf_other"), "{text}");
    assert!(!to.exists());
    fs::write(folder.path().join("token"), "hf_secret\n").unwrap();
    // The hub's redirect of a renamed repository stays on the hub.
    let text = succeed(fetch(&hub, "hf:old/name", &to).env("HF_HOME", folder.path()));
    assert_eq!(contents(&to), model());
    let state = hub.state();
    assert!(!text.contains("signature") && state.store_requests.len() == 1);
    assert!(state.store_requests.iter().all(|request| request.token.is_none()));
    let renamed = state.hub_requests.iter().filter(|it| it.target.contains("/new/")).count();
    assert!(renamed > 1, "{:?}", state.hub_requests);
}

#[test]
fn refusals_say_what_to_do_and_leave_nothing() {
    let hub = Hub::start(model());
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("bert");
    for (refusal, says) in [
        ((403, "GatedRepo", "Access is restricted."), "accept the conditions on http://127.0.0.1"),
        (
            (401, "GatedRepo", "Access is restricted."),
            "/owner/name with your account, and set HF_TOKEN",
        ),
        ((404, "RepoNotFound", "Repository not found"), "a dataset hf:datasets/OWNER/NAME"),
        ((400, "", "Bad"), "answers HTTP 400: Bad"),
    ] {
        hub.state().refusal = Some(refusal);
        let text = fail(&mut fetch(&hub, "hf:owner/name", &to));
        assert!(text.contains(says) && text.contains(refusal.2.trim_end_matches('.')), "{text}");
        assert!(!to.exists());
    }
    hub.state().refusal = None;
    let text = fail(&mut fetch(&hub, "hf:owner/name@v9", &to));
    assert!(text.contains("Invalid rev id: v9; it has no revision `v9`"), "{text}");
    // The listing of a gated repository is public, but the files are not.
    let gated = Fault::Refuse(403, "X-Error-Code: GatedRepo", "Access is restricted");
    hub.state().faults.push_back(gated.clone());
    let text = fail(&mut fetch(&hub, "hf:owner/name/config.json", &to));
    assert!(text.contains("accept the conditions on"), "{text}");
    assert!(!to.exists());
    // A folder that was there stays.
    fs::create_dir(&to).unwrap();
    hub.state().faults.push_back(gated);
    fail(&mut fetch(&hub, "hf:owner/name/config.json", &to));
    assert_eq!(fs::read_dir(&to).unwrap().count(), 0);
    for (path, says) in [("hf:gpt2", "not an OWNER/NAME"), ("gpt2", "expected one of mnist")] {
        let (code, text) = run(&mut fetch(&hub, path, &to));
        assert!(code == Some(2) && text.contains(says), "{text}");
    }
    let text = fail(fetch(&hub, "hf:owner/name", &to).args(["--from", "https://host"]));
    assert!(text.contains("HF_ENDPOINT is the address of another hub"), "{text}");
}

#[test]
fn a_busy_hub_is_asked_again() {
    let hub = Hub::start(model());
    let folder = tempfile::tempdir().unwrap();
    let path = "hf:owner/name/config.json";
    let busy = |header| Fault::Refuse(429, header, "Too many requests");
    hub.state().faults.extend([busy("Retry-After: 1"), Fault::Refuse(503, "A: b", "Down")]);
    let text = succeed(&mut fetch(&hub, path, folder.path()));
    assert!(text.contains("answers HTTP 429: Too many requests; waiting 1.00 s"), "{text}");
    assert!(text.contains("answers HTTP 503: Down; trying again for 3 min"), "{text}");
    let folder = tempfile::tempdir().unwrap();
    hub.state().faults.push_back(busy("RateLimit: \"resolvers\";r=0;t=3600"));
    let text = fail(&mut fetch(&hub, path, folder.path()));
    assert!(text.contains("run the same command again then"), "{text}");
    hub.state().faults.extend(vec![Fault::Refuse(503, "A: b", "Down"); 100]);
    let text = fail(fetch(&hub, path, folder.path()).env("FULMEN_STORE_GIVE_UP_SECONDS", "0.5"));
    assert!(text.contains("gave up after 500 ms without progress"), "{text}");
}

#[test]
fn names_that_leave_the_folder_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("a/b");
    for name in ["../x", "/etc/x", "a/../../x", "a//x", "./x", "", ".fulmen-hub/lock", "a\0"] {
        let hub = Hub::start(model());
        hub.state().more_names = vec![name.to_owned()];
        let text = fail(&mut fetch(&hub, "hf:owner/name", &to));
        assert!(text.contains("which would not be inside the folder"), "{name}: {text}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

#[test]
fn without_a_network_only_what_is_missing_is_refused() {
    let hub = Hub::start(model());
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("bert");
    let offline = |path: &str| {
        let mut command = fetch(&hub, path, &to);
        command.env("HF_HUB_OFFLINE", "1");
        command
    };
    let text = fail(&mut offline("hf:owner/name"));
    assert!(text.contains("HF_HUB_OFFLINE forbids requests to the hub"), "{text}");
    assert!(!to.exists() && hub.state().hub_requests.is_empty());
    succeed(&mut fetch(&hub, "hf:owner/name/config.json", &to));
    succeed(&mut offline("hf:owner/name/config.json"));
    fail(&mut offline("hf:owner/name"));
    assert_eq!(contents(&to).len(), 1);
}

#[test]
fn other_files_are_not_replaced() {
    let hub = Hub::start(model());
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.json");
    // The same size, and other bytes.
    let mine = [b' '; 22];
    assert_eq!(mine.len(), model()["config.json"].len());
    fs::write(&config, mine).unwrap();
    let text = fail(&mut fetch(&hub, "hf:owner/name", folder.path()));
    assert!(text.contains("config.json: this is not the file of the commit"), "{text}");
    assert_eq!(fs::read(&config).unwrap(), mine);
    // The commit's file is accepted.
    fs::write(&config, &model()["config.json"]).unwrap();
    let text = succeed(&mut fetch(&hub, "hf:owner/name/config.json", folder.path()));
    assert!(text.contains("(0 bytes downloaded)"), "{text}");
    succeed(&mut fetch(&hub, "hf:owner/name", folder.path()));
    // A file that was changed after it was fetched.
    fs::write(&config, "{}").unwrap();
    let text = fail(&mut fetch(&hub, "hf:owner/name", folder.path()));
    assert!(text.contains("it was changed after it was fetched"), "{text}");
    assert_eq!(fs::read(&config).unwrap(), b"{}");
    fs::write(folder.path().join(".fulmen-hub/commit.json"), "{}").unwrap();
    let text = fail(&mut fetch(&hub, "hf:owner/name", folder.path()));
    assert!(text.contains("not a record of `fulmen data fetch`"), "{text}");
}
