//! Parses the arguments of a process and the files of `--config`.
//!
//! Values come in layers: the command line, the files of `--config`, a checkpoint's saved arguments. Each layer is parsed
//! once, and gives only what those before it do not. If files or a checkpoint give values, they are inserted as flags
//! before the user's, and clap parses all together: rules between arguments, such as `requires`, hold across layers, and
//! only clap can make the program's own arguments.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, FromArgMatches};
use fulmen_durable::with_dashes;
use fulmen_trainer::internal::{replacement_for, source_env};
use fulmen_trainer::{Options, Resume, Trainer, TrainerArgs, load_arguments};

use crate::CliApp;
use crate::command::{self, CommonArgs, Task};
use crate::config::{self, FileKey};
use crate::failure::Failure;
use crate::output::print_message;
use crate::secrets;

/// A parsed command line.
#[derive(Debug)]
pub(crate) struct Invocation<A> {
    pub(crate) app: A,
    pub(crate) task: Task,
    pub(crate) common: CommonArgs,
    /// The Trainer's options from flags and files.
    pub(crate) trainer: TrainerArgs,
    /// The subcommand as clap defines it, or the whole command if there is none, and its matches.
    pub(crate) command: Command,
    pub(crate) matches: ArgMatches,
    /// The whole command, and all arguments, with those from files and checkpoints.
    root: Command,
    args: Vec<OsString>,
    /// The sources of values that are not from the command line, by argument.
    pub(crate) sources: BTreeMap<String, String>,
}

impl<A> Invocation<A> {
    /// Where the value of an argument comes from, if it is not the default. `own_options`
    /// are the options that the app sets itself.
    pub(crate) fn source(&self, arg: &Arg, own_options: &[&str]) -> Option<String> {
        let id = arg.get_id().as_str();
        if let Some(source) = self.sources.get(id) {
            return Some(source.clone());
        }
        match self.matches.value_source(id) {
            Some(ValueSource::CommandLine) => Some("command line".to_owned()),
            Some(ValueSource::EnvVariable) => {
                arg.get_env().map(|name| name.to_string_lossy().into_owned())
            }
            _ => source_env(id)
                .or(own_options.contains(&id).then_some("the program"))
                .map(str::to_owned),
        }
    }
}

impl<A: CliApp> Invocation<A> {
    /// Whether the program itself has this argument.
    pub(crate) fn has_own_argument(&self, long: &str) -> bool {
        config::flags(&A::augment_args(Command::new(""))).any(|arg| arg.get_long() == Some(long))
    }

    /// The app with another value of one of its arguments.
    ///
    /// # Errors
    /// The argument does not take this value.
    pub(crate) fn app_with(&self, long: &str, value: &str) -> Result<A, String> {
        let mut args = self.args.clone();
        let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
        // Of an argument given twice, the last one counts.
        args.insert(end, format!("--{long}={value}").into());
        let matches = self.root.clone().try_get_matches_from(args).map_err(|e| e.to_string())?;
        A::from_arg_matches(leaf(&matches).1).map_err(|e| e.to_string())
    }
}

/// Parses a command line and the files that it names.
pub(crate) fn parse<A: CliApp>(mut args: Vec<OsString>) -> Result<Invocation<A>, Failure> {
    let name = args.first().map(Path::new).and_then(Path::file_name).and_then(|name| name.to_str());
    let mut command = command::command::<A>(name.unwrap_or("program"))?;
    // Lets clap derive help, usage and the flags of subcommands.
    command.build();
    accept_underscores(&mut args, &command);
    join_negative_numbers(&mut args, &command);

    reject_lightning_flags(&args, &command)?;

    let parsed = command.clone().try_get_matches_from(&args);
    let user_matches = match &parsed {
        Ok(matches) => matches.clone(),
        // Files and a checkpoint may give what is missing. Without them, this error is reported below.
        Err(_) => {
            let lenient = command.clone().ignore_errors(true);
            lenient.try_get_matches_from(&args).map_err(Failure::Usage)?
        }
    };
    let (subcommand, leaf) = leaf(&user_matches);
    let files: Vec<PathBuf> =
        leaf.try_get_many("config").ok().flatten().into_iter().flatten().cloned().collect();
    let is_given = |id: &str| leaf.value_source(id) == Some(ValueSource::CommandLine);
    let mut lower: Vec<FileKey> = config::read(&files, &command, subcommand)
        .map_err(|error| Failure::Option(error.to_string()))?
        .into_iter()
        .filter(|setting| !is_given(&setting.id))
        .collect();
    let own = A::augment_args(Command::new(""));
    lower.extend(saved_arguments(leaf, &lower, &command, &own, subcommand)?);
    let sources =
        lower.iter().map(|setting| (setting.id.clone(), setting.source.clone())).collect();
    let flags: Vec<OsString> = lower.into_iter().flat_map(|setting| setting.flags).collect();
    let matches = if flags.is_empty() {
        parsed
    } else {
        let index = match subcommand {
            None => 1,
            // Keep the subcommand first: otherwise clap rejects its position.
            Some(name) if args.get(1).is_some_and(|first| first == name) => 2,
            Some(_) => args.len(),
        };
        let index = index.min(args.len());
        args.splice(index..index, flags);
        command.clone().try_get_matches_from(&args)
    };
    let matches = matches.map_err(Failure::Usage)?;
    let (subcommand, leaf) = self::leaf(&matches);
    let leaf_command =
        subcommand.and_then(|name| command.find_subcommand(name)).unwrap_or(&command).clone();
    secrets::declare(&leaf_command, leaf);
    Ok(Invocation {
        app: A::from_arg_matches(leaf).map_err(Failure::Usage)?,
        task: Task::from_subcommand(subcommand),
        common: CommonArgs::from_arg_matches(leaf).map_err(Failure::Usage)?,
        trainer: TrainerArgs::from_arg_matches(leaf).map_err(Failure::Usage)?,
        command: leaf_command,
        matches: leaf.clone(),
        root: command,
        args,
        sources,
    })
}

