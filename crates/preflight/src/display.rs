//! A preflight report as text: readable units, one fact a line.

use std::collections::BTreeMap;
use std::fmt;

use fulmen_durable::messages::{amount, duration, grouped, memory, money, quantity};
use fulmen_pjrt::hlo::Collective;

use crate::{Against, Feasibility, LoaderSpeed, Report, Slice, StepCost, StepSetting};

impl fmt::Display for StepSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "batch of {}, {}, {} over {}",
            grouped(self.batch_size as f64),
            self.precision,
            self.strategy,
            self.mesh
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for feasibility in &self.slices {
            feasibility.write(f, self.loader_speed())?;
            writeln!(f)?;
        }
        if let Some(Err(reason)) = &self.loader {
            writeln!(f, "The loader was not measured: {reason}\n")?;
        }
        if let Some((date, source)) = &self.prices {
            writeln!(
                f,
                "Cost of the shortest epoch, cheapest first (list prices of {date}, {source}; they change):"
            )?;
            let priced = self.cheapest_first();
            for (feasibility, usd) in &priced {
                let hour = feasibility.usd_per_hour.unwrap_or_default();
                writeln!(
                    f,
                    "  {:<14} {:>12}   ({} an hour)",
                    feasibility.slice.name(),
                    money(*usd),
                    money(hour)
                )?;
            }
            if priced.len() < self.slices.len() {
                writeln!(
                    f,
                    "  not listed: slices without a price, and slices that the step does not fit"
                )?;
            }
            writeln!(f)?;
        }
        write!(f, "{}", self.origin())
    }
}

impl Report {
    /// What was measured, and what was not.
    pub(crate) fn origin(&self) -> String {
        let measured = match self.loader_speed() {
            Some(_) => "Only the loader was measured, on this machine",
            None => "Nothing was measured",
        };
        format!(
            "{measured}: libtpu compiled the step for chips that are not present. FLOPs, bytes and memory are the \
             compiler's. Times are lower bounds from the published peaks: real steps take longer."
        )
    }
}

impl fmt::Display for Feasibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, None)
    }
}

impl Feasibility {
    /// The data that the slice eats, and what the loader would give.
    fn write_data(&self, f: &mut fmt::Formatter<'_>, speed: Option<&LoaderSpeed>) -> fmt::Result {
        let Some(demand) = self.data_demand() else { return Ok(()) };
        writeln!(f, "  data        eats {}", demand.text())?;
        match speed {
            Some(speed) => writeln!(f, "  loader      {}", self.supply_text(speed)),
            None => Ok(()),
        }
    }

    /// The same step on GPUs, a line for each.
    fn write_against(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.against.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "  against     the same arithmetic and memory traffic on {} at their published peaks, without communication:",
            quantity(grouped(self.slice.num_chips() as f64), "GPU")
        )?;
        for row in &self.against {
            let Against { gpu, step_s, step_f32_s, .. } = row;
            write!(
                f,
                "    {:<10} at least {} ({}, {}; {} in f32), {}",
                gpu.name,
                duration(*step_s),
                gpu.half_type,
                row.bound_name(),
                duration(*step_f32_s),
                row.fit_name()
            )?;
            if let Some(count) = row.as_fast {
                write!(f, "; {} as fast as the slice", quantity(grouped(count as f64), "GPU"))?;
            }
            match (row.usd_per_hour(), row.gpu.price) {
                (Some(hour), Some(price)) => {
                    write!(f, "; {} an hour", money(hour))?;
                    if let Some(epoch) = row.usd_per_epoch() {
                        write!(f, ", {} an epoch", money(epoch))?;
                    }
                    writeln!(f, " ({}, {})", price.date, price.source)?;
                }
                _ => writeln!(f, "; no public on-demand price is known")?,
            }
        }
        Ok(())
    }

    /// Whether the step fits, and what it would need with the kernels that fit.
    fn write_memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needed = self.hbm_needed_bytes.map_or("unknown".into(), memory);
        let verdict = if self.fits() { "fits" } else { "DOES NOT FIT" };
        writeln!(
            f,
            "  {verdict}: needs {needed} of {} HBM on each device",
            memory(self.hbm_available_bytes)
        )?;
        if let Some(bytes) = self.hbm_with_kernel_bytes {
            let fits = if bytes <= self.hbm_available_bytes { "" } else { ", which does not fit" };
            writeln!(f, "  kernel      with kernels, it needs {}{fits}", memory(bytes))?;
        }
        Ok(())
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, speed: Option<&LoaderSpeed>) -> fmt::Result {
        let slice = &self.slice;
        let chips = self.slice.num_chips();
        let devices = self.slice.num_devices();
        let requested = if slice.requested_name() == slice.name() {
            String::new()
        } else {
            format!(" ({})", slice.requested_name())
        };
        let slices = match slice.num_slices() {
            1 => String::new(),
            count => format!("{count} slices with together "),
        };
        writeln!(
            f,
            "{slice}{requested}: {slices}{}, {}",
            quantity(grouped(chips as f64), "chip"),
            quantity(grouped(devices as f64), "device")
        )?;
        let host = slice.host();
        let memory_of_host = host.gigabytes.map_or(String::new(), |gb| format!(", {gb} GB"));
        writeln!(
            f,
            "  hosts       {} with {} vCPUs{memory_of_host}{}",
            grouped(slice.num_hosts() as f64),
            host.vcpus,
            if slice.has_one_host() { "" } else { " each" }
        )?;
        if let Some(setting) = &self.setting {
            writeln!(f, "  step        {setting}")?;
        }
        if let Some(note) = &self.note {
            writeln!(f, "  note: {note}")?;
        }
        self.write_memory(f)?;
        if let Some(step) = &self.step {
            write_step(f, step, &self.slice)?;
        }
        if let (true, Some(bytes), Some(fits)) = (self.fits(), self.copied_bytes, self.copy_fits())
        {
            let effect = if fits {
                "fits next to the step: training continues while it is written".to_owned()
            } else {
                format!(
                    "does not fit next to the step, where {} are free: training waits while the rest is copied to the host",
                    memory(
                        self.hbm_available_bytes
                            .saturating_sub(self.hbm_needed_bytes.unwrap_or_default())
                    )
                )
            };
            writeln!(f, "  checkpoint  a copy of {} {effect}", memory(bytes))?;
        }
        if let (Some(steps), Some(hours)) = (self.steps_per_epoch, self.epoch_hours()) {
            let steps = quantity(grouped(steps as f64), "step");
            writeln!(f, "  epoch       {steps}, at least {}", duration(hours * 3600.0))?;
        }
        self.write_data(f, speed)?;
        self.write_against(f)?;
        if !self.largest.is_empty() {
            writeln!(f, "  the largest tensors of the step, by their size on one device:")?;
            for tensor in &self.largest {
                writeln!(f, "    {tensor}")?;
            }
        }
        for warning in &self.warnings {
            write!(f, "  warning: {}", warning.message)?;
            match &warning.source {
                Some(source) => writeln!(f, "\n    at {source}")?,
                None => writeln!(f)?,
            }
        }
        writeln!(f, "  compiled in {}", duration(self.compile_s))
    }
}

