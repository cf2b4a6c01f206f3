//! Checks of the TPU device files and of libtpu's lock file.

use fulmen_durable::messages::duration;
use fulmen_pjrt::diagnosis::evidence_under;
use fulmen_pjrt::locate::Platform;

use super::{Finding, Machine};
use crate::LockFile;

pub(super) fn devices(machine: &Machine) -> Vec<Finding> {
    let files = machine.tpus();
    if files.is_empty() {
        let variable = |name: &str| machine.variable(name);
        let evidence = evidence_under(&machine.root, Platform::Tpu, &variable).or_else(|| {
            let kind = machine.metadata()?.accelerator_type()?;
            Some(format!("the metadata server says that this machine is a {kind}"))
        });
        return vec![match evidence {
            Some(evidence) => Finding::error(
                format!("there is no TPU in /dev/accel* or /dev/vfio/*, though {evidence}"),
                "in a container, pass the devices on (`docker run --privileged --net=host`; on Kubernetes, the resource \
                 `google.com/tpu`); on the TPU VM itself, restart it",
            ),
            None => Finding::ok("there are none"),
        }];
    }
    let mut findings = Vec::new();
    for file in &files {
        let path = file.path.display();
        if !file.allowed {
            findings.push(Finding::error(
                format!("{path}: this user may not read and write this file"),
                format!(
                    "`ls -l {path}` shows its group; add this user to its group (`sudo usermod -aG GROUP $USER`) and log in \
                     again, or run as root"
                ),
            ));
        }
        if let Some(holders) = file.holders.as_ref().filter(|holders| !holders.processes.is_empty())
        {
            findings.push(Finding::warning(
                format!("{path}: {holders}; a TPU can be open in one process at a time"),
                "`fulmen ps` shows what that process does, `fulmen kill` ends it",
            ));
        }
    }
    if findings.is_empty() {
        let paths = files.iter().map(|file| file.path.display().to_string()).collect::<Vec<_>>();
        findings.push(Finding::ok(paths.join(", ")));
    }
    findings
}

pub(super) fn lock_file(machine: &Machine) -> Vec<Finding> {
    let Some(lock) = LockFile::find(&machine.root) else {
        return vec![Finding::ok("there is none")];
    };
    let files = machine.tpus();
    let owner = lock.owner_name.clone().unwrap_or_else(|| format!("user {}", lock.owner));
    let age = lock
        .modified
        .and_then(|modified| machine.now.duration_since(modified).ok())
        .unwrap_or_default();
    let description =
        format!("{} was made by {owner} {} ago", lock.path.display(), duration(age.as_secs_f64()));
    let holders = || files.iter().filter_map(|file| file.holders.as_ref());
    if let Some(pid) = lock
        .locked_by
        .first()
        .copied()
        .or_else(|| holders().flat_map(|it| &it.processes).map(|it| it.pid).next())
    {
        return vec![Finding::note(
            format!("{description}; process {pid} uses the TPU"),
            "wait for that process, or see `fulmen ps` and `fulmen kill`; no second process can start libtpu",
        )];
    }
    if holders().any(|holders| holders.unseen > 0) {
        return vec![Finding::warning(
            format!(
                "{description}; processes of other users cannot be seen, and one of them may have the TPU open"
            ),
            "`sudo fulmen doctor` sees all processes",
        )];
    }
    let sudo = if lock.owner == rustix::process::geteuid().as_raw() { "" } else { "sudo " };
    // libtpu 0.0.51 takes such a file over.
    vec![Finding::warning(
        format!(
            "{description}, and no process holds it: the file is stale and keeps old versions of libtpu from starting"
        ),
        format!("`{sudo}rm {}`", lock.path.display()),
    )]
}
