//! The sections of a page about one or several runs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fulmen_durable::messages::{amount, duration, memory, quantity};

use crate::chart::{BarPart, Chart, Mark, Series, bar, class, legend, number};
use crate::differences::differences;
use crate::html::{Html, details, element, page, paragraph, section, table};
use crate::overview::{missing, overview};
use crate::run::{Array, Rows};
use crate::{DeviceMemory, Run, Summary};

/// The maximum number of curves in a page, which keeps it small.
const MAX_CURVES: usize = 60;
/// The maximum number of runs in a page.
const MAX_RUNS: usize = 12;
/// For a matrix with more classes, only its largest errors are shown.
const MAX_CLASSES: usize = 20;
/// The maximum number of rows in long tables.
const MAX_ROWS: usize = 100;
/// The categories of time, in display order: the name in `goodput.json`, and the text.
const BUCKETS: [(&str, &str); 7] = [
    ("steps", "steps"),
    ("start", "start"),
    ("compile", "compile"),
    ("data", "waiting for data"),
    ("validation", "validation"),
    ("checkpoint", "checkpoint"),
    ("lost", "lost and repeated"),
];

/// The number of processes whose memory is shown.
const MAX_HOSTS: usize = 16;

/// The page of one or several runs, with overlaid curves and the differences of the runs. It is
/// smaller than 500 KB.
pub fn report(runs: &[Run]) -> String {
    let omitted = runs.len().saturating_sub(MAX_RUNS);
    let runs = &runs[..runs.len() - omitted];
    let mut body = Vec::new();
    if omitted > 0 {
        body.push(paragraph(format_args!(
            "{} left out; a page shows {MAX_RUNS}.",
            quantity(omitted, "more run")
        )));
    }
    body.push(section("overview", "In short", each(runs, overview)));
    if runs.len() > 1 {
        body.push(section("differences", "Differences", differences(runs)));
    }
    body.push(section("curves", "Curves", curves(runs)));
    if let [Run { summary: Some(Summary { learning_rates: Some(found), .. }), .. }] = runs {
        body.push(section("learning-rates", "Learning rates", found.html()));
    }
    body.push(section("time", "Where the time went", time(runs)));
    body.push(section("steps", "Step times", steps(runs)));
    body.push(section("memory", "Memory", each(runs, |run| from_summary(run, memory_of))));
    if let [run] = runs {
        body.push(section("model", "Model", from_summary(run, model)));
        body.push(section("classes", "Classes", classes(run)));
        body.push(section("images", "Images", images(run)));
        body.push(section("configuration", "Configuration", configuration(run)));
        body.push(section("environment", "Environment", environment(run)));
    }
    page(&title(runs), body.into_iter().collect::<Html>())
}

/// The program and the run, or the runs: `mnist: version_0, version_1` if one program made them.
fn title(runs: &[Run]) -> String {
    let program = runs.first().and_then(Run::program);
    match program {
        Some(program)
            if runs.len() > 1 && runs.iter().all(|run| run.program() == Some(program)) =>
        {
            let names: Vec<&str> = runs.iter().map(|run| &*run.name).collect();
            format!("{program}: {}", names.join(", "))
        }
        _ => runs.iter().map(Run::title).collect::<Vec<_>>().join(", "),
    }
}

/// Shows content for each run, with the run's name if there are several.
fn each(runs: &[Run], content: impl Fn(&Run) -> Html) -> Html {
    let one = |run: &Run| match runs {
        [_] => content(run),
        _ => [element("h3", &[], &*run.name), content(run)].into(),
    };
    runs.iter().map(one).collect()
}

fn from_summary(run: &Run, content: fn(&Summary) -> Html) -> Html {
    run.summary.as_ref().map_or_else(|| missing("The folder has no summary.json."), content)
}

/// The names of the curves in display order: losses first, then the learning rate, then the others.
pub(crate) fn by_interest(run: &Run) -> Vec<&str> {
    let mut names: Vec<&str> = run.curves().keys().map(String::as_str).collect();
    let rank = |name: &str| match group(name) {
        base if base.contains("loss") => 0,
        "lr" => 1,
        base if base.starts_with("lr") => 2,
        base if base.contains('/') => 4,
        _ => 3,
    };
    names.sort_by_key(|name| rank(name));
    names
}

