//! `tpu disk`: disks for data, which outlive the machines that they are attached to.

use chrono::{DateTime, Utc};
use fulmen_durable::messages::quote;
use serde_json::json;

use crate::arguments::{AttachDisk, CreateDisk, DataDisk, DiskArgs, DiskCommand};
use crate::command_runner::Tool;
use crate::cost::{Rates, dollars};
use crate::create::check_mode;
use crate::list::list_disks;
use crate::manage::dry_run;
use crate::resource::{Node, parse};
use crate::{Error, Result, gcloud_commands};

pub(crate) fn run(command: &DiskCommand, tool: &mut Tool<'_>, now: DateTime<Utc>) -> Result<u8> {
    match command {
        DiskCommand::Create(arguments) => create(arguments, tool),
        DiskCommand::Attach(arguments) => attach(arguments, tool),
        DiskCommand::Detach(arguments) => detach(arguments, tool),
        DiskCommand::List(arguments) => list_disks(arguments, tool, now),
        DiskCommand::Delete(arguments) => delete(arguments, tool),
    }
}

fn create(arguments: &CreateDisk, tool: &mut Tool<'_>) -> Result<u8> {
    let command = gcloud_commands::create_disk(arguments);
    let output = arguments.disk.output;
    if output.dry_run {
        return dry_run(&[command], output.json, tool);
    }
    let name = &arguments.disk.name;
    let zone = &arguments.disk.zone_args.zone;
    let day = Rates::disk_day(&arguments.kind, arguments.size as f64, 0.0, 0.0);
    tool.change(&command).map_err(|error| {
        Error::new(format!(
            "LEFT: the disk {name} may exist, and would cost {} a day: {error}\n  \
             Look: fulmen tpu disk list --zone {zone}",
            dollars(day)
        ))
    })?;
    tool.progress(&format!(
        "[tpu] the disk {name} costs {} a day until it is deleted: fulmen tpu disk delete {name} --zone {zone}",
        dollars(day)
    ));
    if output.json {
        tool.print(&json!({"name": name, "zone": zone, "usd_per_day": day}).to_string());
    } else {
        tool.print(&format!(
            "fulmen tpu disk attach {} --tpu NAME --zone {}",
            quote(name),
            quote(zone)
        ));
    }
    Ok(0)
}

fn attach(arguments: &AttachDisk, tool: &mut Tool<'_>) -> Result<u8> {
    let AttachDisk { disk, tpu, read_only } = arguments;
    let zone_args = &disk.zone_args;
    let data_disk = DataDisk { disk: disk.name.clone(), read_only: *read_only };
    let command = gcloud_commands::attach_disk(tpu, zone_args, &data_disk)?;
    let describe =
        gcloud_commands::describe(tpu, Some(&zone_args.zone), zone_args.project.as_deref());
    if disk.output.dry_run {
        return dry_run(&[describe, command], disk.output.json, tool);
    }
    let node: Node = parse(&tool.ask(&describe)?)?;
    if let Some(slice) = node.slice() {
        check_mode(&data_disk, &slice)
            .map_err(|error| Error::usage(format!("{error}, here with --read-only")))?;
    }
    tool.change(&command)?;
    report(disk, &format!("the disk {} is attached to {tpu}", disk.name), tool)
}

fn detach(arguments: &AttachDisk, tool: &mut Tool<'_>) -> Result<u8> {
    let AttachDisk { disk, tpu, read_only } = arguments;
    let data_disk = DataDisk { disk: disk.name.clone(), read_only: *read_only };
    let command = gcloud_commands::detach_disk(tpu, &disk.zone_args, &data_disk)?;
    if disk.output.dry_run {
        return dry_run(&[command], disk.output.json, tool);
    }
    tool.change(&command)?;
    report(
        disk,
        &format!("the disk {} is detached from {tpu}, and still costs money", disk.name),
        tool,
    )
}

fn delete(arguments: &DiskArgs, tool: &mut Tool<'_>) -> Result<u8> {
    let command = gcloud_commands::delete_disk(&arguments.name, &arguments.zone_args);
    if arguments.output.dry_run {
        return dry_run(&[command], arguments.output.json, tool);
    }
    tool.change(&command).map_err(|error| {
        Error::new(format!(
            "LEFT: the disk {} may still exist, and costs money: {error}",
            arguments.name
        ))
    })?;
    report(arguments, &format!("the disk {} is deleted", arguments.name), tool)
}

fn report(disk: &DiskArgs, text: &str, tool: &mut Tool<'_>) -> Result<u8> {
    if disk.output.json {
        tool.print(&json!({"name": disk.name, "zone": disk.zone_args.zone}).to_string());
    } else {
        tool.print(text);
    }
    Ok(0)
}
