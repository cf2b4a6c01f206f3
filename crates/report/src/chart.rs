//! [`Chart`]: lines, dots and columns over two labeled axes, as SVG in a page.

use std::fmt::Write as _;

use crate::html::{Html, element, style};

/// The size of a chart, and the margins for its labels. They are close to the pixels of a chart in
/// a page; `page.css` adapts the size of text to the width of the window.
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 36.0;
/// The number of colors in `page.css`.
const COLORS: usize = 7;
/// An axis is logarithmic if the largest value is this many times the smallest.
const MIN_LOG_RATIO: f64 = 100.0;

/// How points are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mark {
    /// Connected by lines.
    #[default]
    Line,
    /// Separate dots.
    Dots,
    /// Columns from zero, each as wide as the distance to the next point.
    Columns,
}

/// A named series of points.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// The index of one of seven colors, which repeat after that; or [`NEUTRAL`].
    pub color: usize,
    /// The points, x first. Points that are not finite are left out.
    pub points: Vec<(f64, f64)>,
    /// How they are drawn.
    pub mark: Mark,
    /// The tooltips of dots. Either empty, or one for each point.
    pub labels: Vec<String>,
    /// The areas of dots, from 0 to 1. Either empty, or one for each point.
    pub sizes: Vec<f64>,
}

/// The color of elements that are not data: a limit, a roofline.
pub const NEUTRAL: usize = usize::MAX;

/// Series over two axes.
///
/// ```
/// use fulmen_report::chart::{Chart, Series};
///
/// let points = (1..100).map(|step| (f64::from(step), 2.0 / f64::from(step).sqrt())).collect();
/// let chart = Chart {
///     title: "loss".into(),
///     x: "step".into(),
///     y: "nats".into(),
///     series: vec![Series { name: "train".into(), points, ..Series::default() }],
///     ..Chart::default()
/// };
/// assert!(chart.html().as_str().contains("<svg"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// The title above the chart.
    pub title: String,
    /// The label of the x axis, with its unit.
    pub x: String,
    /// The label of the y axis, with its unit. It may be empty if the title names the quantity.
    pub y: String,
    /// The series.
    pub series: Vec<Series>,
    /// Whether the x axis is logarithmic.
    pub log_x: bool,
    /// Whether the y axis is logarithmic. `None` makes it logarithmic if all values are above zero
    /// and the largest is more than a hundred times the smallest.
    pub log_y: Option<bool>,
}

impl Chart {
    /// The chart with its title and legend, or a note if there are no points.
    pub fn html(&self) -> Html {
        let title = element("b", &[], self.title.as_str());
        let Some(drawing) = self.drawing() else {
            return element(
                "figure",
                &[],
                [title, element("p", &[("class", &"faint")], "no values")],
            );
        };
        let view = format!("0 0 {WIDTH} {HEIGHT}");
        let label = format!("{}: {} over {}", self.title, self.y, self.x);
        let svg = element(
            "svg",
            &[
                ("viewBox", &view),
                ("preserveAspectRatio", &"xMinYMid"),
                ("role", &"img"),
                ("aria-label", &label),
            ],
            drawing,
        );
        element("figure", &[], [title, svg, legend(&self.names())])
    }

    /// The chart as a standalone SVG file. Without points, it has only the title and the legend.
    ///
    /// ```
    /// use fulmen_report::chart::{Chart, Series};
    ///
    /// let series = vec![Series { name: "train".into(), points: vec![(0.0, 2.0), (1.0, 1.5)], ..Series::default() }];
    /// let file = Chart { title: "loss".into(), x: "step".into(), series, ..Chart::default() }.svg();
    /// assert!(file.starts_with("<svg xmlns=") && file.contains(">train</text>"));
    /// ```
    pub fn svg(&self) -> String {
        svg_file(&self.title, &self.names(), WIDTH, HEIGHT, self.drawing().unwrap_or_default())
    }

    /// The series that have names, with their colors.
    fn names(&self) -> Vec<(usize, &str)> {
        self.series.iter().filter(|s| !s.name.is_empty()).map(|s| (s.color, &*s.name)).collect()
    }

