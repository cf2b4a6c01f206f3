//! What a preflight found, and the same as JSON for programs. As text for people: `text.rs`; as a page:
//! `html.rs`.

use fulmen_pjrt::hlo::Collective;
use serde_json::{Value, json};

use crate::{LargeTensor, Roofline, Slice, Warning};

/// What a preflight found, slice by slice.
#[derive(Clone, Debug)]
pub struct Report {
    /// In the order in which they were asked for.
    pub slices: Vec<Feasibility>,
    /// When and where the prices were looked up, if prices were asked for.
    pub prices: Option<(String, String)>,
}

/// What a preflight found for one slice.
#[derive(Clone, Debug)]
pub struct Feasibility {
    /// Which slice.
    pub slice: Slice,
    /// HBM of one device that programs may use, in bytes.
    pub hbm_available_bytes: u64,
    /// HBM of one device that the step needs, in bytes, where it is known.
    pub hbm_needed_bytes: Option<u64>,
    /// How long compiling took, in seconds.
    pub compile_s: f64,
    /// What is known of a step that fits.
    pub step: Option<StepCost>,
    /// The largest tensors, where the step does not fit.
    pub largest: Vec<LargeTensor>,
    /// What makes it slower or larger than it need be.
    pub warnings: Vec<Warning>,
    /// How the step would be trained, where it is a module's.
    pub setting: Option<StepSetting>,
    /// What is different from the step that was asked for.
    pub note: Option<String>,
    /// HBM of one device, in bytes, that the copy for a checkpoint takes besides.
    pub copied_bytes: Option<u64>,
    /// Steps an epoch, if that was said.
    pub steps_per_epoch: Option<u64>,
    /// US dollars for an hour of the whole slice, if prices were asked for and there is one.
    pub usd_per_hour: Option<f64>,
}

/// How a step would be trained.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSetting {
    /// Samples in a batch, on all devices together.
    pub batch_size: usize,
    /// The Trainer's `precision`.
    pub precision: String,
    /// The Trainer's `strategy`.
    pub strategy: String,
    /// The axes of the devices.
    pub mesh: String,
}

/// What one step costs. Where not said otherwise, on one device.
#[derive(Clone, Debug)]
pub struct StepCost {
    /// Arithmetic operations, the further runs of loops included.
    pub flops: f64,
    /// Bytes that instructions read and write as the compiler counts, which includes those that stay on the chip, and the
    /// further runs of loops.
    pub bytes_accessed: f64,
    /// Bytes that move between the chip and HBM, at least.
    pub hbm_traffic: f64,
    /// As the compiler counts, which takes the body of each loop once: operations, bytes.
    pub counted_once: (f64, f64),
    /// Loops of the program, and how many of them have a length that could not be told.
    pub loops: (usize, usize),
    /// The collectives.
    pub collectives: Vec<Collective>,
    /// The estimate.
    pub roofline: Roofline,
    /// The compiler's own estimate of a step in seconds, where it has one.
    pub optimal_seconds: Option<f64>,
    /// What the step is given, in bytes: its state and the batch.
    pub argument_bytes: u64,
    /// What it needs besides, in bytes.
    pub temp_bytes: u64,
    /// The same by the lines of the user's code, those that take longest first.
    pub lines: Vec<LineCost>,
}

/// What a line of the user's code costs on one device, its derivatives included.
#[derive(Clone, Debug, PartialEq)]
pub struct LineCost {
    /// The line; none for what the optimizer does and the compiler has added.
    pub source: Option<String>,
    /// Arithmetic operations.
    pub flops: f64,
    /// Bytes that move between the chip and HBM, at least.
    pub hbm_traffic: f64,
    /// Bytes of the largest arrays in HBM that it makes. Not all of them need be alive at once.
    pub array_bytes: u64,
    /// The least that the published peaks allow, in seconds.
    pub least_s: f64,
}

impl StepCost {
    /// What the collectives are about, in bytes, on one device.
    pub fn collective_bytes(&self) -> u64 {
        self.collectives.iter().map(Collective::total_bytes).sum()
    }
}

impl Feasibility {
    /// Whether the step fits into the memory of the slice.
    pub fn fits(&self) -> bool {
        self.step.is_some()
    }

    /// Whether the copy for a checkpoint fits beside the step, so that training goes on while a checkpoint is written. Else it
    /// waits while what does not fit goes to the host. `None` where it is not known.
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

    fn json(&self) -> Value {
        let step = self.step.as_ref();
        let roofline = step.map(|step| &step.roofline);
        let setting = self.setting.as_ref();
        let devices = self.slice.num_devices();
        let collectives: Vec<Value> = step.iter().flat_map(|step| &step.collectives).map(collective_json).collect();
        let largest: Vec<Value> = self
            .largest
            .iter()
            .map(|t| {
                json!({ "what": t.what, "type": t.ty.to_string(), "count": t.count, "device_bytes": t.device_bytes,
                        "at": t.source })
            })
            .collect();
        let lines: Vec<Value> = step
            .iter()
            .flat_map(|step| &step.lines)
            .map(|line| {
                json!({ "at": line.source, "flops": line.flops, "hbm_traffic_bytes": line.hbm_traffic,
                        "array_bytes": line.array_bytes, "least_s": line.least_s })
            })
            .collect();
        let warnings: Vec<Value> =
            self.warnings.iter().map(|w| json!({ "message": w.message, "at": w.source })).collect();
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
            "collective_sent_bytes": step.map(|s| s.collectives.iter().fold(0.0, |n, c| n + c.sent_bytes())),
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
            "warnings": warnings,
            "largest": largest,
            "sources": self.slice.generation().sources,
        });
        report["lines"] = lines.into();
        report["checkpoint_copy"] =
            self.copied_bytes.map(|bytes| json!({ "bytes": bytes, "fits": self.copy_fits() })).into();
        report
    }
}

fn collective_json(collective: &Collective) -> Value {
    json!({
        "kind": collective.kind.name(),
        "bytes": collective.bytes,
        "times": collective.times,
        "group_size": collective.group_size,
        "at": collective.source.as_ref().map(ToString::to_string),
    })
}

impl Report {
    /// Whether the step fits into every slice.
    pub fn all_fit(&self) -> bool {
        self.slices.iter().all(Feasibility::fits)
    }

    /// The slices with a price for an epoch, cheapest first.
    pub fn cheapest_first(&self) -> Vec<(&Feasibility, f64)> {
        let mut priced: Vec<_> = self.slices.iter().filter_map(|j| Some((j, j.usd_per_epoch()?))).collect();
        priced.sort_by(|a, b| a.1.total_cmp(&b.1));
        priced
    }

    /// Everything as one line of JSON. What is not known is `null`.
    pub fn json(&self) -> String {
        let mut report = json!({ "topologies": self.slices.iter().map(Feasibility::json).collect::<Vec<_>>() });
        if let Some((date, source)) = &self.prices {
            let order: Vec<_> = self.cheapest_first().iter().map(|(j, _)| j.slice.name()).collect();
            report["prices"] = json!({ "date": date, "source": source });
            report["cheapest_first"] = json!(order);
        }
        report.to_string()
    }
}
