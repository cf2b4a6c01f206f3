//! [`Monitor`]: watches, ends and restarts the workers of a run.

use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_durable::messages::quantity;
use fulmen_signals::Signal;

use crate::group::{Crashes, Escalation, Group, Progress, Restart, WorkerSlot};
use crate::outcome::{EX_TEMPFAIL, End, Outcome, outcome};
use crate::output::Output;
use crate::plan::{Plan, Worker};
use crate::session::{Event, Message, Session, StartOptions};
use crate::ssh::{RECONNECT_INTERVAL, Ssh};

/// The time limits of a run.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) lost_timeout: Duration,
    pub(crate) stuck_timeout: Duration,
    pub(crate) start_timeout: Duration,
    pub(crate) grace: Duration,
}

/// How many events may wait. The threads that read the hosts' answers wait for space.
const MAX_EVENTS: usize = 256;

/// After this number of crashes at one step, another attempt would crash too.
const MAX_CRASHES: u32 = 3;

/// The longest pause before a restart.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Watches the groups of a run. It never waits for its output.
pub(crate) struct Monitor {
    ssh: Ssh,
    run: String,
    limits: Limits,
    /// How to start workers. Without a plan, workers are only followed.
    plan: Option<Arc<Plan>>,
    max_restarts: u32,
    output: Output,
    events: SyncSender<Message>,
    messages: Receiver<Message>,
    /// The first signal of the user.
    signal: Option<Signal>,
    last_tick: Instant,
}

impl Monitor {
    pub(crate) fn new(
        ssh: Ssh,
        run: String,
        limits: Limits,
        plan: Option<Plan>,
        max_restarts: u32,
        output: Output,
    ) -> Monitor {
        let (events, messages) = sync_channel(MAX_EVENTS);
        let plan = plan.map(Arc::new);
        Monitor {
            ssh,
            run,
            limits,
            plan,
            max_restarts,
            output,
            events,
            messages,
            signal: None,
            last_tick: Instant::now(),
        }
    }

