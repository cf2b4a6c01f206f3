//! The same step on GPUs: what their published peaks allow, and what they cost.
//!
//! The arithmetic and the memory traffic are those that libtpu's program has on the slice. A GPU's
//! compiler would fuse other operations, and GPUs communicate too, so these are lower bounds as
//! rough as the roofline.

use serde_json::{Value, json};

use crate::{Bound, Feasibility, Gpu};

/// A step of a slice on as many GPUs as the slice has chips.
#[derive(Clone, Debug, PartialEq)]
pub struct Against {
    /// The GPU.
    pub gpu: &'static Gpu,
    /// The number of GPUs: one for each chip.
    pub count: usize,
    /// The least time of a step, with products in 16 bits, in seconds.
    pub step_s: f64,
    /// The least time of a step if all products are f32 without tensor cores, in seconds.
    pub step_f32_s: f64,
    /// What limits the step in 16 bits: [`Bound::MatrixUnit`] or [`Bound::Memory`].
    pub bound_by: Bound,
    /// Whether a GPU has the memory that a chip needs for the step.
    pub fits: Option<bool>,
    /// How many GPUs are as fast as the slice, in 16 bits and without communication.
    pub as_fast: Option<u64>,
    /// The shortest epoch on `count` GPUs, in hours.
    pub epoch_hours: Option<f64>,
}

impl Against {
    /// The step of a slice on these GPUs; `None` if it was not compiled because it does not fit.
    pub(crate) fn new(feasibility: &Feasibility, gpu: &'static Gpu) -> Option<Against> {
        let step = feasibility.step.as_ref()?;
        let devices = feasibility.slice.num_devices() as f64;
        let count = feasibility.slice.num_chips();
        let chips = count as f64;
        let flops = step.flops * devices / chips;
        let memory_s = step.hbm_traffic * devices / chips / gpu.memory_bandwidth;
        let matrix_s = flops / gpu.half_flops;
        let step_s = matrix_s.max(memory_s);
        let slice_s = step.roofline.step_s;
        // Rounding may put a whole number slightly above itself.
        let as_fast = (slice_s > 0.0).then(|| (step_s * chips / slice_s - 1e-9).ceil().max(1.0));
        let needed = feasibility.hbm_needed_bytes.map(|bytes| bytes as f64 * devices / chips);
        Some(Against {
            gpu,
            count,
            step_s,
            step_f32_s: (flops / gpu.f32_flops).max(memory_s),
            bound_by: if matrix_s >= memory_s { Bound::MatrixUnit } else { Bound::Memory },
            fits: needed.map(|bytes| bytes <= gpu.memory_bytes as f64),
            as_fast: as_fast.map(|count| count as u64),
            epoch_hours: feasibility.steps_per_epoch.map(|steps| steps as f64 * step_s / 3600.0),
        })
    }

    /// US dollars per hour for all of these GPUs, if a price is known.
    pub fn usd_per_hour(&self) -> Option<f64> {
        Some(self.gpu.price?.usd_per_hour * self.count as f64)
    }

    /// US dollars for the shortest epoch on these GPUs, if a price is known.
    pub fn usd_per_epoch(&self) -> Option<f64> {
        Some(self.usd_per_hour()? * self.epoch_hours?)
    }

