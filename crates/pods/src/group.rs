//! [`Group`]: workers that train together, and so end and restart as a whole. Each independent
//! program is a group of its own.

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
    /// When it was last heard from; `None` before the program has started.
    pub(crate) last_heard: Option<Instant>,
    pub(crate) state: char,
    pub(crate) step: String,
    /// Since when its state and step have not changed.
    pub(crate) last_change: Instant,
    /// When to reconnect.
    pub(crate) reconnect_time: Option<Instant>,
    /// Why the worker is stuck. It is reported as stuck once it has ended.
    pub(crate) stuck_reason: Option<String>,
    pub(crate) end: Option<End>,
}

/// Workers that end and restart together.
pub(crate) struct Group {
    pub(crate) slots: Vec<WorkerSlot>,
    pub(crate) attempt: u32,
    /// The slots in the order in which they ended.
    pub(crate) end_order: Vec<usize>,
    /// The last signal sent to all, also for workers that are reached later.
    pub(crate) last_signal: Option<&'static str>,
    /// What to do next with workers that still run.
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
