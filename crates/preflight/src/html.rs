//! A preflight report as an HTML page: a comparison of slices, the roofline with a dot for each
//! line of code, and memory against its limit.

use fulmen_durable::messages::{amount, duration, grouped, memory, money, quantity};
use fulmen_report::chart::{BarPart, Chart, Mark, NEUTRAL, Series, bar, number};
use fulmen_report::html::{Html, element, page, paragraph, section, table};

use crate::{Against, Feasibility, LineCost, Report, StepCost};

/// The maximum number of lines that are shown with a separate color and name.
const MAX_NAMED_LINES: usize = 5;
/// The maximum number of rows in a table of lines. Lines that take less than a thousandth of the
/// step are left out too.
const MAX_LINES: usize = 20;
/// What a section says about a slice without a program.
const NOT_COMPILED: &str = "The step does not fit, so it was not compiled.";

impl Report {
    /// The report as one self-contained HTML page. `title` says what was estimated.
    pub fn html(&self, title: &str) -> String {
        let body = [
            section("slices", "Slices", self.slices_html()),
            section("data", "Data", self.data_html()),
            section("against", "The same step on GPUs", self.against_html()),
            section("roofline", "Roofline", self.slices.iter().map(roofline).collect::<Html>()),
            section(
                "memory",
                "Memory of one device",
                self.slices.iter().map(memory_of).collect::<Html>(),
            ),
            section("warnings", "Warnings", self.slices.iter().map(warnings).collect::<Html>()),
        ];
        page(title, body)
    }

    fn slices_html(&self) -> Html {
        let row = |feasibility: &Feasibility| {
            let roofline = feasibility.step.as_ref().map(|step| &step.roofline);
            let hbm = feasibility.hbm_needed_bytes.map_or("unknown".into(), memory);
            let or_none = |text: Option<String>| text.unwrap_or_else(|| "–".into());
            [
                feasibility.slice.name().to_owned(),
                grouped(feasibility.slice.num_chips() as f64),
                if feasibility.fits() { "fits" } else { "DOES NOT FIT" }.to_owned(),
                format!("{hbm} of {}", memory(feasibility.hbm_available_bytes)),
                or_none(roofline.map(|r| duration(r.step_s))),
                or_none(roofline.map(|r| r.bound_by.to_string())),
                or_none(roofline.map(|r| format!("{:.1} %", 100.0 * r.peak_share))),
                or_none(feasibility.epoch_hours().map(|hours| duration(3600.0 * hours))),
                or_none(feasibility.usd_per_epoch().map(money)),
                or_none(feasibility.usd_per_hour.map(money)),
            ]
        };
        let header = [
            "slice",
            "chips",
            "memory",
            "HBM needed",
            "step, at least",
            "bound by",
            "peak, at most",
            "epoch, at least",
            "epoch's price",
            "hour's price",
        ];
        let rows = self.slices.iter().map(|feasibility| row(feasibility).map(Html::from).into());
        let priced = self.cheapest_first();
        let dots = priced.iter().enumerate().filter_map(|(color, (feasibility, usd))| {
            let points = vec![(60.0 * feasibility.epoch_hours()?, *usd)];
            Some(Series {
                name: feasibility.slice.name().into(),
                color,
                points,
                mark: Mark::Dots,
                ..Series::default()
            })
        });
        let compared = Chart {
            title: "Time and cost of an epoch".into(),
            x: "minutes, at least".into(),
            y: "USD".into(),
            series: dots.collect(),
            ..Chart::default()
        };
        let mut parts = vec![table(&header, rows)];
        if priced.len() > 1 {
            parts.push(element("div", &[("class", &"charts")], compared.html()));
        }
        if let Some((date, source)) = &self.prices {
            parts.push(paragraph(format_args!("List prices of {date}, {source}; they change.")));
        }
        parts.push(paragraph(self.origin()));
        parts.into_iter().collect()
    }
}

