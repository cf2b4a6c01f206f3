//! `pod run`: starts, watches, ends and restarts workers.
//!
//! Workers that train together form one group, which ends and restarts as a whole. Each independent
//! program is a group of its own.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_signals::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::arguments::{Run, RunOptions};
use crate::manage::{distinct, on_each, signal_all};
use crate::outcome::{End, Outcome, TEMPORARY, outcome};
use crate::plan::{Host, Plan, Worker};
use crate::program::Program;
use crate::session::{Event, Link, Message, PAUSE, Session, Start};
use crate::ssh::Ssh;
use crate::{Error, Result};

/// The signals that this process receives from now on: Ctrl-C, SIGTERM and SIGHUP. They no longer
/// end it.
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
                break;
            }
        }
    });
    Ok(receive)
}

pub(crate) fn run(run: &Run, out: &mut dyn Write, signals: &Receiver<Signal>) -> Result<u8> {
    let Run { targets, options: arguments, dry_run: dry } = run;
    let program = Program::open(Path::new(&arguments.command[0]))?;
    if let (true, Some(line)) = (*dry, targets.spell()) {
        print_line(out, &line);
    }
    let (hosts, ssh) = targets.resolve()?;
    let plan = Plan::new(arguments, ssh, program)?;
    if *dry {
        return dry_run(&plan, arguments, &hosts, out);
    }
    let unique = distinct(&hosts);
    let prepare = || {
        let name = |host: &String| {
            let index = hosts.iter().position(|other| other == host).unwrap_or_default();
            Worker::existing(index, host).to_string()
        };
        on_each(&unique, name, |host| plan.prepare(host))
    };
    let states = match interruptible(&plan.ssh, signals, prepare) {
        Ok(states) => states?,
        Err(signal) => return Ok(signal.exit_code()),
    };
    let workers = if arguments.each_chip {
        let chips = |state: &Host| arguments.chips.unwrap_or_else(|| state.chips());
        let chips: Vec<(String, usize)> =
            unique.iter().zip(&states).map(|(host, state)| (host.clone(), chips(state))).collect();
        if let Some((host, _)) = chips.iter().find(|row| row.1 == 0) {
            return Err(Error::new(format!(
                "{host} has no TPU chip: no /dev/accel0 or /dev/vfio/0; give --chips"
            )));
        }
        plan.each_chip(arguments, &chips)?
    } else {
        plan.together(arguments, &hosts, &states[0])?
    };
    print_line(
        out,
        &format!("[pod] {}: {} workers on {}", plan.run, workers.len(), unique.join(", ")),
    );
    if arguments.detach {
        return detach(&plan, &workers, out);
    }
    let limits = Limits {
        lost: arguments.lost_timeout,
        stuck: arguments.stuck_timeout,
        start: arguments.start_timeout,
        grace: arguments.grace,
    };
    let groups: Vec<Vec<Worker>> = if arguments.each_chip {
        workers.into_iter().map(|worker| vec![worker]).collect()
    } else {
        vec![workers]
    };
    let (ssh, run) = (plan.ssh.clone(), plan.run.clone());
    Ok(Watch::new(ssh, run, limits, Some(plan), arguments.max_restarts, out).run(groups, signals))
}

fn dry_run(
    plan: &Plan,
    arguments: &RunOptions,
    hosts: &[String],
    out: &mut dyn Write,
) -> Result<u8> {
    let workers = if arguments.each_chip {
        let chips: Vec<(String, usize)> =
            distinct(hosts).into_iter().map(|host| (host, arguments.chips.unwrap_or(1))).collect();
        plan.each_chip(arguments, &chips)?
    } else {
        plan.together(arguments, hosts, &Host::unseen(&hosts[0]))?
    };
    plan.spell(&workers).iter().for_each(|line| print_line(out, line));
    if !arguments.detach {
        let (events, _) = channel();
        for worker in &workers {
            let session = session(&plan.ssh, &plan.run, worker, 0, true, &events);
            print_line(out, &plan.ssh.spell(&worker.host, &session.command(0)));
        }
    }
    Ok(0)
}