    /// What limits the step, in a GPU's words.
    pub(crate) fn bound_name(&self) -> &'static str {
        if self.bound_by == Bound::MatrixUnit { "tensor cores" } else { "memory" }
    }

    /// Whether the step fits, in a word.
    pub(crate) fn fit_name(&self) -> &'static str {
        match self.fits {
            Some(true) => "fits",
            Some(false) => "does not fit",
            None => "unknown",
        }
    }

    pub(crate) fn json(&self) -> Value {
        let price = self.gpu.price.map(|price| {
            json!({ "usd_per_hour": price.usd_per_hour, "date": price.date, "source": price.source })
        });
        json!({
            "gpu": self.gpu.name,
            "name": self.gpu.full_name,
            "count": self.count,
            "half_type": self.gpu.half_type,
            "half_flops": self.gpu.half_flops,
            "f32_flops": self.gpu.f32_flops,
            "memory_bytes": self.gpu.memory_bytes,
            "memory_bandwidth": self.gpu.memory_bandwidth,
            "source": self.gpu.source,
            "estimated_step_s": self.step_s,
            "estimated_step_f32_s": self.step_f32_s,
            "bound_by": self.bound_name(),
            "fits": self.fits,
            "as_fast_as_the_slice": self.as_fast,
            "epoch_hours": self.epoch_hours,
            "price": price,
            "usd_per_hour": self.usd_per_hour(),
            "usd_per_epoch": self.usd_per_epoch(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::example;

    fn close(actual: f64, expected: f64) {
        assert!((actual - expected).abs() < 1e-9 * expected, "{actual} {expected}");
    }

    #[test]
    fn the_step_is_divided_over_as_many_gpus_as_chips() {
        let mut report = example("v5e:2x4");
        let names = ["h100", "v100", "a100", "2080ti"];
        let gpus: Vec<&Gpu> = names.iter().map(|name| Gpu::find(name).unwrap()).collect();
        report.compare_with(&gpus);
        let [h100, v100, a100, turing] = &report.slices[0].against[..] else { panic!("{report}") };
        // 10 GB for each of 8 GPUs.
        assert_eq!((h100.count, h100.bound_by, h100.fits), (8, Bound::Memory, Some(true)));
        close(h100.step_s, 10e9 / 3350e9);
        close(h100.usd_per_hour().unwrap(), 8.0 * 10.98);
        close(h100.usd_per_epoch().unwrap(), 8.0 * 10.98 * 100.0 * h100.step_s / 3600.0);
        // The slice takes 10 GB / (819 GB/s) for each of 8 chips.
        close(report.slices[0].step.as_ref().unwrap().roofline.step_s, 10e9 / 819e9);
        assert_eq!((h100.as_fast, a100.as_fast, v100.as_fast), (Some(2), Some(5), Some(8)));
        // 320 GFLOP for each GPU: more time than 10 GB without tensor cores.
        close(v100.step_f32_s, 0.32e12 / 15.7e12);
        assert_eq!((turing.fits, turing.usd_per_hour()), (Some(false), None));
    }

    #[test]
    fn two_devices_of_a_chip_are_one_gpu() {
        let mut report = example("v3:2x2");
        report.compare_with(&[Gpu::find("a100").unwrap()]);
        let row = &report.slices[0].against[0];
        assert_eq!((row.count, row.fits), (4, Some(true)));
        close(row.step_s, 20e9 / 1555e9);
        // 24 GiB for a chip of two devices.
        report.compare_with(&[Gpu::find("v100").unwrap()]);
        assert_eq!(report.slices[0].against[0].fits, Some(false));
        // A step that was not compiled has no work to compare.
        report.slices[0].step = None;
        report.compare_with(&[Gpu::find("v100").unwrap()]);
        assert!(report.slices[0].against.is_empty());
    }

    #[test]
    fn text_json_and_page_have_the_comparison() {
        let mut report = example("v5e:2x4");
        assert!(!report.to_string().contains("against"), "{report}");
        report.compare_with(&[Gpu::find("h100").unwrap(), Gpu::find("2080ti").unwrap()]);
        let text = report.to_string();
        for part in [
            "  against     the same arithmetic and memory traffic on 8 GPUs at their published peaks",
            "    h100       at least 2.99 ms (bf16, memory; 4.78 ms in f32), fits; 2 GPUs as fast as the slice; \
             $87.84 an hour, $0.01 an epoch (2026-09, Google Cloud, a3-highgpu-1g",
            "2080ti     at least 16.2 ms (f16, memory; 23.9 ms in f32), does not fit",
            "no public on-demand price is known",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        let json: Value = serde_json::from_str(&report.json()).unwrap();
        let rows = &json["topologies"][0]["against"];
        assert_eq!(
            (&rows[0]["gpu"], &rows[0]["as_fast_as_the_slice"]),
            (&json!("h100"), &json!(2))
        );
        assert_eq!(rows[0]["price"]["date"], "2026-09");
        assert_eq!((&rows[1]["fits"], &rows[1]["price"]), (&json!(false), &Value::Null));
        let page = report.html("step");
        for part in ["id=\"against\"", "NVIDIA H100 SXM5 80 GB", "$87.84", "tensor cores"] {
            assert_eq!(page.contains(part), part != "tensor cores", "{part}: {page}");
        }
    }
}
