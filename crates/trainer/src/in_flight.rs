//! How far the host may run ahead of the device.

use std::collections::VecDeque;
use std::sync::Arc;

use fulmen_tensor::Done;

use crate::hosts::Hosts;
use crate::{Error, Result};

/// Steps queued on the device at once. Two keep it busy; the third hides a slow turn of the host.
const MOST: usize = 3;

/// Steps that were handed to the device and may not have finished.
pub(crate) struct InFlight<'a> {
    steps: VecDeque<Done>,
    /// The other processes, without which a step may never finish.
    hosts: Option<&'a Arc<Hosts>>,
}

impl<'a> InFlight<'a> {
    pub(crate) fn new(hosts: Option<&'a Arc<Hosts>>) -> InFlight<'a> {
        InFlight { steps: VecDeque::new(), hosts }
    }

    /// Waits until another step may be queued; says whether it had to.
    pub(crate) fn make_room(&mut self) -> Result<bool> {
        let full = self.steps.len() >= MOST;
        while self.steps.len() >= MOST {
            self.wait_for_oldest()?;
        }
        Ok(full)
    }

    /// Whether the device has done all that it was given.
    pub(crate) fn is_idle(&self) -> bool {
        self.steps.back().is_none_or(Done::is_ready)
    }

    pub(crate) fn push(&mut self, done: Done) {
        self.steps.push_back(done);
    }

    /// Waits until the device has nothing left to do.
    pub(crate) fn drain(&mut self) -> Result<()> {
        while !self.steps.is_empty() {
            self.wait_for_oldest()?;
        }
        Ok(())
    }

    fn wait_for_oldest(&mut self) -> Result<()> {
        let Some(done) = self.steps.pop_front() else { return Ok(()) };
        if let Some(hosts) = self.hosts {
            hosts.wait_until(|| done.is_ready())?;
        }
        done.wait().map_err(|e| Error::device("a step failed on the device", e))
    }
}
