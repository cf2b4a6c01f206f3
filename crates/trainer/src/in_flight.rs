//! How far the host may run ahead of the device.

use std::collections::VecDeque;

use fulmen_tensor::Done;

use crate::{Error, Result};

/// Steps queued on the device at once. Two keep it busy; the third hides a slow turn of the host.
const MOST: usize = 3;

/// Steps that were handed to the device and may not have finished.
#[derive(Default)]
pub(crate) struct InFlight(VecDeque<Done>);

impl InFlight {
    /// Waits until another step may be queued; says whether it had to.
    pub(crate) fn make_room(&mut self) -> Result<bool> {
        let full = self.0.len() >= MOST;
        while self.0.len() >= MOST {
            self.wait_for_oldest()?;
        }
        Ok(full)
    }

    pub(crate) fn push(&mut self, done: Done) {
        self.0.push_back(done);
    }

    /// Waits until the device has nothing left to do.
    pub(crate) fn drain(&mut self) -> Result<()> {
        while !self.0.is_empty() {
            self.wait_for_oldest()?;
        }
        Ok(())
    }

    fn wait_for_oldest(&mut self) -> Result<()> {
        match self.0.pop_front() {
            Some(done) => done.wait().map_err(|e| Error::device("a step failed on the device", e)),
            None => Ok(()),
        }
    }
}