/// The title of a curve's chart. Curves whose names differ only in the stage and `_epoch` share a
/// chart.
fn group(name: &str) -> &str {
    let base = name.strip_suffix("_epoch").unwrap_or(name);
    ["train_", "val_", "test_"]
        .into_iter()
        .find_map(|stage| base.strip_prefix(stage))
        .unwrap_or(base)
}

fn curves(runs: &[Run]) -> Html {
    // The charts, in the order of the first run that has them. Each has a run and a name for each
    // curve.
    let mut charts: Vec<(&str, Vec<(usize, &str)>)> = Vec::new();
    for (i, run) in runs.iter().enumerate() {
        for name in by_interest(run) {
            let title = if runs.len() == 1 { group(name) } else { name };
            match charts.iter_mut().find(|chart| chart.0 == title) {
                Some(chart) => chart.1.push((i, name)),
                None => charts.push((title, vec![(i, name)])),
            }
        }
    }
    let mut drawn = 0;
    let num_charts = charts
        .iter()
        .take_while(|chart| {
            drawn += chart.1.len();
            drawn <= MAX_CURVES
        })
        .count();
    let omitted: usize = charts[num_charts..].iter().map(|chart| chart.1.len()).sum();
    charts.truncate(num_charts);
    if charts.is_empty() {
        return missing(
            "There are no logged values: metrics.jsonl and metrics.csv are missing or empty (option `loggers`).",
        );
    }
    let charts_html = charts.iter().map(|(title, members)| {
        let series = members.iter().enumerate().map(|(color, &(run, name))| Series {
            name: if runs.len() == 1 { name.into() } else { runs[run].name.clone() },
            color: if runs.len() == 1 { color } else { run },
            points: runs[run].curves()[name].points(),
            ..Series::default()
        });
        // A schedule ends near zero, and this end would dominate a logarithmic axis.
        let log_y = title.starts_with("lr").then_some(false);
        Chart {
            title: (*title).to_owned(),
            x: "step".into(),
            series: series.collect(),
            log_y,
            ..Chart::default()
        }
        .html()
    });
    let mut parts = vec![element("div", &[("class", &"charts")], charts_html.collect::<Html>())];
    if omitted > 0 {
        let curves = quantity(omitted, "more curve");
        parts.push(missing(&format!("metrics.jsonl has {curves}.")));
    }
    let bad: u64 = runs.iter().map(|run| run.bad_lines).sum();
    if bad > 0 {
        parts.push(missing(&format!("cannot read {} of metrics.jsonl.", quantity(bad, "line"))));
    }
    if let [run] = runs {
        parts.push(details("Last, minimum and maximum", values(run)));
    }
    parts.into_iter().collect()
}

fn values(run: &Run) -> Html {
    let value_and_step = |value: Option<(u64, f64)>| match value {
        Some((step, value)) => [Html::from(number(value)), Html::from(step.to_string())],
        None => Default::default(),
    };
    let rows = by_interest(run).into_iter().take(MAX_ROWS).map(|name| {
        let curve = &run.curves()[name];
        let cells = [curve.last(), curve.min(), curve.max()].map(value_and_step);
        [Html::from(name)].into_iter().chain(cells.into_iter().flatten()).collect()
    });
    table(&["metric", "last", "at step", "minimum", "at step", "maximum", "at step"], rows)
}

/// How the run spent its time in all its starts: name, text, seconds.
pub(crate) fn buckets(run: &Run) -> Vec<(&str, &str, f64)> {
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    for start in &run.goodput {
        for (name, seconds) in &start.seconds {
            *sums.entry(name).or_default() += seconds.max(0.0);
        }
    }
    let mut spent = Vec::new();
    for (name, text) in BUCKETS {
        spent.extend(sums.remove(name).map(|seconds| (name, text, seconds)));
    }
    // These categories come from later versions.
    spent.extend(sums.into_iter().map(|(name, seconds)| (name, name, seconds)));
    spent.retain(|bucket| bucket.2 > 0.0);
    spent
}

/// The color of a category of time.
fn color(bucket: &str) -> usize {
    BUCKETS.iter().position(|known| known.0 == bucket).unwrap_or(BUCKETS.len())
}

