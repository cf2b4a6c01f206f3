//! The command line as clap sees it: the subcommands, and the flags that all of them have.

use std::path::PathBuf;

use clap::{Arg, Args as _, Command};
use fulmen_trainer::preflight::Slice;
use fulmen_trainer::{Options, TrainerArgs};

use crate::{Program, Result};

/// The flags that every program has besides its own and the Trainer's.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
#[command(next_help_heading = "Output", about = None, long_about = None)]
pub(crate) struct CommonArgs {
    /// Take options from a TOML file, as `--print-config` writes it. May be given again: later files win.
    #[arg(long, value_name = "FILE", help_heading = "Configuration")]
    pub(crate) config: Vec<PathBuf>,
    /// Do not take the program's own arguments from the checkpoint of `--ckpt-path`, where the command line and files give
    /// none.
    #[arg(long, help_heading = "Configuration")]
    pub(crate) ignore_saved_arguments: bool,
    /// Print all options as TOML, and do nothing else.
    #[arg(long, help_heading = "Configuration")]
    pub(crate) print_config: bool,
    /// End the output with one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the runtime's metrics at the end.
    #[arg(long)]
    pub(crate) metrics: bool,
    /// Show curves, throughput, queues, memory and the log on a full screen, if standard error is a terminal. Needs the feature
    /// `tui` of `fulmen`.
    #[arg(long)]
    pub(crate) tui: bool,
}

/// The flags of `predict`.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
#[command(next_help_heading = "Output", about = None, long_about = None)]
pub(crate) struct PredictArgs {
    /// The file to write, .csv, .safetensors or a format of the program's own; what stood there is replaced when all is predicted.
    #[arg(long, value_name = "FILE", default_value = "predictions.safetensors")]
    pub(crate) output: PathBuf,
}

/// The flags of `preflight`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Preflight", about = None, long_about = None)]
pub(crate) struct PreflightArgs {
    /// The TPU slices to judge the training step for, such as v5e:2x4,v3:2x2 or v6e-8
    #[arg(long, value_name = "SLICES", required_unless_present = "save", value_delimiter = ',')]
    pub(crate) topology: Vec<Slice>,
    /// Tell what an epoch costs, by Fulmen's dated table of prices or by one of your own
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = OUR_PRICES)]
    pub(crate) price: Option<PathBuf>,
    /// Keep what a fit compiles, for the one slice of --topology or else for the devices that are here: with --aot FILE a fit
    /// there starts without the compiler
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
    /// Write the judgement as an HTML page too: roofline by line of code, memory, slices compared by time and money
    #[arg(long, value_name = "FILE", requires = "topology")]
    pub(crate) html: Option<PathBuf>,
    /// Fetch libtpu, the compiler, if it is not here: 205 MB from PyPI, under Google's terms of service
    #[arg(long)]
    pub(crate) fetch_libtpu: bool,
}

/// The value of `--price` without one.
pub(crate) const OUR_PRICES: &str = "ours";

/// What a file does not set.
pub(crate) const NOT_IN_A_FILE: [&str; 5] = ["config", "print-config", "ignore-saved-arguments", "help", "version"];

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Without a subcommand: fit, then test.
    FitAndTest,
    Fit,
    Validate,
    Test,
    Predict,
    Preflight,
}

/// The subcommands with what `--help` says of them.
const TASKS: [(&str, Task, &str); 5] = [
    ("fit", Task::Fit, "Train the module, validating after each epoch"),
    ("validate", Task::Validate, "Run the validation step over the validation data"),
    ("test", Task::Test, "Run the test step over the test data"),
    ("predict", Task::Predict, "Write to a file what the module predicts for the program's data"),
    ("preflight", Task::Preflight, "Compile the training step for TPUs that are not here, and judge it"),
];

impl Task {
    /// The task of a subcommand.
    pub(crate) fn of(subcommand: Option<&str>) -> Task {
        TASKS.iter().find(|task| Some(task.0) == subcommand).map_or(Task::FitAndTest, |task| task.1)
    }
}

/// A program's command line.
///
/// # Errors
/// A flag of the program's own that has the name of another.
pub(crate) fn command<P: Program>(name: &str) -> Result<Command> {
    let own = P::augment_args(Command::new(name.to_owned()));
    check_names(&own)?;
    let mut command = with_flags::<P>(Command::new(name.to_owned()))
        .args_conflicts_with_subcommands(true)
        .subcommand_help_heading("Commands")
        .after_help("Without a command: fit, then test with the best weights if there is test data.");
    for (name, task, about) in TASKS {
        let subcommand = with_flags::<P>(Command::new(name));
        let weights = "The checkpoint whose weights to use; without it those that the module begins with";
        let subcommand = match task {
            Task::FitAndTest | Task::Fit => subcommand,
            Task::Validate | Task::Test => subcommand.mut_arg("ckpt_path", |arg| arg.help(weights)),
            Task::Predict => PredictArgs::augment_args(subcommand).mut_arg("ckpt_path", |arg| arg.help(weights)),
            Task::Preflight => PreflightArgs::augment_args(subcommand),
        };
        command = command.subcommand(subcommand.long_about(None).about(about));
    }
    Ok(command)
}

/// Adds all flags to a command.
fn with_flags<P: Program>(command: Command) -> Command {
    let command = P::augment_args(command);
    // What the program says of itself is not for the groups that come after it to take away.
    let (about, long_about) = (command.get_about().cloned(), command.get_long_about().cloned());
    let mut command = TrainerArgs::augment_args(CommonArgs::augment_args(command));
    if let Some(about) = about {
        command = command.about(about);
    }
    if let Some(about) = long_about {
        command = command.long_about(about);
    }
    for row in Options::table() {
        let help = format!("{} [env: {}] [default: {}]", row.doc.trim_end_matches('.'), row.env, row.default);
        command = command.mut_arg(row.name, |arg| arg.help(help));
    }
    // Otherwise `--learning-rate -1` is told to be an unexpected argument, and no negative number can be given.
    command.mut_args(|arg| match arg.get_long().is_some() && arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    })
}

/// clap would panic, or mix up two flags of one name.
fn check_names(own: &Command) -> Result<()> {
    if let Some(subcommand) = own.get_subcommands().next() {
        let name = subcommand.get_name();
        return Err(format!("the program's arguments have a subcommand of their own, `{name}`; make it a flag").into());
    }
    let ours = TrainerArgs::augment_args(CommonArgs::augment_args(Command::new("")));
    let ours = PreflightArgs::augment_args(PredictArgs::augment_args(ours));
    let taken = |arg: &&Arg| {
        let same_long = |other: &Arg| arg.get_long().is_some() && arg.get_long() == other.get_long();
        let reserved = arg.get_long().is_some_and(|long| NOT_IN_A_FILE.contains(&long));
        reserved
            || arg.get_short() == Some('h')
            || ours.get_arguments().any(|o| o.get_id() == arg.get_id() || same_long(o))
    };
    match own.get_arguments().find(taken) {
        Some(arg) => Err(format!(
            "the program's own argument `{}` has the name of one that every program has; give it another name",
            arg.get_long().unwrap_or(arg.get_id().as_str())
        )
        .into()),
        None => Ok(()),
    }
}
