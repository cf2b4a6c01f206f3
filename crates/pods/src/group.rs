//! [`Group`]: workers that train together, and therefore end and restart together. Each independent
//! program is a separate group.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use crate::Result;
use crate::outcome::{End, Outcome};
use crate::plan::Worker;
use crate::session::Connection;

/// After a worker fails, the others get this long to show that one of them made it fail: it crashed,
/// or its command is wrong.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// Workers that have not yet said whether their programs still run get this long to show it.
const MAX_SETTLE_TIME: Duration = Duration::from_secs(10);

/// A worker on a good network, which reports each second, is rarely silent for this long.
const SILENCE: Duration = Duration::from_secs(3);

/// A worker's current attempt.
pub(crate) struct WorkerSlot {
    pub(crate) worker: Worker,
    pub(crate) connection: Option<Connection>,
    pub(crate) cancelled: Arc<AtomicBool>,
    /// How much of the log has been read.
    pub(crate) offset: u64,
    /// The time of the last message from the worker; `None` before the program has started.
    pub(crate) last_heard: Option<Instant>,
    /// The time of the last message that says that the worker's program runs.
    pub(crate) last_running: Option<Instant>,
    pub(crate) state: char,
    /// What the program has written to its progress file.
    pub(crate) progress: Progress,
    /// The time of the last change of the worker's state or progress, or of its end.
    pub(crate) last_change: Instant,
    /// When to reconnect.
    pub(crate) reconnect_time: Option<Instant>,
    /// Why the worker is stuck. This is reported once the worker has ended.
    pub(crate) stuck_reason: Option<String>,
    pub(crate) end: Option<End>,
}

impl WorkerSlot {
    /// An attempt from which nothing has been heard.
    pub(crate) fn new(worker: Worker, cancelled: Arc<AtomicBool>) -> WorkerSlot {
        WorkerSlot {
            worker,
            connection: None,
            cancelled,
            offset: 0,
            last_heard: None,
            last_running: None,
            state: '?',
            progress: Progress::default(),
            last_change: Instant::now(),
            reconnect_time: None,
            stuck_reason: None,
            end: None,
        }
    }
}

/// A line of a progress file: the number of finished steps of the process and, if it trains, the
/// step of the training.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress(pub(crate) String);

impl Progress {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of finished steps.
    pub(crate) fn finished(&self) -> Option<u64> {
        self.0.split(' ').next()?.parse().ok()
    }

    /// The step to show.
    pub(crate) fn step(&self) -> &str {
        self.0.rsplit(' ').next().unwrap_or_default()
    }
}

/// Workers that end and restart together.
pub(crate) struct Group {
    pub(crate) slots: Vec<WorkerSlot>,
    pub(crate) attempt: u32,
    /// The slots in the order in which they ended.
    pub(crate) end_order: Vec<usize>,
    /// The last signal sent to all workers. Workers that are reached later get it then.
    pub(crate) last_signal: Option<&'static str>,
    /// The next action against workers that still run, and its time.
    pub(crate) next_escalation: Option<(Instant, Escalation)>,
    pub(crate) crashes: Crashes,
    pub(crate) restart: Option<Restart>,
    pub(crate) outcome: Option<Outcome>,
}

/// Crashes in a row, without a step further than before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Crashes {
    pub(crate) count: u32,
    /// The furthest step that was reached.
    pub(crate) step: u64,
}

impl Crashes {
    pub(crate) fn add(&mut self, step: u64) {
        let is_further = step > self.step;
        self.count = if is_further { 1 } else { self.count + 1 };
        self.step = self.step.max(step);
    }
}

/// A restart that is about to happen.
pub(crate) struct Restart {
    pub(crate) time: Instant,
    /// Receives the workers to start, or why there are too few hosts.
    pub(crate) workers: Receiver<Result<Vec<Worker>>>,
}

#[derive(Clone, Copy)]
pub(crate) enum Escalation {
    Send(&'static str),
    GiveUp,
}

impl Group {
    /// Records the end of a worker, once.
    pub(crate) fn end(&mut self, index: usize, end: End) {
        let slot = &mut self.slots[index];
        if slot.end.is_none() {
            (slot.end, slot.connection, slot.reconnect_time) = (Some(end), None, None);
            slot.last_change = Instant::now();
            slot.cancelled.store(true, Ordering::Relaxed);
            self.end_order.push(index);
        }
    }

    /// Whether another worker may still show that it made this one fail. A worker that said after
    /// the failure that its program runs did not.
    pub(crate) fn settles(&self, failed: &WorkerSlot, now: Instant) -> bool {
        let time = now.saturating_duration_since(failed.last_change);
        let is_known = |slot: &WorkerSlot| {
            let runs = slot.last_running.is_some_and(|time| time >= failed.last_change);
            slot.end.is_some() || runs
        };
        time < SETTLE_TIME || (time < MAX_SETTLE_TIME && !self.slots.iter().all(is_known))
    }

