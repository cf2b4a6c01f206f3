//! `environment.json` in the run's folder: the versions, the machine and the command of a run.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use fulmen_durable::messages::{may_be_secret, public_command, without_user};
use fulmen_loggers::unix_seconds;
use fulmen_pjrt::is_default_variable;
use fulmen_tensor::Runtime;
use parking_lot::Mutex;
use serde_json::{Value as Json, json};

use crate::secret::without_secrets;

/// Prefixes of environment variables that change what a run does.
const PREFIXES: [&str; 6] = ["FULMEN_", "XLA_", "TPU_", "LIBTPU_", "PJRT_", "CUDA_"];

/// The environment of a run, as this process has it.
pub(crate) fn environment(runtime: &Runtime, processes: usize) -> Json {
    let client = runtime.client();
    let devices = runtime.devices();
    let text =
        |path: io::Result<PathBuf>| path.map(|path| path.to_string_lossy().into_owned()).ok();
    let directory = std::env::current_dir();
    let version = client.plugin().api_version();
    json!({
        "fulmen": env!("CARGO_PKG_VERSION"),
        "program": text(std::env::current_exe()),
        "command": command(std::env::args_os().map(|arg| arg.to_string_lossy().into_owned())),
        "git_commit": directory.as_deref().ok().and_then(git_commit),
        "directory": text(directory),
        "started": unix_seconds(),
        "host": host_name(),
        "processes": processes,
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "platform": client.platform_name(),
        "platform_version": client.platform_version(),
        "plugin": client.plugin().path().to_string_lossy(),
        "pjrt_api": format!("{}.{}", version.major, version.minor),
        "device_kind": devices.first().map(|device| device.kind()),
        "devices": devices.iter().map(|device| device.id()).collect::<Vec<_>>(),
        "variables": variables(std::env::vars_os().map(|(name, value)| {
            (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
        })),
    })
}

/// The facts that are shown for each process, even if they are those of process 0.
const OF_EACH_HOST: [&str; 3] = ["host", "cores", "own_devices"];

/// The hosts of all processes, from their environments in order: their names, cores and devices, and
/// what else differs from process 0.
pub(super) fn hosts(environments: &[String]) -> serde_json::Result<Json> {
    let read = environments.iter().map(|text| serde_json::from_str(text));
    let environments: Vec<serde_json::Map<String, Json>> = read.collect::<Result<_, _>>()?;
    let hosts = environments.iter().map(|environment| {
        let is_shown = |(name, value): &(&String, &Json)| {
            let differs = environments[0].get(*name) != Some(*value) && *name != "started";
            differs || OF_EACH_HOST.contains(&name.as_str())
        };
        let shown = environment.iter().filter(is_shown);
        Json::from_iter(shown.map(|(name, value)| (name.clone(), value.clone())))
    });
    Ok(hosts.collect())
}

/// The environment of this process, for [`hosts`].
pub(super) fn of_this_process(environment: &Json, runtime: &Runtime) -> String {
    let mut own = environment.clone();
    own["own_devices"] = runtime.local_devices().map(|device| device.id()).collect();
    own.to_string()
}

/// The name of this machine.
pub(crate) fn host_name() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned()).ok()
}

/// Writes the file. It adds the hash of the plugin, for which it reads the plugin's file.
pub(crate) fn write(path: &Path, mut environment: Json, runtime: &Runtime) -> io::Result<()> {
    environment["plugin_sha256"] = plugin_sha256(runtime).into();
    let text = format!("{environment:#}\n");
    fulmen_durable::write(path, Some(text.len() as u64), |file| file.write_all(text.as_bytes()))
}

/// The hash of the plugin's file. It is cached: a process may load a plugin more than once, and the
/// file has hundreds of megabytes.
fn plugin_sha256(runtime: &Runtime) -> Option<String> {
    static HASHES: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());
    let plugin = runtime.client().plugin();
    let mut hashes = HASHES.lock();
    if let Some(hash) = hashes.get(plugin.path()) {
        return Some(hash.clone());
    }
    let hash = plugin.identity().ok()?.to_owned();
    hashes.insert(plugin.path().to_owned(), hash.clone());
    Some(hash)
}