impl Report {
    /// What each slice eats, and what the loader would give.
    fn data_html(&self) -> Html {
        let speed = self.loader_speed();
        let row = |feasibility: &Feasibility| {
            let demand = feasibility.data_demand();
            let or_none = |text: Option<String>| text.unwrap_or_else(|| "–".into());
            let host = feasibility.slice.host();
            let supply =
                |workers: usize| or_none(speed.map(|speed| grouped(speed.on_host(host, workers))));
            let bytes = demand.and_then(|demand| demand.bytes_per_s);
            let of_host = demand.map(|demand| grouped(demand.samples_per_s_of_host()));
            [
                feasibility.slice.name().to_owned(),
                or_none(demand.map(|demand| grouped(demand.samples_per_s))),
                or_none(bytes.map(|bytes| amount(bytes, "B/s"))),
                grouped(feasibility.slice.num_hosts() as f64),
                or_none(of_host),
                host.vcpus.to_string(),
                supply(host.vcpus),
                supply(speed.map_or(0, |speed| speed.workers)),
            ]
        };
        let header = [
            "slice",
            "samples/s, at most",
            "bytes/s, at most",
            "hosts",
            "samples/s of a host",
            "vCPUs of a host",
            "loader with a worker on each (estimate)",
            "loader with its workers (estimate)",
        ];
        let rows = self.slices.iter().map(|feasibility| row(feasibility).map(Html::from).into());
        let mut parts = vec![table(&header, rows)];
        match &self.loader {
            Some(Ok(speed)) => parts.push(paragraph(format_args!(
                "The loader: {}. The estimates take a vCPU of a host for a core of this machine.",
                speed.measured()
            ))),
            Some(Err(reason)) => {
                parts.push(paragraph(format_args!("The loader was not measured: {reason}")));
            }
            None => parts.push(paragraph("The loader was not measured.")),
        }
        parts.into_iter().collect()
    }
}

impl Report {
    /// The same step on GPUs, for each slice that it fits.
    fn against_html(&self) -> Html {
        if self.slices.iter().all(|feasibility| feasibility.against.is_empty()) {
            let why = if self.slices.iter().any(Feasibility::fits) {
                "Not requested: --against h100,a100 compares."
            } else {
                "The step fits no slice, so there is nothing to compare."
            };
            return paragraph(why);
        }
        let note = paragraph(
            "The arithmetic and the memory traffic of libtpu's program, at the GPUs' published dense peaks, without \
             communication. A GPU's compiler would fuse other operations.",
        );
        [note].into_iter().chain(self.slices.iter().map(against)).collect()
    }
}

/// The step of a slice on GPUs.
fn against(feasibility: &Feasibility) -> Html {
    if feasibility.against.is_empty() {
        return with_name(feasibility, paragraph(NOT_COMPILED));
    }
    let header = [
        "GPU",
        "number",
        "step, at least",
        "bound by",
        "step in f32, at least",
        "memory",
        "as fast as the slice",
        "hour's price",
        "epoch's price",
        "price of",
    ];
    let row = |row: &Against| {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "–".into());
        let price = row.gpu.price.map(|price| format!("{}, {}", price.date, price.source));
        [
            row.gpu.full_name.to_owned(),
            grouped(row.count as f64),
            format!("{} ({})", duration(row.step_s), row.gpu.half_type),
            row.bound_name().to_owned(),
            duration(row.step_f32_s),
            row.fit_name().to_owned(),
            or_none(row.as_fast.map(|count| quantity(grouped(count as f64), "GPU"))),
            or_none(row.usd_per_hour().map(money)),
            or_none(row.usd_per_epoch().map(money)),
            or_none(price),
        ]
    };
    let rows = feasibility.against.iter().map(|it| row(it).map(Html::from).into());
    with_name(feasibility, table(&header, rows))
}

fn name_of(line: &LineCost) -> &str {
    line.source.as_deref().unwrap_or("optimizer and compiler")
}

/// The file name and the line, for a legend.
fn short(line: &LineCost) -> String {
    let name = name_of(line);
    name.rsplit('/').next().unwrap_or(name).to_owned()
}

fn with_name(feasibility: &Feasibility, content: impl Into<Html>) -> Html {
    [element("h3", &[], feasibility.slice.name()), content.into()].into()
}

