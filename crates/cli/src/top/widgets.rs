//! What screens are made of.
//!
//! Not here: what they show.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Stylize as _};
use ratatui::text::Span;
use ratatui::widgets::{Block, Sparkline};

/// A frame with a title.
pub fn panel(title: &str) -> Block<'_> {
    Block::bordered().title(format!(" {title} ")).border_style(Color::DarkGray)
}

/// A bar of `width` cells, filled to `part`, from 0 to 1.
///
/// ```
/// assert_eq!(fulmen_cli::top::widgets::bar(0.375, 4).content, "█▌  ");
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

/// A percentage, or a dash.
pub fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "–".into(), |value| format!("{value:.1} %"))
}

/// The last values, the newest on the right, up to `max`.
pub fn history(frame: &mut Frame<'_>, area: Rect, title: &str, values: &[u64], max: u64) {
    let width = usize::from(area.width.saturating_sub(2));
    let newest = &values[values.len().saturating_sub(width)..];
    frame.render_widget(Sparkline::default().data(newest).max(max).fg(Color::Cyan).block(panel(title)), area);
}
