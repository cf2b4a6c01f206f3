//! The data question: how many samples a second a slice eats, and whether a loader gives them.
//!
//! The demand follows from the batch and the roofline's least step time, so it is an upper bound.
//! The supply is an estimate: what a loader gave on another machine, multiplied by the vCPUs of the
//! slice's hosts. Measuring the loader is the Trainer's part.

use fulmen_durable::messages::{amount, duration, grouped, quantity};
use serde_json::{Value, json};

use crate::{Feasibility, Host, Warning};

/// What a loader gave on the machine of the preflight, without training.
#[derive(Clone, Debug, PartialEq)]
pub struct LoaderSpeed {
    /// Samples per second after the first batch.
    pub samples_per_s: f64,
    /// The number of samples that were read.
    pub samples: u64,
    /// How long the measurement took, in seconds.
    pub seconds: f64,
    /// The threads that fill batches; with 0, the training thread fills them.
    pub workers: usize,
    /// The cores that the process may use.
    pub cores: usize,
    /// The time per sample in which one thread at a time reads records of a stream, in seconds. It
    /// does not shrink with more threads; 0 for samples that are read by index.
    pub in_order_s: f64,
    /// The stage that takes most of the time, such as `decode`, if known.
    pub slowest_stage: Option<String>,
}

/// The data of a slice: what it eats, and what a loader would give.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DataDemand {
    /// The samples per second that all hosts together must give, at most.
    pub samples_per_s: f64,
    /// The bytes per second of these samples as they go to the devices, if known.
    pub bytes_per_s: Option<f64>,
    /// The number of hosts, each of which reads its part.
    pub hosts: usize,
}

impl LoaderSpeed {
    /// The samples per second of one core that is busy with one worker.
    pub fn samples_per_s_of_core(&self) -> f64 {
        self.samples_per_s / self.workers.clamp(1, self.cores.max(1)) as f64
    }

    /// The estimate for a host with this number of workers: a worker on a vCPU is as fast as one on
    /// a core here, and the reading in order is not faster than it was.
    pub fn on_host(&self, host: &Host, workers: usize) -> f64 {
        let scaled = self.samples_per_s_of_core() * workers.clamp(1, host.vcpus) as f64;
        if self.in_order_s > 0.0 { scaled.min(1.0 / self.in_order_s) } else { scaled }
    }

    /// The workers that a host needs for these samples per second, however many it has vCPUs.
    fn workers_for(&self, samples_per_s: f64) -> f64 {
        (samples_per_s / self.samples_per_s_of_core()).ceil().max(1.0)
    }

    /// Where the numbers come from.
    pub(crate) fn measured(&self) -> String {
        format!(
            "{} samples/s measured here with {} on {} ({} in {})",
            grouped(self.samples_per_s),
            quantity(self.workers, "worker"),
            quantity(self.cores, "core"),
            quantity(grouped(self.samples as f64), "sample"),
            duration(self.seconds)
        )
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "samples_per_s": self.samples_per_s,
            "samples": self.samples,
            "seconds": self.seconds,
            "workers": self.workers,
            "cores": self.cores,
            "in_order_s_per_sample": self.in_order_s,
            "slowest_stage": self.slowest_stage,
        })
    }
}

impl DataDemand {
    /// The samples per second that each host must give.
    pub fn samples_per_s_of_host(&self) -> f64 {
        self.samples_per_s / self.hosts as f64
    }

    /// What the slice eats, as a line of text.
    pub(crate) fn text(&self) -> String {
        let bytes = |share: f64| {
            self.bytes_per_s
                .map_or(String::new(), |all| format!(", {}", amount(all * share, "B/s")))
        };
        let mut text = format!("at most {} samples/s{}", grouped(self.samples_per_s), bytes(1.0));
        if self.hosts > 1 {
            let share = bytes(1.0 / self.hosts as f64);
            let of_host = grouped(self.samples_per_s_of_host());
            text += &format!("; each host {of_host} samples/s{share}");
        }
        text
    }
}

