//! The command line for clap: the subcommands and their common flags.

use std::path::PathBuf;

use clap::{Arg, Args as _, Command};
use fulmen_trainer::preflight::{Gpu, Slice};
use fulmen_trainer::{Options, TrainerArgs};

use crate::secrets::hide_in_help;
use crate::{CliApp, Result};

/// The flags of every app besides its own and the Trainer's.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
#[command(next_help_heading = "Output", about = None, long_about = None)]
pub(crate) struct CommonArgs {
    /// Take options from a TOML file in the format of `--print-config`, or from a YAML file. If
    /// given again, later files win.
    #[arg(long, value_name = "FILE", help_heading = "Configuration")]
    pub(crate) config: Vec<PathBuf>,
    /// Do not use the program's arguments saved in the checkpoint of `--ckpt-path` where the
    /// command line and files give none.
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
    /// Show curves, throughput, queues, memory and the log on a full screen, if standard error is a
    /// terminal. Needs the feature `tui` of `fulmen`.
    #[arg(long)]
    pub(crate) tui: bool,
}

/// The flags of `predict`.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
#[command(next_help_heading = "Output", about = None, long_about = None)]
pub(crate) struct PredictArgs {
    /// The file to write: .csv, .safetensors or a format of the program. An existing file is
    /// replaced when all is predicted.
    #[arg(long, value_name = "FILE", default_value = "predictions.safetensors")]
    pub(crate) output: PathBuf,
}

/// The flags of `tune`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Tune", about = None, long_about = None)]
pub(crate) struct TuneArgs {
    /// What to find: a learning rate, or the largest batch size whose step fits in memory
    #[arg(long, value_enum, default_value_t = Find::LearningRate)]
    pub(crate) find: Find,
    /// The learning rate of the first step
    #[arg(long, value_name = "RATE", default_value_t = 1e-8)]
    pub(crate) lowest_rate: f64,
    /// The learning rate of the last step
    #[arg(long, value_name = "RATE", default_value_t = 1.0)]
    pub(crate) highest_rate: f64,
    /// How many steps try a learning rate
    #[arg(long, value_name = "STEPS", default_value_t = 100)]
    pub(crate) sweep_steps: u64,
    /// The decay of the running mean of the losses; 0 for no smoothing
    #[arg(long, value_name = "DECAY", default_value_t = 0.98)]
    pub(crate) smoothing: f64,
    /// Use the loss of a validation of this many batches after each step, instead of the training
    /// loss
    #[arg(long, value_name = "BATCHES")]
    pub(crate) validation_batches: Option<u64>,
    /// The name of the loss that the validation logs
    #[arg(long, value_name = "NAME", default_value = "val_loss")]
    pub(crate) validation_loss: String,
    /// The page of the curve [default: tune.html in --default-root-dir]
    #[arg(long, value_name = "FILE")]
    pub(crate) page: Option<PathBuf>,
    /// The program's argument that sets the batch size
    #[arg(long, value_name = "NAME", default_value = "batch-size")]
    pub(crate) batch_argument: String,
    /// The first batch size to try, over all devices
    #[arg(long, value_name = "SAMPLES", default_value_t = 2)]
    pub(crate) first_batch_size: usize,
    /// How to choose the next batch size: double it, or also bisect at the end
    #[arg(long, value_enum, default_value_t = Search::Power)]
    pub(crate) search: Search,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Find {
    LearningRate,
    BatchSize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Search {
    Power,
    Binsearch,
}

/// The flags of `preflight`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Preflight", about = None, long_about = None)]
pub(crate) struct PreflightArgs {
    /// The TPU slices to estimate the training step for, such as v5e:2x4,v3:2x2 or v6e-8; 2*v5e:2x4
    /// is two slices that train together
    #[arg(long, value_name = "SLICES", required_unless_present = "save", value_delimiter = ',')]
    pub(crate) topology: Vec<Slice>,
    /// Print the cost of an epoch, from Fulmen's dated price table or your own
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = BUILT_IN_PRICES)]
    pub(crate) price: Option<PathBuf>,
    /// Compare with the same step on GPUs at their published peaks, such as v100,a100,h100,3090,
    /// with prices
    #[arg(long, value_name = "GPUS", requires = "topology", value_delimiter = ',', value_parser = Gpu::find)]
    pub(crate) against: Vec<&'static Gpu>,
    /// Measure the program's loader here for this many seconds, to say whether it keeps up with a
    /// slice; 0 for not at all
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub(crate) loader_seconds: u64,
    /// Save the compiled programs of a fit, for the one slice of --topology, or else for this
    /// machine's devices: with --aot FILE, a fit starts without compiling
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
    /// Write the estimate as an HTML page too: roofline by line of code, memory, slices compared by
    /// time and cost
    #[arg(long, value_name = "FILE", requires = "topology")]
    pub(crate) html: Option<PathBuf>,
    /// Download libtpu, the compiler, if it is missing: 205 MB from PyPI, under Google's terms of
    /// service
    #[arg(long)]
    pub(crate) fetch_libtpu: bool,
}

