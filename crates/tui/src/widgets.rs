//! Parts of screens.
//!
//! Out of scope: the content that they show.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Stylize as _};
use ratatui::symbols::Marker;
use ratatui::text::Span;
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Sparkline};

/// A frame with a title.
pub fn panel(title: &str) -> Block<'_> {
    Block::bordered().title(format!(" {title} ")).border_style(Color::DarkGray)
}

/// A bar of `width` cells, filled to the fraction `part`, from 0 to 1.
///
/// ```
/// assert_eq!(fulmen_tui::widgets::bar(0.375, 4).content, "█▌  ");
/// ```
pub fn bar(part: f64, width: usize) -> Span<'static> {
    const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let eighths = (part.clamp(0.0, 1.0) * (width * 8) as f64).round() as usize;
    let mut text: String = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        text.push(EIGHTHS[eighths % 8]);
    }
    Span::from(format!("{text:<width$}")).fg(if part < 0.3 { Color::Yellow } else { Color::Green })
}

/// Formats a percentage, or a dash if there is none.
pub fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "–".into(), |value| format!("{value:.1} %"))
}

/// Draws the last values as a history, the newest on the right, scaled to `max`.
pub fn history(frame: &mut Frame<'_>, area: Rect, title: &str, values: &[u64], max: u64) {
    let width = usize::from(area.width.saturating_sub(2));
    let newest = &values[values.len().saturating_sub(width)..];
    frame.render_widget(
        Sparkline::default().data(newest).max(max).fg(Color::Cyan).block(panel(title)),
        area,
    );
}

/// Draws curves over common axes, with a legend if there are several. The curves differ in color
/// and in the shape of their dots, which the legend shows. Values must be finite.
///
/// ```
/// use fulmen_tui::widgets::chart;
/// use ratatui::{Terminal, backend::TestBackend};
///
/// let mut terminal = Terminal::new(TestBackend::new(40, 12))?;
/// terminal.draw(|frame| {
///     let area = frame.area();
///     chart(frame, area, "loss", &[("train", &[(1.0, 0.5), (9.0, 0.25)]), ("val", &[(5.0, 0.5)])]);
/// })?;
/// let text = terminal.backend().to_string();
/// assert!(text.contains(" loss ") && text.contains("• val") && text.contains("0.5000") && text.contains("0.2500"), "{text}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn chart(frame: &mut Frame<'_>, area: Rect, title: &str, curves: &[(&str, &[(f64, f64)])]) {
    const STYLES: [(Marker, &str, Color); 3] = [
        (Marker::Braille, "⠒", Color::Cyan),
        (Marker::Dot, "•", Color::Yellow),
        (Marker::Block, "█", Color::Green),
    ];
    let points = || curves.iter().flat_map(|curve| curve.1);
    let x = bounds(points().map(|point| point.0));
    let y = bounds(points().map(|point| point.1));
    let (Some(x), Some(y)) = (x, y) else { return frame.render_widget(panel(title), area) };
    let datasets =
        curves.iter().zip(STYLES.iter().cycle()).map(|((name, points), (marker, dot, color))| {
            let dataset = Dataset::default()
                .data(points)
                .marker(*marker)
                .graph_type(GraphType::Line)
                .style(*color);
            if curves.len() > 1 { dataset.name(format!("{dot} {name}")) } else { dataset }
        });
    let labels = |[low, high]: [f64; 2], text: fn(f64) -> String| {
        [Span::from(text(low)), Span::from(text(high))]
    };
    let axis = || Axis::default().style(Color::DarkGray);
    let chart = Chart::new(datasets.collect())
        .x_axis(axis().bounds(x).labels(labels(x, |step| format!("{step:.0}"))))
        .y_axis(axis().bounds(y).labels(labels(y, number)))
        .hidden_legend_constraints((Constraint::Ratio(1, 2), Constraint::Ratio(2, 3)));
    frame.render_widget(chart.block(panel(title)), area);
}

/// The minimum and the maximum of the values, which are made distinct; `None` without values.
fn bounds(values: impl Iterator<Item = f64>) -> Option<[f64; 2]> {
    let [low, high] = values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], value| {
        [low.min(value), high.max(value)]
    });
    if !(low.is_finite() && high.is_finite()) {
        return None;
    }
    if low == high {
        let margin = if low == 0.0 { 1.0 } else { low.abs() / 2.0 };
        return Some([low - margin, high + margin]);
    }
    Some([low, high])
}

/// Formats a number with about four digits.
///
/// ```
/// use fulmen_tui::widgets::number;
/// assert_eq!([0.0, 0.25, 12.5, 1234.4, 3e-5].map(number), ["0", "0.2500", "12.50", "1234", "3.00e-5"]);
/// ```
pub fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if !(1e-3..1e6).contains(&size) => format!("{value:.2e}"),
        size => {
            let decimals = [1e3, 1e2, 1e1, 1e0].iter().filter(|limit| size < **limit).count();
            format!("{value:.decimals$}")
        }
    }
}

/// Formats a size in bytes, in GiB or MiB.
///
/// ```
/// assert_eq!(fulmen_tui::widgets::bytes(3 << 29), "1.5 GiB");
/// ```
pub fn bytes(bytes: u64) -> String {
    let mib = 1024.0 * 1024.0;
    let gib = 1024.0 * 1024.0 * 1024.0;
    let bytes = bytes as f64;
    if bytes < gib { format!("{:.0} MiB", bytes / mib) } else { format!("{:.1} GiB", bytes / gib) }
}