impl Feasibility {
    /// What the slice eats; `None` for a step that does not fit, or without a batch size.
    pub fn data_demand(&self) -> Option<DataDemand> {
        let setting = self.setting.as_ref()?;
        let step_s = self.step.as_ref()?.roofline.step_s;
        (step_s > 0.0).then(|| {
            let samples_per_s = setting.batch_size as f64 / step_s;
            DataDemand {
                samples_per_s,
                bytes_per_s: setting.sample_bytes.map(|bytes| samples_per_s * bytes as f64),
                hosts: self.slice.num_hosts(),
            }
        })
    }

    /// What a loader would give on the slice's hosts, as a line of text.
    pub(crate) fn supply_text(&self, speed: &LoaderSpeed) -> String {
        let host = self.slice.host();
        format!(
            "{} samples/s from a host of {} vCPUs with a worker on each, {} with {}; an estimate: \
             {}, a vCPU taken for a core",
            grouped(speed.on_host(host, host.vcpus)),
            host.vcpus,
            grouped(speed.on_host(host, speed.workers)),
            quantity(speed.workers, "worker"),
            speed.measured()
        )
    }

    /// Why the loader cannot keep up, and what to do; `None` if it can.
    pub(crate) fn data_warning(&self, speed: &LoaderSpeed) -> Option<Warning> {
        let needed = self.data_demand()?.samples_per_s_of_host();
        let host = self.slice.host();
        let own = speed.on_host(host, speed.workers);
        if own >= needed {
            return None;
        }
        let all = speed.on_host(host, host.vcpus);
        let workers = speed.workers_for(needed);
        let in_order = speed.in_order_s > 0.0 && 1.0 / speed.in_order_s < needed;
        let remedy = if in_order {
            "one thread at a time reads the records of a stream, so more workers do not help: read \
             several shards at once, or read samples by index"
                .to_owned()
        } else if all >= needed {
            format!("give the loader num_workers({workers:.0}); a host has {} vCPUs", host.vcpus)
        } else {
            let stage = speed.slowest_stage.as_ref();
            let stage =
                stage.map_or(String::new(), |stage| format!(" (the slow stage is {stage})"));
            format!(
                "even a worker on each of its {} vCPUs would give {}{stage}: cache decoded \
                 samples, store smaller ones, do augmentation on the device, or take more hosts",
                host.vcpus,
                grouped(all)
            )
        };
        let message = format!(
            "the loader would give a host {} of the {} samples/s that it may need (an estimate \
             from this machine): {remedy}",
            grouped(own),
            grouped(needed)
        );
        Some(Warning { message, source: None })
    }

