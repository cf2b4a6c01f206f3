//! `pod run`: starts workers on their hosts.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::thread;
use std::time::Duration;

use fulmen_durable::messages::quantity;
use fulmen_signals::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::arguments::{Run, RunOptions};
use crate::binary::Binary;
use crate::libtpu::{Libtpu, LibtpuOption};
use crate::manage::signal_all;
use crate::monitor::{Limits, Monitor};
use crate::output::{Output, WhenFull, print_line};
use crate::parallel::{distinct_hosts, parallel_map};
use crate::plan::{Host, HostChips, Plan, Worker};
use crate::providers::Providers;
use crate::session::Session;
use crate::ssh::Ssh;
use crate::virtual_pod::VirtualPod;
use crate::{Error, Result};

/// Receives the signals of this process from now on: Ctrl-C, SIGTERM and SIGHUP. They no longer end
/// the process until the receiver is dropped.
///
/// # Errors
/// The operating system refuses the handlers.
pub fn signals() -> Result<Receiver<Signal>> {
    let failed = |e| Error::new(format!("cannot install signal handlers: {e}"));
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    let (send, receive) = channel();
    thread::spawn(move || {
        for number in signals.forever() {
            let signal = match number {
                SIGINT => Signal::Interrupt,
                SIGTERM => Signal::Terminate,
                _ => Signal::HangUp,
            };
            if send.send(signal).is_err() {
                // The run is over, and the rest of its output waits for a reader.
                let _ = signal_hook::low_level::emulate_default_handler(number);
                break;
            }
        }
    });
    Ok(receive)
}

pub(crate) fn run(
    run: &Run,
    providers: Providers,
    out: &mut dyn Write,
    signals: Receiver<Signal>,
) -> Result<u8> {
    let Run { targets, shape, options: arguments, dry_run: is_dry_run } = run;
    let binary = Binary::open(Path::new(&arguments.command[0]))?;
    if let (true, Some(line)) = (*is_dry_run, targets.shell_line(&providers)) {
        print_line(out, &line);
    }
    let (hosts, ssh) = match shape {
        Some(shape) => targets.resolve_virtual(&providers, *shape)?,
        None => {
            targets.resolve_named(&providers, ", or --virtual 4x2 to rehearse on this machine")?
        }
    };
    let virtual_pod = shape.map(|shape| VirtualPod::find(shape, &providers, out)).transpose()?;
    let option = arguments.libtpu.clone().or(targets.tpu.is_some().then(LibtpuOption::default));
    let libtpu = option.map(Libtpu::new);
    let plan = Plan::new(arguments, providers, ssh, &hosts, binary, virtual_pod, libtpu)?;
    if *is_dry_run {
        return dry_run(&plan, arguments, &hosts, out);
    }
    let unique = distinct_hosts(&hosts);
    let states = match prepare_hosts(&plan, &hosts, out, &signals) {
        Ok(states) => states?,
        Err(signal) => return Ok(signal.exit_code()),
    };
    let workers = if arguments.each_chip {
        let hosts: Vec<HostChips> = unique
            .iter()
            .zip(&states)
            .map(|(host, state)| HostChips {
                host: host.clone(),
                chips: arguments.chips.unwrap_or_else(|| state.chips()),
            })
            .collect();
        if let Some(HostChips { host, .. }) = hosts.iter().find(|host| host.chips == 0) {
            return Err(Error::new(format!(
                "{host} has no TPU chip: no /dev/accel0 or /dev/vfio/0; pass --chips"
            )));
        }
        plan.chip_workers(&hosts)?
    } else {
        plan.joint_workers(&hosts, &states[0])?
    };
    print_line(
        out,
        &format!(
            "[pod] {}: {} on {}",
            plan.run,
            quantity(workers.len(), "worker"),
            unique.join(", ")
        ),
    );
    if arguments.detach {
        return detach(&plan, &workers, out);
    }
    let limits = Limits {
        lost_timeout: arguments.lost_timeout,
        stuck_timeout: arguments.stuck_timeout,
        start_timeout: arguments.start_timeout,
        grace: arguments.grace,
    };
    let groups: Vec<Vec<Worker>> = if arguments.each_chip {
        workers.into_iter().map(|worker| vec![worker]).collect()
    } else {
        vec![workers]
    };
    let ssh = plan.ssh.clone();
    let run = plan.run.clone();
    let output = Output::new(&run, WhenFull::Skip);
    let monitor = Monitor::new(ssh, run, limits, Some(plan), arguments.max_restarts, output);
    Ok(monitor.run_and_print(groups, signals, out))
}

