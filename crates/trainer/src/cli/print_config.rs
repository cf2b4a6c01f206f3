//! `--print-config`: all options of a command as TOML that `--config` takes back.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use clap::{Arg, ArgAction, ArgMatches, Command};
use toml_edit::Value;

use super::Result;
use super::config::{flags, section_of, takes_many};
use crate::Options;

/// The options of a command: the Trainer's as they were decided, the others as they were given. Each key has the first
/// line of its help above it; one without a value is a comment.
pub(crate) fn print_config(command: &Command, matches: &ArgMatches, options: &Options) -> Result<String> {
    let decided: BTreeMap<&str, Option<String>> = options.values().into_iter().collect();
    let mut sections: Vec<(Option<String>, String)> = vec![(None, String::new())];
    for arg in flags(command) {
        let (id, long) = (arg.get_id().as_str(), arg.get_long().unwrap_or_default());
        let value = match decided.get(id) {
            Some(value) => value.as_deref().map(toml),
            None => given(arg, matches).map_err(|problem| format!("--{long}: {problem}"))?,
        };
        let section = section_of(arg);
        if !sections.iter().any(|known| known.0 == section) {
            sections.push((section.clone(), String::new()));
        }
        for (_, text) in sections.iter_mut().filter(|known| known.0 == section) {
            if let Some(help) = arg.get_help() {
                text.push_str(&format!("# {}\n", help.to_string().lines().next().unwrap_or_default()));
            }
            text.push_str(&match value {
                Some(ref value) => format!("{long} = {value}\n"),
                None => format!("# {long} =\n"),
            });
        }
    }
    let sections = sections.into_iter().filter(|section| !section.1.is_empty());
    let texts = sections.map(|(name, text)| name.map(|name| format!("[{name}]\n")).unwrap_or_default() + &text);
    Ok(texts.collect::<Vec<_>>().join("\n"))
}

/// What was given for an argument, or its default, as TOML.
fn given(arg: &Arg, matches: &ArgMatches) -> Result<Option<String>> {
    let id = arg.get_id().as_str();
    match arg.get_action() {
        ArgAction::SetTrue => return Ok(Some(matches.get_flag(id).to_string())),
        ArgAction::SetFalse => return Ok(Some((!matches.get_flag(id)).to_string())),
        ArgAction::Count => return Ok(Some(matches.get_count(id).to_string())),
        _ => {}
    }
    let Some(raw) = matches.get_raw(id) else {
        return Ok(None);
    };
    let texts: Vec<&str> = raw
        .map(|text: &OsStr| text.to_str().ok_or("the value is no UTF-8, so TOML cannot hold it"))
        .collect::<Result<_, _>>()?;
    Ok(match texts[..] {
        [text] if !takes_many(arg) => Some(toml(text)),
        [] => None,
        _ => Some(format!("[{}]", texts.into_iter().map(toml).collect::<Vec<_>>().join(", "))),
    })
}

/// A value of the command line in TOML: bare if TOML gives back the very same text, else in quotes.
fn toml(text: &str) -> String {
    let bare = ["true", "false"].contains(&text)
        || text.parse::<i64>().is_ok_and(|number| number.to_string() == text)
        || text.contains('.')
            && text.parse::<f64>().is_ok_and(|number| number.is_finite() && number.to_string() == text);
    if bare { text.to_owned() } else { Value::from(text).to_string() }
}
