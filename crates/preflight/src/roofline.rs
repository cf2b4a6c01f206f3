//! A lower bound of the step time: the longest of the times that the matrix units, the memory, the
//! interconnect and the network between slices need at their published peaks, all working at once. Nothing is measured, and
//! real steps take longer.

use std::fmt;

use crate::Slice;

/// The work of one device in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StepWork {
    /// FLOPs.
    pub(crate) flops: f64,
    /// FLOPs that are repeated because `f32` products take several `bf16` passes.
    pub(crate) further_passes: f64,
    /// Bytes that instructions read and write.
    pub(crate) bytes: f64,
    /// Bytes sent to other devices of the slice.
    pub(crate) sent_bytes: f64,
    /// Bytes sent to other slices.
    pub(crate) dcn_bytes: f64,
}

/// The resource that limits the step time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The matrix units.
    MatrixUnit,
    /// HBM bandwidth.
    Memory,
    /// The interconnect.
    Collectives,
    /// The data center network between slices.
    DataCenterNetwork,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MatrixUnit => "matrix unit",
            Self::Memory => "memory",
            Self::Collectives => "collectives",
            Self::DataCenterNetwork => "data center network",
        })
    }
}

/// The least time of a step in seconds, and the share of the matrix units' peak that it reaches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    /// The time for arithmetic.
    pub matrix_s: f64,
    /// The time for HBM reads and writes.
    pub memory_s: f64,
    /// The time for communication within a slice.
    pub collective_s: f64,
    /// The time for communication between slices, over the data center network.
    pub dcn_s: f64,
    /// The time if everything overlaps: the largest of these times.
    pub step_s: f64,
    /// The time if nothing overlaps: the sum of these times.
    pub serial_s: f64,
    /// The resource with the largest of these times.
    pub bound_by: Bound,
    /// The FLOPs of the step divided by what the matrix units could do in `step_s`.
    pub peak_share: f64,
}

impl Roofline {
    /// The roofline for the work of one device of a slice.
    pub(crate) fn new(work: &StepWork, slice: &Slice) -> Roofline {
        let chip = slice.generation();
        let peak = chip.device_flops();
        let matrix_s = (work.flops + work.further_passes) / peak;
        let memory_s = work.bytes / chip.device_hbm_bandwidth();
        // Devices of one chip share its links. The two devices of a single chip have no links
        // between them, only its memory.
        let links = chip.ici_bandwidth / chip.devices as f64 * slice.links();
        let wire = if links > 0.0 { links } else { chip.device_hbm_bandwidth() };
        let collective_s = work.sent_bytes / wire;
        let network = chip.dcn_bandwidth.map(|(bandwidth, _)| bandwidth / chip.devices as f64);
        let dcn_s = network.map_or(0.0, |network| work.dcn_bytes / network);
        let times = [
            (memory_s, Bound::Memory),
            (collective_s, Bound::Collectives),
            (dcn_s, Bound::DataCenterNetwork),
        ];
        let (step_s, bound_by) =
            times.into_iter().fold((matrix_s, Bound::MatrixUnit), |most, next| {
                if next.0 > most.0 { next } else { most }
            });
        let peak_share = if step_s > 0.0 { work.flops / (step_s * peak) } else { 0.0 };
        let serial_s = matrix_s + memory_s + collective_s + dcn_s;
        Roofline { matrix_s, memory_s, collective_s, dcn_s, step_s, serial_s, bound_by, peak_share }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roofline(work: StepWork, slice: &str) -> Roofline {
        Roofline::new(&work, &slice.parse().unwrap())
    }

    #[track_caller]
    fn close(a: f64, b: f64) {
        assert!((a - b).abs() <= 1e-12 * b.abs(), "{a} {b}");
    }

    #[test]
    fn the_longest_of_three_bounds_the_step() {
        // v5e: 197 TFLOP/s, 819 GB/s, and half of its links of 200 GB/s in a slice of 2 × 4.
        let work = StepWork { flops: 197e9, bytes: 819e6, sent_bytes: 1e6, ..StepWork::default() };
        let matrix = roofline(work, "v5e:2x4");
        assert_eq!(matrix.bound_by, Bound::MatrixUnit);
        [matrix.matrix_s, matrix.memory_s, matrix.step_s].into_iter().for_each(|s| close(s, 1e-3));
        close(matrix.collective_s, 1e-5);
        close(matrix.peak_share, 1.0);
        close(matrix.serial_s, 2.01e-3);
        let memory = roofline(StepWork { bytes: 4.0 * 819e6, ..work }, "v5e:2x4");
        assert_eq!(memory.bound_by, Bound::Memory);
        close(memory.step_s, 4e-3);
        close(memory.peak_share, 0.25);
        let sends = roofline(StepWork { sent_bytes: 1e9, ..work }, "v5e:2x4");
        assert_eq!(sends.bound_by, Bound::Collectives);
        close(sends.step_s, 1e-2);
        // A whole pod uses all four links.
        close(roofline(StepWork { sent_bytes: 1e9, ..work }, "v5e:16x16").step_s, 5e-3);
    }

    #[test]
    fn the_network_between_slices_has_its_own_time() {
        // v5e: 3.125 GB/s for each chip.
        let work = StepWork { sent_bytes: 1e6, dcn_bytes: 3.125e6, ..StepWork::default() };
        let two = roofline(work, "2*v5e:2x4");
        [two.dcn_s, two.step_s].into_iter().for_each(|s| close(s, 1e-3));
        assert_eq!(two.bound_by, Bound::DataCenterNetwork);
        close(two.serial_s, 1e-3 + two.collective_s);
        // tpu7x: 12.5 GB/s for the two devices of a chip.
        let work = StepWork { dcn_bytes: 6.25e6, ..StepWork::default() };
        close(roofline(work, "2*tpu7x:2x2x1").dcn_s, 1e-3);
    }

    #[test]
    fn passes_take_time_but_are_no_work() {
        let work = StepWork { flops: 197e9, further_passes: 5.0 * 197e9, ..StepWork::default() };
        let six = roofline(work, "v5e:1x1");
        close(six.step_s, 6e-3);
        close(six.peak_share, 1.0 / 6.0);
    }

    #[test]
    fn two_devices_of_a_chip_share_what_it_has() {
        let work =
            StepWork { flops: 61.5e9, bytes: 450e6, sent_bytes: 41.5e6, ..StepWork::default() };
        let half = roofline(work, "v3:2x2");
        [half.matrix_s, half.memory_s].into_iter().for_each(|s| close(s, 1e-3));
        close(half.collective_s, 0.5e-3);
        close(
            roofline(StepWork { sent_bytes: 450e6, ..StepWork::default() }, "v3:1x1").collective_s,
            1e-3,
        );
    }

    #[test]
    fn no_work_takes_no_time() {
        let empty = roofline(StepWork::default(), "v5e:1x1");
        assert_eq!((empty.step_s, empty.peak_share, empty.bound_by), (0.0, 0.0, Bound::MatrixUnit));
    }
}
