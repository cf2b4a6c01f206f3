//! `tpu ssh`, `wait`, `extend` and `delete`: commands for an existing TPU.

use std::time::{SystemTime, UNIX_EPOCH};

use fulmen_durable::messages::quote;
use serde_json::json;

use crate::arguments::{Delete, Extend, Ssh, Wait};
use crate::command_runner::{Stop, Tool, shell_line};
use crate::gcloud_commands::{self, DEADLINE_LABEL};
use crate::limit::PROGRAM;
use crate::list::not_found;
use crate::resource::{Node, base_name};
use crate::target::Target;
use crate::{Error, Result};

/// Prints the commands of a dry run.
pub(crate) fn dry_run(commands: &[Vec<String>], json: bool, tool: &mut Tool<'_>) -> Result<u8> {
    let lines: Vec<String> = commands.iter().map(|words| shell_line(words)).collect();
    if json {
        tool.print(&json!({ "commands": lines }).to_string());
    } else {
        lines.iter().for_each(|line| tool.print(line));
    }
    Ok(0)
}

pub(crate) fn ssh(arguments: &Ssh, tool: &mut Tool<'_>) -> Result<u8> {
    let line = arguments.command.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ");
    let command = Some(line).filter(|line| !line.is_empty());
    let words = gcloud_commands::ssh(
        &arguments.name,
        &arguments.zone_args,
        &arguments.worker,
        command.as_deref(),
    );
    if arguments.dry_run {
        return dry_run(&[words], false, tool);
    }
    tool.progress(&format!("$ {}", shell_line(&words)));
    let failed = |e| Error::new(format!("the program gcloud: {e}; install the Google Cloud CLI"));
    tool.gcloud.call_attached(&words).map_err(failed)
}

pub(crate) fn wait(arguments: &Wait, tool: &mut Tool<'_>) -> Result<u8> {
    let tpu = &arguments.tpu;
    let name = tpu.name.clone();
    let zone_args = tpu.zone_args.clone();
    let target = Target { name, zone_args, queued: true, owner: None, usd_per_day: None };
    if tpu.output.dry_run {
        return dry_run(&target.queries(), tpu.output.json, tool);
    }
    let queries = arguments.timeout.as_secs() / tool.poll_policy.pause.as_secs().max(1);
    match target.wait(tool, queries.max(1)) {
        Ok(node) => {
            let hosts =
                node.hosts().map_err(|reason| Error::new(format!("{} {reason}", target.name)))?;
            let text = if tpu.output.json {
                json!({"name": target.name, "zone": target.zone_args.zone, "hosts": hosts})
                    .to_string()
            } else {
                format!("{} is ready: {}", target.name, hosts.join(", "))
            };
            tool.print(&text);
            Ok(0)
        }
        Err(Stop::Failed(error)) => Err(error),
        Err(Stop::Signal(signal)) => Ok(signal.exit_code()),
    }
}

pub(crate) fn extend(arguments: &Extend, tool: &mut Tool<'_>) -> Result<u8> {
    let Extend { name, zone_args, hours, output } = arguments;
    let seconds = (hours * 3600.0).ceil() as u64;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let command =
        gcloud_commands::run_on_hosts(name, zone_args, &format!("sudo {PROGRAM} set {seconds}"));
    let label =
        gcloud_commands::label(name, zone_args, DEADLINE_LABEL, &(now + seconds).to_string());
    if output.dry_run {
        return dry_run(&[command, label], output.json, tool);
    }
    let failed = |error: Error| {
        let text = "some hosts may keep the old time, and the first to reach it deletes the TPU. \
                    Only TPUs that were created with --max-hours or --max-cost can be extended";
        Error::new(format!("the limit of {name} may not have changed: {error}; {text}"))
    };
    tool.change(&command).map_err(failed)?;
    // The label that `list` shows.
    if let Err(error) = tool.change(&label) {
        tool.progress(&format!(
            "warning: the limit has changed, but `list` will show the old one: {error}"
        ));
    }
    let text = if output.json {
        json!({"name": name, "zone": zone_args.zone, "seconds": seconds, "ends": now + seconds})
            .to_string()
    } else {
        format!("{name} deletes itself in {hours} h")
    };
    tool.print(&text);
    Ok(0)
}

pub(crate) fn delete(arguments: &Delete, tool: &mut Tool<'_>) -> Result<u8> {
    let Delete { name, zone_args, output } = arguments;
    if output.dry_run {
        let commands = [
            gcloud_commands::delete_queued(name, zone_args),
            gcloud_commands::delete_node(name, zone_args),
        ];
        return dry_run(&commands, output.json, tool);
    }
    let name = name.clone();
    let zone_args = zone_args.clone();
    let target = Target { name, zone_args, queued: true, owner: None, usd_per_day: None };
    let (found, leftover) = target.remove(tool, true);
    if found.is_none() && leftover.is_none() {
        return Err(not_found(&target.name, &target.zone_args.zone));
    }
    let node_disks = |node: &Node| {
        node.data_disks.iter().map(|disk| base_name(&disk.source_disk).to_owned()).collect()
    };
    let disks: Vec<String> =
        found.and_then(|found| found.node.as_ref().map(node_disks)).unwrap_or_default();
    for disk in &disks {
        tool.progress(&format!("LEFT: the disk {disk} costs money until it is deleted as well"));
    }
    if output.json {
        let name = &target.name;
        let zone = &target.zone_args.zone;
        tool.print(
            &json!({"name": name, "zone": zone, "left": leftover, "disks": disks}).to_string(),
        );
    }
    match leftover {
        Some(leftover) => Err(Error::new(format!("LEFT: {leftover}"))),
        None => {
            if !output.json {
                tool.print(&format!("{} is deleted", target.name));
            }
            Ok(0)
        }
    }
}
