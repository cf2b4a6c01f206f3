//! [`FileName`]: the pattern of a checkpoint's name, like Lightning's `filename`.

/// The pattern of a checkpoint's name: text with named values in braces, such as
/// `net-{epoch:02d}-{val_acc:.3f}`.
///
/// ```
/// use fulmen_checkpoint::FileName;
///
/// let name = FileName::parse("{epoch:02d}-{val_acc:.3f}")?;
/// let value = |of: &str| Some(if of == "epoch" { 2.0 } else { 0.9812 });
/// assert_eq!(name.fill(value), "epoch=02-val_acc=0.981");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileName(Vec<Part>);

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Value { name: String, format: Format },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Format {
    Plain,
    /// A number with this many digits after the decimal point.
    Decimals(usize),
    /// A whole number with at least this many digits.
    Digits(usize),
}

impl FileName {
    /// Parses a pattern. A value may have a format after a colon: `.2f` for two digits after the
    /// decimal point, `03d` for a whole number of at least three digits.
    ///
    /// # Errors
    /// A description of what is wrong with the pattern.
    pub fn parse(pattern: &str) -> Result<FileName, String> {
        if pattern.is_empty() {
            return Err("the file name is empty".into());
        }
        let mut parts = Vec::new();
        let mut rest = pattern;
        while let Some((text, value)) = rest.split_once('{') {
            let (value, after) = value.split_once('}').ok_or("a `{` has no `}`")?;
            let (name, format) = value.split_once(':').unwrap_or((value, ""));
            let format = format_of(format).ok_or_else(|| {
                format!("`{format}` is not a format; use .2f (digits after the point) or 03d")
            })?;
            if name.is_empty() {
                return Err("`{}` names no value".into());
            }
            parts.push(Part::Text(text.to_owned()));
            parts.push(Part::Value { name: name.to_owned(), format });
            rest = after;
        }
        if rest.contains('}') {
            return Err("a `}` has no `{`".into());
        }
        parts.push(Part::Text(rest.to_owned()));
        if parts.iter().any(|part| matches!(part, Part::Text(text) if text.contains('/'))) {
            return Err("a file name cannot contain `/`".into());
        }
        Ok(FileName(parts))
    }

    /// The names of the values in the pattern.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Value { name, .. } => Some(name.as_str()),
        })
    }

    /// Fills in these values, each as `NAME=VALUE`. Without a value, `{epoch}` and `{step}` stay
    /// unchanged, and other names are left out.
    pub fn fill(&self, value: impl Fn(&str) -> Option<f64>) -> String {
        let part = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Value { name, format } => {
                // Metric names may contain characters that are not allowed in file names.
                let shown = name.replace('/', "_");
                match (value(name), format) {
                    (None, _) if name == "epoch" || name == "step" => format!("{shown}={{{name}}}"),
                    (None, _) => String::new(),
                    (Some(value), Format::Plain) => format!("{shown}={value}"),
                    (Some(value), Format::Decimals(digits)) => format!("{shown}={value:.digits$}"),
                    (Some(value), Format::Digits(digits)) => format!("{shown}={value:0digits$.0}"),
                }
            }
        };
        self.0.iter().map(part).collect()
    }
}

fn format_of(format: &str) -> Option<Format> {
    if format.is_empty() {
        return Some(Format::Plain);
    }
    if let Some(digits) = format.strip_prefix('.') {
        return digits.strip_suffix('f').unwrap_or(digits).parse().ok().map(Format::Decimals);
    }
    format.strip_suffix('d')?.parse().ok().map(Format::Digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_becomes_lightnings_names() {
        let fill = |pattern: &str| {
            FileName::parse(pattern).unwrap().fill(|name| match name {
                "epoch" => Some(2.0),
                "step" => Some(300.0),
                "val_loss/ood" => Some(0.123_456),
                _ => Some(f64::NAN),
            })
        };
        assert_eq!(fill("{epoch}-{step}"), "epoch=2-step=300");
        assert_eq!(fill("net-{epoch:02d}-{val_loss/ood:.2f}"), "net-epoch=02-val_loss_ood=0.12");
        assert_eq!(fill("{val_loss/ood:.3}{missing}"), "val_loss_ood=0.123missing=NaN");
        assert_eq!(
            FileName::parse("a-{epoch}-{step}").unwrap().fill(|_| None),
            "a-epoch={epoch}-step={step}"
        );
    }

    #[test]
    fn an_invalid_pattern_is_explained() {
        for (pattern, reason) in [
            ("", "is empty"),
            ("a/b", "cannot contain `/`"),
            ("{epoch", "has no `}`"),
            ("epoch}", "has no `{`"),
            ("{}", "names no value"),
            ("{epoch:x}", "`x` is not a format"),
        ] {
            assert!(FileName::parse(pattern).unwrap_err().contains(reason), "{pattern}");
        }
    }
}
