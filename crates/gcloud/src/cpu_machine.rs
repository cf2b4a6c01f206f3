//! `tpu machine`: machines without TPUs, on which data is prepared before a TPU is paid for.

use std::path::Path;

use fulmen_durable::messages::{money, quote};
use fulmen_signals::Signal;
use serde_json::json;

use crate::arguments::{
    CpuMachineArgs, CpuMachineCommand, CpuMachineSsh, CreateCpuMachine, RunOnCpuMachine,
};
use crate::command_runner::{Stop, Tool, shell_line};
use crate::cost::{MACHINE_KINDS, Rates, dollars};
use crate::create::new_owner;
use crate::manage::dry_run;
use crate::resource::{Instance, base_name, parse};
use crate::{Error, Result, gcloud_commands};

pub(crate) fn run(command: &CpuMachineCommand, tool: &mut Tool<'_>) -> Result<u8> {
    match command {
        CpuMachineCommand::Kinds => {
            for kind in &MACHINE_KINDS {
                tool.print(&format!(
                    "{:14} {:3} vCPUs {:4} GiB {} an hour",
                    kind.name,
                    kind.vcpus,
                    kind.gibibytes,
                    money(kind.usd_per_hour)
                ));
            }
            Ok(0)
        }
        CpuMachineCommand::Create(arguments) => create(arguments, tool),
        CpuMachineCommand::Ssh(arguments) => ssh(arguments, tool),
        CpuMachineCommand::Run(arguments) => run_program(arguments, tool),
        CpuMachineCommand::Delete(arguments) => delete(arguments, tool),
    }
}

impl CpuMachineArgs {
    fn query(&self) -> Vec<String> {
        let zone_args = &self.zone_args;
        gcloud_commands::list_compute(
            "instances",
            Some(&zone_args.zone),
            zone_args.project.as_deref(),
        )
    }

    /// # Errors
    /// gcloud fails, or its answer cannot be parsed.
    fn find(&self, tool: &mut Tool<'_>) -> Result<Option<Instance>> {
        let instances: Vec<Instance> = parse(&tool.ask(&self.query())?)?;
        Ok(instances.into_iter().find(|instance| instance.name == self.name))
    }

    fn delete_line(&self) -> String {
        shell_line(&gcloud_commands::delete_cpu_machine(&self.name, &self.zone_args))
    }

    /// Deletes it until a list shows that it is gone. `owner` is the run that must have created it.
    ///
    /// # Errors
    /// It exists, or may exist. The message says what to do.
    fn remove(&self, owner: Option<&str>, tool: &mut Tool<'_>) -> Result<()> {
        let mut why = String::new();
        let mut absences = 0;
        for _ in 0..tool.poll_policy.attempts {
            match self.find(tool) {
                Err(error) => why = format!("gcloud cannot be queried: {error}"),
                Ok(None) => {
                    absences += 1;
                    // Only a machine that was just created may still appear.
                    if owner.is_none() || absences >= tool.poll_policy.required_absences {
                        return Ok(());
                    }
                }
                Ok(Some(instance)) => {
                    absences = 0;
                    let label = instance.labels.get(gcloud_commands::OWNER_LABEL);
                    if owner.is_some_and(|owner| label.is_some_and(|label| label != owner)) {
                        return Err(self.left(
                            &instance,
                            "Another command created it, so it was not deleted.",
                        ));
                    }
                    let command = gcloud_commands::delete_cpu_machine(&self.name, &self.zone_args);
                    match tool.change(&command) {
                        Ok(_) => continue,
                        Err(error) => why = format!("gcloud says: {error}"),
                    }
                }
            }
            if let Some(signal) = tool.pause() {
                why = format!("{signal} ended the deletion.");
                break;
            }
        }
        Err(Error::new(format!(
            "LEFT: {} in {} may exist, and costs money. {why}\n  Delete it: {}",
            self.name,
            self.zone_args.zone,
            self.delete_line()
        )))
    }

    fn left(&self, instance: &Instance, why: &str) -> Error {
        let day = Rates::machine_day(base_name(&instance.machine_type));
        Error::new(format!(
            "LEFT: {} in {} is {} and costs {} a day. {why}\n  Delete it: {}",
            self.name,
            self.zone_args.zone,
            instance.status,
            dollars(day),
            self.delete_line()
        ))
    }
}

