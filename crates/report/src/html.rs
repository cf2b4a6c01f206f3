//! [`Html`]: markup whose text is always escaped, because every function that creates markup
//! escapes its input.

use std::fmt::{Display, Write as _};

/// Markup. [`From`] turns text into markup by escaping it.
///
/// ```
/// use fulmen_report::html::{Html, element};
///
/// let cell = element("td", &[("title", &"a \"name\"")], "<script>");
/// assert_eq!(cell.as_str(), "<td title=\"a &quot;name&quot;\">&lt;script&gt;</td>");
/// let row = element("tr", &[], [cell.clone(), cell]);
/// assert!(row.as_str().starts_with("<tr><td title="));
/// # let _: Html = row;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Html(String);

impl Html {
    /// The markup.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// An element with its attributes. Without content, it is written as `<name ...></name>`, except
/// for HTML's void elements.
pub fn element(
    name: &'static str,
    attributes: &[(&'static str, &dyn Display)],
    content: impl Into<Html>,
) -> Html {
    let mut html = format!("<{name}");
    for (attribute, value) in attributes {
        html.push(' ');
        html.push_str(attribute);
        html.push_str("=\"");
        escape(&value.to_string(), &mut html);
        html.push('"');
    }
    html.push('>');
    if !matches!(name, "br" | "img" | "meta") {
        let _ = write!(html, "{}</{name}>", content.into().0);
    }
    Html(html)
}

/// A complete, self-contained page without scripts. Its colors are light or dark, like the reader's
/// system.
pub fn page(title: &str, body: impl Into<Html>) -> String {
    let head = element(
        "head",
        &[],
        [
            element("meta", &[("charset", &"utf-8")], ""),
            element(
                "meta",
                &[("name", &"viewport"), ("content", &"width=device-width, initial-scale=1")],
                "",
            ),
            element("meta", &[("name", &"color-scheme"), ("content", &"light dark")], ""),
            // Without this link, a browser requests an icon from the server or the folder.
            element("link", &[("rel", &"icon"), ("href", &"data:,")], ""),
            element("title", &[], title),
            style(),
        ],
    );
    let body = element("body", &[], element("main", &[], [element("h1", &[], title), body.into()]));
    format!("<!doctype html>\n{}\n", element("html", &[("lang", &"en")], [head, body]).0)
}

/// The style sheet of a page and its charts.
pub(crate) fn style() -> Html {
    Html(format!("<style>{}</style>", include_str!("page.css")))
}

/// A section with a heading and an id for links.
pub fn section(id: &'static str, heading: &str, content: impl Into<Html>) -> Html {
    element("section", &[("id", &id)], [element("h2", &[], heading), content.into()])
}

/// A paragraph.
pub fn paragraph(text: impl Display) -> Html {
    element("p", &[], text.to_string())
}

/// A table, which scrolls if it is wider than the window. Numbers are right-aligned.
pub fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<Html>>) -> Html {
    let cell = |cell: Html| {
        if is_number(&cell.0) {
            element("td", &[("class", &"number")], cell)
        } else {
            element("td", &[], cell)
        }
    };
    let names: Html = header.iter().map(|name| element("th", &[], *name)).collect();
    let body: Html = rows
        .into_iter()
        .map(|row| element("tr", &[], row.into_iter().map(cell).collect::<Html>()))
        .collect();
    let head = element("thead", &[], element("tr", &[], names));
    element(
        "div",
        &[("class", &"scroll")],
        element("table", &[], [head, element("tbody", &[], body)]),
    )
}

/// Whether the markup of a cell starts with a number: `3`, `2.5 GiB`, `$1,234.50`, `<$0.01`, `12k`.
fn is_number(cell: &str) -> bool {
    let first_word = cell.split(' ').next().unwrap_or_default();
    let amount = first_word.trim_start_matches("&lt;").trim_start_matches('$').replace(',', "");
    let digits = amount.trim_end_matches(['k', 'M', 'G', 'T']);
    digits.starts_with(|c: char| c.is_ascii_digit() || c == '-')
        && digits.parse::<f64>().is_ok()
        && cell.len() < 24
}

/// Long content that is rarely read. It is hidden until the summary is clicked.
pub fn details(summary: &str, content: impl Into<Html>) -> Html {
    element("details", &[], [element("summary", &[], summary), content.into()])
}

fn escape(text: &str, html: &mut String) {
    for c in text.chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            '\n' | '\t' => html.push(c),
            c if c.is_control() => html.push('\u{fffd}'),
            c => html.push(c),
        }
    }
}

impl From<&str> for Html {
    fn from(text: &str) -> Html {
        let mut html = String::with_capacity(text.len());
        escape(text, &mut html);
        Html(html)
    }
}

impl From<String> for Html {
    fn from(text: String) -> Html {
        text.as_str().into()
    }
}

impl FromIterator<Html> for Html {
    fn from_iter<I: IntoIterator<Item = Html>>(parts: I) -> Html {
        Html(parts.into_iter().map(|part| part.0).collect())
    }
}

impl<const N: usize> From<[Html; N]> for Html {
    fn from(parts: [Html; N]) -> Html {
        parts.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_shown_as_text() {
        let text = "</style><script>alert('1 & \"2\"')</script>\u{0}\u{1b}[31m";
        let shown =
            page(text, [paragraph(text), details(text, table(&[text], [vec![text.into()]]))]);
        assert!(!shown.contains("<script") && !shown.contains("alert('"), "{shown}");
        assert_eq!(shown.matches("</style>").count(), 1);
        assert_eq!(shown.matches("&lt;script&gt;").count(), 6);
        assert!(!shown.contains(['\u{0}', '\u{1b}']) && shown.contains('\u{fffd}'));
        let attribute = element("a", &[("title", &"\" onclick=\"alert(1)")], "");
        assert_eq!(attribute.as_str(), "<a title=\"&quot; onclick=&quot;alert(1)\"></a>");
    }
}
