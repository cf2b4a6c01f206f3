//! The processes of a run agree on the checkpoint to resume from: process 0 names one after the other,
//! until all processes can read one.
//!
//! A network file system may show a file to the other hosts only after a while, so a process waits for
//! what another one sees.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::checkpoint;
use crate::checkpoint::named_checkpoint::{NamedCheckpoint, warn_skipped};
use crate::process_group::ProcessGroup;
use crate::{Error, Options, Result, error};

/// A checkpoint that another process sees, for messages.
const SEEN: &str = "this checkpoint, which is seen by";

/// What a process found at the path of a checkpoint.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Finding {
    /// It can be read, or its failure ends the run.
    Readable,
    /// It cannot be read, for this reason.
    Unreadable(String),
    /// It is not there.
    Missing,
}

impl Finding {
    fn of<T>(result: &Result<T>) -> Finding {
        match result.as_ref().err().filter(|error| error.is_unreadable()) {
            None => Finding::Readable,
            Some(error) if error.is_not_found() => Finding::Missing,
            Some(error) => Finding::Unreadable(error.to_string()),
        }
    }
}

/// Checks, before an action such as `fit`, that the options of all processes name a checkpoint in the
/// same way. The path itself may be another one on each host.
pub(super) fn check_named(
    process_group: &ProcessGroup,
    action: &str,
    named: Option<NamedCheckpoint<'_>>,
) -> Result<()> {
    let kind = match named {
        None => "none",
        Some(NamedCheckpoint::Path(_)) => "the one at a path",
        Some(NamedCheckpoint::Last) => "the last one",
        Some(NamedCheckpoint::Best) => "the best one",
    };
    let facts = BTreeMap::from([("checkpoint of ckpt_path and resume".into(), kind.into())]);
    process_group.check_consistent(action, &facts)
}

/// The newest checkpoint that all processes can read, with what `read` returned. All processes call
/// this at the same point.
///
/// # Errors
/// There is none, and a process does not see a checkpoint that another one sees.
pub(super) fn find_together<T>(
    named: NamedCheckpoint<'_>,
    options: &Options,
    process_group: &Arc<ProcessGroup>,
    read: impl FnMut(&Path) -> Result<T>,
) -> Result<Option<(PathBuf, Result<T>)>> {
    let tried = Vec::new();
    let mut search = Search { process_group, read, tried, unshared: None };
    if process_group.process().is_coordinator() {
        let found = named.read(options, |path| match name(process_group, path) {
            Ok(_) => search.attempt(path),
            Err(error) => Ok(Err(error)),
        })?;
        if found.is_some() {
            return Ok(found);
        }
    }
    loop {
        // Process 0 has no other one.
        let path = name(process_group, Path::new(""))?;
        if path.as_os_str().is_empty() {
            break;
        }
        match search.attempt(&path) {
            Ok(result) => return Ok(Some((path, result))),
            Err(error) => warn_skipped(&error),
        }
    }
    search.attempt_unseen(named, options)
}

/// Tells the other processes the path that process 0 names. They get it.
fn name(process_group: &ProcessGroup, path: &Path) -> Result<PathBuf> {
    process_group.broadcast("checkpoint to resume from", || Ok(path.to_owned()))
}

/// The search for a checkpoint that all processes can read.
struct Search<'a, R> {
    process_group: &'a ProcessGroup,
    read: R,
    tried: Vec<PathBuf>,
    /// The newest checkpoint that a process does not see, with the index of that process.
    unshared: Option<(PathBuf, usize)>,
}

