//! The commands of gcloud that are used. Tests check them against gcloud's published grammar.

use fulmen_tpu::Slice;

use crate::arguments::{CreateCpuMachine, CreateDisk, DataDisk, Machine, ZoneArgs};
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

/// Lists a kind of Compute Engine's resources, of a zone or of all.
pub(crate) fn list_compute(
    collection: &str,
    zone: Option<&str>,
    project: Option<&str>,
) -> Vec<String> {
    let mut words = vec!["compute".to_owned(), collection.to_owned(), "list".to_owned()];
    words.extend(zone.map(|zone| format!("--zones={zone}")));
    words.extend(project.map(|project| format!("--project={project}")));
    with_json(words)
}

pub(crate) fn list_buckets(project: Option<&str>) -> Vec<String> {
    let mut words = ["storage", "buckets", "list"].map(str::to_owned).to_vec();
    words.extend(project.map(|project| format!("--project={project}")));
    with_json(words)
}

/// `track` is empty or a release track with a space: older versions of gcloud have the command only
/// in `beta`.
pub(crate) fn quota(track: &str, project: &str) -> Vec<String> {
    let command = format!("{track}quotas info list --service=tpu.googleapis.com");
    let mut words: Vec<String> = command.split(' ').map(str::to_owned).collect();
    words.push(format!("--project={project}"));
    with_json(words)
}

pub(crate) fn create_disk(disk: &CreateDisk) -> Vec<String> {
    resource_command(
        "compute disks create",
        &disk.disk.name,
        &disk.disk.zone_args,
        &[&format!("--size={}GB", disk.size), &format!("--type={}", disk.kind), "--quiet"],
    )
}

pub(crate) fn delete_disk(name: &str, zone_args: &ZoneArgs) -> Vec<String> {
    resource_command("compute disks delete", name, zone_args, &["--quiet"])
}

/// # Errors
/// A disk without a project.
pub(crate) fn attach_disk(tpu: &str, zone_args: &ZoneArgs, disk: &DataDisk) -> Result<Vec<String>> {
    let flag = format!("--attach-disk={}", source_and_mode(disk, zone_args)?);
    Ok(resource_command("compute tpus tpu-vm update", tpu, zone_args, &[&flag, "--quiet"]))
}

/// # Errors
/// A disk without a project.
pub(crate) fn detach_disk(tpu: &str, zone_args: &ZoneArgs, disk: &DataDisk) -> Result<Vec<String>> {
    let flag = format!("--detach-disk={}", source(disk, zone_args)?);
    Ok(resource_command("compute tpus tpu-vm update", tpu, zone_args, &[&flag, "--quiet"]))
}

/// The full name of a disk.
///
/// # Errors
/// A disk without a project.
fn source(DataDisk { disk, .. }: &DataDisk, zone_args: &ZoneArgs) -> Result<String> {
    if disk.contains('/') {
        return Ok(disk.clone());
    }
    match &zone_args.project {
        Some(project) => Ok(format!("projects/{project}/zones/{}/disks/{disk}", zone_args.zone)),
        None => Err(Error::usage(format!(
            "the disk {disk}: pass --project, or projects/P/zones/Z/disks/{disk}"
        ))),
    }
}

fn source_and_mode(disk: &DataDisk, zone_args: &ZoneArgs) -> Result<String> {
    let mode = if disk.read_only { "read-only" } else { "read-write" };
    Ok(format!("source={},mode={mode}", source(disk, zone_args)?))
}

/// The command that creates a machine without TPUs, with the system of TPU VMs and access to
/// buckets.
pub(crate) fn create_cpu_machine(machine: &CreateCpuMachine, owner: &str) -> Vec<String> {
    let mut words = resource_command(
        "compute instances create",
        &machine.machine.name,
        &machine.machine.zone_args,
        &[
            &format!("--machine-type={}", machine.kind),
            "--image-family=ubuntu-2204-lts",
            "--image-project=ubuntu-os-cloud",
            &format!("--boot-disk-size={}GB", machine.boot_size),
            &format!("--scopes={SCOPE}"),
            &format!("--labels={OWNER_LABEL}={owner}"),
        ],
    );
    for disk in &machine.data_disk {
        let mode = if disk.read_only { "ro" } else { "rw" };
        words.push(format!("--disk=name={},device-name={},mode={mode}", disk.disk, disk.disk));
    }
    if machine.spot {
        words.push("--provisioning-model=SPOT".to_owned());
    }
    if let Some(hours) = machine.max_hours {
        words.push(format!("--max-run-duration={}s", (hours * 3600.0).ceil()));
    }
    if machine.spot || machine.max_hours.is_some() {
        words.push("--instance-termination-action=DELETE".to_owned());
    }
    words.push("--quiet".to_owned());
    words
}

