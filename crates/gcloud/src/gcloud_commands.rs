//! The commands of gcloud that are used. Tests check them against gcloud's published grammar.

use crate::arguments::{Machine, ZoneArgs};
use crate::limit::Limit;
use crate::{Error, Result};

/// The label with the run that created a machine.
pub(crate) const OWNER_LABEL: &str = "fulmen-owner";
/// The label with the number of seconds after which the machine deletes itself.
pub(crate) const LIMIT_LABEL: &str = "fulmen-limit";
/// The label with the time at which the machine deletes itself, in Unix seconds, if that time was
/// changed.
pub(crate) const DEADLINE_LABEL: &str = "fulmen-ends";
/// The OAuth scope needed to delete a TPU.
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// The words of a command, with zone and project.
fn zone_command(
    command: &str,
    name: Option<&str>,
    zone: &str,
    project: Option<&str>,
) -> Vec<String> {
    command
        .split(' ')
        .map(str::to_owned)
        .chain(name.map(str::to_owned))
        .chain([format!("--zone={zone}")])
        .chain(project.map(|project| format!("--project={project}")))
        .collect()
}

/// The words of a command for one resource, with further flags.
fn resource_command(
    command: &str,
    name: &str,
    zone_args: &ZoneArgs,
    flags: &[&str],
) -> Vec<String> {
    let mut words =
        zone_command(command, Some(name), &zone_args.zone, zone_args.project.as_deref());
    words.extend(flags.iter().map(|&word| word.to_owned()));
    words
}

fn with_json(mut words: Vec<String>) -> Vec<String> {
    words.push("--format=json".into());
    words
}

pub(crate) fn describe(name: &str, zone: Option<&str>, project: Option<&str>) -> Vec<String> {
    let words = ["compute", "tpus", "tpu-vm", "describe", name].map(str::to_owned);
    let zone = zone.map(|zone| format!("--zone={zone}"));
    with_json(
        words
            .into_iter()
            .chain(zone)
            .chain(project.map(|project| format!("--project={project}")))
            .collect(),
    )
}

/// The zone `-` means all zones.
pub(crate) fn list_nodes(zone: &str, project: Option<&str>) -> Vec<String> {
    with_json(zone_command("compute tpus tpu-vm list", None, zone, project))
}

pub(crate) fn list_queued(zone: &str, project: Option<&str>) -> Vec<String> {
    with_json(zone_command("compute tpus queued-resources list", None, zone, project))
}

pub(crate) fn list_disks(zone: Option<&str>, project: Option<&str>) -> Vec<String> {
    let words = ["compute", "disks", "list"].map(str::to_owned).into_iter();
    let zone = zone.map(|zone| format!("--zones={zone}"));
    with_json(
        words.chain(zone).chain(project.map(|project| format!("--project={project}"))).collect(),
    )
}

pub(crate) fn quota(project: &str) -> Vec<String> {
    let words =
        ["quotas", "info", "list", "--service=tpu.googleapis.com"].map(str::to_owned).into_iter();
    with_json(words.chain([format!("--project={project}")]).collect())
}

pub(crate) fn delete_node(name: &str, zone_args: &ZoneArgs) -> Vec<String> {
    resource_command("compute tpus tpu-vm delete", name, zone_args, &["--quiet"])
}

/// Also deletes its TPU.
pub(crate) fn delete_queued(name: &str, zone_args: &ZoneArgs) -> Vec<String> {
    resource_command(
        "compute tpus queued-resources delete",
        name,
        zone_args,
        &["--force", "--quiet"],
    )
}

/// Runs a command on all hosts.
pub(crate) fn run_on_hosts(name: &str, zone_args: &ZoneArgs, command: &str) -> Vec<String> {
    resource_command(
        "compute tpus tpu-vm ssh",
        name,
        zone_args,
        &["--worker=all", &format!("--command={command}"), "--quiet"],
    )
}

/// Opens a shell, or runs a command, in this terminal.
pub(crate) fn ssh(
    name: &str,
    zone_args: &ZoneArgs,
    worker: &str,
    command: Option<&str>,
) -> Vec<String> {
    let mut words = resource_command(
        "compute tpus tpu-vm ssh",
        name,
        zone_args,
        &[&format!("--worker={worker}")],
    );
    words.extend(command.map(|command| format!("--command={command}")));
    words
}

