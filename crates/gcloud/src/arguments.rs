//! The arguments of `fulmen tpu`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand};
use fulmen_durable::seconds;
use fulmen_tpu::Slice;

/// The subcommands of `fulmen tpu` that need no other crate.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Creates a TPU VM, optionally with a limit on hours or cost that holds even when this
    /// computer is off
    Create(Box<Create>),
    /// Lists what costs money: TPU VMs, queued resources, disks, machines, addresses, snapshots and
    /// buckets, with age and price
    List(List),
    /// Shows one TPU VM: state, hosts, age, price, limit
    Describe(TpuArgs),
    /// Opens a shell on a host of a TPU VM, or runs a command there
    Ssh(Ssh),
    /// Waits until a TPU VM is ready
    Wait(Wait),
    /// Changes the time at which a TPU VM deletes itself
    Extend(Extend),
    /// Deletes a TPU VM and its queued resource, and checks that they are gone
    Delete(Delete),
    /// Shows the project's TPU quota by zone
    Quota(Quota),
    /// Creates, attaches, lists and deletes disks for data
    #[command(subcommand)]
    Disk(DiskCommand),
    /// Creates, uses and deletes machines without TPUs, on which data is prepared
    #[command(subcommand, name = "machine")]
    CpuMachine(CpuMachineCommand),
}

/// The location of a TPU.
#[derive(Clone, Debug, Args)]
pub struct ZoneArgs {
    /// The zone, for example us-central1-a
    #[arg(long, env = "CLOUDSDK_COMPUTE_ZONE", value_parser = zone)]
    pub zone: String,
    /// The project; by default that of gcloud's configuration
    #[arg(long, env = "CLOUDSDK_CORE_PROJECT", value_parser = project)]
    pub project: Option<String>,
}

/// A TPU VM to create.
#[derive(Clone, Debug, Args)]
pub struct Machine {
    /// The TPU's name: lowercase letters, digits and hyphens
    #[arg(value_parser = name)]
    pub name: String,
    /// The slice: v5e-8, v5litepod-8, v4-8, or chips along each axis, v5e:2x4
    #[arg(long = "type", value_name = "TYPE", value_parser = Slice::parse_single)]
    pub slice: Slice,
    /// Its location.
    #[command(flatten)]
    pub zone_args: ZoneArgs,
    /// The runtime version; by default Google's recommendation for the generation
    #[arg(long, value_name = "VERSION", value_parser = name)]
    pub(crate) version: Option<String>,
    /// Use spot capacity: cheaper, but Google may take it back at any time
    #[arg(long, conflicts_with_all = ["reserved", "flex_start"])]
    pub(crate) spot: bool,
    /// Use a reservation
    #[arg(long, conflicts_with = "flex_start")]
    pub(crate) reserved: bool,
    /// Request it through a queued resource, which waits for capacity
    #[arg(long)]
    pub(crate) queued: bool,
    /// Flex-start: queued, runs for at most --max-hours, which Google enforces (`gcloud alpha`)
    #[arg(long)]
    pub(crate) flex_start: bool,
    /// Delete the TPU this many hours after its start. It deletes itself, even when this computer
    /// is off
    #[arg(long, value_name = "HOURS", value_parser = positive)]
    pub(crate) max_hours: Option<f64>,
    /// Delete the TPU when it has cost this much at list prices
    #[arg(long, value_name = "DOLLARS", value_parser = positive)]
    pub(crate) max_cost: Option<f64>,
    /// A price table to use instead of Fulmen's own, as for preflight
    #[arg(long, value_name = "FILE")]
    pub(crate) price: Option<PathBuf>,
    /// A disk to attach: its name, or projects/P/zones/Z/disks/D. Append `:read-only` for several
    /// hosts. Can be repeated
    #[arg(long, value_name = "DISK")]
    pub(crate) data_disk: Vec<DataDisk>,
    /// A script that each host runs as root at start
    #[arg(long, value_name = "FILE")]
    pub(crate) startup_script: Option<PathBuf>,
    /// The service account of the hosts. For --max-hours and --max-cost it needs permission to
    /// delete TPUs
    #[arg(long, value_name = "ACCOUNT")]
    pub(crate) service_account: Option<String>,
    /// The network
    #[arg(long, value_parser = name)]
    pub(crate) network: Option<String>,
    /// The subnetwork
    #[arg(long, value_parser = name)]
    pub(crate) subnetwork: Option<String>,
    /// Give the hosts no external addresses
    #[arg(long)]
    pub(crate) internal_ips: bool,
    /// The number of slices; only 1 is possible
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) node_count: u32,
    /// How long to wait until the TPU is ready. A queued resource expires after this time
    #[arg(long, value_name = "SECONDS", default_value = "3600", value_parser = seconds)]
    pub(crate) ready_timeout: Duration,
}