    pub(crate) fn data_json(&self, speed: Option<&LoaderSpeed>) -> Value {
        let Some(demand) = self.data_demand() else { return Value::Null };
        let host = self.slice.host();
        json!({
            "samples_per_s": demand.samples_per_s,
            "bytes_per_s": demand.bytes_per_s,
            "host_samples_per_s": demand.samples_per_s_of_host(),
            "estimated_host_supply_samples_per_s": speed.map(|speed| speed.on_host(host, host.vcpus)),
            "estimated_host_supply_with_its_workers_samples_per_s":
                speed.map(|speed| speed.on_host(host, speed.workers)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::example;

    /// A loader that gave this number of samples a second with two workers on two cores.
    fn speed(samples_per_s: f64) -> LoaderSpeed {
        LoaderSpeed {
            samples_per_s,
            samples: 6000,
            seconds: 3.0,
            workers: 2,
            cores: 2,
            in_order_s: 0.0,
            slowest_stage: Some("decode".into()),
        }
    }

    fn warned(slice: &str, speed: LoaderSpeed) -> Option<String> {
        let mut report = example(slice);
        report.add_loader(Ok(speed));
        report.slices.remove(0).warnings.pop().map(|warning| warning.message)
    }

    #[test]
    fn the_demand_is_the_batch_in_the_least_step_time() {
        let report = example("v5e:4x4");
        let demand = report.slices[0].data_demand().unwrap();
        // 16 chips move 80 GB at 819 GB/s each.
        let expected = 1024.0 / (80e9 / 16.0 / 819e9);
        assert!((demand.samples_per_s / expected - 1.0).abs() < 1e-9);
        assert_eq!(demand.bytes_per_s, Some(demand.samples_per_s * 1000.0));
        assert_eq!((demand.hosts, demand.samples_per_s_of_host()), (4, demand.samples_per_s / 4.0));
        assert_eq!(
            demand.text(),
            "at most 167,731 samples/s, 167.73 MB/s; each host 41,933 samples/s, 41.93 MB/s"
        );
    }

    #[test]
    fn a_loader_is_scaled_by_workers_and_vcpus() {
        let host = Host { chips: 4, vcpus: 112, gigabytes: None };
        let two = speed(2000.0);
        assert_eq!(two.samples_per_s_of_core(), 1000.0);
        assert_eq!((two.on_host(&host, 2), two.on_host(&host, 112)), (2000.0, 112_000.0));
        assert_eq!(two.on_host(&host, 500), 112_000.0, "a host has no more vCPUs");
        // Eight workers on two cores are as fast as two, and without workers, one thread reads.
        let eight = LoaderSpeed { workers: 8, ..speed(2000.0) };
        assert_eq!(eight.samples_per_s_of_core(), 1000.0);
        let none = LoaderSpeed { workers: 0, ..speed(1000.0) };
        assert_eq!((none.samples_per_s_of_core(), none.on_host(&host, 0)), (1000.0, 1000.0));
        let in_order = LoaderSpeed { in_order_s: 1e-4, ..speed(2000.0) };
        assert_eq!(in_order.on_host(&host, 112), 10_000.0);
    }

    #[test]
    fn a_loader_that_cannot_keep_up_is_warned_about_with_a_remedy() {
        // A host needs 83,866 samples/s, and has 224 vCPUs.
        assert_eq!(warned("v5e:2x4", speed(200_000.0)), None);
        let workers = warned("v5e:2x4", speed(2000.0)).unwrap();
        assert_eq!(
            workers,
            "the loader would give a host 2,000 of the 83,866 samples/s that it may need (an estimate from this machine): \
             give the loader num_workers(84); a host has 224 vCPUs"
        );
        let slow = warned("v5e:2x4", speed(200.0)).unwrap();
        assert!(
            slow.contains("200 of the 83,866")
                && slow.contains("224 vCPUs would give 22,400 (the slow stage is decode): cache"),
            "{slow}"
        );
        let in_order = LoaderSpeed { in_order_s: 1e-4, ..speed(20_000.0) };
        let in_order = warned("v5e:2x4", in_order).unwrap();
        assert!(
            in_order.contains("10,000 of the 83,866") && in_order.contains("several shards"),
            "{in_order}"
        );
    }

    #[test]
    fn text_json_and_page_have_the_data() {
        let mut report = example("v5e:2x4");
        assert!(report.to_string().contains("Nothing was measured"), "{report}");
        report.add_loader(Ok(speed(2000.0)));
        let text = report.to_string();
        for part in [
            "  data        eats at most 83,866 samples/s, 83.87 MB/s\n",
            "  loader      224,000 samples/s from a host of 224 vCPUs with a worker on each, 2,000 with 2 workers; an \
             estimate: 2,000 samples/s measured here with 2 workers on 2 cores (6,000 samples in 3.00 s), a vCPU taken",
            "  warning: the loader would give a host 2,000 of the 83,866",
            "Only the loader was measured, on this machine",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        let json: Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json["loader"]["samples_per_s"], 2000.0);
        let data = &json["topologies"][0]["data"];
        assert_eq!(data["estimated_host_supply_samples_per_s"], 224_000.0);
        assert_eq!(data["estimated_host_supply_with_its_workers_samples_per_s"], 2000.0);
        assert_eq!(data["samples_per_s"].as_f64().unwrap().round(), 83866.0);
        let page = report.html("step");
        for part in ["id=\"data\"", "83,866", "224,000", "2,000 samples/s measured here"] {
            assert!(page.contains(part), "{part}: {page}");
        }
        report.add_loader(Err("no such file".into()));
        let text = report.to_string();
        assert!(text.contains("The loader was not measured: no such file"), "{text}");
        assert!(report.html("step").contains("The loader was not measured: no such file"));
        let json: Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(
            (&json["loader_error"], &json["loader"]),
            (&json!("no such file"), &Value::Null)
        );
        // A step that does not fit eats nothing.
        report.slices[0].step = None;
        assert_eq!(report.slices[0].data_demand(), None);
    }
}