/// Starts all workers, or none.
fn detach(plan: &Plan, workers: &[Worker], out: &mut dyn Write) -> Result<u8> {
    if let Err(error) = on_each(workers, Worker::to_string, |worker| plan.start(worker, false)) {
        signal_all(&plan.ssh, &plan.run, workers, "KILL");
        return Err(error);
    }
    let hosts = distinct(workers.iter().map(|worker| &worker.host)).join(",");
    print_line(
        out,
        &format!(
            "[pod] the run continues on its hosts. To see its output: fulmen pod logs --follow --hosts {hosts} {}",
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
        let work = scope.spawn(work);
        while !work.is_finished() {
            thread::sleep(Duration::from_millis(20));
            if let Ok(signal) = signals.try_recv() {
                ssh.cancelled.store(true, Ordering::Relaxed);
                received.get_or_insert(signal);
            }
        }
        let done = work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        received.map_or(Ok(done), Err)
    })
}

/// Prints a line for the user. The run continues even if the output is closed.
pub(crate) fn print_line(out: &mut dyn Write, line: &str) {
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

fn session(
    ssh: &Ssh,
    run: &str,
    worker: &Worker,
    attempt: u32,
    owns: bool,
    events: &Sender<Message>,
) -> Session {
    Session {
        ssh: ssh.clone(),
        run: run.to_owned(),
        host: worker.host.clone(),
        worker: worker.index,
        attempt,
        owns,
        events: events.clone(),
        cancelled: Arc::default(),
    }
}

/// The time limits of a run.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) lost: Duration,
    pub(crate) stuck: Duration,
    pub(crate) start: Duration,
    pub(crate) grace: Duration,
}

/// A worker's current attempt.
struct WorkerSlot {
    worker: Worker,
    link: Option<Link>,
    cancelled: Arc<AtomicBool>,
    /// How much of the log has been read.
    offset: u64,
    /// When it was last heard from; `None` before the program has started.
    heard: Option<Instant>,
    state: char,
    step: String,
    /// Since when its state and step have not changed.
    since: Instant,
    /// When to reconnect.
    reopen: Option<Instant>,
    /// Why the worker is stuck. It is reported as stuck once it has ended.
    stuck: Option<String>,
    end: Option<End>,
}

/// Workers that end and restart together.
struct Group {
    slots: Vec<WorkerSlot>,
    attempt: u32,
    /// The slots in the order in which they ended.
    order: Vec<usize>,
    /// The last signal sent to all, also for workers that are reached later.
    sent: Option<&'static str>,
    /// What to do next with workers that still run.
    next: Option<(Instant, Escalation)>,
    outcome: Option<Outcome>,
}

