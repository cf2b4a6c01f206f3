//! The file of `--config`: TOML or YAML whose keys are the names of flags.
//!
//! A key is at the top of the file or in the section under which `--help` shows its flag, such as
//! `[trainer]` for the Trainer's options. Dashes and underscores are equivalent. Errors name the
//! file, the line and the key.

mod toml;
mod value;
mod yaml;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use fulmen_trainer::internal::{nearest_name, replacement_for};
use serde_json::{Map, Value as Json};

use self::value::{ConfigValue, Content, Entry};
use crate::Result;
use crate::command::NOT_IN_A_FILE;

/// A key of a file, as flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileKey {
    /// The argument's id in clap.
    pub(crate) id: String,
    pub(crate) flags: Vec<OsString>,
    /// What clap reads from these flags alone.
    pub(crate) matches: ArgMatches,
    /// The location of the key.
    pub(crate) source: String,
}

/// A location in a file, or a checkpoint.
struct Location<'a> {
    path: &'a Path,
    line: Option<usize>,
}

impl fmt::Display for Location<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.path.display()),
            None => write!(f, "{}: its saved arguments", self.path.display()),
        }
    }
}

/// Reads files. Later files override earlier ones. Settings for other subcommands are checked but
/// not returned.
pub(crate) fn read(
    files: &[PathBuf],
    command: &Command,
    subcommand: Option<&str>,
) -> Result<Vec<FileKey>> {
    let mut settings: Vec<FileKey> = Vec::new();
    for path in files {
        let text = fulmen_durable::read_text(path)
            .map_err(|e| format!("--config {}: {e}", path.display()))?;
        for setting in read_text(path, &text, command, subcommand)? {
            settings.retain(|earlier| earlier.id != setting.id);
            settings.push(setting);
        }
    }
    Ok(settings)
}

fn read_text(
    path: &Path,
    text: &str,
    command: &Command,
    subcommand: Option<&str>,
) -> Result<Vec<FileKey>> {
    let entries = if is_yaml(path) { yaml::read(text) } else { toml::read(text) };
    let entries = entries.map_err(|mistake| {
        let location = Location { path, line: Some(mistake.line) };
        format!("{location}: {}", mistake.message)
    })?;
    let mut reader = ConfigReader { path, command, subcommand, settings: Vec::new() };
    for entry in &entries {
        let location = Location { path, line: Some(entry.line) };
        match &entry.content {
            Content::Section(entries) => reader.section(&location, &entry.name, entries)?,
            content => reader.key(&location, None, &entry.name, content)?,
        }
    }
    Ok(reader.settings)
}

/// Whether a file is YAML. All others are TOML.
fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|ending| {
        ending.eq_ignore_ascii_case("yaml") || ending.eq_ignore_ascii_case("yml")
    })
}

/// The saved arguments of a checkpoint, as flags. Those of other commands are left out. A checkpoint
/// may come from someone else, so it sets only the program's own arguments (`own`).
pub(crate) fn read_saved(
    path: &Path,
    arguments: &Map<String, Json>,
    command: &Command,
    own: &Command,
    subcommand: Option<&str>,
) -> Result<Vec<FileKey>> {
    const IGNORE: &str = "pass --ignore-saved-arguments to ignore saved arguments";
    let mut reader = ConfigReader { path, command, subcommand, settings: Vec::new() };
    let location = Location { path, line: None };
    let has_flag = |command: &Command, name: &str| {
        flags(command).any(|arg| arg.get_long() == Some(&name.replace('_', "-")))
    };
    let commands = || std::iter::once(command).chain(command.get_subcommands());
    for (name, value) in arguments {
        if !has_flag(own, name) && commands().any(|command| has_flag(command, name)) {
            return Err(format!(
                "{location}: `{name}` is not one of this program's own arguments, so a checkpoint cannot set it\n{IGNORE}"
            )
            .into());
        }
        let Some(value) = convert(value) else { continue };
        let read = reader.key(&location, None, name, &Content::Value(value));
        read.map_err(|e| format!("{e}\n{IGNORE}"))?;
    }
    Ok(reader.settings)
}

