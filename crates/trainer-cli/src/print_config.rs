//! `--print-config`: all options of a command, as TOML that `--config` accepts.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use clap::{Arg, ArgAction, ArgMatches, Command};
use fulmen_trainer::Options;
use fulmen_trainer::internal::{json_value, toml_line};
use serde_json::{Map, Value as Json};

use crate::config::{flags, section_of, takes_many};
use crate::secrets::is_secret;
use crate::{CliApp, Result};

/// Prints the options of a command: the Trainer's as resolved, the others as given. The first line
/// of the option's help is above each key. The source of the value, if known, is behind it. A key
/// without a value is a comment, and so is a secret.
pub(crate) fn print_config(
    command: &Command,
    matches: &ArgMatches,
    options: &Options,
    source: impl Fn(&Arg) -> Option<String>,
) -> Result<String> {
    let resolved: BTreeMap<&str, Option<String>> = options.values().into_iter().collect();
    let mut sections: Vec<(Option<String>, String)> = vec![(None, String::new())];
    for arg in flags(command) {
        let id = arg.get_id().as_str();
        let long = arg.get_long().unwrap_or_default();
        let value = match resolved.get(id) {
            _ if is_secret(arg) => None,
            Some(value) => value.as_deref().map(json_value),
            None => value_of(arg, matches).map_err(|problem| format!("--{long}: {problem}"))?,
        };
        let section = section_of(arg);
        if !sections.iter().any(|known| known.0 == section) {
            sections.push((section.clone(), String::new()));
        }
        for (_, text) in sections.iter_mut().filter(|known| known.0 == section) {
            if let Some(help) = arg.get_help() {
                text.push_str(&format!(
                    "# {}\n",
                    help.to_string().lines().next().unwrap_or_default()
                ));
            }
            text.push_str(&toml_line(long, value.as_ref(), source(arg).as_deref()));
        }
    }
    let sections = sections.into_iter().filter(|section| !section.1.is_empty());
    let texts = sections
        .map(|(name, text)| name.map(|name| format!("[{name}]\n")).unwrap_or_default() + &text);
    Ok(texts.collect::<Vec<_>>().join("\n"))
}

/// The program's own arguments by flag, as given or by default. Those without a value and secrets
/// are left out.
pub(crate) fn arguments<A: CliApp>(matches: &ArgMatches) -> Result<Map<String, Json>> {
    let mut arguments = Map::new();
    for arg in flags(&A::augment_args(Command::new(""))).filter(|arg| !is_secret(arg)) {
        let long = arg.get_long().unwrap_or_default();
        if let Some(value) =
            value_of(arg, matches).map_err(|problem| format!("--{long}: {problem}"))?
        {
            arguments.insert(long.to_owned(), value);
        }
    }
    Ok(arguments)
}

/// The value given for an argument, or its default.
fn value_of(arg: &Arg, matches: &ArgMatches) -> Result<Option<Json>> {
    let id = arg.get_id().as_str();
    match arg.get_action() {
        ArgAction::SetTrue => return Ok(Some(matches.get_flag(id).into())),
        ArgAction::SetFalse => return Ok(Some((!matches.get_flag(id)).into())),
        ArgAction::Count => return Ok(Some(matches.get_count(id).into())),
        _ => {}
    }
    let Some(raw) = matches.get_raw(id) else {
        return Ok(None);
    };
    let texts: Vec<&str> = raw
        .map(|text: &OsStr| text.to_str().ok_or("the value is not UTF-8, so TOML cannot hold it"))
        .collect::<Result<_, _>>()?;
    Ok(match texts[..] {
        [text] if !takes_many(arg) => Some(json_value(text)),
        [] => None,
        _ => Some(texts.into_iter().map(json_value).collect()),
    })
}
