//! From the arguments of a process to what is to be done: flags, and under them what the files of `--config` say.
//!
//! The files are turned into flags and put before those of the user, so that clap checks both alike. A flag that the
//! user gave is left out of the file's.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, FromArgMatches};
use fulmen_trainer::internal::{instead, source_env};
use fulmen_trainer::{Options, Resume, Trainer, TrainerArgs, load_arguments};

use crate::Program;
use crate::command::{self, CommonArgs, Task};
use crate::config::{self, FileKey};
use crate::fail::Failure;
use crate::output::say;

/// A command line that was understood.
#[derive(Debug)]
pub(crate) struct Invocation<P> {
    pub(crate) program: P,
    pub(crate) task: Task,
    pub(crate) common: CommonArgs,
    /// What flags and files give.
    pub(crate) trainer: TrainerArgs,
    /// The subcommand as clap has it, or the whole command if there is none, and what it read.
    pub(crate) command: Command,
    pub(crate) matches: ArgMatches,
    /// Where values come from that were not given on the command line, by the names of their arguments.
    pub(crate) sources: BTreeMap<String, String>,
}

impl<P> Invocation<P> {
    /// Where the value of an argument comes from, if that is not its default. `program` names the options that the program
    /// sets itself.
    pub(crate) fn source(&self, arg: &Arg, program: &[&str]) -> Option<String> {
        let id = arg.get_id().as_str();
        if let Some(source) = self.sources.get(id) {
            return Some(source.clone());
        }
        match self.matches.value_source(id) {
            Some(ValueSource::CommandLine) => Some("command line".to_owned()),
            Some(ValueSource::EnvVariable) => arg.get_env().map(|name| name.to_string_lossy().into_owned()),
            _ => source_env(id).or(program.contains(&id).then_some("the program")).map(str::to_owned),
        }
    }
}

/// Reads a command line and the files that it names.
pub(crate) fn parse<P: Program>(mut args: Vec<OsString>) -> Result<Invocation<P>, Failure> {
    let name = args.first().map(Path::new).and_then(Path::file_name).and_then(|name| name.to_str());
    let mut command = command::command::<P>(name.unwrap_or("program"))?;
    // Makes clap fill in what is derived: help, usage, the flags of subcommands.
    command.build();
    join_negative_numbers(&mut args, &command);

    refuse_old_names(&args, &command)?;

    // What the user gave, however incomplete it is without the files.
    let given = command.clone().ignore_errors(true).try_get_matches_from(&args).map_err(Failure::Usage)?;
    let (subcommand, leaf) = leaf(&given);
    let files: Vec<PathBuf> = leaf.try_get_many("config").ok().flatten().into_iter().flatten().cloned().collect();
    let at = match subcommand {
        None => 1,
        // Otherwise the subcommand is in a place where clap refuses it.
        Some(name) if args.get(1).is_some_and(|first| first == name) => 2,
        Some(_) => args.len(),
    };
    let from_files = config::read(&files, &command, subcommand).map_err(|error| Failure::Option(error.to_string()))?;
    let is_given = |id: &str| leaf.value_source(id) == Some(ValueSource::CommandLine);
    let from_files = from_files.into_iter().filter(|setting| !is_given(&setting.id)).collect();
    let (at, mut sources) = (at.min(args.len()), BTreeMap::new());
    let mut put = |args: &mut Vec<OsString>, settings: Vec<FileKey>| {
        sources.extend(settings.iter().map(|setting| (setting.id.clone(), setting.source.clone())));
        args.splice(at..at, settings.into_iter().flat_map(|setting| setting.flags));
    };
    put(&mut args, from_files);
    let saved = saved_arguments(&args, &command)?;
    put(&mut args, saved);

    let matches = command.clone().try_get_matches_from(&args).map_err(Failure::Usage)?;
    let (subcommand, leaf) = self::leaf(&matches);
    Ok(Invocation {
        program: P::from_arg_matches(leaf).map_err(Failure::Usage)?,
        task: Task::of(subcommand),
        common: CommonArgs::from_arg_matches(leaf).map_err(Failure::Usage)?,
        trainer: TrainerArgs::from_arg_matches(leaf).map_err(Failure::Usage)?,
        command: subcommand.and_then(|name| command.find_subcommand(name)).unwrap_or(&command).clone(),
        matches: leaf.clone(),
        sources,
    })
}