fn time(runs: &[Run]) -> Html {
    each(runs, |run| {
        let spent = buckets(run);
        let total: f64 = spent.iter().map(|bucket| bucket.2).sum();
        if total <= 0.0 {
            return missing("The folder has no goodput.json.");
        }
        let bar = bar(spent.iter().map(|&(name, text, seconds)| BarPart {
            color: color(name),
            name: format!("{text}: {}", duration(seconds)),
            fraction: seconds / total,
        }));
        let starts = match run.goodput.len() {
            1 => String::new(),
            n => format!(", over {n} starts"),
        };
        let rows = spent.iter().map(|&(name, text, seconds)| {
            let swatch = element("i", &[("class", &class(color(name)))], "");
            let name = [swatch, element("span", &[], text)].into();
            vec![name, duration(seconds).into(), format!("{:.1} %", 100.0 * seconds / total).into()]
        });
        let sentence = paragraph(format_args!("{} in total{starts}.", duration(total)));
        let whole = [sentence, bar, table(&["spent on", "time", "share"], rows)];
        whole.into_iter().chain(time_by_process(run)).collect()
    })
}

/// Where the time of each process went in the last start, if there were several.
fn time_by_process(run: &Run) -> Option<Html> {
    let hosts = &run.goodput.last()?.hosts;
    let known =
        BUCKETS.iter().filter(|bucket| hosts.iter().any(|host| host.contains_key(bucket.0)));
    let known: Vec<(&str, &str)> = known.copied().collect();
    let titles: Vec<&str> =
        [&["process"][..], &known.iter().map(|known| known.1).collect::<Vec<_>>()].concat();
    let rows = hosts.iter().enumerate().map(|(process, host)| {
        let times = known.iter().map(|known| host.get(known.0).copied().unwrap_or_default());
        let cells = times.map(|seconds| Html::from(duration(seconds.max(0.0))));
        [Html::from(process.to_string())].into_iter().chain(cells).collect::<Vec<Html>>()
    });
    (!hosts.is_empty()).then(|| table(&titles, rows.take(MAX_ROWS)))
}

fn steps(runs: &[Run]) -> Html {
    let run_series = |(color, run): (usize, &Run)| {
        let histogram = run.summary.as_ref()?.step_times.histogram();
        let points = histogram.iter().map(|&(start, count)| (start * 1e3, count as f64)).collect();
        let (name, mark) = if runs.len() == 1 {
            (String::new(), Mark::Columns)
        } else {
            (run.name.clone(), Mark::Line)
        };
        (!histogram.is_empty()).then(|| Series { name, color, mark, points, ..Series::default() })
    };
    let series: Vec<Series> = runs.iter().enumerate().filter_map(run_series).collect();
    if series.is_empty() {
        return missing("No step was measured: this needs two consecutive steps without waiting.");
    }
    let chart = Chart {
        title: "Histogram".into(),
        x: "milliseconds".into(),
        y: "steps".into(),
        series,
        log_x: true,
        log_y: Some(false),
    };
    let mut parts = vec![element("div", &[("class", &"charts")], chart.html())];
    if let [run] = runs
        && let Some(summary) = &run.summary
    {
        let median = summary.step_time_p50;
        parts.push(paragraph(format_args!("The median is {}. The slowest:", duration(median))));
        let rows = summary.step_times.slowest.iter().map(|&(step, seconds)| {
            let times =
                if median > 0.0 { format!("{:.1}", seconds / median) } else { String::new() };
            vec![step.to_string().into(), duration(seconds).into(), times.into()]
        });
        parts.push(table(&["step", "time", "times the median"], rows));
    }
    parts.into_iter().collect()
}

fn memory_of(summary: &Summary) -> Html {
    if summary.hosts.is_empty() {
        return memory_of_process(&summary.memory, summary.host_memory);
    }
    let shown = summary.hosts.iter().enumerate().take(MAX_HOSTS);
    let parts = shown.flat_map(|(process, host)| {
        let name = host.host.as_ref().map_or(String::new(), |host| format!(" on {host}"));
        let title = paragraph(format_args!("Process {process}{name}:"));
        [title, memory_of_process(&host.memory, host.host_memory)]
    });
    parts.collect()
}