fn convert(value: &Json) -> Option<ConfigValue> {
    Some(match value {
        Json::Bool(value) => ConfigValue::boolean(*value),
        Json::Number(number) => ConfigValue::Text(match number.as_i64() {
            Some(number) => number.to_string(),
            None => format!("{:?}", number.as_f64()?),
        }),
        Json::String(text) => ConfigValue::Text(text.clone()),
        Json::Array(values) => ConfigValue::List(values.iter().filter_map(convert).collect()),
        Json::Null | Json::Object(_) => return None,
    })
}

struct ConfigReader<'a> {
    path: &'a Path,
    command: &'a Command,
    subcommand: Option<&'a str>,
    settings: Vec<FileKey>,
}

impl ConfigReader<'_> {
    fn section(&mut self, location: &Location<'_>, section: &str, entries: &[Entry]) -> Result<()> {
        let known = sections(self.command);
        if !known.iter().any(|name| name == section) {
            return Err(self.unknown_section(location, section, &known).into());
        }
        for entry in entries {
            let location = Location { path: self.path, line: Some(entry.line) };
            self.key(&location, Some(section), &entry.name, &entry.content)?;
        }
        Ok(())
    }

    fn unknown_section(&self, location: &Location<'_>, section: &str, known: &[String]) -> String {
        let all = || std::iter::once(self.command).chain(self.command.get_subcommands());
        let long = section.replace('_', "-");
        if all().flat_map(flags).any(|arg| has_name(arg, &long)) {
            return format!("{location}: `{section}`: expected a value, not a table");
        }
        // The sections of LightningCLI.
        let advice = if self.command.find_subcommand(section).is_some() {
            " Write its keys without it: one file serves all commands."
        } else if ["model", "data"].contains(&section) {
            " Write the program's own arguments at the top of the file."
        } else {
            ""
        };
        let near = did_you_mean(section, known.iter().map(String::as_str));
        format!(
            "{location}: there is no section [{section}]{near}{advice} The sections are {}",
            list(known)
        )
    }

    fn key(
        &mut self,
        location: &Location<'_>,
        section: Option<&str>,
        name: &str,
        content: &Content,
    ) -> Result<()> {
        let long = name.replace('_', "-");
        // Prefer a flag of this subcommand over one of another.
        let current = self
            .subcommand
            .and_then(|name| self.command.find_subcommand(name))
            .unwrap_or(self.command);
        let find = |command: &Command| flags(command).find(|arg| has_name(arg, &long)).cloned();
        let all = || std::iter::once(self.command).chain(self.command.get_subcommands());
        let known = find(current)
            .map(|arg| (current, arg))
            .or_else(|| all().find_map(|c| Some((c, find(c)?))));
        let Some((command, arg)) = known else {
            if NOT_IN_A_FILE.contains(&long.as_str()) {
                return Err(format!(
                    "{location}: `{name}` can only be given on the command line, not in a file"
                )
                .into());
            }
            if let Some(replacement) = replacement_for(&long) {
                return Err(
                    format!("{location}: there is no option `{name}`: {replacement}").into()
                );
            }
            let near = did_you_mean(&long, all().flat_map(flags).filter_map(Arg::get_long));
            return Err(
                format!("{location}: there is no option `{name}`{near} --help lists all").into()
            );
        };
        if let Some(section) =
            section.filter(|section| section_of(&arg).as_deref() != Some(section))
        {
            let expected = section_of(&arg)
                .map_or("at the top of the file".to_owned(), |name| format!("in [{name}]"));
            return Err(format!("{location}: `{name}` is not in [{section}] but {expected}").into());
        }
        let id = arg.get_id().to_string();
        if self.settings.iter().any(|earlier| earlier.id == id) {
            return Err(format!("{location}: `{name}` is set a second time").into());
        }
        let value = match content {
            Content::Value(value) => value,
            Content::Unset => return Ok(()),
            Content::Section(_) => {
                return Err(format!("{location}: `{name}`: expected a value, not a table").into());
            }
        };
        let flags = to_flags(&arg, &long, value)
            .map_err(|problem| format!("{location}: `{name}`: {problem}"))?;
        let matches = parse_alone(command, &id, &flags)
            .map_err(|problem| format!("{location}: `{name}`: {problem}"))?;
        if std::ptr::eq(command, current) {
            self.settings.push(FileKey { id, flags, matches, source: location.to_string() });
        }
        Ok(())
    }
}