/// The program's own arguments that the checkpoint to be used was written with, except those that are given.
fn saved_arguments(args: &[OsString], command: &Command) -> Result<Vec<FileKey>, Failure> {
    let given = command.clone().ignore_errors(true).try_get_matches_from(args).map_err(Failure::Usage)?;
    let (subcommand, leaf) = leaf(&given);
    // What is wrong with these is told when they are used.
    let common = CommonArgs::from_arg_matches(leaf).unwrap_or_default();
    let options = Trainer::builder().args(TrainerArgs::from_arg_matches(leaf).unwrap_or_default()).options();
    let (Ok(options), false) = (options, common.ignore_saved_arguments) else { return Ok(vec![]) };
    let options = match Task::of(subcommand) {
        Task::Preflight => return Ok(vec![]),
        Task::FitAndTest | Task::Fit => options,
        // What does not train goes on with nothing.
        Task::Validate | Task::Test | Task::Predict => Options { resume: Resume::Never, ..options },
    };
    let Some((path, arguments)) = load_arguments(&options).ok().flatten() else { return Ok(vec![]) };
    let saved = config::saved(&path, &arguments, command, subcommand);
    let saved = saved.map_err(|error| Failure::Option(error.to_string()))?;
    let is_given = |id: &str| leaf.value_source(id) == Some(ValueSource::CommandLine);
    let saved: Vec<FileKey> = saved.into_iter().filter(|setting| !is_given(&setting.id)).collect();
    if !saved.is_empty() {
        say(&format!("the program's arguments that are not given are those that {} was written with", path.display()));
    }
    Ok(saved)
}

/// Writes `--shift -1e-3` as `--shift=-1e-3`: clap takes a number with an exponent for short flags.
fn join_negative_numbers(args: &mut Vec<OsString>, command: &Command) {
    let takes_value = |flag: &str| {
        let commands = || std::iter::once(command).chain(command.get_subcommands());
        let mut known = commands().flat_map(Command::get_arguments).filter(|arg| arg.get_long() == Some(flag));
        known.any(|arg| arg.get_action().takes_values() && !config::takes_many(arg))
    };
    let is_negative =
        |text: &str| text.starts_with('-') && text.contains(char::is_alphabetic) && text.parse::<f64>().is_ok();
    let mut at = 1;
    while at + 1 < args.len() && args[at] != "--" {
        let pair = (args[at].to_str().and_then(|arg| arg.strip_prefix("--")), args[at + 1].to_str());
        if let (Some(flag), Some(number)) = pair
            && is_negative(number)
            && takes_value(flag)
        {
            args[at] = format!("--{flag}={number}").into();
            args.remove(at + 1);
        }
        at += 1;
    }
}

/// Refuses a flag that Lightning has or had, with what to give instead, unless it is one of the program's own.
fn refuse_old_names(args: &[OsString], command: &Command) -> Result<(), Failure> {
    let is_own = |flag: &str| {
        let mut commands = std::iter::once(command).chain(command.get_subcommands());
        commands.any(|command| command.get_arguments().any(|arg| arg.get_long() == Some(flag)))
    };
    for arg in args.iter().skip(1).map_while(|arg| Some(arg.to_str().unwrap_or_default()).filter(|arg| *arg != "--")) {
        let flag = arg.strip_prefix("--").map(|flag| flag.split('=').next().unwrap_or(flag));
        if let Some(flag) = flag.filter(|flag| !is_own(flag))
            && let Some(instead) = instead(flag)
        {
            return Err(Failure::Option(format!("there is no option --{flag}: {instead}")));
        }
    }
    Ok(())
}

/// The subcommand, and the flags after it.
fn leaf(matches: &ArgMatches) -> (Option<&str>, &ArgMatches) {
    match matches.subcommand() {
        Some((name, matches)) => (Some(name), matches),
        None => (None, matches),
    }
}
