//! [`svg`]: draws images of screens.

use std::fmt::Write as _;

use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};

/// A screen as an SVG image, with a text element for each run of cells with the same style.
///
/// ```
/// use ratatui::buffer::Buffer;
///
/// let screen = Buffer::with_lines(["a < b"]);
/// assert!(fulmen_tui::svg(&screen).contains(">a &lt; b</text>"));
/// ```
pub fn svg(screen: &Buffer) -> String {
    let wide = 8.4;
    let high = 18.0;
    let width = f64::from(screen.area.width) * wide + 20.0;
    let height = f64::from(screen.area.height) * high + 20.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"monospace\" \
         font-size=\"14\">\n<rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#16181d\"/>\n"
    );
    for y in 0..screen.area.height {
        let mut x = 0;
        while x < screen.area.width {
            let style = |x: u16| (screen[(x, y)].fg, screen[(x, y)].modifier);
            let run = (x..screen.area.width)
                .take_while(|other| style(*other) == style(x))
                .collect::<Vec<_>>();
            let text: String = run.iter().map(|x| screen[(*x, y)].symbol()).collect();
            let (color, modifier) = style(x);
            if !text.trim().is_empty() {
                let color = match color {
                    Color::Green => "#8ec07c",
                    Color::Yellow => "#fabd2f",
                    Color::Cyan => "#83a598",
                    Color::DarkGray => "#666a73",
                    _ if modifier.contains(Modifier::DIM) => "#9a9da5",
                    _ => "#e6e6e6",
                };
                let weight =
                    if modifier.contains(Modifier::BOLD) { " font-weight=\"bold\"" } else { "" };
                let left = 10.0 + f64::from(x) * wide;
                let base = 10.0 + f64::from(y) * high + 14.0;
                let long = run.len() as f64 * wide;
                let text = text.replace('&', "&amp;").replace('<', "&lt;");
                let _ = writeln!(
                    svg,
                    "<text x=\"{left:.1}\" y=\"{base:.0}\" fill=\"{color}\"{weight} textLength=\"{long:.1}\" \
                     lengthAdjust=\"spacingAndGlyphs\" xml:space=\"preserve\">{text}</text>"
                );
            }
            x += run.len() as u16;
        }
    }
    svg + "</svg>\n"
}