    /// The axes and marks; `None` if there are no points.
    fn drawing(&self) -> Option<Html> {
        let series: Vec<Series> = self.series.iter().map(finite_series).collect();
        let ys = || series.iter().flat_map(|s| s.points.iter().map(|p| p.1));
        let xs = || series.iter().flat_map(|s| s.points.iter().map(|p| p.0));
        let mut x_range = Range::of(xs())?;
        let mut y_range = Range::of(ys())?;
        let columns = series.iter().any(|s| s.mark == Mark::Columns);
        let wide = y_range.low > 0.0 && y_range.high / y_range.low >= MIN_LOG_RATIO;
        let log_y = self.log_y.unwrap_or(wide && !columns) && y_range.low > 0.0;
        if columns {
            y_range.low = y_range.low.min(0.0);
        }
        x_range.high = series
            .iter()
            .filter(|s| s.mark == Mark::Columns)
            .flat_map(|s| column_ends(s, self.log_x))
            .fold(x_range.high, f64::max);
        // Without a margin, a dot on the edge would be cut in half.
        if series.iter().all(|s| s.mark == Mark::Dots) {
            if !self.log_x {
                x_range = x_range.with_margin();
            }
            if !log_y {
                y_range = y_range.with_margin();
            }
        }
        let log_x = self.log_x && x_range.low > 0.0;
        let x = Axis::new(x_range, log_x, LEFT, WIDTH - RIGHT);
        let y = Axis::new(y_range, log_y, HEIGHT - BOTTOM, TOP);
        let mut parts = vec![axes(&x, &y, &self.x, &self.y)];
        parts.extend(series.iter().flat_map(|s| marks(s, &x, &y)));
        Some(parts.into_iter().collect())
    }
}