fn memory_of_process(devices: &[DeviceMemory], host_memory: Option<u64>) -> Html {
    if devices.is_empty() && host_memory.is_none() {
        return missing("Unknown.");
    }
    let mut parts = Vec::new();
    for device in devices {
        let used = [
            (0, "training state", Some(device.state)),
            (1, "temporaries of a step", device.temporaries),
        ];
        let known = || used.iter().filter_map(|&(color, name, bytes)| Some((color, name, bytes?)));
        let sum: u64 = known().map(|part| part.2).sum();
        let whole = device.limit.unwrap_or(sum).max(sum).max(1) as f64;
        let mut text = format!("{}: {} by the program", device.device, memory(sum));
        if let Some(peak) = device.peak {
            let _ = write!(text, ", peak use {}", memory(peak));
        }
        if let Some(limit) = device.limit {
            let _ = write!(text, ", of {}", memory(limit));
        }
        let labels: Vec<(usize, String)> = known()
            .map(|(color, name, bytes)| (color, format!("{name} {}", memory(bytes))))
            .collect();
        let names: Vec<(usize, &str)> =
            labels.iter().map(|(color, label)| (*color, &**label)).collect();
        parts.push(paragraph(text));
        parts.push(bar(known().map(|(color, name, bytes)| BarPart {
            color,
            name: name.to_owned(),
            fraction: bytes as f64 / whole,
        })));
        parts.push(legend(&names));
    }
    if let Some(bytes) = host_memory {
        parts.push(paragraph(format_args!("The host's process: {}", memory(bytes))));
    }
    parts.into_iter().collect()
}

fn model(summary: &Summary) -> Html {
    if summary.model.is_empty() {
        return missing("The model has no parameters.");
    }
    let rows = summary
        .model
        .iter()
        .take(MAX_ROWS)
        .map(|row| row.iter().map(|cell| Html::from(&**cell)).collect());
    let mut total = summary.model_total.clone();
    if summary.model.len() > MAX_ROWS {
        let _ =
            write!(total, "; {} left out", quantity(summary.model.len() - MAX_ROWS, "more part"));
    }
    let mut parts = vec![table(&["name", "type", "parameters", "shapes"], rows), paragraph(total)];
    if !summary.lines.is_empty() {
        let row = |(line, flops, bytes): &(String, f64, f64)| {
            vec![Html::from(&**line), amount(*flops, "FLOP").into(), amount(*bytes, "B").into()]
        };
        parts.push(element("h3", &[], "What a step costs on each device, by line"));
        parts.push(table(
            &["line", "operations", "memory traffic"],
            summary.lines.iter().take(MAX_ROWS).map(row),
        ));
    }
    parts.into_iter().collect()
}

fn classes(run: &Run) -> Html {
    let mut parts = Vec::new();
    let mut vectors: Vec<(&str, &[f64])> = Vec::new();
    for (name, Array { step, rows }) in &run.arrays {
        match rows {
            Rows::Vector(values) => vectors.push((name, values)),
            Rows::Matrix(rows) => {
                parts.extend([element("h3", &[], format!("{name}, step {step}")), matrix(rows)])
            }
        }
    }
    if !vectors.is_empty() {
        let length = vectors.iter().map(|vector| vector.1.len()).max().unwrap_or(0);
        let rows = (0..length.min(MAX_ROWS)).map(|class| {
            let cell = |vector: &(&str, &[f64])| {
                vector.1.get(class).map_or(Html::default(), |v| number(*v).into())
            };
            [class.to_string().into()].into_iter().chain(vectors.iter().map(cell)).collect()
        });
        let header: Vec<&str> =
            ["class"].into_iter().chain(vectors.iter().map(|vector| vector.0)).collect();
        parts.push(table(&header, rows));
        if length > MAX_ROWS {
            parts
                .push(missing(&format!("{} left out.", quantity(length - MAX_ROWS, "more class"))));
        }
    }
    if parts.is_empty() {
        return missing(
            "No metric has a value per class: log one with `cx.log_metric`, for example a confusion matrix.",
        );
    }
    parts.into_iter().collect()
}

