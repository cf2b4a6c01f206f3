//! The results of a preflight, and their JSON form. `display.rs` prints them as text, and `html.rs`
//! as a page.

use fulmen_pjrt::hlo::Collective;
use serde_json::{Value, json};

use crate::{Against, Gpu, LargeTensor, LoaderSpeed, Roofline, Slice, Warning};

/// The results of a preflight, slice by slice.
#[derive(Clone, Debug)]
pub struct Report {
    /// The results for the slices, in the order of the request.
    pub slices: Vec<Feasibility>,
    /// The date and the source of the prices, if prices were given.
    pub prices: Option<(String, String)>,
    /// What the loader gave on this machine, or why it was not measured; `None` if that was not
    /// requested.
    pub loader: Option<Result<LoaderSpeed, String>>,
}

/// The result of a preflight for one slice.
#[derive(Clone, Debug)]
pub struct Feasibility {
    /// The slice.
    pub slice: Slice,
    /// HBM of one device available to programs, in bytes.
    pub hbm_available_bytes: u64,
    /// HBM of one device that the step needs, in bytes, if known.
    pub hbm_needed_bytes: Option<u64>,
    /// HBM of one device that the step needs with kernels, in bytes, if only a selftest is missing to
    /// take them.
    pub hbm_with_kernel_bytes: Option<u64>,
    /// The compile time, in seconds.
    pub compile_s: f64,
    /// The cost of a step that fits.
    pub step: Option<StepCost>,
    /// The largest tensors, if the step does not fit.
    pub largest: Vec<LargeTensor>,
    /// Warnings about what makes the step slower or larger than necessary.
    pub warnings: Vec<Warning>,
    /// The training settings, if the step is a module's.
    pub setting: Option<StepSetting>,
    /// How the step differs from the one that was requested.
    pub note: Option<String>,
    /// HBM of one device that a checkpoint's copy needs in addition, in bytes.
    pub copied_bytes: Option<u64>,
    /// Steps in an epoch, if known.
    pub steps_per_epoch: Option<u64>,
    /// US dollars per hour for the whole slice, if a price is known.
    pub usd_per_hour: Option<f64>,
    /// The same step on GPUs, in the order of the request.
    pub against: Vec<Against>,
}

/// The settings of a training.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSetting {
    /// The global batch size, over all devices.
    pub batch_size: usize,
    /// The Trainer's `precision`.
    pub precision: String,
    /// The Trainer's `strategy`.
    pub strategy: String,
    /// The axes of the devices.
    pub mesh: String,
    /// The bytes of one sample as the loader sends it to the devices, if known.
    pub sample_bytes: Option<u64>,
}

/// The cost of one step, on one device unless stated otherwise.
#[derive(Clone, Debug)]
pub struct StepCost {
    /// FLOPs, counting every iteration of loops.
    pub flops: f64,
    /// Bytes that instructions read and write as the compiler counts them, for every iteration of
    /// loops. This includes bytes that stay on the chip.
    pub bytes_accessed: f64,
    /// Bytes between the chip and HBM, a lower bound.
    pub hbm_traffic: f64,
    /// FLOPs and bytes as the compiler counts them, with the body of each loop counted once.
    pub counted_once: (f64, f64),
    /// The number of loops, and how many of them have an unknown length.
    pub loops: (usize, usize),
    /// The collectives.
    pub collectives: Vec<Collective>,
    /// The roofline estimate.
    pub roofline: Roofline,
    /// The compiler's own estimate of the step time in seconds, if it has one.
    pub optimal_seconds: Option<f64>,
    /// The size of the arguments, in bytes: state and batch.
    pub argument_bytes: u64,
    /// The size of temporary memory, in bytes.
    pub temp_bytes: u64,
    /// The cost of each line of the user's code, longest first.
    pub lines: Vec<LineCost>,
}

/// The cost of a line of the user's code on one device, including its derivatives.
#[derive(Clone, Debug, PartialEq)]
pub struct LineCost {
    /// The line; `None` for the optimizer and for operations that the compiler added.
    pub source: Option<String>,
    /// FLOPs.
    pub flops: f64,
    /// Bytes between the chip and HBM, a lower bound.
    pub hbm_traffic: f64,
    /// The size of the largest HBM arrays that the line makes, in bytes. The arrays need not all
    /// exist at the same time.
    pub array_bytes: u64,
    /// The least time that the published peaks allow, in seconds.
    pub least_s: f64,
}

impl StepCost {
    /// The bytes of all collectives on one device.
    pub fn collective_bytes(&self) -> u64 {
        self.collectives.iter().map(Collective::total_bytes).sum()
    }

    /// The bytes that one device sends to other slices, over the data center network.
    pub fn dcn_sent_bytes(&self) -> f64 {
        sent_bytes(&self.collectives, true)
    }
}