/// Creates a machine whose name is free.
///
/// # Errors
/// There is a machine of that name, gcloud fails, or a signal arrives.
fn bring_up(arguments: &CreateCpuMachine, owner: &str, tool: &mut Tool<'_>) -> Result<(), Stop> {
    let machine = &arguments.machine;
    if machine.find(tool)?.is_some() {
        let text = "there already; choose another name, or delete it";
        return Err(Error::usage(format!(
            "{} in {} is {text}",
            machine.name, machine.zone_args.zone
        ))
        .into());
    }
    let day = Rates::machine_day(&arguments.kind);
    let limit = match arguments.max_hours {
        Some(hours) => format!("Google deletes it {hours} h after its start"),
        None => "It does not delete itself: to change that, use --max-hours".to_owned(),
    };
    tool.progress(&format!("[tpu] it costs {} a day at list prices. {limit}", dollars(day)));
    tool.change_until_signal(&gcloud_commands::create_cpu_machine(arguments, owner))?;
    Ok(())
}

fn create(arguments: &CreateCpuMachine, tool: &mut Tool<'_>) -> Result<u8> {
    let machine = &arguments.machine;
    let owner = new_owner();
    if machine.output.dry_run {
        let commands = [machine.query(), gcloud_commands::create_cpu_machine(arguments, &owner)];
        return dry_run(&commands, machine.output.json, tool);
    }
    match bring_up(arguments, &owner, tool) {
        Ok(()) => {
            if machine.output.json {
                let text = json!({"name": machine.name, "zone": machine.zone_args.zone});
                tool.print(&text.to_string());
            } else {
                tool.print(&format!(
                    "fulmen tpu machine ssh {} --zone {}",
                    machine.name, machine.zone_args.zone
                ));
            }
            Ok(0)
        }
        Err(Stop::Failed(error)) if error.is_usage() => Err(error),
        Err(stop) => {
            tool.progress(&stop.text());
            report_leftover(machine, &owner, tool);
            Ok(stop.exit_code())
        }
    }
}

/// Says whether a machine of this run exists after its creation failed.
fn report_leftover(machine: &CpuMachineArgs, owner: &str, tool: &mut Tool<'_>) {
    let mut absences = 0;
    for _ in 0..tool.poll_policy.attempts {
        match machine.find(tool) {
            Ok(Some(instance)) => {
                let label = instance.labels.get(gcloud_commands::OWNER_LABEL);
                let why = if label.is_some_and(|label| label != owner) {
                    "Another command created it."
                } else {
                    "This command created it."
                };
                tool.progress(&machine.left(&instance, why).to_string());
                return;
            }
            Ok(None) => absences += 1,
            Err(_) => {}
        }
        if absences >= tool.poll_policy.required_absences {
            return;
        }
        if tool.pause().is_some() {
            break;
        }
    }
    tool.progress(&format!(
        "LEFT: {} in {} may exist, and would cost money.\n  Delete it: {}",
        machine.name,
        machine.zone_args.zone,
        machine.delete_line()
    ));
}

fn ssh(arguments: &CpuMachineSsh, tool: &mut Tool<'_>) -> Result<u8> {
    let machine = &arguments.machine;
    let command = remote_line(&arguments.command);
    let words =
        gcloud_commands::ssh_cpu_machine(&machine.name, &machine.zone_args, command.as_deref());
    if machine.output.dry_run {
        return dry_run(&[words], machine.output.json, tool);
    }
    attached(&words, tool)
}

/// The command as one line for the machine's shell; `None` without a command.
fn remote_line(command: &[String]) -> Option<String> {
    let words: Vec<String> = command.iter().map(|word| quote(word)).collect();
    Some(words.join(" ")).filter(|line| !line.is_empty())
}

/// # Errors
/// gcloud cannot be started.
fn attached(words: &[String], tool: &mut Tool<'_>) -> Result<u8> {
    tool.progress(&format!("$ {}", shell_line(words)));
    let failed = |e| Error::new(format!("the program gcloud: {e}; install the Google Cloud CLI"));
    tool.gcloud.call_attached(words).map_err(failed)
}