/// A matrix whose cells are colored by their fraction of the row. With many classes, only its
/// largest elements off the diagonal are shown.
fn matrix(rows: &[Vec<f64>]) -> Html {
    if rows.len() > MAX_CLASSES {
        let cells = rows
            .iter()
            .enumerate()
            .flat_map(|(i, row)| row.iter().enumerate().map(move |(j, v)| (i, j, *v)));
        let mut mistakes: Vec<(usize, usize, f64)> =
            cells.filter(|(i, j, v)| i != j && *v > 0.0).collect();
        mistakes.sort_by(|a, b| b.2.total_cmp(&a.2));
        mistakes.truncate(MAX_CLASSES);
        let rows = mistakes
            .into_iter()
            .map(|(i, j, v)| [i.to_string(), j.to_string(), number(v)].map(Html::from).into());
        return [
            paragraph("The most frequent errors:"),
            table(&["target", "prediction", "value"], rows),
        ]
        .into();
    }
    let width = rows.iter().map(Vec::len).max().unwrap_or(0);
    let corner = [element("th", &[], "target \\ prediction")];
    let header = corner
        .into_iter()
        .chain((0..width).map(|class| element("th", &[], class.to_string())))
        .collect::<Html>();
    let rows_html = rows.iter().enumerate().map(|(i, row)| {
        let sum: f64 = row.iter().filter(|v| v.is_finite()).sum();
        let cell = |&value: &f64| {
            let share =
                if sum > 0.0 && value.is_finite() { (value / sum).clamp(0.0, 1.0) } else { 0.0 };
            element("td", &[("style", &format_args!("--share:{share:.3}"))], number(value))
        };
        let cells = [element("th", &[], i.to_string())].into_iter().chain(row.iter().map(cell));
        element("tr", &[], cells.collect::<Html>())
    });
    let all = [element("tr", &[], header)].into_iter().chain(rows_html).collect::<Html>();
    element("div", &[("class", &"scroll")], element("table", &[("class", &"matrix")], all))
}

fn images(run: &Run) -> Html {
    if run.images.is_empty() {
        return missing(
            "There are none: the batches have no images, and nothing was logged with `cx.log_image`.",
        );
    }
    let figure = |image: &crate::run::Image| {
        let source = format!("data:image/png;base64,{}", base64(&image.png));
        let img = element("img", &[("src", &source), ("alt", &image.name)], "");
        element(
            "figure",
            &[],
            [
                element("b", &[], format!("{}, step {}", image.name, image.step)),
                element("br", &[], ""),
                img,
            ],
        )
    };
    element("div", &[("class", &"charts")], run.images.iter().map(figure).collect::<Html>())
}

fn configuration(run: &Run) -> Html {
    run.config
        .as_deref()
        .map_or_else(|| missing("The folder has no config.toml."), |text| element("pre", &[], text))
}

fn environment(run: &Run) -> Html {
    let settings = run
        .summary
        .iter()
        .flat_map(|summary| &summary.setting)
        .chain(&run.environment)
        .take(2 * MAX_ROWS)
        .map(|(name, value)| vec![Html::from(&**name), Html::from(shortened(value))]);
    let compilations =
        run.summary.iter().flat_map(|summary| &summary.compilations).map(|(program, seconds)| {
            vec![
                Html::from(format!("compiled: {program}")),
                seconds.map_or(Html::default(), |s| duration(s).into()),
            ]
        });
    let rows: Vec<Vec<Html>> = settings.chain(compilations.take(MAX_ROWS)).collect();
    if rows.is_empty() {
        return missing("The folder has no environment.json.");
    }
    let peak = run.summary.as_ref().and_then(|summary| summary.peak_flops).map(|flops| {
        paragraph(format_args!("Peak of a device: {} in bf16.", amount(flops, "FLOP/s")))
    });
    [table(&["name", "value"], rows)].into_iter().chain(peak).collect()
}

/// Truncates a value that would otherwise fill the page.
pub(crate) fn shortened(text: &str) -> String {
    const MAX_LENGTH: usize = 300;
    match text.char_indices().nth(MAX_LENGTH) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Encodes bytes in Base64 (RFC 4648).
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * i)) as usize & 63] as char;
            text.push(if i <= chunk.len() { letter } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_has_the_examples_of_its_specification() {
        let cases = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ];
        for (bytes, text) in cases {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }
}