#[derive(Clone, Copy)]
enum Escalation {
    Send(&'static str),
    GiveUp,
}

/// Watches the groups of a run.
pub(crate) struct Watch<'a> {
    ssh: Ssh,
    run: String,
    limits: Limits,
    /// How to start workers; without it, they are only followed.
    plan: Option<Arc<Plan>>,
    max_restarts: u32,
    out: &'a mut dyn Write,
    events: Sender<Message>,
    received: Receiver<Message>,
    /// The first signal of the user.
    signal: Option<Signal>,
    ticked: Instant,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(
        ssh: Ssh,
        run: String,
        limits: Limits,
        plan: Option<Plan>,
        max_restarts: u32,
        out: &'a mut dyn Write,
    ) -> Watch<'a> {
        let (events, received) = channel();
        let plan = plan.map(Arc::new);
        Watch {
            ssh,
            run,
            limits,
            plan,
            max_restarts,
            out,
            events,
            received,
            signal: None,
            ticked: Instant::now(),
        }
    }

    /// Runs to the end and returns the exit code.
    pub(crate) fn run(mut self, groups: Vec<Vec<Worker>>, signals: &Receiver<Signal>) -> u8 {
        let mut groups: Vec<Group> =
            groups.into_iter().map(|workers| self.group(workers, 0)).collect();
        let mut first_failure = 0;
        while groups.iter().any(|group| group.outcome.is_none()) {
            match self.received.recv_timeout(Duration::from_millis(100)) {
                Ok(message) => self.receive(&mut groups, message),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            while let Ok(signal) = signals.try_recv() {
                if self.plan.is_none() {
                    print_line(self.out, &format!("[pod] {signal}: the run continues"));
                    return 0;
                }
                self.forward(&mut groups, signal);
            }
            let tick = self.ticked.elapsed() >= Duration::from_secs(1);
            if tick {
                self.ticked = Instant::now();
            }
            for group in groups.iter_mut().filter(|group| group.outcome.is_none()) {
                self.watch(group, tick);
                if group.order.len() == group.slots.len() {
                    self.conclude(group);
                }
                if let (0, Some(outcome)) = (first_failure, &group.outcome) {
                    first_failure = outcome.code;
                }
            }
        }
        first_failure
    }

    /// Starts workers, or begins to follow them.
    fn group(&self, workers: Vec<Worker>, attempt: u32) -> Group {
        let retry = (attempt > 0).then(|| Instant::now() + self.limits.start);
        let slot = |worker: Worker| {
            let session =
                session(&self.ssh, &self.run, &worker, attempt, self.plan.is_some(), &self.events);
            let cancelled = session.cancelled.clone();
            let heard = match &self.plan {
                Some(plan) => {
                    session.start(Start {
                        plan: plan.clone(),
                        worker: worker.clone(),
                        resume: retry,
                    });
                    None
                }
                None => {
                    session.open(0);
                    Some(Instant::now())
                }
            };
            WorkerSlot {
                worker,
                link: None,
                cancelled,
                offset: 0,
                heard,
                state: '?',
                step: String::new(),
                since: Instant::now(),
                reopen: None,
                stuck: None,
                end: None,
            }
        };
        let slots = workers.into_iter().map(slot).collect();
        Group { slots, attempt, order: Vec::new(), sent: None, next: None, outcome: None }
    }

    fn receive(&mut self, groups: &mut [Group], Message { worker, attempt, event }: Message) {
        let slots =
            groups.iter_mut().filter(|group| group.attempt == attempt && group.outcome.is_none());
        let target = slots.into_iter().find_map(|group| {
            let index = group.slots.iter().position(|slot| slot.worker.index == worker)?;
            Some((group, index))
        });
        let Some((group, index)) = target else { return };
        let (signaled, slot) = (group.sent.is_some(), &mut group.slots[index]);
        if slot.end.is_some() {
            return;
        }
        let now = Instant::now();
        let end = match event {
            Event::Opened(mut link, offset) => {
                if slot.heard.is_none() {
                    (slot.heard, slot.since) = (Some(now), now);
                }
                group.sent.iter().for_each(|signal| link.send(signal));
                link.send(".");
                (slot.link, slot.offset) = (Some(link), offset);
                return;
            }
            Event::Printed(text, bytes) => {
                (slot.heard, slot.offset) = (Some(now), slot.offset + bytes);
                return print_line(self.out, &format!("[worker {worker}] {text}"));
            }
            Event::Alive(state, step) => {
                slot.heard = Some(now);
                // All states except "stopped" count as running.
                let state = if state == 'T' { 'T' } else { 'R' };
                if slot.state != state || slot.step != step {
                    (slot.state, slot.step, slot.since) = (state, step, now);
                }
                return;
            }
            Event::Broken(reason) => {
                slot.link = None;
                slot.reopen = Some(now + PAUSE);
                let text = format!(
                    "[pod] {}: the connection is lost: {reason}; reconnecting",
                    slot.worker
                );
                return print_line(self.out, &text);
            }
            Event::Exited(code) => match slot.stuck.take() {
                Some(reason) => End::Stuck(reason),
                None => End::Exited { code, signaled },
            },
            Event::Gone(reason) => End::Lost(reason),
        };
        group.end(index, end);
    }

    /// Forwards a signal of the user to all workers.
    fn forward(&mut self, groups: &mut [Group], signal: Signal) {
        let repeated = self.signal.is_some();
        let (name, next) = match signal {
            Signal::Interrupt if repeated => {
                ("KILL", Some((Instant::now() + self.limits.lost, Escalation::GiveUp)))
            }
            // The user decides how long to wait.
            Signal::Interrupt => ("INT", None),
            Signal::Terminate | Signal::HangUp if repeated => return,
            Signal::Terminate | Signal::HangUp => {
                ("TERM", Some((Instant::now() + self.limits.grace, Escalation::Send("KILL"))))
            }
        };
        self.signal.get_or_insert(signal);
        let effect = match name {
            "KILL" => "killing all workers",
            "INT" => "all workers save and end; repeat the signal to kill them",
            _ => "all workers save and end",
        };
        print_line(self.out, &format!("[pod] {signal}: {effect}"));
        for group in groups.iter_mut().filter(|group| group.outcome.is_none()) {
            group.send(name);
            group.next = next;
        }
    }

    /// Handles time-outs: workers that are silent or stuck, connections to reopen, signals to
    /// escalate.
    fn watch(&mut self, group: &mut Group, tick: bool) {
        let now = Instant::now();
        for index in 0..group.slots.len() {
            let slot = &mut group.slots[index];
            if slot.end.is_some() {
                continue;
            }
            if tick && let Some(link) = &mut slot.link {
                link.send(".");
            }
            if let Some(silent) = slot
                .heard
                .map(|heard| now.saturating_duration_since(heard))
                .filter(|s| *s > self.limits.lost)
            {
                group.end(index, End::Lost(format!("no sign of life for {} s", silent.as_secs())));
            } else if slot.reopen.is_some_and(|time| now >= time) {
                slot.reopen = None;
                let owns = self.plan.is_some();
                session(&self.ssh, &self.run, &slot.worker, group.attempt, owns, &self.events)
                    .open(slot.offset);
            }
        }
        if self.plan.is_none() {
            return;
        }
        if group.sent.is_none() {
            self.start_shutdown(group, now);
        }
        match group.next {
            Some((time, next)) if now >= time => {
                group.next = match next {
                    Escalation::Send("KILL") => Some((now + self.limits.lost, Escalation::GiveUp)),
                    Escalation::Send(_) => {
                        Some((now + self.limits.grace, Escalation::Send("KILL")))
                    }
                    Escalation::GiveUp => None,
                };
                match next {
                    Escalation::Send(name) => group.send(name),
                    Escalation::GiveUp => {
                        let running = |index: &usize| group.slots[*index].end.is_none();
                        for index in (0..group.slots.len()).filter(running).collect::<Vec<_>>() {
                            let worker = &group.slots[index].worker;
                            print_line(
                                self.out,
                                &format!("[pod] {worker} still runs after it was killed"),
                            );
                            group.end(index, End::Remains);
                        }
                    }
                }
            }
            _ => {}
        }
    }

    /// Whether a worker has failed or is stuck, so that the others must end.
    fn start_shutdown(&mut self, group: &mut Group, now: Instant) {
        let failed = group.slots.iter().find_map(|slot| match slot.end.as_ref()? {
            End::Exited { code: 0, .. } => None,
            End::Exited { code, .. } => {
                Some((*code == TEMPORARY, format!("{} ended with code {code}", slot.worker)))
            }
            End::Remains => Some((false, format!("{} still runs", slot.worker))),
            End::Lost(reason) | End::Stuck(reason) => {
                Some((false, format!("{} is lost: {reason}", slot.worker)))
            }
        });
        let stopped = |slot: &WorkerSlot| slot.end.is_none() && slot.state == 'T';
        let overdue = |slot: &WorkerSlot| {
            let waits = slot.state == 'T' || !slot.step.is_empty();
            slot.end.is_none()
                && waits
                && now.saturating_duration_since(slot.since) > self.limits.stuck
        };
        // If one worker stops, all of them wait. The culprit is a stopped worker, or the one
        // furthest behind.
        let stuck = failed.is_none() && group.slots.iter().any(overdue);
        let behind = |slot: &&mut WorkerSlot| {
            (slot.state != 'T', slot.step.parse::<u64>().unwrap_or(u64::MAX))
        };
        let limit = self.limits.stuck.as_secs();
        if stuck
            && let Some(slot) =
                group.slots.iter_mut().filter(|slot| slot.end.is_none()).min_by_key(behind)
        {
            let step = if slot.step.is_empty() {
                String::new()
            } else {
                format!(", at step {}", slot.step)
            };
            let problem = if slot.state == 'T' {
                "its process is stopped (SIGSTOP)"
            } else {
                "it makes no progress"
            };
            slot.stuck = Some(format!("{problem} for {limit} s{step}"));
        }
        let Some((saves, text)) = failed.or_else(|| {
            let slot = group.slots.iter().find(|slot| slot.stuck.is_some())?;
            Some((
                false,
                format!("{} is stuck: {}", slot.worker, slot.stuck.as_deref().unwrap_or_default()),
            ))
        }) else {
            return;
        };
        for slot in group.slots.iter_mut().filter(|slot| stopped(slot)) {
            slot.stuck.get_or_insert("its process is stopped (SIGSTOP)".into());
        }
        if group.slots.iter().all(|slot| slot.end.is_some()) {
            return;
        }
        print_line(self.out, &format!("[pod] {text}; ending the others"));
        if saves {
            // They save and end, too.
            group.sent = Some("");
            group.next = Some((now + self.limits.grace, Escalation::Send("TERM")));
        } else {
            group.send("TERM");
            group.next = Some((now + self.limits.grace, Escalation::Send("KILL")));
        }
    }

    /// All workers have ended: restarts the group or concludes it.
    fn conclude(&mut self, group: &mut Group) {
        let ends: Vec<(usize, End)> = group
            .order
            .iter()
            .filter_map(|index| Some((*index, group.slots[*index].end.clone()?)))
            .collect();
        let outcome = outcome(&ends, self.signal, |index| group.slots[index].worker.to_string());
        let restarts = outcome.restart && self.plan.is_some() && group.attempt < self.max_restarts;
        if !outcome.text.is_empty() {
            let consequence = match (restarts, self.max_restarts) {
                (true, max) => {
                    format!("; restart {} of {max}, from the last checkpoint", group.attempt + 1)
                }
                (false, 1..) if outcome.restart => format!("; after {} restarts", group.attempt),
                _ => String::new(),
            };
            print_line(self.out, &format!("[pod] {}{consequence}", outcome.text));
        }
        if restarts {
            let workers = group.slots.drain(..).map(|slot| slot.worker).collect();
            *group = self.group(workers, group.attempt + 1);
        } else {
            group.outcome = Some(outcome);
        }
    }
}

impl Group {
    /// Records the end of a worker, once.
    fn end(&mut self, index: usize, end: End) {
        let slot = &mut self.slots[index];
        if slot.end.is_none() {
            (slot.end, slot.link, slot.reopen) = (Some(end), None, None);
            slot.cancelled.store(true, Ordering::Relaxed);
            self.order.push(index);
        }
    }

    /// Sends a signal to all running workers, now or when they are reached.
    fn send(&mut self, signal: &'static str) {
        self.sent = Some(signal);
        for slot in self.slots.iter_mut().filter(|slot| slot.end.is_none()) {
            slot.cancelled.store(true, Ordering::Relaxed);
            if let Some(link) = &mut slot.link {
                link.send(signal);
            }
        }
    }
}