fn run_program(arguments: &RunOnCpuMachine, tool: &mut Tool<'_>) -> Result<u8> {
    let machine = &arguments.create.machine;
    let program = &arguments.command[0];
    let Some(file_name) = Path::new(program).file_name().filter(|_| Path::new(program).is_file())
    else {
        return Err(Error::usage(format!(
            "{program}: not a file of this machine; nothing was created"
        )));
    };
    let mut command = arguments.command.clone();
    command[0] = format!("./{}", file_name.to_string_lossy());
    let line = remote_line(&command).unwrap_or_default();
    let owner = new_owner();
    let copy = gcloud_commands::copy_to_cpu_machine(program, &machine.name, &machine.zone_args);
    let start = gcloud_commands::ssh_cpu_machine(&machine.name, &machine.zone_args, Some(&line));
    if machine.output.dry_run {
        let mut commands = vec![
            machine.query(),
            gcloud_commands::create_cpu_machine(&arguments.create, &owner),
            copy,
            start,
        ];
        if arguments.delete_after {
            commands.push(gcloud_commands::delete_cpu_machine(&machine.name, &machine.zone_args));
        }
        return dry_run(&commands, machine.output.json, tool);
    }
    let mut code = match bring_up(&arguments.create, &owner, tool) {
        Ok(()) => match copy_and_start(&copy, &start, tool) {
            Ok(code) => code,
            Err(stop) => {
                tool.progress(&stop.text());
                stop.exit_code()
            }
        },
        Err(Stop::Failed(error)) if error.is_usage() => return Err(error),
        Err(stop) => {
            tool.progress(&stop.text());
            stop.exit_code()
        }
    };
    if arguments.delete_after {
        match machine.remove(Some(&owner), tool) {
            Ok(()) => tool.progress(&format!("[tpu] {} is deleted", machine.name)),
            Err(error) => {
                tool.progress(&error.to_string());
                code = code.max(1);
            }
        }
    } else {
        report_leftover(machine, &owner, tool);
    }
    if machine.output.json {
        let text = json!({"name": machine.name, "zone": machine.zone_args.zone, "exit_code": code});
        tool.print(&text.to_string());
    }
    Ok(code)
}

/// Copies the program, as soon as ssh reaches the machine, and runs it.
fn copy_and_start(
    copy: &[String],
    start: &[String],
    tool: &mut Tool<'_>,
) -> std::result::Result<u8, Stop> {
    let mut attempts = tool.poll_policy.attempts;
    loop {
        attempts = attempts.saturating_sub(1);
        match tool.change_until_signal(copy) {
            Ok(_) => break,
            // A machine refuses connections at first.
            Err(Stop::Failed(_)) if attempts > 0 => {}
            Err(stop) => return Err(stop),
        }
        if let Some(signal) = tool.pause() {
            return Err(Stop::Signal(signal));
        }
    }
    // The terminal's Ctrl-C reaches gcloud itself, which ends.
    let code = attached(start, tool)?;
    match tool.signals.try_recv() {
        Ok(signal @ (Signal::Interrupt | Signal::Terminate)) => Err(Stop::Signal(signal)),
        _ => Ok(code),
    }
}

fn delete(arguments: &CpuMachineArgs, tool: &mut Tool<'_>) -> Result<u8> {
    if arguments.output.dry_run {
        let command = gcloud_commands::delete_cpu_machine(&arguments.name, &arguments.zone_args);
        return dry_run(&[command], arguments.output.json, tool);
    }
    if arguments.find(tool)?.is_none() {
        return Err(Error::new(format!(
            "there is no machine {} in {}; `fulmen tpu list --all-zones`",
            arguments.name, arguments.zone_args.zone
        )));
    }
    arguments.remove(None, tool)?;
    if arguments.output.json {
        let text = json!({"name": arguments.name, "zone": arguments.zone_args.zone});
        tool.print(&text.to_string());
    } else {
        tool.print(&format!("{} is deleted", arguments.name));
    }
    Ok(0)
}