/// The bytes that one device sends within its slice, or to other slices.
pub(crate) fn sent_bytes(collectives: &[Collective], between_slices: bool) -> f64 {
    let sent = collectives.iter().filter(|c| c.is_between_slices == between_slices);
    sent.fold(0.0, |sum, collective| sum + collective.sent_bytes())
}

impl Feasibility {
    /// Whether the step fits into the memory of the slice.
    pub fn fits(&self) -> bool {
        self.step.is_some()
    }

    /// Whether the copy for a checkpoint fits next to the step, so that training continues while a
    /// checkpoint is written. Otherwise training waits until the part that does not fit has been
    /// copied to the host. `None` if unknown.
    pub fn copy_fits(&self) -> Option<bool> {
        Some(self.hbm_needed_bytes?.saturating_add(self.copied_bytes?) <= self.hbm_available_bytes)
    }

    /// The shortest time of an epoch, in hours.
    pub fn epoch_hours(&self) -> Option<f64> {
        Some(self.steps_per_epoch? as f64 * self.step.as_ref()?.roofline.step_s / 3600.0)
    }

    /// US dollars for the shortest epoch.
    pub fn usd_per_epoch(&self) -> Option<f64> {
        Some(self.usd_per_hour? * self.epoch_hours()?)
    }

    fn json(&self, loader: Option<&LoaderSpeed>) -> Value {
        let step = self.step.as_ref();
        let roofline = step.map(|step| &step.roofline);
        let setting = self.setting.as_ref();
        let devices = self.slice.num_devices();
        let collectives: Vec<Value> =
            step.iter().flat_map(|step| &step.collectives).map(collective_json).collect();
        let mut report = json!({
            "topology": self.slice.name(),
            "asked": self.slice.requested_name(),
            "chips": self.slice.num_chips(),
            "devices": devices,
            "batch_size": setting.map(|s| s.batch_size),
            "precision": setting.map(|s| &s.precision),
            "strategy": setting.map(|s| &s.strategy),
            "mesh": setting.map(|s| &s.mesh),
            "note": self.note,
            "fits": self.fits(),
            "hbm_needed_bytes": self.hbm_needed_bytes,
            "hbm_with_kernel_bytes": self.hbm_with_kernel_bytes,
            "hbm_available_bytes": self.hbm_available_bytes,
            "argument_bytes": step.map(|s| s.argument_bytes),
            "temp_bytes": step.map(|s| s.temp_bytes),
            "flops": step.map(|s| s.flops),
            "flops_all_devices": step.map(|s| s.flops * devices as f64),
            "flops_loops_once": step.map(|s| s.counted_once.0),
            "hbm_traffic_bytes": step.map(|s| s.hbm_traffic),
            "bytes_accessed": step.map(|s| s.bytes_accessed),
            "bytes_accessed_loops_once": step.map(|s| s.counted_once.1),
            "loops": step.map(|s| s.loops.0),
            "loops_of_unknown_length": step.map(|s| s.loops.1),
            "collective_bytes": step.map(StepCost::collective_bytes),
            "collective_sent_bytes": step.map(|s| sent_bytes(&s.collectives, false)),
            "collectives": collectives,
            "estimated_step_s": roofline.map(|r| r.step_s),
            "matrix_s": roofline.map(|r| r.matrix_s),
            "memory_s": roofline.map(|r| r.memory_s),
            "collective_s": roofline.map(|r| r.collective_s),
            "serial_step_s": roofline.map(|r| r.serial_s),
            "optimal_seconds": step.and_then(|s| s.optimal_seconds),
            "bound_by": roofline.map(|r| r.bound_by.to_string()),
            "peak_share": roofline.map(|r| r.peak_share),
            "steps_per_epoch": self.steps_per_epoch,
            "epoch_hours": self.epoch_hours(),
            "usd_per_hour": self.usd_per_hour,
            "usd_per_epoch": self.usd_per_epoch(),
            "compile_s": self.compile_s,
            "sources": self.slice.generation().sources,
        });
        self.add_lists(&mut report);
        report["checkpoint_copy"] = self
            .copied_bytes
            .map(|bytes| json!({ "bytes": bytes, "fits": self.copy_fits() }))
            .into();
        report["slices"] = self.slice.num_slices().into();
        let host = self.slice.host();
        report["hosts"] = json!({
            "count": self.slice.num_hosts(),
            "vcpus": host.vcpus,
            "gigabytes": host.gigabytes,
        });
        report["data"] = self.data_json(loader);
        // One slice does not use the data center network.
        let dcn = self.slice.generation().dcn_bandwidth.filter(|_| self.slice.num_slices() > 1);
        report["data_center_network"] = dcn
            .map(|(bandwidth, source)| {
                json!({ "sent_bytes": step.map(StepCost::dcn_sent_bytes), "s": roofline.map(|r| r.dcn_s),
                        "chip_bytes_per_s": bandwidth, "source": source })
            })
            .into();
        report
    }

