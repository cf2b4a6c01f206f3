//! The measurements of all processes, gathered in process 0 when a fit ends.

use fulmen_report::{DeviceMemory, HostSummary};
use serde::{Deserialize, Serialize};

use super::Fit;
use crate::session::host_name;
use crate::{Goodput, host_memory};

/// What a process measured in a fit.
#[derive(Serialize, Deserialize)]
pub(super) struct HostMeasurements {
    pub(super) seconds: Goodput,
    pub(super) summary: HostSummary,
}

impl Fit<'_> {
    /// Gathers the measurements of all processes in process 0, after a fit without an error. If
    /// another process has failed, there are none: it reports why.
    pub(super) fn gather_hosts(&mut self) {
        let process_group = self.step.executor.process_group();
        let process_group = process_group.filter(|_| self.session.record.run_dir.is_some());
        let Some(process_group) = process_group.cloned() else { return };
        let own = HostMeasurements {
            seconds: self.session.clock.spent(),
            summary: HostSummary {
                host: host_name(),
                memory: self.memory(),
                host_memory: host_memory::resident(),
                data_wait_share: self.times.wait_share(),
                loader: Some(self.step.train.report().bottleneck()),
            },
        };
        let own = serde_json::to_string(&own).map_err(|e| e.to_string());
        let mut hosts = Vec::new();
        let gathered = process_group.gather("hosts", own, |texts| {
            let read =
                texts.iter().map(|text| serde_json::from_str(text).map_err(|e| e.to_string()));
            hosts = read.collect::<Result<_, _>>()?;
            Ok(String::new())
        });
        if matches!(gathered, Ok(Ok(_))) {
            self.hosts = hosts;
        }
    }

    /// The memory of this process's devices.
    pub(super) fn memory(&self) -> Vec<DeviceMemory> {
        let states = self.summary.state_bytes.iter().map(|&bytes| bytes as u64);
        let devices = self.session.runtime.local_devices().zip(states);
        let memory = devices.map(|(device, state)| {
            let stats = device.memory_stats().ok();
            DeviceMemory {
                device: device.to_string(),
                state,
                temporaries: self.reports.temporaries,
                peak: stats.as_ref().and_then(|stats| Some(stats.peak_bytes_in_use? as u64)),
                limit: stats.as_ref().and_then(|stats| Some(stats.bytes_limit? as u64)),
            }
        });
        memory.collect()
    }
}