/// `fulmen tpu create`.
#[derive(Clone, Debug, Args)]
pub struct Create {
    #[command(flatten)]
    pub(crate) machine: Machine,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// How a command reports.
#[derive(Clone, Copy, Debug, Args)]
pub struct Output {
    /// Print JSON on standard output; commands and progress go to standard error
    #[arg(long)]
    pub json: bool,
    /// Print the commands without running them
    #[arg(long)]
    pub dry_run: bool,
}

/// `fulmen tpu list`.
#[derive(Clone, Debug, Args)]
pub struct List {
    /// The zone
    #[arg(long, env = "CLOUDSDK_COMPUTE_ZONE", value_parser = zone, required_unless_present = "all_zones")]
    pub(crate) zone: Option<String>,
    /// All zones
    #[arg(long)]
    pub(crate) all_zones: bool,
    /// The project; by default that of gcloud's configuration
    #[arg(long, env = "CLOUDSDK_CORE_PROJECT", value_parser = project)]
    pub(crate) project: Option<String>,
    /// A price table to use instead of Fulmen's own, as for preflight
    #[arg(long, value_name = "FILE")]
    pub(crate) price: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// A TPU, by name.
#[derive(Clone, Debug, Args)]
pub struct TpuArgs {
    /// The TPU's name
    #[arg(value_parser = name)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) zone_args: ZoneArgs,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// `fulmen tpu ssh`.
#[derive(Clone, Debug, Args)]
pub struct Ssh {
    /// The TPU's name
    #[arg(value_parser = name)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) zone_args: ZoneArgs,
    /// The host: a number, or all
    #[arg(long, default_value = "0", value_parser = name)]
    pub(crate) worker: String,
    /// Print the command without running it
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// A command and its arguments; without one, a shell opens
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// `fulmen tpu wait`.
#[derive(Clone, Debug, Args)]
pub struct Wait {
    #[command(flatten)]
    pub(crate) tpu: TpuArgs,
    /// How long to wait
    #[arg(long, value_name = "SECONDS", default_value = "3600", value_parser = seconds)]
    pub(crate) timeout: Duration,
}

/// `fulmen tpu extend`.
#[derive(Clone, Debug, Args)]
pub struct Extend {
    /// The TPU's name
    #[arg(value_parser = name)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) zone_args: ZoneArgs,
    /// The TPU deletes itself this many hours from now, whatever its limit was before
    #[arg(long, value_name = "HOURS", value_parser = positive)]
    pub(crate) hours: f64,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// `fulmen tpu delete`.
#[derive(Clone, Debug, Args)]
pub struct Delete {
    /// The TPU's name
    #[arg(value_parser = name)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) zone_args: ZoneArgs,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// `fulmen tpu quota`.
#[derive(Clone, Debug, Args)]
pub struct Quota {
    /// The project
    #[arg(long, env = "CLOUDSDK_CORE_PROJECT", value_parser = project)]
    pub(crate) project: String,
    /// Only this zone
    #[arg(long, value_parser = zone)]
    pub(crate) zone: Option<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// A disk to attach to a machine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DataDisk {
    /// A name, or `projects/P/zones/Z/disks/D`.
    pub(crate) disk: String,
    pub(crate) read_only: bool,
}

impl FromStr for DataDisk {
    type Err = String;