    /// The running worker for which the others wait, if the group makes no progress: one that is
    /// stopped, or else the one furthest behind. Of several, it is the one that has been silent for
    /// longest: its network may be slow. On a busy machine, others may be silent for a moment too.
    pub(crate) fn stuck_slot(&mut self, now: Instant) -> Option<&mut WorkerSlot> {
        let silent_since = |slot: &WorkerSlot| {
            let is_silent = |time: &Instant| now.saturating_duration_since(*time) >= SILENCE;
            slot.last_heard.map(|time| Some(time).filter(is_silent).unwrap_or(now))
        };
        self.slots.iter_mut().filter(|slot| slot.end.is_none()).min_by_key(|slot| {
            let finished = slot.progress.finished().unwrap_or(u64::MAX);
            (slot.state != 'T', finished, silent_since(slot))
        })
    }

    /// Sends a signal to all running workers, now or when they are reached.
    pub(crate) fn send(&mut self, signal: &'static str) {
        self.last_signal = Some(signal);
        for slot in self.slots.iter_mut().filter(|slot| slot.end.is_none()) {
            slot.cancelled.store(true, Ordering::Relaxed);
            if let Some(connection) = &mut slot.connection {
                connection.send(signal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crashes_at_the_same_step_are_counted() {
        let mut crashes = Crashes::default();
        let counts = [0, 0, 7, 7, 3, 9].map(|step| {
            crashes.add(step);
            (crashes.count, crashes.step)
        });
        assert_eq!(counts, [(1, 0), (2, 0), (1, 7), (2, 7), (3, 7), (1, 9)]);
    }

    fn slot(index: usize) -> WorkerSlot {
        WorkerSlot::new(Worker::existing(index, "a"), Arc::default())
    }

    fn group(slots: Vec<WorkerSlot>) -> Group {
        Group {
            slots,
            attempt: 0,
            end_order: Vec::new(),
            last_signal: None,
            next_escalation: None,
            crashes: Crashes::default(),
            restart: None,
            outcome: None,
        }
    }

    #[test]
    fn a_failure_settles_once_the_others_have_ended_or_run_on() {
        let mut group = group(vec![slot(0), slot(1), slot(2)]);
        group.end(0, End::exited(1, false));
        let failure = group.slots[0].last_change;
        let settles = |group: &Group, milliseconds: u64| {
            group.settles(&group.slots[0], failure + Duration::from_millis(milliseconds))
        };
        // What the others said before the failure does not count, nor does the end of one of them.
        group.slots[1].last_running = failure.checked_sub(Duration::from_millis(1));
        assert!(settles(&group, 2_000));
        group.slots[1].last_running = Some(failure + Duration::from_millis(500));
        assert!(settles(&group, 2_000));
        group.end(2, End::exited(1, false));
        assert!(settles(&group, 900));
        assert!(!settles(&group, 1_100));
        // A host that says nothing does not delay the end of the others for long.
        group.slots[1].last_running = None;
        assert!(settles(&group, 9_900));
        assert!(!settles(&group, 10_100));
    }

    #[test]
    fn the_stuck_worker_is_stopped_or_furthest_behind_or_silent_for_longest() {
        let mut group = group(vec![slot(0), slot(1), slot(2)]);
        let start = Instant::now();
        let now = start + Duration::from_secs(20);
        let heard = |seconds: u64| Some(start + Duration::from_secs(seconds));
        let stuck = |group: &mut Group| group.stuck_slot(now).unwrap().worker.index;
        for slot in &mut group.slots {
            slot.progress = Progress("5".into());
            slot.last_heard = heard(19);
        }
        assert_eq!(stuck(&mut group), 0);
        // A difference that is shorter than a report's usual delay says nothing.
        group.slots[2].last_heard = heard(18);
        assert_eq!(stuck(&mut group), 0);
        group.slots[2].last_heard = heard(8);
        assert_eq!(stuck(&mut group), 2);
        group.slots[0].last_heard = heard(16);
        assert_eq!(stuck(&mut group), 2);
        group.slots[1].progress = Progress("4".into());
        assert_eq!(stuck(&mut group), 1);
        group.slots[0].state = 'T';
        assert_eq!(stuck(&mut group), 0);
        group.end(0, End::exited(1, false));
        assert_eq!(stuck(&mut group), 1);
    }

    #[test]
    fn a_progress_file_has_finished_steps_and_the_step_of_the_training() {
        let both = Progress("620 520".into());
        assert_eq!((both.finished(), both.step()), (Some(620), "520"));
        let one = Progress("7".into());
        assert_eq!((one.finished(), one.step()), (Some(7), "7"));
        assert_eq!((Progress::default().finished(), Progress::default().step()), (None, ""));
    }
}