/// Prepares each host, and returns their descriptions, or the signal that ended this.
fn prepare_hosts(
    plan: &Plan,
    hosts: &[String],
    out: &mut dyn Write,
    signals: &Receiver<Signal>,
) -> std::result::Result<Result<Vec<Host>>, Signal> {
    if let Some(Libtpu { option: LibtpuOption::Install, wheel }) = &plan.libtpu {
        let version = &wheel.version;
        let size = wheel.megabytes;
        let line =
            format!("[pod] looking for libtpu {version}; a host without it downloads {size} MB");
        print_line(out, &line);
    }
    let unique = distinct_hosts(hosts);
    let prepare = || {
        let name = |host: &String| {
            let index = hosts.iter().position(|other| other == host).unwrap_or_default();
            Worker::existing(index, host).to_string()
        };
        parallel_map(&unique, name, |host| plan.prepare(host))
    };
    let states = interruptible(&plan.ssh, signals, prepare)?;
    if let (Some(libtpu), Ok(states)) = (&plan.libtpu, &states) {
        libtpu_lines(libtpu, &unique, states).iter().for_each(|line| print_line(out, line));
    }
    Ok(states)
}

fn dry_run(
    plan: &Plan,
    arguments: &RunOptions,
    hosts: &[String],
    out: &mut dyn Write,
) -> Result<u8> {
    let workers = if arguments.each_chip {
        let hosts: Vec<HostChips> = distinct_hosts(hosts)
            .into_iter()
            .map(|host| HostChips { host, chips: arguments.chips.unwrap_or(1) })
            .collect();
        plan.chip_workers(&hosts)?
    } else {
        plan.joint_workers(hosts, &Host::unqueried(&hosts[0]))?
    };
    plan.shell_lines(&workers).iter().for_each(|line| print_line(out, line));
    if !arguments.detach {
        let (events, _) = sync_channel(1);
        for worker in &workers {
            let session = Session::new(&plan.ssh, &plan.run, worker, 0, true, &events);
            print_line(out, &plan.ssh.shell_line(&worker.host, &session.command(0)));
        }
    }
    Ok(0)
}

/// What the user should know about the libtpu of each host.
fn libtpu_lines(libtpu: &Libtpu, hosts: &[String], states: &[Host]) -> Vec<String> {
    let mut lines = Vec::new();
    for (host, state) in hosts.iter().zip(states) {
        lines.extend(state.libtpu.others.iter().map(|other| format!("[pod] {host}: {other}")));
    }
    let name = match &libtpu.option {
        LibtpuOption::None => return lines,
        LibtpuOption::OnHost(path) => path.clone(),
        LibtpuOption::Install => format!("libtpu {}", libtpu.wheel.version),
    };
    let kinds = distinct_hosts(states.iter().map(|state| &state.libtpu.state));
    for kind in kinds {
        let pairs = hosts.iter().zip(states);
        let of_kind: Vec<&str> = pairs
            .filter(|(_, state)| state.libtpu.state == kind)
            .map(|(host, _)| host.as_str())
            .collect();
        let how = match kind.as_str() {
            "present" => "was there".to_owned(),
            "copied" => {
                "copied from this machine, because the host could not download it".to_owned()
            }
            "downloaded" => "downloaded with pip".to_owned(),
            version => version.to_owned(),
        };
        lines.push(format!("[pod] {name}: {how}, on {}", of_kind.join(", ")));
    }
    lines
}

/// Starts all workers, or none.
fn detach(plan: &Plan, workers: &[Worker], out: &mut dyn Write) -> Result<u8> {
    let start = |worker: &Worker| plan.start(worker, false).map_err(|error| error.reason);
    if let Err(error) = parallel_map(workers, Worker::to_string, start) {
        signal_all(&plan.ssh, &plan.run, workers, "KILL");
        return Err(error);
    }
    let hosts = distinct_hosts(workers.iter().map(|worker| &worker.host)).join(",");
    let hosts = if plan.ssh.is_local { String::new() } else { format!("--hosts {hosts} ") };
    print_line(
        out,
        &format!(
            "[pod] the run continues without this command. To see its output: fulmen pod logs --follow {hosts}{}",
            plan.run
        ),
    );
    Ok(0)
}

/// Runs queries on hosts; a signal ends them.
fn interruptible<T: Send>(
    ssh: &Ssh,
    signals: &Receiver<Signal>,
    work: impl FnOnce() -> T + Send,
) -> std::result::Result<T, Signal> {
    let mut received = None;
    thread::scope(|scope| {
        let worker = scope.spawn(work);
        while !worker.is_finished() {
            thread::sleep(Duration::from_millis(20));
            if let Ok(signal) = signals.try_recv() {
                ssh.cancelled.store(true, Ordering::Relaxed);
                received.get_or_insert(signal);
            }
        }
        let result = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        received.map_or(Ok(result), Err)
    })
}