    fn from_str(text: &str) -> Result<DataDisk, String> {
        let (disk, read_only) = match text.strip_suffix(":read-only") {
            Some(disk) => (disk, true),
            None => (text, false),
        };
        let wrong = |part: &str| {
            format!(
                "`{part}` is not the name of a disk; expected data, data:read-only or projects/P/zones/Z/disks/data"
            )
        };
        for part in disk.split('/') {
            project(part).map_err(|_| wrong(part))?;
        }
        Ok(DataDisk { disk: disk.to_owned(), read_only })
    }
}

/// `fulmen tpu disk`.
#[derive(Clone, Debug, Subcommand)]
pub enum DiskCommand {
    /// Creates a disk for data
    Create(CreateDisk),
    /// Attaches a disk to a TPU VM
    Attach(AttachDisk),
    /// Detaches a disk from a TPU VM
    Detach(AttachDisk),
    /// Lists disks, with age and price
    List(List),
    /// Deletes a disk and what it holds
    Delete(DiskArgs),
}

/// `fulmen tpu disk create`.
#[derive(Clone, Debug, Args)]
pub struct CreateDisk {
    #[command(flatten)]
    pub(crate) disk: DiskArgs,
    /// The size in GiB
    #[arg(long, value_name = "GIB", value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub(crate) size: u64,
    /// The kind of the disk. TPU v6e and later take only hyperdisks
    #[arg(long, default_value = "hyperdisk-balanced", value_parser = crate::cost::DISK_KINDS)]
    pub(crate) kind: String,
}

/// `fulmen tpu disk attach` and `detach`.
#[derive(Clone, Debug, Args)]
pub struct AttachDisk {
    #[command(flatten)]
    pub(crate) disk: DiskArgs,
    /// The TPU VM
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) tpu: String,
    /// Attach it read-only: the only way for a TPU VM with several hosts
    #[arg(long)]
    pub(crate) read_only: bool,
}

/// A disk, by name.
#[derive(Clone, Debug, Args)]
pub struct DiskArgs {
    /// The disk's name
    #[arg(value_parser = name)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) zone_args: ZoneArgs,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// `fulmen tpu machine`.
#[derive(Clone, Debug, Subcommand)]
pub enum CpuMachineCommand {
    /// Lists the kinds of machines with their vCPUs, memory and price
    Kinds,
    /// Creates a machine
    Create(CreateCpuMachine),
    /// Opens a shell on a machine, or runs a command there
    Ssh(CpuMachineSsh),
    /// Creates a machine, copies a program there, and runs it
    Run(RunOnCpuMachine),
    /// Deletes a machine and its boot disk, and checks that it is gone
    Delete(CpuMachineArgs),
}

/// A machine without TPUs, by name.
#[derive(Clone, Debug, Args)]
pub struct CpuMachineArgs {
    /// The machine's name
    #[arg(value_parser = name)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) zone_args: ZoneArgs,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// `fulmen tpu machine create`.
#[derive(Clone, Debug, Args)]
pub struct CreateCpuMachine {
    #[command(flatten)]
    pub(crate) machine: CpuMachineArgs,
    /// The kind, as Google names it: `fulmen tpu machine kinds`
    #[arg(long, default_value = "n2-standard-8", value_parser = name)]
    pub(crate) kind: String,
    /// The size of its boot disk in GiB
    #[arg(long, value_name = "GIB", default_value_t = 50, value_parser = clap::value_parser!(u64).range(10..=65536))]
    pub(crate) boot_size: u64,
    /// A disk to attach: its name. Append `:read-only` to share it. Can be repeated
    #[arg(long, value_name = "DISK")]
    pub(crate) data_disk: Vec<DataDisk>,
    /// Use spot capacity: cheaper, but Google may take it back at any time
    #[arg(long)]
    pub(crate) spot: bool,
    /// Delete the machine this many hours after its start, which Google enforces
    #[arg(long, value_name = "HOURS", value_parser = positive)]
    pub(crate) max_hours: Option<f64>,
}

/// `fulmen tpu machine ssh`.
#[derive(Clone, Debug, Args)]
pub struct CpuMachineSsh {
    #[command(flatten)]
    pub(crate) machine: CpuMachineArgs,
    /// A command and its arguments; without one, a shell opens
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// `fulmen tpu machine run`.
#[derive(Clone, Debug, Args)]
pub struct RunOnCpuMachine {
    #[command(flatten)]
    pub(crate) create: CreateCpuMachine,
    /// Delete the machine at the end in any case: success, failure, Ctrl-C
    #[arg(long)]
    pub(crate) delete_after: bool,
    /// A program of this machine, and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// A zone, which TPUs, disks and machines belong to. A region has several.
pub(crate) fn zone(text: &str) -> Result<String, String> {
    let zone = name(text)?;
    if zone.ends_with(|c: char| c.is_ascii_digit()) {
        return Err(format!("`{zone}` is a region; expected a zone, such as {zone}-a"));
    }
    Ok(zone)
}

/// A name that cannot be mistaken for an option, a path or a part of a script.
pub(crate) fn name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    if text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(plain) {
        return Ok(text.to_owned());
    }
    Err(format!("`{text}` is not a name; expected lowercase letters, digits and hyphens"))
}

/// Projects of organizations contain a domain and a colon.
pub(crate) fn project(text: &str) -> Result<String, String> {
    name(&text.replacen(':', "-", 1))
        .map(|_| text.to_owned())
        .map_err(|_| format!("`{text}` is not a project id"))
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number <= 1e6 => Ok(number),
        _ => Err("expected a number above 0".into()),
    }
}
