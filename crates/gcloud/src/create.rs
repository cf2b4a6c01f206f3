//! Creates a TPU VM, uses it, and deletes it if requested.

use std::io::Write;
use std::sync::mpsc::Receiver;
use std::time::{SystemTime, UNIX_EPOCH};

use fulmen_durable::messages::{duration, quote};
use fulmen_signals::Signal;
use fulmen_tpu::Slice;
use serde_json::json;

use crate::arguments::{Create, DataDisk, Machine};
use crate::command_runner::{Gcloud, PollPolicy, Stop, Tool, shell_line};
use crate::cost::{Rates, dollars};
use crate::limit::{Limit, MISSING_PERMISSION, PROGRAM};
use crate::resource::{Node, base_name};
use crate::target::Target;
use crate::{Error, Result, gcloud_commands};

/// How a machine is created. The plan is complete before anything is created.
struct Plan {
    target: Target,
    limit: Option<Limit>,
    script: Option<String>,
    rates: Rates,
}

/// The name of the script's file in a dry run.
const SCRIPT_PLACEHOLDER: &str = "STARTUP_SCRIPT";

/// A value of the owner label that no other run has.
pub(crate) fn new_owner() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{now:x}-{}", std::process::id())
}

/// Checks that a slice can have a disk.
///
/// # Errors
/// A disk to write for several hosts, which Google refuses.
pub(crate) fn check_mode(disk: &DataDisk, slice: &Slice) -> Result<()> {
    if disk.read_only || slice.has_one_host() {
        return Ok(());
    }
    let name = &disk.disk;
    Err(Error::usage(format!(
        "the disk {name}: {slice} has several hosts, which can share a disk only read-only: {name}:read-only"
    )))
}

impl Plan {
    /// # Errors
    /// The arguments are inconsistent.
    fn new(machine: &Machine) -> Result<Plan> {
        if machine.node_count != 1 {
            let text =
                "this command creates one slice, so nothing was created; use a larger --type";
            return Err(Error::usage(format!("--node-count {}: {text}", machine.node_count)));
        }
        for disk in &machine.data_disk {
            check_mode(disk, &machine.slice)?;
        }
        let owner = new_owner();
        let rates = Rates::read(machine.price.as_deref())?;
        let limit = Limit::new(machine, &rates)?;
        // Google itself enforces the limit of flex-start.
        let on_host = limit.filter(|_| !machine.flex_start);
        let script = Limit::startup_script(on_host, machine)?;
        let plan = Plan { target: Target::new(machine, &owner, &rates), limit, script, rates };
        plan.command(machine, SCRIPT_PLACEHOLDER)?;
        Ok(plan)
    }

    fn command(&self, machine: &Machine, script: &str) -> Result<Vec<String>> {
        let owner = self.target.owner.as_deref().unwrap_or_default();
        gcloud_commands::create(
            machine,
            owner,
            self.limit.as_ref(),
            self.script.as_ref().map(|_| script),
        )
    }

    /// The command that checks on the hosts, before they are used, that the limit is active. It
    /// also shows that ssh reaches them.
    fn check(&self, machine: &Machine) -> Option<String> {
        self.limit.filter(|_| !machine.flex_start).map(|_| format!("sudo {PROGRAM} status"))
    }

    fn describe(&self) -> String {
        let price = dollars(self.target.usd_per_day);
        let limit = match self.limit {
            Some(limit) => {
                format!("It is deleted {} after its start", duration(limit.seconds as f64))
            }
            None => {
                "It does not delete itself: to change that, use --max-hours or --max-cost".into()
            }
        };
        format!("[tpu] it costs {price} a day: {}. {limit}", self.rates.source())
    }