/// The value of `--price` without an argument.
pub(crate) const BUILT_IN_PRICES: &str = "ours";

/// Flags that a file cannot set.
pub(crate) const NOT_IN_A_FILE: [&str; 5] =
    ["config", "print-config", "ignore-saved-arguments", "help", "version"];

/// The task of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Without a subcommand: fit, then test.
    FitAndTest,
    Fit,
    Validate,
    Test,
    Predict,
    Tune,
    Preflight,
}

/// The subcommands, with their help.
const TASKS: [(&str, Task, &str); 6] = [
    ("fit", Task::Fit, "Train the module, validating after each epoch"),
    ("validate", Task::Validate, "Run the validation step over the validation data"),
    ("test", Task::Test, "Run the test step over the test data"),
    ("predict", Task::Predict, "Write the module's predictions for the program's data to a file"),
    (
        "tune",
        Task::Tune,
        "Find a learning rate, or the largest batch size that fits in memory, before training",
    ),
    (
        "preflight",
        Task::Preflight,
        "Estimate whether the training step fits on TPUs that are absent, and its cost",
    ),
];

impl Task {
    /// The task of a subcommand.
    pub(crate) fn from_subcommand(subcommand: Option<&str>) -> Task {
        TASKS.iter().find(|task| Some(task.0) == subcommand).map_or(Task::FitAndTest, |task| task.1)
    }
}

/// An app's command line.
///
/// # Errors
/// An argument of the app that has the name of a reserved flag.
pub(crate) fn command<A: CliApp>(name: &str) -> Result<Command> {
    check_names(&A::augment_args(Command::new(name.to_owned())))?;
    let mut command = with_flags::<A>(Command::new(name.to_owned()))
        .args_conflicts_with_subcommands(true)
        // As everywhere: a shell alias gives a flag, and the user gives it again.
        .args_override_self(true)
        .subcommand_help_heading("Commands")
        .after_help(
            "Without a command: fit, then test with the best weights if there is test data.",
        );
    for (name, task, about) in TASKS {
        let subcommand = with_flags::<A>(Command::new(name)).args_override_self(true);
        let weights =
            "The checkpoint whose weights to use; by default, the module's initial weights";
        let subcommand = match task {
            Task::FitAndTest | Task::Fit => subcommand,
            Task::Validate | Task::Test => subcommand.mut_arg("ckpt_path", |arg| arg.help(weights)),
            Task::Predict => {
                PredictArgs::augment_args(subcommand).mut_arg("ckpt_path", |arg| arg.help(weights))
            }
            Task::Tune => TuneArgs::augment_args(subcommand),
            Task::Preflight => PreflightArgs::augment_args(subcommand),
        };
        command = command.subcommand(subcommand.long_about(None).about(about));
    }
    Ok(command)
}

/// Adds all flags to a command.
fn with_flags<A: CliApp>(command: Command) -> Command {
    let command = A::augment_args(command);
    // Keep the app's own description: the groups added below would remove it.
    let about = command.get_about().cloned();
    let long_about = command.get_long_about().cloned();
    let mut command = TrainerArgs::augment_args(CommonArgs::augment_args(command));
    if let Some(about) = about {
        command = command.about(about);
    }
    if let Some(about) = long_about {
        command = command.long_about(about);
    }
    for row in Options::table() {
        let help = format!(
            "{} [env: {}] [default: {}]",
            row.doc.trim_end_matches('.'),
            row.env,
            row.default
        );
        command = command.mut_arg(row.name, |arg| arg.help(help));
    }
    // Otherwise clap rejects `--learning-rate -1` as an unexpected argument, and no negative number
    // can be given.
    command.mut_args(|arg| {
        let takes_values = arg.get_long().is_some() && arg.get_action().takes_values();
        let arg = hide_in_help(arg);
        if takes_values { arg.allow_negative_numbers(true) } else { arg }
    })
}

/// Rejects duplicate flags, on which clap would panic or mix up values.
fn check_names(app: &Command) -> Result<()> {
    if let Some(subcommand) = app.get_subcommands().next() {
        let name = subcommand.get_name();
        return Err(format!(
            "the program's arguments contain the subcommand `{name}`; make it a flag"
        )
        .into());
    }
    let common = TrainerArgs::augment_args(CommonArgs::augment_args(Command::new("")));
    let common = PreflightArgs::augment_args(PredictArgs::augment_args(common));
    let common = TuneArgs::augment_args(common);
    let taken = |arg: &&Arg| {
        let same_long =
            |other: &Arg| arg.get_long().is_some() && arg.get_long() == other.get_long();
        let reserved = arg.get_long().is_some_and(|long| NOT_IN_A_FILE.contains(&long));
        reserved
            || arg.get_short() == Some('h')
            || common
                .get_arguments()
                .any(|other| other.get_id() == arg.get_id() || same_long(other))
    };
    match app.get_arguments().find(taken) {
        Some(arg) => Err(format!(
            "the program's argument `{}` has the name of an argument that every program has; rename it",
            arg.get_long().unwrap_or(arg.get_id().as_str())
        )
        .into()),
        None => Ok(()),
    }
}
