//! A preflight report as an HTML page: a comparison of slices, the roofline with a dot for each
//! line of code, and memory against its limit.

use fulmen_durable::messages::{amount, duration, memory, money, quantity};
use fulmen_report::chart::{BarPart, Chart, Mark, NEUTRAL, Series, bar, number};
use fulmen_report::html::{Html, element, page, paragraph, section, table};

use crate::{Against, Feasibility, LineCost, Report, StepCost};

/// The maximum number of lines that are shown with a separate color and name.
const MAX_NAMED_LINES: usize = 5;
/// The maximum number of rows in a table of lines. Lines that take less than a thousandth of the
/// step are left out too.
const MAX_LINES: usize = 20;

impl Report {
    /// The report as one self-contained HTML page. `title` says what was estimated.
    pub fn html(&self, title: &str) -> String {
        let body = [
            section("slices", "Slices", self.slices_html()),
            section("data", "Data", self.data_html()),
            section(
                "against",
                "The same step on GPUs",
                self.slices.iter().map(against).collect::<Html>(),
            ),
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
                feasibility.slice.num_chips().to_string(),
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
            let supply = |workers: usize| {
                or_none(speed.map(|speed| format!("{:.0}", speed.on_host(host, workers))))
            };
            let bytes = demand.and_then(|demand| demand.bytes_per_s);
            let of_host = demand.map(|demand| format!("{:.0}", demand.samples_per_s_of_host()));
            [
                feasibility.slice.name().to_owned(),
                or_none(demand.map(|demand| format!("{:.0}", demand.samples_per_s))),
                or_none(bytes.map(|bytes| amount(bytes, "B/s"))),
                feasibility.slice.num_hosts().to_string(),
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

/// The same step on GPUs.
fn against(feasibility: &Feasibility) -> Html {
    if feasibility.against.is_empty() {
        return with_name(feasibility, paragraph("Not requested: --against h100,a100 compares."));
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
            row.count.to_string(),
            format!("{} ({})", duration(row.step_s), row.gpu.half_type),
            row.bound_name().to_owned(),
            duration(row.step_f32_s),
            row.fit_name().to_owned(),
            or_none(row.as_fast.map(|count| quantity(count, "GPU"))),
            or_none(row.usd_per_hour().map(money)),
            or_none(row.usd_per_epoch().map(money)),
            or_none(price),
        ]
    };
    let rows = feasibility.against.iter().map(|it| row(it).map(Html::from).into());
    let note = paragraph(
        "The arithmetic and the memory traffic of libtpu's program, at the GPUs' published dense peaks, without \
         communication. A GPU's compiler would fuse other operations.",
    );
    with_name(feasibility, [table(&header, rows), note])
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
        return with_name(feasibility, paragraph("The step does not fit, so it was not compiled."));
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
        series.push(dots(quantity(others.len(), "more line"), MAX_NAMED_LINES, others));
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
                let description = format!("{} × {} {}", tensor.count, tensor.ty, tensor.name);
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