    /// Creates the machine and waits until it is usable.
    fn bring_up(
        &self,
        machine: &Machine,
        check_ssh: bool,
        tool: &mut Tool<'_>,
    ) -> Result<Node, Stop> {
        let file = match &self.script {
            None => None,
            Some(script) => {
                let failed = |e: std::io::Error| {
                    Error::new(format!("a temporary file for the start-up script: {e}"))
                };
                let mut file = tempfile::NamedTempFile::new().map_err(failed)?;
                file.write_all(script.as_bytes()).map_err(failed)?;
                Some(file)
            }
        };
        let path =
            file.as_ref().map_or(SCRIPT_PLACEHOLDER.into(), |file| file.path().to_string_lossy());
        tool.change_until_signal(&self.command(machine, &path)?)?;
        let queries = machine.ready_timeout.as_secs() / tool.poll_policy.pause.as_secs().max(1);
        let node = self.target.wait(tool, queries.max(1))?;
        let check = self.check(machine);
        if check_ssh || check.is_some() {
            self.run_on_hosts(&check.unwrap_or("true".into()), tool)?;
        }
        Ok(node)
    }

    /// Runs a command on all hosts, which may refuse connections at first.
    fn run_on_hosts(&self, command: &str, tool: &mut Tool<'_>) -> Result<(), Stop> {
        let words =
            gcloud_commands::run_on_hosts(&self.target.name, &self.target.zone_args, command);
        let mut attempts = tool.poll_policy.attempts;
        loop {
            attempts = attempts.saturating_sub(1);
            match tool.change_until_signal(&words) {
                Ok(output) => {
                    output.lines().for_each(|line| tool.progress(&format!("[tpu] {line}")));
                    return Ok(());
                }
                Err(Stop::Failed(error))
                    if attempts == 0 || error.to_string().contains(MISSING_PERMISSION) =>
                {
                    let text =
                        format!("`{command}` fails on the hosts of {}: {error}", self.target.name);
                    return Err(Error::new(text).into());
                }
                Err(Stop::Failed(_)) => {}
                Err(signal) => return Err(signal),
            }
            if let Some(signal) = tool.pause() {
                return Err(Stop::Signal(signal));
            }
        }
    }

    /// Reports the disks that cost money on their own.
    fn report_disks(&self, machine: &Machine, tool: &mut Tool<'_>) {
        for disk in &machine.data_disk {
            let disk = base_name(&disk.disk);
            tool.progress(&format!(
                "LEFT: the disk {disk} costs money until it is deleted as well"
            ));
        }
    }
}

/// The commands that creating a machine takes, for a dry run.
///
/// ```
/// use clap::Parser;
///
/// #[derive(Parser)]
/// struct Cli {
///     #[command(flatten)]
///     machine: fulmen_gcloud::Machine,
/// }
///
/// let arguments = ["tpu", "train", "--type", "v5e-8", "--zone", "us-west4-a", "--spot"];
/// let commands = fulmen_gcloud::commands(&Cli::parse_from(arguments).machine)?;
/// assert!(commands[1].starts_with("gcloud compute tpus tpu-vm create train --zone=us-west4-a"));
/// # Ok::<(), fulmen_gcloud::Error>(())
/// ```
///
/// # Errors
/// The arguments are inconsistent.
pub fn commands(machine: &Machine) -> Result<Vec<String>> {
    let plan = Plan::new(machine)?;
    let mut lines = Vec::new();
    if let Some(script) = &plan.script {
        let script = script.trim_end();
        lines.push(format!("cat >{SCRIPT_PLACEHOLDER} <<'END_OF_SCRIPT'\n{script}\nEND_OF_SCRIPT"));
    }
    let Target { name, zone_args, .. } = &plan.target;
    lines.push(shell_line(&gcloud_commands::list_nodes(
        &zone_args.zone,
        zone_args.project.as_deref(),
    )));
    lines.push(shell_line(&plan.command(machine, SCRIPT_PLACEHOLDER)?));
    if let Some(check) = plan.check(machine) {
        lines.push(shell_line(&gcloud_commands::run_on_hosts(name, zone_args, &check)));
    }
    Ok(lines)
}

/// What [`lease`] does with a machine.
#[derive(Clone, Copy, Debug)]
pub struct Lease<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// Whether to delete the machine at the end, whatever happens.
    pub delete_after: bool,
    /// Whether to print a line of JSON at the end.
    pub json: bool,
}