pub(crate) fn label(name: &str, zone_args: &ZoneArgs, label: &str, value: &str) -> Vec<String> {
    resource_command(
        "compute tpus tpu-vm update",
        name,
        zone_args,
        &[&format!("--update-labels={label}={value}"), "--quiet"],
    )
}

/// The command that creates the machine.
///
/// # Errors
/// A generation without a default version; a disk without a project.
pub(crate) fn create(
    machine: &Machine,
    owner: &str,
    limit: Option<&Limit>,
    script: Option<&str>,
) -> Result<Vec<String>> {
    let (name, zone_args) = (&machine.name, &machine.zone_args);
    let (queued, version) = (machine.is_queued(), machine.runtime_version()?);
    let mut words = if queued {
        let command = if machine.flex_start {
            "alpha compute tpus queued-resources create"
        } else {
            "compute tpus queued-resources create"
        };
        let valid = format!("--valid-until-duration={}s", machine.ready_timeout.as_secs());
        let node = format!("--node-id={name}");
        resource_command(
            command,
            name,
            zone_args,
            &[&node, &format!("--runtime-version={version}"), &valid],
        )
    } else {
        resource_command(
            "compute tpus tpu-vm create",
            name,
            zone_args,
            &[&format!("--version={version}")],
        )
    };
    let generation = match machine.slice.generation().name {
        "v5e" => "v5litepod",
        name => name,
    };
    let slice = machine.slice.requested_name();
    match slice.split_once(':') {
        Some((_, axes)) => {
            words.extend([format!("--type={generation}"), format!("--topology={axes}")])
        }
        None => {
            let size = slice.split_once('-').map_or("", |(_, size)| size);
            words.push(format!("--accelerator-type={generation}-{size}"));
        }
    }
    let mut flag = |is_set: bool, flag: &str| {
        if is_set {
            words.push(flag.to_owned());
        }
    };
    flag(machine.spot, "--spot");
    flag(machine.reserved, "--reserved");
    flag(machine.internal_ips, "--internal-ips");
    let on_host = limit.filter(|_| !machine.flex_start);
    if let (true, Some(limit)) = (machine.flex_start, limit) {
        flag(true, "--provisioning-model=flex-start");
        flag(true, &format!("--max-run-duration={}s", limit.seconds));
    }
    flag(on_host.is_some(), &format!("--scopes={SCOPE}"));
    let values = [
        ("service-account", &machine.service_account),
        ("network", &machine.network),
        ("subnetwork", &machine.subnetwork),
    ];
    words.extend(
        values.iter().filter_map(|(flag, value)| Some(format!("--{flag}={}", value.as_ref()?))),
    );
    for disk in &machine.data_disk {
        let (disk, mode) = match disk.strip_suffix(":read-only") {
            Some(name) => (name, "read-only"),
            None => (disk.as_str(), "read-write"),
        };
        let source = match (disk.contains('/'), &zone_args.project) {
            (true, _) => disk.to_owned(),
            (false, Some(project)) => {
                format!("projects/{project}/zones/{}/disks/{disk}", zone_args.zone)
            }
            (false, None) => {
                let text = format!(
                    "--data-disk {disk}; pass --project, or projects/P/zones/Z/disks/{disk}"
                );
                return Err(Error::usage(text));
            }
        };
        words.push(format!("--data-disk=source={source},mode={mode}"));
    }
    let limit_label =
        limit.map(|limit| format!(",{LIMIT_LABEL}={}", limit.seconds)).unwrap_or_default();
    words.push(format!("--labels={OWNER_LABEL}={owner}{limit_label}"));
    words.extend(script.map(|path| format!("--metadata-from-file=startup-script={path}")));
    words.push("--quiet".into());
    Ok(words)
}

impl Machine {
    pub(crate) fn is_queued(&self) -> bool {
        self.queued || self.flex_start
    }

    /// The runtime version that Google recommends for the generation:
    /// cloud.google.com/tpu/docs/runtimes.
    fn runtime_version(&self) -> Result<String> {
        let default = match self.slice.generation().name {
            "v2" | "v3" | "v4" => Some("tpu-ubuntu2204-base"),
            "v5e" => Some("v2-alpha-tpuv5-lite"),
            "v5p" => Some("v2-alpha-tpuv5"),
            "v6e" => Some("v2-alpha-tpuv6e"),
            _ => None,
        };
        let unknown = || {
            Error::usage(format!(
                "--version: no runtime version is known for {}; pass one",
                self.slice
            ))
        };
        self.version.clone().or(default.map(str::to_owned)).ok_or_else(unknown)
    }
}