    fn add_lists(&self, report: &mut Value) {
        let largest = self.largest.iter().map(|t| {
            json!({ "what": t.name, "type": t.ty.to_string(), "count": t.count, "device_bytes": t.device_bytes,
                    "at": t.source })
        });
        let lines = self.step.iter().flat_map(|step| &step.lines).map(|line| {
            json!({ "at": line.source, "flops": line.flops, "hbm_traffic_bytes": line.hbm_traffic,
                    "array_bytes": line.array_bytes, "least_s": line.least_s })
        });
        let warnings =
            self.warnings.iter().map(|w| json!({ "message": w.message, "at": w.source }));
        report["warnings"] = warnings.collect();
        report["largest"] = largest.collect();
        report["lines"] = lines.collect();
        report["against"] = self.against.iter().map(Against::json).collect();
    }
}

fn collective_json(collective: &Collective) -> Value {
    json!({
        "kind": collective.kind.name(),
        "bytes": collective.bytes,
        "times": collective.times,
        "group_size": collective.group_size,
        "between_slices": collective.is_between_slices,
        "at": collective.source.as_ref().map(ToString::to_string),
    })
}

impl Report {
    /// Whether the step fits every slice.
    pub fn all_fit(&self) -> bool {
        self.slices.iter().all(Feasibility::fits)
    }

    /// The slices with a price for an epoch, cheapest first.
    pub fn cheapest_first(&self) -> Vec<(&Feasibility, f64)> {
        let mut priced: Vec<_> =
            self.slices.iter().filter_map(|j| Some((j, j.usd_per_epoch()?))).collect();
        priced.sort_by(|a, b| a.1.total_cmp(&b.1));
        priced
    }

    /// Compares the step with the same step on these GPUs, one for each chip.
    pub fn compare_with(&mut self, gpus: &[&'static Gpu]) {
        for feasibility in &mut self.slices {
            let against = gpus.iter().filter_map(|gpu| Against::new(feasibility, gpu)).collect();
            feasibility.against = against;
        }
    }

    /// Adds what the loader gave on this machine, or why it was not measured. A slice for which that
    /// is too little gets a warning.
    pub fn add_loader(&mut self, loader: Result<LoaderSpeed, String>) {
        if let Ok(speed) = &loader {
            for feasibility in &mut self.slices {
                let warning = feasibility.data_warning(speed);
                feasibility.warnings.extend(warning);
            }
        }
        self.loader = Some(loader);
    }

    /// The speed of the loader, if it was measured.
    pub(crate) fn loader_speed(&self) -> Option<&LoaderSpeed> {
        self.loader.as_ref()?.as_ref().ok()
    }

    /// The report as one line of JSON. Unknown values are `null`.
    pub fn json(&self) -> String {
        let speed = self.loader_speed();
        let slices: Vec<Value> = self.slices.iter().map(|slice| slice.json(speed)).collect();
        let mut report = json!({ "topologies": slices });
        report["loader"] = speed.map(LoaderSpeed::json).into();
        report["loader_error"] =
            self.loader.as_ref().and_then(|it| it.as_ref().err()).cloned().into();
        if let Some((date, source)) = &self.prices {
            let order: Vec<_> = self.cheapest_first().iter().map(|(j, _)| j.slice.name()).collect();
            report["prices"] = json!({ "date": date, "source": source });
            report["cheapest_first"] = json!(order);
        }
        report.to_string()
    }
}

/// A report of one slice, for tests: a step of 2.56 TFLOP and 80 GB over all devices, a batch of 1024
/// and 100 steps in an epoch.
#[cfg(test)]
pub(crate) fn example(slice: &str) -> Report {
    use crate::roofline::StepWork;

    let slice: Slice = slice.parse().unwrap();
    let devices = slice.num_devices() as f64;
    let work = StepWork { flops: 2.56e12 / devices, bytes: 80e9 / devices, ..StepWork::default() };
    let step = StepCost {
        flops: work.flops,
        bytes_accessed: work.bytes,
        hbm_traffic: work.bytes,
        counted_once: (work.flops, work.bytes),
        loops: (0, 0),
        collectives: Vec::new(),
        roofline: Roofline::new(&work, &slice),
        optimal_seconds: None,
        argument_bytes: 1 << 30,
        temp_bytes: 3 << 30,
        lines: Vec::new(),
    };
    let feasibility = Feasibility {
        slice,
        hbm_available_bytes: 15 << 30,
        hbm_needed_bytes: Some(12 << 30),
        hbm_with_kernel_bytes: None,
        compile_s: 1.0,
        step: Some(step),
        largest: Vec::new(),
        warnings: Vec::new(),
        setting: Some(StepSetting {
            batch_size: 1024,
            precision: "bf16-mixed".into(),
            strategy: "ddp".into(),
            mesh: "data=8".into(),
            sample_bytes: Some(1000),
        }),
        note: None,
        copied_bytes: None,
        steps_per_epoch: Some(100),
        usd_per_hour: None,
        against: Vec::new(),
    };
    Report { slices: vec![feasibility], prices: None, loader: None }
}