pub(crate) fn delete_cpu_machine(name: &str, zone_args: &ZoneArgs) -> Vec<String> {
    resource_command("compute instances delete", name, zone_args, &["--quiet"])
}

/// Opens a shell, or runs a command, in this terminal.
pub(crate) fn ssh_cpu_machine(
    name: &str,
    zone_args: &ZoneArgs,
    command: Option<&str>,
) -> Vec<String> {
    let mut words = resource_command("compute ssh", name, zone_args, &["--quiet"]);
    words.extend(command.map(|command| format!("--command={command}")));
    words
}

/// Copies a file into the home folder of a machine.
pub(crate) fn copy_to_cpu_machine(file: &str, name: &str, zone_args: &ZoneArgs) -> Vec<String> {
    let mut words: Vec<String> =
        ["compute", "scp", file].iter().map(|&word| word.to_owned()).collect();
    words.push(format!("{name}:"));
    words.push(format!("--zone={}", zone_args.zone));
    words.extend(zone_args.project.as_ref().map(|project| format!("--project={project}")));
    words.push("--quiet".to_owned());
    words
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
    let name = &machine.name;
    let zone_args = &machine.zone_args;
    let version = machine.runtime_version()?;
    let shape = ShapeFlags::new(&machine.slice)?;
    let track = if machine.flex_start || shape.needs_alpha { "alpha " } else { "" };
    let mut words = if machine.is_queued() {
        let valid = format!("--valid-until-duration={}s", machine.ready_timeout.as_secs());
        let node = format!("--node-id={name}");
        resource_command(
            &format!("{track}compute tpus queued-resources create"),
            name,
            zone_args,
            &[&node, &format!("--runtime-version={version}"), &valid],
        )
    } else {
        resource_command(
            &format!("{track}compute tpus tpu-vm create"),
            name,
            zone_args,
            &[&format!("--version={version}")],
        )
    };
    words.extend(shape.flags);
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
        words.push(format!("--data-disk={}", source_and_mode(disk, zone_args)?));
    }
    let limit_label =
        limit.map(|limit| format!(",{LIMIT_LABEL}={}", limit.seconds)).unwrap_or_default();
    words.push(format!("--labels={OWNER_LABEL}={owner}{limit_label}"));
    words.extend(script.map(|path| format!("--metadata-from-file=startup-script={path}")));
    words.push("--quiet".into());
    Ok(words)
}

/// The flags that request a slice of this shape.
struct ShapeFlags {
    flags: Vec<String>,
    /// Whether only gcloud's alpha commands know them.
    needs_alpha: bool,
}

impl ShapeFlags {
    /// # Errors
    /// A shape that has no accelerator type, of a generation that `--type` does not know.
    fn new(slice: &Slice) -> Result<ShapeFlags> {
        if let Some(name) = slice.accelerator_type() {
            let flags = vec![format!("--accelerator-type={name}")];
            return Ok(ShapeFlags { flags, needs_alpha: false });
        }
        let (generation, axes) = slice.name().split_once(':').unwrap_or_default();
        // The choices of `--type`.
        let (name, needs_alpha) = match generation {
            "v2" | "v3" | "v4" => (generation, false),
            "v5e" => ("v5litepod", true),
            "v5p" | "v6e" => (generation, true),
            _ => {
                return Err(Error::usage(format!(
                    "--type {slice}: gcloud creates slices of {generation} only by their accelerator type, \
                     and this shape has none"
                )));
            }
        };
        let flags = vec![format!("--type={name}"), format!("--topology={axes}")];
        Ok(ShapeFlags { flags, needs_alpha })
    }
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
