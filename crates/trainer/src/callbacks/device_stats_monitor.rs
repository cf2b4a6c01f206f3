//! [`DeviceStatsMonitor`]: how much memory devices and host use.

use fulmen_pjrt::Device;

use crate::callbacks::callback::Callback;
use crate::console::note;
use crate::host_memory;
use crate::{LogPoint, TrainStart};

/// Logs at each log point the bytes that are in use on each device of this process, `memory/device0/bytes_in_use`, the most
/// that were (`peak_bytes_in_use`) and how many there are (`bytes_limit`), each where the plugin tells; and of the host, on
/// Linux, what this process takes (`memory/host/resident_bytes`) and what is left for programs
/// (`memory/host/available_bytes`). CPU plugins tell nothing of their devices, which is said once. With several processes
/// the values are those of process 0.
///
/// ```
/// use fulmen_trainer::{Trainer, callbacks::DeviceStatsMonitor};
/// let builder = Trainer::builder().callback(DeviceStatsMonitor::new());
/// ```
#[derive(Debug, Default)]
pub struct DeviceStatsMonitor {
    devices: Vec<Device>,
    told: bool,
}

impl DeviceStatsMonitor {
    /// A monitor.
    pub fn new() -> DeviceStatsMonitor {
        DeviceStatsMonitor::default()
    }
}

impl Callback for DeviceStatsMonitor {
    fn name(&self) -> &'static str {
        "DeviceStatsMonitor"
    }

    fn on_train_start(&mut self, start: &TrainStart<'_>) {
        self.devices = start.local_devices();
        if let Some(Err(error)) = self.devices.first().map(Device::memory_stats)
            && !std::mem::replace(&mut self.told, true)
        {
            note(&format!("note: DeviceStatsMonitor logs the memory of the host alone: {error}"));
        }
    }

    fn log_values(&mut self, _: &LogPoint) -> Vec<(String, f64)> {
        let mut values = vec![];
        for device in &self.devices {
            let Ok(stats) = device.memory_stats() else { continue };
            let bytes = [
                ("bytes_in_use", Some(stats.bytes_in_use)),
                ("peak_bytes_in_use", stats.peak_bytes_in_use),
                ("bytes_limit", stats.bytes_limit),
            ];
            let name = |name| format!("memory/device{}/{name}", device.id());
            values.extend(bytes.into_iter().filter_map(|(kind, bytes)| Some((name(kind), bytes? as f64))));
        }
        let host = [("resident_bytes", host_memory::resident()), ("available_bytes", host_memory::available())];
        values
            .extend(host.into_iter().filter_map(|(kind, bytes)| Some((format!("memory/host/{kind}"), bytes? as f64))));
        values
    }
}