/// A command line without secrets.
fn command(args: impl Iterator<Item = String>) -> Vec<String> {
    let shown = |arg: String| match arg.split_once('=') {
        Some((name, value)) => format!("{name}={}", without_secrets(value)),
        None => without_secrets(&arg).into_owned(),
    };
    public_command(args).into_iter().map(shown).collect()
}

/// The variables of these that the user set and that change what a run does.
fn variables(all: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let kept = all.filter(|(name, _)| {
        PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            && !may_be_secret(name)
            && !is_default_variable(name)
    });
    kept.map(|(name, value)| (name, without_secrets(&without_user(&value)).into_owned())).collect()
}

/// The size limit of git's files of names.
const MAX_GIT_BYTES: u64 = 64 << 20;

/// The commit that is checked out in the repository of a folder.
fn git_commit(folder: &Path) -> Option<String> {
    let dot_git = folder.ancestors().map(|folder| folder.join(".git")).find(|git| git.exists())?;
    let read = |path: PathBuf| {
        let bytes = fulmen_durable::read_regular(&path, MAX_GIT_BYTES).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    // In a worktree, `.git` is a file with the path of the folder.
    let git = if dot_git.is_dir() {
        dot_git
    } else {
        dot_git.parent()?.join(read(dot_git.clone())?.strip_prefix("gitdir: ")?)
    };
    let head = read(git.join("HEAD"))?;
    let Some(name) = head.strip_prefix("ref: ") else { return Some(head) };
    let common = read(git.join("commondir")).map_or(git.clone(), |common| git.join(common));
    [&git, &common].into_iter().find_map(|folder| read(folder.join(name))).or_else(|| {
        let packed = read(common.join("packed-refs"))?;
        let mut lines = packed.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(_, packed)| *packed == name).map(|(commit, _)| commit.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn no_secret_is_written() {
        let args = [
            "train",
            "--api-key",
            "k",
            "--hub-token=t",
            "--server=http://me:pw@host/x",
            "s3://b/a@b",
            "--seed",
            "3",
        ];
        let expected = [
            "train",
            "--api-key",
            "***",
            "--hub-token=***",
            "--server=http://***@host/x",
            "s3://b/a@b",
            "--seed",
            "3",
        ];
        assert_eq!(command(args.into_iter().map(str::to_owned)), expected);
        let set = [
            ("FULMEN_RUN_TOKEN", "t"),
            ("FULMEN_SEED", "3"),
            ("HOME", "/root"),
            ("XLA_FLAGS", "--x"),
        ];
        let kept =
            variables(set.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(
            kept.into_iter().collect::<Vec<_>>(),
            [("FULMEN_SEED", "3"), ("XLA_FLAGS", "--x")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
    }

    #[test]
    fn the_commit_is_the_one_that_git_reports() {
        let folder = tempfile::tempdir().unwrap();
        let git = |folder: &Path, args: &[&str]| {
            let config =
                ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"];
            let output =
                Command::new("git").current_dir(folder).args(config).args(args).output().unwrap();
            assert!(
                output.status.success(),
                "{args:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        let main = folder.path().join("main");
        std::fs::create_dir_all(main.join("deep")).unwrap();
        git(&main, &["init", "-q"]);
        git(&main, &["commit", "-q", "--allow-empty", "-m", "first"]);
        let head = Some(git(&main, &["rev-parse", "HEAD"]));
        assert_eq!(git_commit(&main.join("deep")), head);
        git(&main, &["pack-refs", "--all"]);
        assert_eq!(git_commit(&main), head, "packed");
        git(&main, &["worktree", "add", "-q", "../tree"]);
        assert_eq!(git_commit(&folder.path().join("tree")), head, "in a worktree");
        git(&main, &["checkout", "-q", "--detach"]);
        assert_eq!(git_commit(&main), head, "detached");
        assert_eq!(git_commit(Path::new("/proc")), None);
    }
}