/// Creates a machine, runs the work once ssh reaches it, and then deletes the machine if requested:
/// after success, failure or a signal. Returns the exit code of the work, or 1 if the work did not
/// start or a machine could not be deleted. Leftovers are reported on `log` with their price and
/// the command that deletes them. Ctrl-C during the deletion aborts it.
///
/// `signals` receives the signals of this process. The work must watch for them itself.
///
/// # Errors
/// Before anything is created: the arguments are inconsistent, the name is taken, or gcloud fails.
pub fn lease(
    lease: Lease<'_>,
    out: &mut dyn Write,
    log: &mut dyn Write,
    signals: &Receiver<Signal>,
    work: &mut dyn FnMut(&mut dyn Write) -> Result<u8, String>,
) -> Result<u8> {
    let gcloud = Gcloud::default();
    lease_with(lease, true, Tool::new(&gcloud, out, log, signals, PollPolicy::default()), work)
}

pub(crate) fn lease_with(
    Lease { machine, delete_after, json }: Lease<'_>,
    check_ssh: bool,
    mut tool: Tool<'_>,
    work: &mut dyn FnMut(&mut dyn Write) -> Result<u8, String>,
) -> Result<u8> {
    let plan = Plan::new(machine)?;
    let found = Target { queued: machine.is_queued(), owner: None, ..plan.target.clone() }
        .find(&mut tool)?;
    if !found.is_empty() {
        let name = &machine.name;
        let zone = &machine.zone_args.zone;
        return Err(Error::usage(format!(
            "there is a {name} in {zone} already; choose another name, or delete it"
        )));
    }
    tool.progress(&plan.describe());
    let node = plan.bring_up(machine, check_ssh, &mut tool);
    let ready = node.is_ok();
    let hosts = node.as_ref().ok().and_then(|node| node.hosts().ok()).unwrap_or_default();
    let mut code = match node {
        Ok(_) => {
            tool.progress(&format!("[tpu] {} is ready: {}", machine.name, hosts.join(", ")));
            match work(tool.out) {
                Ok(code) => code,
                Err(message) => {
                    tool.progress(&format!("error: {message}"));
                    1
                }
            }
        }
        Err(stop) => {
            tool.progress(&stop.text());
            stop.exit_code()
        }
    };
    let leftover = if delete_after {
        plan.target.remove(&mut tool, ready).1
    } else {
        plan.target.find_leftover(&mut tool)
    };
    match &leftover {
        Some(leftover) if delete_after || !ready => tool.progress(&format!("LEFT: {leftover}")),
        Some(leftover) => tool.progress(&format!("[tpu] {leftover}")),
        None if delete_after => tool.progress(&format!("[tpu] {} is deleted", machine.name)),
        None => tool
            .progress(&format!("[tpu] there is no {} in {}", machine.name, machine.zone_args.zone)),
    }
    plan.report_disks(machine, &mut tool);
    if code == 0 && delete_after && leftover.is_some() {
        code = 1;
    }
    if json {
        let disks: Vec<&str> = machine.data_disk.iter().map(|disk| disk.disk.as_str()).collect();
        let name = &machine.name;
        let zone = &machine.zone_args.zone;
        let text = json!({
            "name": name, "zone": zone, "ready": ready, "hosts": hosts, "exit_code": code, "left": leftover,
            "disks": disks,
        });
        tool.print(&text.to_string());
    }
    Ok(code)
}

pub(crate) fn create(arguments: &Create, tool: Tool<'_>) -> Result<u8> {
    let Create { machine, output } = arguments;
    let lease = Lease { machine, delete_after: false, json: output.json };
    let json = output.json;
    lease_with(lease, false, tool, &mut |out| {
        if !json {
            let name = quote(&machine.name);
            let zone = quote(&machine.zone_args.zone);
            let _ = writeln!(
                out,
                "fulmen tpu ssh {name} --zone {zone}\nfulmen pod run --tpu {name} --zone {zone} -- …"
            );
        }
        Ok(0)
    })
}