/// The flags of a command that a file can set.
pub(crate) fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    let settable = |arg: &&Arg| arg.get_long().is_some_and(|long| !NOT_IN_A_FILE.contains(&long));
    command.get_arguments().filter(settable)
}

/// Whether a flag has this name, or also this name.
fn has_name(arg: &Arg, long: &str) -> bool {
    arg.get_long() == Some(long)
        || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&long))
}

/// The section of a flag: its heading in `--help`.
pub(crate) fn section_of(arg: &Arg) -> Option<String> {
    arg.get_help_heading().map(|heading| heading.to_lowercase().replace(' ', "-"))
}

fn sections(command: &Command) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in std::iter::once(command)
        .chain(command.get_subcommands())
        .flat_map(flags)
        .filter_map(section_of)
    {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Whether a flag takes several values.
pub(crate) fn takes_many(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
        || arg.get_num_args().is_some_and(|range| range.max_values() > 1)
}

/// Converts a key's value to the flags that a user would type.
fn to_flags(arg: &Arg, long: &str, value: &ConfigValue) -> Result<Vec<OsString>, String> {
    let flag = |value: String| OsString::from(format!("--{long}={value}"));
    match (arg.get_action(), value) {
        (ArgAction::SetTrue | ArgAction::SetFalse, ConfigValue::Boolean { value, .. }) => {
            Ok(if *value { vec![format!("--{long}").into()] } else { Vec::new() })
        }
        (ArgAction::SetTrue | ArgAction::SetFalse, _) => Err("expected true or false".into()),
        (ArgAction::Count, value) => {
            let times = value.text().parse().ok().filter(|&times: &usize| times <= 100);
            let times = times.ok_or("expected a number of times")?;
            Ok(vec![format!("--{long}").into(); times])
        }
        (_, ConfigValue::List(values)) if takes_many(arg) => {
            let values: Vec<String> = values.iter().map(ConfigValue::text).collect();
            let group_size = arg.get_num_args().map_or(1, |range| range.max_values());
            if group_size <= 1 {
                return Ok(values.into_iter().map(flag).collect());
            }
            // `--sizes 1 2 3 4` with two values per flag is `--sizes 1 2 --sizes 3 4`.
            let groups = values.chunks(group_size);
            Ok(groups
                .flat_map(|group| {
                    std::iter::once(&format!("--{long}"))
                        .chain(group)
                        .map(OsString::from)
                        .collect::<Vec<_>>()
                })
                .collect())
        }
        (_, value) => Ok(vec![flag(value.text())]),
    }
}

/// Lets clap parse and check these flags of one argument on their own.
fn parse_alone(command: &Command, id: &str, flags: &[OsString]) -> Result<ArgMatches, String> {
    let command = command.clone().no_binary_name(true);
    let parsed = command.clone().try_get_matches_from(flags);
    let matches = match &parsed {
        Ok(matches) => Some(matches.clone()),
        Err(_) => command.clone().ignore_errors(true).try_get_matches_from(flags).ok(),
    };
    if let Some(matches) = &matches {
        let is_given = |other: &str| matches.value_source(other) == Some(ValueSource::CommandLine);
        let mut others = command.get_arguments().map(|arg| arg.get_id().as_str());
        if let Some(other) = others.find(|other| *other != id && is_given(other)) {
            return Err(format!("one of its values sets another argument, `{other}`"));
        }
    }
    // Other flags may be missing here.
    let is_missing = |error: &clap::Error| {
        [ErrorKind::MissingRequiredArgument, ErrorKind::MissingSubcommand].contains(&error.kind())
    };
    let Some(error) = parsed.err().filter(|error| !is_missing(error)) else {
        return Ok(matches.unwrap_or_default());
    };
    let text = error.render().to_string();
    let message = ["\n\nFor more information", "\n\nUsage:"]
        .into_iter()
        .fold(&*text, |message, end| message.split(end).next().unwrap_or_default());
    Err(message.trim().trim_start_matches("error: ").to_owned())
}

/// The end of a message, with a suggestion if a known name is close.
fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    nearest_name(name, known)
        .map_or_else(|| ".".to_owned(), |known| format!("; did you mean `{known}`?"))
}

fn list(names: &[String]) -> String {
    names.iter().map(|name| format!("[{name}]")).collect::<Vec<_>>().join(", ")
}