impl<T, R: FnMut(&Path) -> Result<T>> Search<'_, R> {
    /// Reads the checkpoint in all processes. The outer error means that the one before it is to be
    /// tried.
    fn attempt(&mut self, path: &Path) -> Result<Result<T>> {
        self.tried.push(path.to_owned());
        let mut result = (self.read)(path);
        let mut findings = match self.findings(&result) {
            Ok(findings) => findings,
            Err(error) => return Ok(Err(error)),
        };
        let is_mixed = findings.contains(&Finding::Readable)
            && findings.iter().any(|finding| *finding != Finding::Readable);
        // If the folder is not shared, no other checkpoint will appear either.
        if is_mixed && self.unshared.is_none() {
            if Finding::of(&result) != Finding::Readable {
                let is_here = || checkpoint::open(path).is_ok();
                if let Err(error) = self.process_group.wait_for_file(path, is_here) {
                    return Ok(Err(error));
                }
                result = (self.read)(path);
            }
            findings = match self.findings(&result) {
                Ok(findings) => findings,
                Err(error) => return Ok(Err(error)),
            };
        }
        match self.reason(path, findings) {
            None => Ok(result),
            Some(error) => Err(error),
        }
    }

    /// Why a process cannot read the checkpoint; `None` if all can.
    fn reason(&mut self, path: &Path, findings: Vec<Finding>) -> Option<Error> {
        let missing = findings.iter().position(|finding| *finding == Finding::Missing);
        if let Some(process) = missing.filter(|process| *process > 0) {
            self.unshared.get_or_insert((path.to_owned(), process));
            return Some(not_shared(self.process_group, path, SEEN, process, 0));
        }
        let reason =
            findings.into_iter().enumerate().find_map(|(process, finding)| match finding {
                Finding::Readable => None,
                Finding::Unreadable(reason) => {
                    let process = self.process_group.describe(process);
                    Some(format!("{process} cannot read it: {reason}"))
                }
                Finding::Missing => Some("it was removed".to_owned()),
            })?;
        Some(error::checkpoint(path, reason))
    }

    /// What all processes found.
    fn findings(&self, own: &Result<T>) -> Result<Vec<Finding>> {
        gather(self.process_group, "finding", &Finding::of(own))
    }

    /// Looks for a checkpoint that only other processes see, after process 0 found none.
    fn attempt_unseen(
        mut self,
        named: NamedCheckpoint<'_>,
        options: &Options,
    ) -> Result<Option<(PathBuf, Result<T>)>> {
        let process_group = self.process_group;
        if let Some((path, process)) = &self.unshared {
            return Err(not_shared(process_group, path, SEEN, *process, 0));
        }
        let is_coordinator = process_group.process().is_coordinator();
        let own = if is_coordinator { None } else { named.first_other(options, &self.tried)? };
        let all: Vec<Option<PathBuf>> = gather(process_group, "unseen checkpoint", &own)?;
        let mut seen = all.into_iter().enumerate();
        let Some((process, path)) = seen.find_map(|(process, path)| Some((process, path?))) else {
            return Ok(None);
        };
        let is_seen = is_coordinator
            && process_group.wait_for_file(&path, || checkpoint::open(&path).is_ok())?;
        if !process_group.any("checkpoint that process 0 sees now", is_seen)? {
            return Err(not_shared(process_group, &path, SEEN, 0, process));
        }
        let result = self.attempt(&path)?;
        Ok(Some((path, result)))
    }
}

/// The values of all processes, in all of them.
fn gather<T: Serialize + for<'a> Deserialize<'a>>(
    process_group: &ProcessGroup,
    name: &str,
    own: &T,
) -> Result<Vec<T>> {
    let failed = |reason: String| Error::usage(format!("{name}: {reason}"));
    let own = serde_json::to_string(own).map_err(|e| failed(e.to_string()))?;
    let join = |values: Vec<String>| Ok(format!("[{}]", values.join(",")));
    let all = process_group.gather(name, Ok(own), join)?.map_err(failed)?;
    serde_json::from_str(&all).map_err(|e| failed(e.to_string()))
}

/// The error of a folder that is another one on each host: a process does not see `what`, which
/// another one sees.
pub(super) fn not_shared(
    process_group: &ProcessGroup,
    path: &Path,
    what: &str,
    process: usize,
    other: usize,
) -> Error {
    let process = process_group.describe(process);
    let other = process_group.describe(other);
    error::checkpoint(
        path,
        format!(
            "{process} does not see {what} {other}: this folder is not shared by their hosts, and each process writes its own \
             part of a checkpoint. Set the option that names the folder (default_root_dir, checkpoint_dir or checkpoint_local) \
             to one that all hosts see; checkpoint_dir can also be a bucket"
        ),
    )
}
