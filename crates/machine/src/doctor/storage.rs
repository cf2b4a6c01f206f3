//! Checks of the folders to which a training writes: compiled programs, runs, temporary files.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use fulmen_durable::messages::size;
use fulmen_pjrt::compile_cache::CompileCache;
use rustix::fs::Access;

use super::{Finding, Machine};

pub(super) fn compile_cache(machine: &Machine) -> Vec<Finding> {
    let cache = match CompileCache::from_variables(&|name| machine.variable(name)) {
        Ok(Some(cache)) => cache,
        Ok(None) => {
            return vec![Finding::note(
                "FULMEN_COMPILE_CACHE is `off`: every start recompiles",
                "unset it, or set it to a folder",
            )];
        }
        Err(error) => {
            return vec![Finding::error(
                error.to_string(),
                "set FULMEN_COMPILE_CACHE to a folder, or to `off`",
            )];
        }
    };
    let shown = cache.folder().display();
    if !is_writable(cache.folder()) {
        return vec![Finding::warning(
            format!("cannot write to {shown}: every start recompiles"),
            "set FULMEN_COMPILE_CACHE to a folder that this user owns",
        )];
    }
    let mut findings = Vec::new();
    if fs::metadata(cache.folder()).is_ok_and(|folder| folder.mode() & 0o002 != 0) {
        findings.push(Finding::warning(
            format!("every user can write to {shown}, and its programs are executed"),
            format!("`chmod o-w {shown}`"),
        ));
    }
    let entries = fs::read_dir(cache.folder()).into_iter().flatten().flatten();
    let bytes: u64 = entries.filter_map(|entry| entry.metadata().ok()).map(|file| file.len()).sum();
    let held = size(bytes);
    let limit = size(cache.max_bytes());
    findings.push(if bytes / 9 > cache.max_bytes() / 10 {
        Finding::note(
            format!(
                "{shown} holds {held} of {limit}; the least recently used programs are removed"
            ),
            "raise FULMEN_COMPILE_CACHE_MB if the same programs are compiled repeatedly",
        )
    } else {
        Finding::ok(format!("{shown} holds {held} of {limit}"))
    });
    findings
}

pub(super) fn disk(machine: &Machine) -> Vec<Finding> {
    let runs = machine.text("FULMEN_DEFAULT_ROOT_DIR").unwrap_or_else(|| "runs".to_owned());
    let mut folders = vec![("temporary files", machine.root.join("tmp"))];
    if let Ok(Some(cache)) = CompileCache::from_variables(&|name| machine.variable(name)) {
        folders.insert(0, ("compiled programs", cache.folder().to_owned()));
    }
    // A bucket does not run out of space.
    if !runs.contains("://") {
        folders.insert(0, ("runs", machine.folder.join(runs)));
    }
    let mut findings = Vec::new();
    let mut devices = Vec::new();
    for (purpose, path) in folders {
        let path = nearest_existing(&path);
        let shown = path.display();
        if purpose == "runs" && !is_writable(&path) {
            findings.push(Finding::error(
                format!("cannot write to {shown}, the folder for runs"),
                "start the program in another folder, or choose one with `--default-root-dir`",
            ));
        }
        let device = fs::metadata(&path).map(|metadata| metadata.dev()).ok();
        if devices.contains(&device) {
            continue;
        }
        devices.push(device);
        let Ok(free) = (machine.free_bytes)(&path) else { continue };
        let message = format!("{} are free at {shown}, for {purpose}", size(free));
        let remedy = "`du -xh --max-depth=2 ~ | sort -h | tail` shows the largest folders; remove old runs, `fulmen cache compile \
                      clear`, or write checkpoints to a bucket (`--checkpoint-dir gs://…`)";
        findings.push(match free {
            0..1_000_000_000 => Finding::error(message, remedy),
            1_000_000_000..10_000_000_000 => Finding::warning(message, remedy),
            _ => Finding::ok(message),
        });
    }
    if findings.is_empty() {
        findings.push(Finding::ok("the system does not report the free space"));
    }
    findings
}

/// The path, or its nearest existing ancestor.
fn nearest_existing(path: &Path) -> PathBuf {
    path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/")).to_owned()
}

/// Whether a folder can be written, or created if it does not exist.
fn is_writable(folder: &Path) -> bool {
    rustix::fs::access(nearest_existing(folder), Access::WRITE_OK).is_ok()
}