    /// Runs to the end, prints to `out` meanwhile, and returns the exit code.
    pub(crate) fn run_and_print(
        self,
        groups: Vec<Vec<Worker>>,
        signals: Receiver<Signal>,
        out: &mut dyn Write,
    ) -> u8 {
        let output = self.output.clone();
        thread::scope(|scope| {
            let watch = scope.spawn(move || {
                let _closes = self.output.close_on_drop();
                self.run(groups, signals)
            });
            output.print_to(out);
            watch.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs to the end and returns the exit code.
    fn run(mut self, groups: Vec<Vec<Worker>>, signals: Receiver<Signal>) -> u8 {
        let mut groups: Vec<Group> =
            groups.into_iter().map(|workers| self.group(workers, 0, Crashes::default())).collect();
        let mut first_failure = 0;
        while groups.iter().any(|group| group.outcome.is_none()) {
            let mut message = self.messages.recv_timeout(Duration::from_millis(100)).ok();
            let received_at = Instant::now();
            for _ in 0..MAX_EVENTS {
                let Some(received) = message else { break };
                self.receive(&mut groups, received);
                message = self.messages.try_recv().ok();
            }
            if let Some(received) = message {
                self.receive(&mut groups, received);
            }
            if self.plan.is_none() {
                // While nobody read the output, no message was read either.
                let waited = received_at.elapsed();
                for slot in groups.iter_mut().flat_map(|group| &mut group.slots) {
                    slot.last_heard = slot.last_heard.map(|time| time + waited);
                }
            }
            while let Ok(signal) = signals.try_recv() {
                if self.plan.is_none() {
                    self.output.note(format!("[pod] {signal}: the run continues"));
                    return 0;
                }
                self.forward(&mut groups, signal);
            }
            let tick = self.last_tick.elapsed() >= Duration::from_secs(1);
            if tick {
                self.last_tick = Instant::now();
            }
            for group in groups.iter_mut().filter(|group| group.outcome.is_none()) {
                self.watch(group, tick);
                if group.end_order.len() == group.slots.len() {
                    match group.restart.take() {
                        Some(restart) => self.restart(group, restart),
                        None => self.conclude(group),
                    }
                }
                if let (0, Some(outcome)) = (first_failure, &group.outcome) {
                    first_failure = outcome.code;
                }
            }
        }
        first_failure
    }

    /// Starts workers, or begins to follow them.
    fn group(&self, workers: Vec<Worker>, attempt: u32, crashes: Crashes) -> Group {
        let retry = (attempt > 0).then(|| Instant::now() + self.limits.start_timeout);
        let slot = |worker: Worker| {
            let session = Session::new(
                &self.ssh,
                &self.run,
                &worker,
                attempt,
                self.plan.is_some(),
                &self.events,
            );
            let cancelled = session.cancelled.clone();
            let last_heard = match &self.plan {
                Some(plan) => {
                    session.start(StartOptions {
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
            WorkerSlot { last_heard, ..WorkerSlot::new(worker, cancelled) }
        };
        let slots = workers.into_iter().map(slot).collect();
        Group {
            slots,
            attempt,
            end_order: Vec::new(),
            last_signal: None,
            next_escalation: None,
            crashes,
            restart: None,
            outcome: None,
        }
    }

    fn receive(&mut self, groups: &mut [Group], Message { worker, attempt, event }: Message) {
        let slots =
            groups.iter_mut().filter(|group| group.attempt == attempt && group.outcome.is_none());
        let target = slots.into_iter().find_map(|group| {
            let index = group.slots.iter().position(|slot| slot.worker.index == worker)?;
            Some((group, index))
        });
        let Some((group, index)) = target else { return };
        let signaled = group.last_signal.is_some();
        let slot = &mut group.slots[index];
        if slot.end.is_some() {
            return;
        }
        let now = Instant::now();
        let end = match event {
            Event::Opened(mut connection, offset) => {
                if slot.last_heard.is_none() {
                    (slot.last_heard, slot.last_change) = (Some(now), now);
                }
                group.last_signal.iter().for_each(|signal| connection.send(signal));
                connection.send(".");
                (slot.connection, slot.offset) = (Some(connection), offset);
                return;
            }
            Event::Printed(text, position) => {
                slot.last_heard = Some(now);
                slot.offset = position;
                return self.output.line(worker, &text);
            }
            Event::Alive(state, progress) => {
                slot.last_heard = Some(now);
                // All states except "stopped" count as running.
                if !matches!(state, 'Z' | '?') {
                    slot.last_running = Some(now);
                }
                let state = if state == 'T' { 'T' } else { 'R' };
                let progress = Progress(progress);
                if slot.state != state || slot.progress != progress {
                    (slot.state, slot.progress, slot.last_change) = (state, progress, now);
                }
                return;
            }
            Event::Broken(reason) => {
                slot.connection = None;
                slot.reconnect_time = Some(now + RECONNECT_INTERVAL);
                let text = format!(
                    "[pod] {}: the connection is lost: {reason}; reconnecting",
                    slot.worker
                );
                return self.output.note(text);
            }
            Event::Exited(code) => match slot.stuck_reason.take() {
                Some(reason) => End::Stuck(reason),
                None => End::exited(code, signaled),
            },
            Event::NotStarted(reason) => End::NotStarted(reason),
            Event::Gone(reason) => End::Lost(reason),
        };
        group.end(index, end);
    }

    /// Forwards a signal of the user to all workers.
    fn forward(&mut self, groups: &mut [Group], signal: Signal) {
        let repeated = self.signal.is_some();
        let (name, next) = match signal {
            Signal::Interrupt if repeated => {
                ("KILL", Some((Instant::now() + self.limits.lost_timeout, Escalation::GiveUp)))
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
        self.output.note(format!("[pod] {signal}: {effect}"));
        for group in groups.iter_mut().filter(|group| group.outcome.is_none()) {
            group.send(name);
            group.next_escalation = next;
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
            if tick && let Some(connection) = &mut slot.connection {
                connection.send(".");
            }
            if let Some(silent) = slot
                .last_heard
                .map(|last_heard| now.saturating_duration_since(last_heard))
                .filter(|s| *s > self.limits.lost_timeout)
            {
                group.end(index, End::Lost(format!("no sign of life for {} s", silent.as_secs())));
            } else if slot.reconnect_time.is_some_and(|time| now >= time) {
                slot.reconnect_time = None;
                let ends_program = self.plan.is_some();
                Session::new(
                    &self.ssh,
                    &self.run,
                    &slot.worker,
                    group.attempt,
                    ends_program,
                    &self.events,
                )
                .open(slot.offset);
            }
        }
        if self.plan.is_none() {
            return;
        }
        if group.last_signal.is_none() {
            self.start_shutdown(group, now);
        }
        match group.next_escalation {
            Some((time, next)) if now >= time => {
                group.next_escalation = match next {
                    Escalation::Send("KILL") => {
                        Some((now + self.limits.lost_timeout, Escalation::GiveUp))
                    }
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
                            self.output
                                .note(format!("[pod] {worker} still runs after it was killed"));
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
            End::Exited { code, .. } | End::Crashed(code)
                if *code != EX_TEMPFAIL && group.settles(slot, now) =>
            {
                None
            }
            End::Exited { code, .. } | End::Crashed(code) => {
                Some((*code == EX_TEMPFAIL, format!("{} ended with code {code}", slot.worker)))
            }
            End::Remains => Some((false, format!("{} still runs", slot.worker))),
            End::NotStarted(reason) => {
                Some((false, format!("{} cannot be started: {reason}", slot.worker)))
            }
            End::Lost(reason) | End::Stuck(reason) => {
                Some((false, format!("{} is lost: {reason}", slot.worker)))
            }
        });
        let stopped = |slot: &WorkerSlot| slot.end.is_none() && slot.state == 'T';
        let overdue = |slot: &WorkerSlot| {
            let waits = slot.state == 'T' || !slot.progress.is_empty();
            slot.end.is_none()
                && waits
                && now.saturating_duration_since(slot.last_change) > self.limits.stuck_timeout
        };
        let stuck = failed.is_none() && group.slots.iter().any(overdue);
        let limit = self.limits.stuck_timeout.as_secs();
        if stuck && let Some(slot) = group.stuck_slot(now) {
            let step = if slot.progress.is_empty() {
                String::new()
            } else {
                format!(", at step {}", slot.progress.step())
            };
            let problem = if slot.state == 'T' {
                "its process is stopped (SIGSTOP)"
            } else {
                "it makes no progress"
            };
            slot.stuck_reason = Some(format!("{problem} for {limit} s{step}"));
        }
        let Some((saves, text)) = failed.or_else(|| {
            let slot = group.slots.iter().find(|slot| slot.stuck_reason.is_some())?;
            Some((
                false,
                format!(
                    "{} is stuck: {}",
                    slot.worker,
                    slot.stuck_reason.as_deref().unwrap_or_default()
                ),
            ))
        }) else {
            return;
        };
        for slot in group.slots.iter_mut().filter(|slot| stopped(slot)) {
            slot.stuck_reason.get_or_insert("its process is stopped (SIGSTOP)".into());
        }
        if group.slots.iter().all(|slot| slot.end.is_some()) {
            return;
        }
        self.output.note(format!("[pod] {text}; ending the others"));
        if saves {
            // The others save and end too.
            group.last_signal = Some("");
            group.next_escalation = Some((now + self.limits.grace, Escalation::Send("TERM")));
        } else {
            group.send("TERM");
            group.next_escalation = Some((now + self.limits.grace, Escalation::Send("KILL")));
        }
    }

    /// All workers have ended: plans a restart of the group or concludes it.
    fn conclude(&mut self, group: &mut Group) {
        let outcome = self.outcome(group);
        if let Some(worker) = outcome.crashed {
            let step = group.slots[worker].progress.step().parse().unwrap_or(0);
            group.crashes.add(step);
        }
        let Crashes { count, step } = group.crashes;
        let gives_up = outcome.crashed.is_some() && count >= MAX_CRASHES;
        let attempts_left = outcome.restart && group.attempt < self.max_restarts;
        let plan = self.plan.clone().filter(|_| attempts_left && !gives_up);
        let pause = match outcome.crashed {
            Some(_) => Duration::from_secs(1 << group.attempt.min(6)).min(MAX_PAUSE),
            None => Duration::ZERO,
        };
        if !outcome.text.is_empty() {
            let max = self.max_restarts;
            let consequence = if plan.is_some() {
                let time = match pause.as_secs() {
                    0 => String::new(),
                    seconds => format!(" in {seconds} s"),
                };
                format!("; restart {} of {max}{time}, from the last checkpoint", group.attempt + 1)
            } else if attempts_left && self.plan.is_some() {
                let place = match step {
                    0 => "before its first step".to_owned(),
                    step => format!("at step {step}"),
                };
                format!("; the run crashed {count} times {place}, so it is not restarted")
            } else if outcome.restart && max > 0 {
                format!("; after {}", quantity(group.attempt, "restart"))
            } else {
                String::new()
            };
            self.output.note(format!("[pod] {}{consequence}", outcome.text));
        }
        let Some(plan) = plan else {
            group.outcome = Some(outcome);
            return;
        };
        let (send, workers) = channel();
        let current: Vec<Worker> = group.slots.iter().map(|slot| slot.worker.clone()).collect();
        let output = self.output.clone();
        let timeout = self.limits.start_timeout;
        let find = move || {
            let found = plan.workers_of_restart(current, timeout, |note| output.note(note));
            // Nobody receives it if the user ended the run.
            let _ = send.send(found);
        };
        thread::spawn(find);
        group.restart = Some(Restart { time: Instant::now() + pause, workers });
    }

    fn outcome(&self, group: &Group) -> Outcome {
        let ends: Vec<(usize, End)> = group
            .end_order
            .iter()
            .filter_map(|index| Some((*index, group.slots[*index].end.clone()?)))
            .collect();
        outcome(&ends, self.signal, |index| group.slots[index].worker.to_string())
    }

    /// Starts a group again once it is time, unless the user has ended the run.
    fn restart(&mut self, group: &mut Group, restart: Restart) {
        if self.signal.is_some() {
            let outcome = self.outcome(group);
            self.output.note(format!("[pod] {}", outcome.text));
            group.outcome = Some(outcome);
            return;
        }
        if Instant::now() < restart.time {
            group.restart = Some(restart);
            return;
        }
        match restart.workers.try_recv() {
            Ok(Ok(workers)) => *group = self.group(workers, group.attempt + 1, group.crashes),
            Ok(Err(error)) => {
                self.output.note(format!("[pod] {error}"));
                group.outcome = Some(self.outcome(group));
            }
            Err(TryRecvError::Empty) => group.restart = Some(restart),
            // The thread panicked.
            Err(TryRecvError::Disconnected) => group.outcome = Some(self.outcome(group)),
        }
    }
}