/// The roofline, with a dot for each line of code at its arithmetic intensity. A larger dot means a
/// longer time.
fn roofline(feasibility: &Feasibility) -> Html {
    let Some(step) = &feasibility.step else {
        return with_name(feasibility, paragraph(NOT_COMPILED));
    };
    let chip = feasibility.slice.generation();
    let peak = chip.device_flops();
    let bandwidth = chip.device_hbm_bandwidth();
    let roof = |intensity: f64| (intensity, peak.min(intensity * bandwidth));
    // Lines that move no bytes are at the right end.
    let intensity = |line: &LineCost| line.flops / line.hbm_traffic.max(1.0);
    let lines_with_flops: Vec<&LineCost> =
        step.lines.iter().filter(|line| line.flops > 0.0).collect();
    let ridge = peak / bandwidth;
    let intensities = || lines_with_flops.iter().map(|line| intensity(line));
    let left = intensities().fold(ridge / 30.0, f64::min);
    let right = intensities().fold(ridge * 30.0, f64::max).min(ridge * 1e4);
    let total: f64 = step.lines.iter().map(|line| line.least_s).sum();
    let dots = |name: String, color: usize, lines: &[&LineCost]| Series {
        name,
        color,
        mark: Mark::Dots,
        points: lines.iter().map(|line| roof(intensity(line).min(right))).collect(),
        labels: lines
            .iter()
            .map(|line| format!("{}: at least {}", name_of(line), duration(line.least_s)))
            .collect(),
        sizes: lines.iter().map(|line| line.least_s / total).collect(),
    };
    let (named, others) = lines_with_flops.split_at(lines_with_flops.len().min(MAX_NAMED_LINES));
    let mut series = vec![Series {
        name: "peak".into(),
        color: NEUTRAL,
        points: [left, ridge, right].map(roof).into(),
        ..Series::default()
    }];
    if !others.is_empty() {
        series.push(dots(
            quantity(grouped(others.len() as f64), "more line"),
            MAX_NAMED_LINES,
            others,
        ));
    }
    series.extend(named.iter().enumerate().map(|(color, line)| dots(short(line), color, &[line])));
    let chart = Chart {
        title: format!(
            "{}, {} and {}",
            feasibility.slice.name(),
            amount(peak, "FLOP/s"),
            amount(bandwidth, "B/s")
        ),
        x: "operations a byte of HBM".into(),
        y: "FLOP/s".into(),
        series,
        log_x: true,
        log_y: Some(true),
    };
    let rows = step.lines.iter().take(MAX_LINES).filter(|line| line.least_s >= total / 1000.0).map(
        |line| {
            let bound = if intensity(line) < ridge { "memory" } else { "matrix unit" };
            let share = format!("{:.1} %", 100.0 * line.least_s / total);
            let cells = [
                name_of(line).to_owned(),
                duration(line.least_s),
                share,
                amount(line.flops, "FLOP"),
                amount(line.hbm_traffic, "B"),
                number(intensity(line)),
                bound.to_owned(),
            ];
            cells.map(Html::from).into()
        },
    );
    let header =
        ["line", "at least", "share", "arithmetic", "moved", "operations a byte", "bound by"];
    with_name(
        feasibility,
        [element("div", &[("class", &"charts")], chart.html()), table(&header, rows)],
    )
}

fn memory_of(feasibility: &Feasibility) -> Html {
    let limit = feasibility.hbm_available_bytes;
    let bar = |parts: &[(usize, &str, u64)]| {
        let total = parts.iter().map(|part| part.2).sum::<u64>().max(limit).max(1) as f64;
        bar(parts.iter().map(|&(color, name, bytes)| BarPart {
            color,
            name: format!("{name}: {}", memory(bytes)),
            fraction: bytes as f64 / total,
        }))
    };
    let needed = feasibility.hbm_needed_bytes;
    let content: Html = match (&feasibility.step, needed) {
        (Some(step), _) => {
            let StepCost { argument_bytes, temp_bytes, .. } = *step;
            let text = format!(
                "{} for state and batch, {} for the step, of {}",
                memory(argument_bytes),
                memory(temp_bytes),
                memory(limit)
            );
            let mut lines: Vec<&LineCost> =
                step.lines.iter().filter(|line| line.array_bytes > 0).collect();
            lines.sort_by_key(|line| std::cmp::Reverse(line.array_bytes));
            let rows = lines.into_iter().take(MAX_LINES).map(|line| {
                let share =
                    format!("{:.1} %", 100.0 * line.array_bytes as f64 / limit.max(1) as f64);
                [name_of(line).to_owned(), memory(line.array_bytes), share].map(Html::from).into()
            });
            let list =
                table(&["line", "its largest arrays, not all alive at once", "of the limit"], rows);
            let bar = bar(&[(0, "state and batch", argument_bytes), (1, "the step", temp_bytes)]);
            [paragraph(text), bar, list].into()
        }
        (None, needed) => {
            let text = match needed {
                Some(needed) => {
                    format!("needs {} of {}: it does not fit", memory(needed), memory(limit))
                }
                None => format!("does not fit into {}", memory(limit)),
            };
            let rows = feasibility.largest.iter().map(|tensor| {
                let description =
                    format!("{} × {} {}", grouped(tensor.count as f64), tensor.ty, tensor.name);
                let share =
                    format!("{:.1} %", 100.0 * tensor.total_bytes() as f64 / limit.max(1) as f64);
                [tensor.source.clone(), memory(tensor.total_bytes()), share, description]
                    .map(Html::from)
                    .into()
            });
            let list = table(&["line", "memory", "of the limit", "what"], rows);
            [paragraph(text), bar(&[(1, "the step", needed.unwrap_or(limit))]), list].into()
        }
    };
    with_name(feasibility, content)
}

