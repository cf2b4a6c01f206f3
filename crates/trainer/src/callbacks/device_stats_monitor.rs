//! [`DeviceStatsMonitor`]: logs the memory use of the devices and the host.

use fulmen_pjrt::Device;

use crate::callbacks::callback::Callback;
use crate::console::note;
use crate::host_memory;
use crate::{LogPoint, TrainStart};

/// Logs the memory use of the devices and the host at each log point.
///
/// | name | value |
/// | --- | --- |
/// | `memory/device0/bytes_in_use` | bytes in use on the device |
/// | `memory/device0/peak_bytes_in_use` | the most bytes that were in use |
/// | `memory/device0/bytes_limit` | bytes that the device has |
/// | `memory/host/resident_bytes` | bytes that this process uses (Linux) |
/// | `memory/host/available_bytes` | bytes that are left for programs (Linux) |
///
/// Values of devices are logged if the plugin reports them, for each device of this process. CPU
/// plugins report none; a note on standard error says so once. With several processes the values
/// are those of process 0.
///
/// ```
/// use fulmen_trainer::{Trainer, callbacks::DeviceStatsMonitor};
/// let builder = Trainer::builder().callback(DeviceStatsMonitor::new());
/// ```
#[derive(Debug, Default)]
pub struct DeviceStatsMonitor {
    devices: Vec<Device>,
    warned: bool,
}

impl DeviceStatsMonitor {
    /// Creates a monitor.
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
            && !std::mem::replace(&mut self.warned, true)
        {
            note!("DeviceStatsMonitor logs only the memory of the host: {error}");
        }
    }

    fn log_values(&mut self, _: &LogPoint) -> Vec<(String, f64)> {
        let mut values = Vec::new();
        for device in &self.devices {
            let Ok(stats) = device.memory_stats() else { continue };
            let bytes = [
                ("bytes_in_use", Some(stats.bytes_in_use)),
                ("peak_bytes_in_use", stats.peak_bytes_in_use),
                ("bytes_limit", stats.bytes_limit),
            ];
            let name = |name| format!("memory/device{}/{name}", device.id());
            values.extend(
                bytes.into_iter().filter_map(|(kind, bytes)| Some((name(kind), bytes? as f64))),
            );
        }
        let host = [
            ("resident_bytes", host_memory::resident()),
            ("available_bytes", host_memory::available()),
        ];
        values.extend(
            host.into_iter()
                .filter_map(|(kind, bytes)| Some((format!("memory/host/{kind}"), bytes? as f64))),
        );
        values
    }
}