/// The program's arguments saved in the checkpoint that the command uses, except those that the
/// user gave, whose matches these are, or the files. `own` has the program's own arguments.
fn saved_arguments(
    user: &ArgMatches,
    from_files: &[FileKey],
    command: &Command,
    own: &Command,
    subcommand: Option<&str>,
) -> Result<Vec<FileKey>, Failure> {
    // Errors in these arguments are reported later, where the arguments are used.
    let common = CommonArgs::from_arg_matches(user).unwrap_or_default();
    let trainer_args =
        |matches: &ArgMatches| TrainerArgs::from_arg_matches(matches).unwrap_or_default();
    let options = from_files
        .iter()
        .map(|key| &key.matches)
        .chain([user])
        .fold(Trainer::builder(), |builder, matches| builder.args(trainer_args(matches)))
        .options();
    let (Ok(options), false) = (options, common.ignore_saved_arguments) else {
        return Ok(Vec::new());
    };
    let options = match Task::from_subcommand(subcommand) {
        Task::Tune | Task::Preflight => return Ok(Vec::new()),
        Task::FitAndTest | Task::Fit => options,
        // Only training resumes.
        Task::Validate | Task::Test | Task::Predict => Options { resume: Resume::Never, ..options },
    };
    let Some((path, arguments)) = load_arguments(&options).ok().flatten() else {
        return Ok(Vec::new());
    };
    let is_given = |id: &str| {
        user.value_source(id) == Some(ValueSource::CommandLine)
            || from_files.iter().any(|key| key.id == id)
    };
    let saved: Vec<FileKey> = config::read_saved(&path, &arguments, command, own, subcommand)
        .map_err(|error| Failure::Option(error.to_string()))?
        .into_iter()
        .filter(|setting| !is_given(&setting.id))
        .collect();
    if !saved.is_empty() {
        print_message(&format!(
            "arguments of the program that are not given are taken from {}",
            path.display()
        ));
    }
    Ok(saved)
}

/// Writes `--max_epochs=5` as `--max-epochs=5`, unless the program defines a flag with underscores.
fn accept_underscores(args: &mut [OsString], command: &Command) {
    for arg in args.iter_mut().skip(1).take_while(|arg| *arg != "--") {
        let Some(text) = arg.to_str() else { continue };
        if let Some(dashed) = with_dashes(text, |flag| is_flag(command, flag)) {
            *arg = dashed.into();
        }
    }
}

/// Whether the command or one of its subcommands has a flag with this name.
fn is_flag(command: &Command, name: &str) -> bool {
    let mut commands = std::iter::once(command).chain(command.get_subcommands());
    let is_its = |arg: &Arg| {
        arg.get_long() == Some(name)
            || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
    };
    commands.any(|command| command.get_arguments().any(is_its))
}

/// Writes `--shift -1e-3` as `--shift=-1e-3`: clap would read a number with an exponent as short
/// flags.
fn join_negative_numbers(args: &mut Vec<OsString>, command: &Command) {
    let takes_value = |flag: &str| {
        let commands = || std::iter::once(command).chain(command.get_subcommands());
        let mut known =
            commands().flat_map(Command::get_arguments).filter(|arg| arg.get_long() == Some(flag));
        known.any(|arg| arg.get_action().takes_values() && !config::takes_many(arg))
    };
    let is_negative = |text: &str| {
        text.starts_with('-') && text.contains(char::is_alphabetic) && text.parse::<f64>().is_ok()
    };
    let mut index = 1;
    while index + 1 < args.len() && args[index] != "--" {
        let pair =
            (args[index].to_str().and_then(|arg| arg.strip_prefix("--")), args[index + 1].to_str());
        if let (Some(flag), Some(number)) = pair
            && is_negative(number)
            && takes_value(flag)
        {
            args[index] = format!("--{flag}={number}").into();
            args.remove(index + 1);
        }
        index += 1;
    }
}

/// Rejects a flag that Lightning or PyTorch/XLA has or had, and says what to do instead, unless the
/// program defines the flag.
fn reject_lightning_flags(args: &[OsString], command: &Command) -> Result<(), Failure> {
    for arg in args
        .iter()
        .skip(1)
        .map_while(|arg| Some(arg.to_str().unwrap_or_default()).filter(|arg| *arg != "--"))
    {
        let flag = arg.strip_prefix("--").map(|flag| flag.split('=').next().unwrap_or(flag));
        let Some(flag) = flag.filter(|flag| !is_flag(command, flag)) else { continue };
        if let Some(replacement) = replacement_for(flag) {
            return Err(Failure::Option(format!("there is no option --{flag}: {replacement}")));
        }
        // LightningCLI's groups.
        let dashed = flag.strip_prefix("trainer.").map(|name| name.replace('_', "-"));
        if let Some(name) = dashed.filter(|name| is_flag(command, name)) {
            return Err(Failure::Option(format!("there is no option --{flag}: write --{name}")));
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