fn warnings(feasibility: &Feasibility) -> Html {
    let item = |warning: &crate::Warning| {
        let location =
            warning.source.as_ref().map(|source| format!(", at {source}")).unwrap_or_default();
        element("li", &[], format!("{}{location}", warning.message))
    };
    let content = if feasibility.warnings.is_empty() {
        paragraph("None.")
    } else {
        element("ul", &[], feasibility.warnings.iter().map(item).collect::<Html>())
    };
    with_name(feasibility, content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::example;
    use crate::{Gpu, LoaderSpeed};

    /// A report of these slices, with a loader that was measured.
    fn report(slices: &[&str]) -> Report {
        let mut report = example(slices[0]);
        report.slices = slices.iter().map(|slice| example(slice).slices.remove(0)).collect();
        report.add_loader(Ok(LoaderSpeed {
            samples_per_s: 1234.5,
            samples: 2500,
            seconds: 2.0,
            workers: 2,
            cores: 2,
            in_order_s: 0.0,
            slowest_stage: None,
        }));
        report
    }

    /// The text of a section of the page, with a line for each element.
    fn section_text(report: &Report, id: &str) -> String {
        let page = report.html("step");
        let start = page.find(&format!("<section id=\"{id}\">")).unwrap();
        let markup = page[start..].split("</section>").next().unwrap();
        let mut text = String::new();
        for part in markup.split('<').filter_map(|part| part.split_once('>')) {
            if !part.1.is_empty() {
                text += part.1;
                text.push('\n');
            }
        }
        text
    }

    #[test]
    fn what_is_true_of_all_slices_is_said_once() {
        let mut report = report(&["v5e:2x4", "v6e:2x4", "v3:2x2"]);
        let text = section_text(&report, "against");
        assert_eq!(text, "The same step on GPUs\nNot requested: --against h100,a100 compares.\n");

        report.slices[2].step = None;
        report.compare_with(&[Gpu::find("h100").unwrap()]);
        let text = section_text(&report, "against");
        assert!(!text.contains("Not requested"), "{text}");
        assert_eq!(text.matches("published dense peaks").count(), 1, "{text}");
        assert_eq!(text.matches("NVIDIA H100").count(), 2, "{text}");
        assert!(
            text.ends_with("v3:2x2\nThe step does not fit, so it was not compiled.\n"),
            "{text}"
        );

        for feasibility in &mut report.slices {
            feasibility.step = None;
        }
        report.compare_with(&[Gpu::find("h100").unwrap()]);
        let text = section_text(&report, "against");
        assert_eq!(
            text,
            "The same step on GPUs\nThe step fits no slice, so there is nothing to compare.\n"
        );
    }

    #[test]
    fn numbers_of_more_than_three_digits_are_in_groups() {
        let mut report = report(&["v5e:16x16", "v5p:16x16x16"]);
        for feasibility in &mut report.slices {
            feasibility.steps_per_epoch = Some(50_000);
        }
        report.compare_with(&[Gpu::find("v100").unwrap()]);
        let slices = section_text(&report, "slices");
        assert!(slices.contains("v5p:16x16x16\n4,096\nfits\n"), "{slices}");
        let data = section_text(&report, "data");
        // 1024 samples in the time of 80 GB over 256 chips at 819 GB/s, for 64 hosts with 112 vCPUs.
        assert!(
            data.contains("v5e:16x16\n2,683,699\n2.68 GB/s\n64\n41,933\n112\n69,132\n1,235\n"),
            "{data}"
        );
        assert!(
            data.contains("1,235 samples/s measured here with 2 workers on 2 cores (2,500 samples"),
            "{data}"
        );
        let gpus = section_text(&report, "against");
        assert!(gpus.contains("\n4,096\n") && gpus.contains(" GPUs\n$"), "{gpus}");
        // The text has the same numbers.
        let text = report.to_string();
        let lines = [
            "v5p:16x16x16: 4,096 chips, 4,096 devices\n",
            "  hosts       1,024 with ",
            "  step        batch of 1,024, ",
            "  epoch       50,000 steps, ",
            "eats at most 2,683,699 samples/s, 2.68 GB/s; each host 41,933 samples/s",
            " on 4,096 GPUs at their published peaks",
        ];
        for line in lines {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
