//! [`Group`]: workers that train together, and therefore end and restart together. Each independent
//! program is a separate group.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::outcome::{End, Outcome};
use crate::plan::Worker;
use crate::session::Connection;

/// A worker's current attempt.
pub(crate) struct WorkerSlot {
    pub(crate) worker: Worker,
    pub(crate) connection: Option<Connection>,
    pub(crate) cancelled: Arc<AtomicBool>,
    /// How much of the log has been read.
    pub(crate) offset: u64,
    /// The time of the last message from the worker; `None` before the program has started.
    pub(crate) last_heard: Option<Instant>,
    pub(crate) state: char,
    pub(crate) step: String,
    /// The time of the last change of the worker's state or step.
    pub(crate) last_change: Instant,
    /// When to reconnect.
    pub(crate) reconnect_time: Option<Instant>,
    /// Why the worker is stuck. This is reported once the worker has ended.
    pub(crate) stuck_reason: Option<String>,
    pub(crate) end: Option<End>,
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
    pub(crate) outcome: Option<Outcome>,
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
            slot.cancelled.store(true, Ordering::Relaxed);
            self.end_order.push(index);
        }
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
