//! Flags as people type them: with underscores, as in Python, or with dashes. The value of some.

use std::time::Duration;

/// The argument `--max_epochs=5` as `--max-epochs=5`, if the program has the flag only with dashes.
/// `None` if the argument stays as it is. `is_flag` gets names without the dashes before them.
///
/// ```
/// use fulmen_durable::with_dashes;
///
/// let is_flag = |name: &str| name == "max-epochs";
/// assert_eq!(with_dashes("--max_epochs=a_b", is_flag).as_deref(), Some("--max-epochs=a_b"));
/// assert_eq!(with_dashes("--min_epochs", is_flag), None);
/// ```
pub fn with_dashes(argument: &str, is_flag: impl Fn(&str) -> bool) -> Option<String> {
    let text = argument.strip_prefix("--")?;
    let (flag, value) = text.split_at(text.find('=').unwrap_or(text.len()));
    let dashed = flag.replace('_', "-");
    (!is_flag(flag) && is_flag(&dashed)).then(|| format!("--{dashed}{value}"))
}

/// Parses a whole number of seconds above 0.
///
/// ```
/// assert_eq!(fulmen_durable::seconds("60"), Ok(std::time::Duration::from_secs(60)));
/// assert!(fulmen_durable::seconds("0").is_err());
/// ```
///
/// # Errors
/// Anything else.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds)),
        _ => Err("expected a whole number of seconds above 0".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_flags_get_dashes() {
        let is_flag = |name: &str| ["max-epochs", "own_name", "own-name"].contains(&name);
        assert_eq!(with_dashes("--max_epochs", is_flag).as_deref(), Some("--max-epochs"));
        assert_eq!(with_dashes("--max_epochs=x_y", is_flag).as_deref(), Some("--max-epochs=x_y"));
        for unchanged in ["max_epochs", "-max_epochs", "--max-epochs", "--own_name", "--other_name"]
        {
            assert_eq!(with_dashes(unchanged, is_flag), None, "{unchanged}");
        }
    }
}