/// Wraps a drawing of this width and height as an SVG file, with a title and a legend above it. Its
/// colors are light or dark, like the reader's system.
///
/// ```
/// use fulmen_report::chart::svg_file;
/// use fulmen_report::html::element;
///
/// let bar = element("path", &[("class", &"column c0"), ("d", &"M0 0h90v12h-90z")], "");
/// assert!(svg_file("a bar", &[(0, "ours")], 100.0, 12.0, bar).ends_with("</svg>\n"));
/// ```
pub fn svg_file(
    title: &str,
    names: &[(usize, &str)],
    width: f64,
    height: f64,
    drawing: Html,
) -> String {
    const TITLE: f64 = 40.0;
    let bold = "font-size: 13px; font-weight: 600; fill: var(--text)";
    let mut parts = vec![
        style(),
        element("text", &[("x", &4), ("y", &(14.0 - TITLE)), ("style", &bold)], title),
    ];
    let mut left = 4.0;
    for (color, name) in names {
        let swatch = format!("M{left:.1} {:.1}h12v8h-12z", 23.0 - TITLE);
        parts.push(element(
            "path",
            &[("class", &format_args!("column {}", class(*color))), ("d", &swatch)],
            "",
        ));
        parts.push(label(left + 16.0, 31.0 - TITLE, "start", name));
        left += 30.0 + 6.5 * name.chars().count() as f64;
    }
    parts.push(drawing);
    let view = format!("0 {} {width} {}", -TITLE, height + TITLE);
    let attributes: [(&'static str, &dyn std::fmt::Display); 5] = [
        ("xmlns", &"http://www.w3.org/2000/svg"),
        ("viewBox", &view),
        ("width", &(1.6 * width)),
        ("role", &"img"),
        ("aria-label", &title),
    ];
    let file = element("svg", &attributes, parts.into_iter().collect::<Html>());
    format!("{}\n", file.as_str())
}

/// The legend: names with their colors.
pub(crate) fn legend(names: &[(usize, &str)]) -> Html {
    let entries = names.iter().map(|&(color, name)| {
        let swatch = [element("i", &[], ""), element("span", &[], name)];
        element("span", &[("class", &class(color))], swatch)
    });
    element("div", &[("class", &"legend")], entries.collect::<Html>())
}

/// A part of a [`bar`].
#[derive(Clone, Debug, PartialEq)]
pub struct BarPart {
    /// The color, as in [`Series::color`].
    pub color: usize,
    /// The tooltip.
    pub name: String,
    /// The fraction of the bar, from 0 to 1.
    pub fraction: f64,
}

/// A bar over the full width of the page.
pub fn bar(parts: impl IntoIterator<Item = BarPart>) -> Html {
    let spans = parts.into_iter().map(|BarPart { color, name, fraction }| {
        let width = format!("width:{:.3}%", 100.0 * fraction);
        element("span", &[("class", &class(color)), ("style", &width), ("title", &name)], "")
    });
    element("div", &[("class", &"bar")], spans.collect::<Html>())
}

/// The CSS class of a color.
pub fn class(color: usize) -> String {
    if color == NEUTRAL { "faint".to_owned() } else { format!("c{}", color % COLORS) }
}

/// A copy of the series without the points that are not finite.
fn finite_series(series: &Series) -> Series {
    let finite: Vec<usize> = series
        .points
        .iter()
        .enumerate()
        .filter(|(_, p)| p.0.is_finite() && p.1.is_finite())
        .map(|(i, _)| i)
        .collect();
    Series {
        points: finite.iter().map(|&i| series.points[i]).collect(),
        labels: finite.iter().filter_map(|&i| series.labels.get(i).cloned()).collect(),
        sizes: finite.iter().filter_map(|&i| series.sizes.get(i).copied()).collect(),
        ..series.clone()
    }
}

/// A range of values.
#[derive(Clone, Copy)]
struct Range {
    low: f64,
    high: f64,
}

impl Range {
    /// The range of these values; `None` if there are none.
    fn of(values: impl Iterator<Item = f64>) -> Option<Range> {
        values
            .map(|v| Range { low: v, high: v })
            .reduce(|a, b| Range { low: a.low.min(b.low), high: a.high.max(b.high) })
    }

    /// The range extended by a twentieth of its length on both sides.
    fn with_margin(self) -> Range {
        let margin = 0.05 * (self.high - self.low);
        Range { low: self.low - margin, high: self.high + margin }
    }
}

/// The right edge of each column, which is the start of the next column. The last column is as wide
/// as the one before it.
fn column_ends(series: &Series, log: bool) -> Vec<f64> {
    let starts: Vec<f64> = series.points.iter().map(|point| point.0).collect();
    let last_end = match starts[..] {
        [.., previous, last] if log && previous > 0.0 => last * (last / previous),
        [.., previous, last] => last + (last - previous),
        [only] if log => only * 1.1,
        [only] => only + 1.0,
        [] => return Vec::new(),
    };
    starts[1..].iter().copied().chain([last_end]).collect()
}

/// A range of values and the pixels that it maps to.
struct Axis {
    /// The range of the values or, on a logarithmic axis, of their logarithms.
    range: Range,
    log: bool,
    start_pixel: f64,
    end_pixel: f64,
}

impl Axis {
    fn new(range: Range, log: bool, start_pixel: f64, end_pixel: f64) -> Axis {
        let Range { mut low, mut high } = range;
        if log {
            (low, high) = (low.log10(), high.log10());
        }
        if high - low <= f64::EPSILON * low.abs().max(high.abs()) {
            let margin = if log { 0.5 } else { low.abs().max(1e-9) * 0.5 };
            (low, high) = (low - margin, high + margin);
        }
        Axis { range: Range { low, high }, log, start_pixel, end_pixel }
    }

    fn pixel(&self, value: f64) -> f64 {
        let value = if self.log { value.max(f64::MIN_POSITIVE).log10() } else { value };
        let Range { low, high } = self.range;
        let share = ((value - low) / (high - low)).clamp(0.0, 1.0);
        self.start_pixel + share * (self.end_pixel - self.start_pixel)
    }

    /// About five round values in the range.
    fn ticks(&self) -> Vec<f64> {
        let Range { mut low, mut high } = self.range;
        if self.log && high - low >= 1.0 {
            let stride = ((high - low) / 5.0).ceil().max(1.0);
            let first = low.ceil();
            return (0..=6)
                .map(|i| first + f64::from(i) * stride)
                .take_while(|power| *power <= high + 1e-9)
                .map(|power| 10f64.powf(power))
                .collect();
        }
        if self.log {
            (low, high) = (10f64.powf(low), 10f64.powf(high));
        }
        let rough = (high - low) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let stride = [1.0, 2.0, 5.0, 10.0]
            .map(|digit| digit * power)
            .into_iter()
            .find(|s| *s >= rough)
            .unwrap_or(rough);
        let first = (low / stride).ceil();
        (0..=8)
            .map(|i| (first + f64::from(i)) * stride)
            .take_while(|tick| *tick <= high + stride * 1e-6)
            .collect()
    }
}

fn axes(x: &Axis, y: &Axis, x_label: &str, y_label: &str) -> Html {
    let mut parts = Vec::new();
    let mut lines = String::new();
    let left = x.start_pixel;
    let bottom = y.start_pixel;
    for tick in y.ticks() {
        let position = y.pixel(tick);
        let _ = write!(lines, "M{left:.1} {position:.1}H{:.1}", x.end_pixel);
        parts.push(label(left - 5.0, position + 4.0, "end", &number(tick)));
    }
    for tick in x.ticks() {
        let position = x.pixel(tick);
        let _ = write!(lines, "M{position:.1} {bottom:.1}v4");
        parts.push(label(position, bottom + 15.0, "middle", &number(tick)));
    }
    let _ = write!(lines, "M{left:.1} {bottom:.1}H{:.1}", x.end_pixel);
    parts.push(element("path", &[("class", &"grid"), ("d", &lines)], ""));
    let name = |label: &str, axis: &Axis| {
        if !axis.log {
            label.to_owned()
        } else if label.is_empty() {
            "log scale".to_owned()
        } else {
            format!("{label} (log scale)")
        }
    };
    let names = [(x.end_pixel, "end", name(x_label, x)), (0.0, "start", name(y_label, y))];
    parts.extend(
        names
            .iter()
            .filter(|n| !n.2.is_empty())
            .map(|(x, anchor, text)| label(*x, bottom + 30.0, anchor, text)),
    );
    parts.into_iter().collect()
}

fn label(x: f64, y: f64, anchor: &'static str, text: &str) -> Html {
    element(
        "text",
        &[("x", &format_args!("{x:.1}")), ("y", &format_args!("{y:.1}")), ("text-anchor", &anchor)],
        text,
    )
}

fn marks(series: &Series, x: &Axis, y: &Axis) -> Vec<Html> {
    let color_class = class(series.color);
    let pixel = |&(px, py): &(f64, f64)| (x.pixel(px), y.pixel(py));
    let dot = |(i, point): (usize, &(f64, f64))| {
        let (cx, cy) = pixel(point);
        let title: Html = series
            .labels
            .get(i)
            .map(|text| element("title", &[], text.as_str()))
            .into_iter()
            .collect();
        let radius =
            series.sizes.get(i).map_or(3.5, |size| 3.0 + 9.0 * size.clamp(0.0, 1.0).sqrt());
        let [cx, cy, r] = [cx, cy, radius].map(|length| format!("{length:.1}"));
        element(
            "circle",
            &[("class", &format_args!("dot {color_class}")), ("cx", &cx), ("cy", &cy), ("r", &r)],
            title,
        )
    };
    match series.mark {
        Mark::Line if series.points.len() > 1 => {
            let mut path = String::new();
            for (i, point) in series.points.iter().enumerate() {
                let (px, py) = pixel(point);
                let _ = write!(path, "{}{px:.1} {py:.1}", if i == 0 { "M" } else { "L" });
            }
            vec![element(
                "path",
                &[("class", &format_args!("line {color_class}")), ("d", &path)],
                "",
            )]
        }
        Mark::Line | Mark::Dots => series.points.iter().enumerate().map(dot).collect(),
        Mark::Columns => {
            let mut path = String::new();
            for (&(px, py), end) in series.points.iter().zip(column_ends(series, x.log)) {
                let left = x.pixel(px);
                let right = x.pixel(end);
                let top = y.pixel(py);
                let base = y.pixel(0.0);
                let _ = write!(
                    path,
                    "M{left:.1} {base:.1}V{top:.1}H{:.1}V{base:.1}Z",
                    (right - 1.0).max(left + 0.5)
                );
            }
            vec![element(
                "path",
                &[("class", &format_args!("column {color_class}")), ("d", &path)],
                "",
            )]
        }
    }
}

/// Formats a number in a short form: `0.25`, `12k`, `3e-4`.
pub fn number(value: f64) -> String {
    let size = value.abs();
    let short = |value: f64| {
        let text = match value.abs() {
            v if v >= 100.0 => format!("{value:.0}"),
            v if v >= 10.0 => format!("{value:.1}"),
            v if v >= 0.1 => format!("{value:.3}"),
            _ => format!("{value:.4}"),
        };
        if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            text
        }
    };
    match size {
        0.0 => "0".to_owned(),
        s if !s.is_finite() => value.to_string(),
        s if !(1e-3..1e15).contains(&s) => {
            let text = format!("{value:.2e}");
            let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
            format!("{}e{power}", digits.trim_end_matches('0').trim_end_matches('.'))
        }
        s if s >= 1e12 => short(value / 1e12) + "T",
        s if s >= 1e9 => short(value / 1e9) + "G",
        s if s >= 1e6 => short(value / 1e6) + "M",
        s if s >= 1e4 => short(value / 1e3) + "k",
        _ => short(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.0, "0"),
            (0.25, "0.25"),
            (1.0, "1"),
            (12.345, "12.3"),
            (1234.0, "1234"),
            (12_000.0, "12k"),
            (2.5e6, "2.5M"),
            (-0.05, "-0.05"),
            (3e-4, "3e-4"),
            (1.25e-7, "1.25e-7"),
            (1e300, "1e300"),
            (0.9999, "1"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        let ticks = |low, high, log| Axis::new(Range { low, high }, log, 0.0, 100.0).ticks();
        assert_eq!(ticks(0.0, 1000.0, false), [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]);
        assert_eq!(ticks(0.0, 7.0, false), [0.0, 2.0, 4.0, 6.0]);
        assert_eq!(ticks(0.02, 300.0, true).len(), 4);
        assert_eq!(ticks(5.0, 5.0, false).len(), 5);
        assert!((3..9).contains(&ticks(0.3, 0.9, true).len()));
        assert!(ticks(1e-300, 1e300, true).len() < 8);
    }

    #[test]
    fn points_are_drawn_at_their_values() {
        let series = |mark, points: &[(f64, f64)]| Series {
            points: points.to_vec(),
            mark,
            ..Series::default()
        };
        let chart = |series| {
            Chart { title: "t".into(), x: "step".into(), series: vec![series], ..Chart::default() }
                .html()
        };
        let line = chart(series(Mark::Line, &[(0.0, 1.0), (5.0, f64::NAN), (10.0, 3.0)]));
        assert!(line.as_str().contains("d=\"M56.0 214.0L468.0 8.0\""), "{line:?}");
        let wide = chart(series(Mark::Line, &[(0.0, 1.0), (5.0, 100.0), (10.0, 10_000.0)]));
        assert!(
            wide.as_str().contains("L262.0 111.0L") && wide.as_str().contains("log scale"),
            "{wide:?}"
        );
        let columns = chart(series(Mark::Columns, &[(0.0, 2.0), (1.0, 4.0)]));
        assert!(columns.as_str().contains("M56.0 214.0V111.0H261.0V214.0Z"), "{columns:?}");
        let dots = chart(series(Mark::Dots, &[(1.0, 1.0), (2.0, 1.0)]));
        assert_eq!(dots.as_str().matches("<circle").count(), 2);
        assert!(chart(series(Mark::Line, &[(f64::NAN, 1.0)])).as_str().contains("no values"));
    }
}