fn write_step(f: &mut fmt::Formatter<'_>, step: &StepCost, slice: &Slice) -> fmt::Result {
    let devices = slice.num_devices();
    let arguments = memory(step.argument_bytes);
    let temporaries = memory(step.temp_bytes);
    writeln!(f, "  memory      {arguments} for state and batch, {temporaries} for the step")?;
    let total = amount(step.flops * devices as f64, "FLOP");
    writeln!(f, "  arithmetic  {} a device, {total} in total", amount(step.flops, "FLOP"))?;
    let hbm = amount(step.hbm_traffic, "B");
    writeln!(
        f,
        "  moved       {} a device, {hbm} of it to or from HBM",
        amount(step.bytes_accessed, "B")
    )?;
    let (loops, unknown) = step.loops;
    if loops > 0 {
        let flops = amount(step.counted_once.0, "FLOP");
        let bytes = amount(step.counted_once.1, "B");
        writeln!(
            f,
            "              with the {} counted by length; the compiler counts each once: {flops}, {bytes}",
            quantity(loops, "loop")
        )?;
    }
    if unknown > 0 {
        let loops = quantity(unknown, "loop");
        writeln!(f, "              {loops} of unknown length, counted once")?;
    }
    for (is_between_slices, kind, bytes, times, group) in by_kind(&step.collectives) {
        let bytes = amount(bytes as f64, "B");
        let members = if is_between_slices { "slices" } else { "devices" };
        let times = grouped(times as f64);
        let group = grouped(group as f64);
        writeln!(f, "  sends       {times} × {kind} over {group} {members}, {bytes}")?;
    }
    let r = &step.roofline;
    let dcn = slice.generation().dcn_bandwidth.filter(|_| slice.num_slices() > 1);
    if let Some((bandwidth, source)) = dcn {
        writeln!(
            f,
            "  network     {} a device to other slices, at {}/s a chip ({source})",
            amount(step.dcn_sent_bytes(), "B"),
            amount(bandwidth, "B")
        )?;
    }
    let network = match dcn {
        Some(_) => format!(", {} for the data center network", duration(r.dcn_s)),
        None => String::new(),
    };
    writeln!(
        f,
        "  time        at least {} ({} for the matrix unit, {} for the memory, {} for collectives{network})",
        duration(r.step_s),
        duration(r.matrix_s),
        duration(r.memory_s),
        duration(r.collective_s)
    )?;
    if let Some(seconds) = step.optimal_seconds {
        writeln!(f, "              {} by the compiler's own estimate", duration(seconds))?;
    }
    writeln!(
        f,
        "  bound by    {}: at most {:.1} % of the matrix unit's peak",
        r.bound_by,
        100.0 * r.peak_share
    )
}

/// Collectives grouped by network, kind and group: whether they are between slices, kind, bytes,
/// count, and devices or slices.
fn by_kind(collectives: &[Collective]) -> Vec<(bool, &'static str, u64, u64, usize)> {
    let mut sums: BTreeMap<_, (u64, u64)> = BTreeMap::new();
    for collective in collectives {
        let key = (collective.is_between_slices, collective.kind.name(), collective.group_size);
        let sum = sums.entry(key).or_default();
        sum.0 = sum.0.saturating_add(collective.total_bytes());
        sum.1 = sum.1.saturating_add(collective.times);
    }
    sums.into_iter()
        .map(|((network, kind, group), (bytes, times))| (network, kind, bytes, times, group))
        .collect()
}
