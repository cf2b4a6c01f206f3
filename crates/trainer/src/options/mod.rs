//! The Trainer's options: one table defines the builder's methods, the command line, the
//! environment variables, the defaults, the checks and the help texts.

pub(crate) mod batch_limit;
pub(crate) mod clip_algorithm;
pub(crate) mod config_format;
pub(crate) mod dependent_options;
pub(crate) mod duration;
pub(crate) mod environment;
pub(crate) mod learning_rate_scaling;
pub(crate) mod lightning_names;
pub(crate) mod logger_set;
pub(crate) mod metrics_port;
pub(crate) mod named_enum;
pub(crate) mod nearest_name;
pub(crate) mod precision;
pub(crate) mod profiler;
pub(crate) mod resume;
pub(crate) mod strategy;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{BoolishValueParser, ValueParser};
use fulmen_tensor::{Accelerator, Devices, MatmulPrecision};

use crate::options::config_format::{json_value, toml_line};
use crate::plan::NO_LIMIT;
use crate::{
    BatchLimit, Error, FastDevRun, GradientClipAlgorithm, LearningRateScaling, LoggerSet,
    MetricsPort, Precision, Profiler, Result, Resume, Strategy, TrainDuration,
};

/// One row of the table of options, for documents and reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionRow {
    /// The name in the builder. On the command line, dashes replace underscores.
    pub name: &'static str,
    /// The environment variable that sets the option unless the code does.
    pub env: &'static str,
    /// The default as text.
    pub default: String,
    /// The description.
    pub doc: String,
}

macro_rules! options {
    ($($(#[doc = $doc:literal])* $(#[arg($($arg:tt)*)])? $name:ident: $ty:ident = $default:expr, $env:literal, $check:expr;)*) => {
        /// The resolved options of a [`Trainer`](crate::Trainer): each has its value or its
        /// default.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Options {
            $($(#[doc = $doc])* pub $name: $ty,)*
        }

        /// The options that were set explicitly, in code or on the command line; the others are
        /// `None`.
        ///
        /// It is a `clap` argument group: `#[command(flatten)]` it into a program's own arguments
        /// and pass it to [`TrainerBuilder::args`](crate::TrainerBuilder::args).
        #[derive(Clone, Debug, Default, PartialEq, clap::Args)]
        #[command(next_help_heading = "Trainer", about = None, long_about = None)]
        pub struct TrainerArgs {
            $($(#[doc = $doc])* #[arg(long, allow_negative_numbers = true, value_parser = <$ty>::parser() $(, $($arg)*)?)] pub $name: Option<$ty>,)*
        }

        impl TrainerArgs {
            /// Overrides these options with those that `other` gives.
            pub(crate) fn merge(&mut self, other: TrainerArgs) {
                $(if other.$name.is_some() {
                    self.$name = other.$name;
                })*
            }

            /// The names of the options that were set explicitly.
            pub fn explicit(&self) -> Vec<&'static str> {
                [$(self.$name.is_some().then_some(stringify!($name))),*].into_iter().flatten().collect()
            }

            /// Takes options that were not set explicitly from the environment. Pass the result to
            /// [`TrainerBuilder::args`](crate::TrainerBuilder::args); its options then override
            /// those that the program set.
            ///
            /// ```
            /// use fulmen_trainer::{Trainer, TrainerArgs};
            /// let args = TrainerArgs::default().or_env(|name| (name == "FULMEN_SEED").then(|| "7".into()))?;
            /// assert_eq!(Trainer::builder().seed(3).args(args).options()?.seed, 7);
            /// # Ok::<(), fulmen_trainer::Error>(())
            /// ```
            ///
            /// # Errors
            /// A variable has a value that is not valid for its option.
            pub fn or_env(mut self, env: impl Fn(&str) -> Option<OsString>) -> Result<TrainerArgs> {
                $(if self.$name.is_none() {
                    if let Some(text) = env($env).filter(|text| !text.is_empty()) {
                        self.$name = Some(<$ty>::parse_env(&text).map_err(|e| {
                            let (name, text) = (stringify!($name), text.to_string_lossy());
                            Error::option(format!("{name}: the environment variable {} is `{text}`: {e}", $env))
                        })?);
                    }
                })*
                Ok(self)
            }

            /// Resolves and checks each option. An explicit value comes first, then the
            /// environment, then the default.
            pub(crate) fn resolve(self, env: impl Fn(&str) -> Option<OsString>) -> Result<Options> {
                let explicit = self.or_env(env)?;
                let options = Options { $($name: explicit.$name.clone().unwrap_or_else(|| $default),)* };
                $({
                    let check: fn(&$ty) -> Option<&'static str> = $check;
                    if let Some(expected) = check(&options.$name) {
                        return Err(Error::option(format!(
                            "{}: {} is not possible, {expected}",
                            stringify!($name), <$ty>::show(&options.$name)
                        )));
                    }
                })*
                options.resolve_dependent(&explicit)
            }
        }

        impl Options {
            /// The table of all options.
            pub fn table() -> Vec<OptionRow> {
                vec![$(OptionRow {
                    name: stringify!($name),
                    env: $env,
                    default: <$ty>::show(&$default),
                    doc: [$($doc),*].concat().trim().to_owned(),
                },)*]
            }

            /// The options as a file for `--config`. Each line says where the value comes from,
            /// unless it is the default.
            pub(crate) fn to_toml(&self, explicit: &[&str]) -> String {
                let values = self.values().into_iter().map(|(name, value)| {
                    let source = if explicit.contains(&name) { Some("the program") } else { source_env(name) };
                    toml_line(&name.replace('_', "-"), value.map(|value| json_value(&value)).as_ref(), source)
                });
                values.fold("[trainer]\n".to_owned(), |text, value| text + &value)
            }

            /// The names of all options, with their values in the form of the command line. Unset
            /// options have `None`.
            pub fn values(&self) -> Vec<(&'static str, Option<String>)> {
                let mut values = vec![$((stringify!($name), <$ty>::argument(&self.$name)),)*];
                // No limit has no text; it follows from the other options.
                if self.max_epochs == NO_LIMIT {
                    values.iter_mut().filter(|value| value.0 == "max_epochs").for_each(|value| value.1 = None);
                }
                values
            }
        }
    };
}

/// The environment variable of an option, if it is set.
pub fn source_env(name: &str) -> Option<&'static str> {
    let env = Options::table().into_iter().find(|row| row.name == name)?.env;
    std::env::var_os(env).filter(|value| !value.is_empty()).map(|_| env)
}

/// Reads and writes the value of an option as text.
trait Text: Clone + Send + Sync + 'static {
    fn parse_env(text: &OsStr) -> Result<Self, String>;
    /// The parser for the command line.
    fn parser() -> ValueParser {
        ValueParser::new(|text: &str| Self::parse_env(OsStr::new(text)))
    }
    fn show(value: &Self) -> String;
    /// The value in the form of the command line, if it is set.
    fn argument(value: &Self) -> Option<String> {
        Some(Self::show(value))
    }
}

fn parse<T: FromStr>(text: &OsStr) -> Result<T, String>
where
    T::Err: std::fmt::Display,
{
    text.to_str().ok_or("it is not UTF-8")?.parse().map_err(|e: T::Err| e.to_string())
}

impl Text for u64 {
    fn parse_env(text: &OsStr) -> Result<u64, String> {
        parse(text).map_err(|_| format!("expected a whole number from 0 to {}", u64::MAX))
    }
    fn show(value: &u64) -> String {
        value.to_string()
    }
}

impl Text for f64 {
    fn parse_env(text: &OsStr) -> Result<f64, String> {
        parse(text).map_err(|_| "expected a number".into())
    }
    fn show(value: &f64) -> String {
        value.to_string()
    }
}

impl Text for bool {
    fn parse_env(text: &OsStr) -> Result<bool, String> {
        match text.to_str().map(str::to_lowercase).as_deref() {
            Some("1" | "true" | "yes" | "on") => Ok(true),
            Some("0" | "false" | "no" | "off") => Ok(false),
            _ => Err("it is neither true nor false".into()),
        }
    }
    fn parser() -> ValueParser {
        BoolishValueParser::new().into()
    }
    fn show(value: &bool) -> String {
        value.to_string()
    }
}

/// Implements `Text` for types whose `Display` and `FromStr` use the same text.
macro_rules! texts {
    ($($ty:ty),*) => {$(
        impl Text for $ty {
            fn parse_env(text: &OsStr) -> Result<$ty, String> {
                parse(text)
            }
            fn show(value: &$ty) -> String {
                value.to_string()
            }
        }
    )*};
}
texts!(
    Accelerator,
    Devices,
    GradientClipAlgorithm,
    LearningRateScaling,
    LoggerSet,
    MatmulPrecision,
    MetricsPort,
    Profiler,
    Resume,
    Strategy,
    TrainDuration,
    BatchLimit,
    FastDevRun
);

impl Text for Duration {
    fn parse_env(text: &OsStr) -> Result<Duration, String> {
        let text = text.to_str().ok_or("it is not UTF-8")?;
        duration::parse_time(text)
            .map_err(|error| format!("{error}; expected a time, such as 25s or 1m30s"))
    }
    fn show(value: &Duration) -> String {
        duration::show_time(*value)
    }
}

impl Text for Precision {
    fn parse_env(text: &OsStr) -> Result<Precision, String> {
        parse(text)
    }
    fn show(value: &Precision) -> String {
        if value.config_error().is_some() { value.to_string() } else { value.name().to_owned() }
    }
}

impl Text for PathBuf {
    fn parse_env(text: &OsStr) -> Result<PathBuf, String> {
        Ok(text.into())
    }
    fn parser() -> ValueParser {
        ValueParser::path_buf()
    }
    fn show(value: &PathBuf) -> String {
        if value.as_os_str().is_empty() { "none".into() } else { value.display().to_string() }
    }
    fn argument(value: &PathBuf) -> Option<String> {
        (!value.as_os_str().is_empty()).then(|| Self::show(value))
    }
}

fn positive(value: &u64) -> Option<&'static str> {
    (*value == 0).then_some("it must be at least 1")
}

fn limit(value: &f64) -> Option<&'static str> {
    (!value.is_finite() || *value < 0.0).then_some("it must be finite and at least 0")
}

/// Passes the table of all options to a macro. Each row is an option: its description,
/// `name: Type = default`, the environment variable, and a check that returns what is wrong with a
/// value.
macro_rules! option_table {
    ($rows:ident) => {
        $rows! {
            /// The kind of device to train on: auto, cpu, cuda or tpu.
            accelerator: Accelerator = Accelerator::Auto, "FULMEN_ACCELERATOR", |_| None;

            /// How many devices to train on (8), or which ones (`[5]` or `0,2`), or auto: all TPUs
            /// or GPUs of this machine, or one CPU device. With several processes, it selects the
            /// devices of each process.
            devices: Devices = Devices::auto(), "FULMEN_DEVICES", |_| None;

            /// How training uses several devices: ddp (each has all parameters), fsdp (parameters
            /// and optimizer state are sharded too), or debug (ddp, and a fit ends with the metrics
            /// report).
            strategy: Strategy = Strategy::Ddp, "FULMEN_STRATEGY", |_| None;

            /// The element types of a model: 32-true, bf16-mixed (products in bf16), bf16-true or
            /// 16-mixed; a bare 16 means bf16-mixed.
            precision: Precision = Precision::F32, "FULMEN_PRECISION", Precision::config_error;

            /// The precision of f32 products: default (on a TPU, one pass in bf16), high or
            /// highest.
            matmul_precision: MatmulPrecision = MatmulPrecision::Default, "FULMEN_MATMUL_PRECISION", |_| None;

            /// Whether the learning rate is multiplied by the number of devices (linear), by its
            /// square root (sqrt) or not at all (none).
            learning_rate_scaling: LearningRateScaling = LearningRateScaling::None, "FULMEN_LEARNING_RATE_SCALING", |_| None;

            /// Batches per optimizer step, which uses the gradient of all their samples; the last
            /// step of an epoch may have fewer.
            accumulate_grad_batches: u64 = 1, "FULMEN_ACCUMULATE_GRAD_BATCHES", positive;

            /// The value or norm to which gradients are clipped; 0 for no clipping.
            gradient_clip_val: f64 = 0.0, "FULMEN_GRADIENT_CLIP_VAL", limit;

            /// How gradients are clipped: norm (the Euclidean norm of all together) or value (each
            /// element).
            gradient_clip_algorithm: GradientClipAlgorithm = GradientClipAlgorithm::Norm, "FULMEN_GRADIENT_CLIP_ALGORITHM", |_| None;

            /// Whether to log the Euclidean norm of all gradients, before clipping, as `grad_norm`.
            #[arg(num_args = 0..=1, default_missing_value = "true")]
            log_grad_norm: bool = false, "FULMEN_LOG_GRAD_NORM", |_| None;

            /// Epochs to train for; unlimited if another option limits training.
            max_epochs: u64 = 10, "FULMEN_MAX_EPOCHS", positive;

            /// Optimizer steps to train for; 0 for no limit.
            max_steps: u64 = 0, "FULMEN_MAX_STEPS", |_| None;

            /// Time to train and validate for, such as 2h30m or 00:12:00:00 (days, hours, minutes,
            /// seconds), including the time before a resume; none for no limit.
            max_time: TrainDuration = TrainDuration::Unlimited, "FULMEN_MAX_TIME", TrainDuration::refusal_of_time;

            /// How long to train, in any unit: 10ep (epochs), 500ba (steps), 1e6sa (samples),
            /// 1e9tok (tokens) or 2h30m; none for no limit.
            max_duration: TrainDuration = TrainDuration::Unlimited, "FULMEN_MAX_DURATION", TrainDuration::config_error;

            /// Epochs to train before a callback or max_time can end training.
            min_epochs: u64 = 0, "FULMEN_MIN_EPOCHS", |_| None;

            /// Optimizer steps to make before a callback or max_time can end training.
            min_steps: u64 = 0, "FULMEN_MIN_STEPS", |_| None;

            /// Training batches per epoch: a number (10) or a fraction (0.1); 1.0 for all.
            limit_train_batches: BatchLimit = BatchLimit::ALL, "FULMEN_LIMIT_TRAIN_BATCHES", BatchLimit::config_error_of_some;

            /// Batches per validation, as a number or a fraction; 0 for no validation in a fit.
            limit_val_batches: BatchLimit = BatchLimit::ALL, "FULMEN_LIMIT_VAL_BATCHES", BatchLimit::config_error;

            /// Batches per test, as a number or a fraction.
            limit_test_batches: BatchLimit = BatchLimit::ALL, "FULMEN_LIMIT_TEST_BATCHES", BatchLimit::config_error_of_some;

            /// Batches to predict for, as a number or a fraction.
            limit_predict_batches: BatchLimit = BatchLimit::ALL, "FULMEN_LIMIT_PREDICT_BATCHES", BatchLimit::config_error_of_some;

            /// Train on the same few batches of the first epoch in every epoch, and validate on as
            /// many: a number or a fraction; 0 for off.
            overfit_batches: BatchLimit = BatchLimit::Count(0), "FULMEN_OVERFIT_BATCHES", BatchLimit::config_error;

            /// Try everything once: one epoch of one batch (or of this many) for training and
            /// validation, and as many for testing and predicting, without checkpoints and loggers.
            #[arg(num_args = 0..=1, default_missing_value = "true")]
            fast_dev_run: FastDevRun = FastDevRun::default(), "FULMEN_FAST_DEV_RUN", |_| None;

            /// When a fit validates: after each such fraction of an epoch (0.25), or number of
            /// optimizer steps of the run (500).
            val_check_interval: BatchLimit = BatchLimit::ALL, "FULMEN_VAL_CHECK_INTERVAL", BatchLimit::config_error_of_some;

            /// Validation batches to run before the first step, so that their errors are found
            /// early; 0 for none.
            num_sanity_val_steps: u64 = 0, "FULMEN_NUM_SANITY_VAL_STEPS", |_| None;

            /// Only train, to measure the speed: no log points within an epoch, loggers,
            /// checkpoints or progress bar.
            #[arg(num_args = 0..=1, default_missing_value = "true")]
            barebones: bool = false, "FULMEN_BAREBONES", |_| None;

            /// Steps between two log points, at which logged values are read from the device.
            log_every_n_steps: u64 = 50, "FULMEN_LOG_EVERY_N_STEPS", positive;

            /// Epochs between two validations.
            check_val_every_n_epoch: u64 = 1, "FULMEN_CHECK_VAL_EVERY_N_EPOCH", positive;

            /// Epochs after which the module's `train_dataloader` creates a new training loader; 0
            /// for never.
            reload_dataloaders_every_n_epochs: u64 = 0, "FULMEN_RELOAD_DATALOADERS_EVERY_N_EPOCHS", |_| None;

            /// The seed of initial weights and of random layers.
            seed: u64 = 0, "FULMEN_SEED", |_| None;

            /// Where runs are written, each in its own folder `version_N`.
            default_root_dir: PathBuf = PathBuf::from("runs"), "FULMEN_DEFAULT_ROOT_DIR", |_| None;

            /// Where checkpoints are written instead of the run's folder: a folder,
            /// gs://bucket/path or s3://bucket/path. Only one run at a time can use it; none for
            /// the run's folder.
            checkpoint_dir: PathBuf = PathBuf::new(), "FULMEN_CHECKPOINT_DIR", |_| None;

            /// A folder in memory, such as /dev/shm/run, to which checkpoints are written first. A
            /// thread then copies each to checkpoint_dir. All processes must see it.
            checkpoint_local: PathBuf = PathBuf::new(), "FULMEN_CHECKPOINT_LOCAL", |_| None;

            /// A checkpoint to resume from; `last` or `best` for the newest run's under
            /// default_root_dir; empty to start from scratch.
            ckpt_path: PathBuf = PathBuf::new(), "FULMEN_CKPT_PATH", |_| None;

            /// Whether a fit resumes from the newest complete checkpoint of this program under
            /// default_root_dir, if there is one (auto), or starts from scratch unless ckpt_path
            /// names one (never).
            resume: Resume = Resume::Never, "FULMEN_RESUME", |_| None;

            /// A file of compiled programs, written by `preflight --save`; programs that it lacks
            /// are compiled. Empty for none.
            aot: PathBuf = PathBuf::new(), "FULMEN_AOT", |_| None;

            /// How long a fit may take to save and end after SIGTERM or SIGHUP, such as `25s` or
            /// `1m30s`; then the program ends.
            grace: Duration = Duration::from_secs(25), "FULMEN_GRACE", |_| None;

            /// Whether to stop with an error when the training loss is NaN or infinite.
            #[arg(num_args = 0..=1, default_missing_value = "true")]
            detect_nan: bool = false, "FULMEN_DETECT_NAN", |_| None;

            /// Whether to watch every value of the training step, and to stop with the operation
            /// and line that made the first NaN or infinity; slow, and needs more memory.
            #[arg(num_args = 0..=1, default_missing_value = "true")]
            detect_anomaly: bool = false, "FULMEN_DETECT_ANOMALY", |_| None;

            /// Whether to write checkpoints: the last and the best.
            #[arg(num_args = 0..=1, default_missing_value = "true")]
            enable_checkpointing: bool = true, "FULMEN_ENABLE_CHECKPOINTING", |_| None;

            /// Whether to begin with a table of the module's parts, and one of the cost of each
            /// line of the step.
            #[arg(num_args = 0..=1, default_missing_value = "true")]
            enable_model_summary: bool = true, "FULMEN_ENABLE_MODEL_SUMMARY", |_| None;

            /// Whether to show progress: a bar on a terminal, lines elsewhere.
            #[arg(num_args = 0..=1, default_missing_value = "true")]
            enable_progress_bar: bool = true, "FULMEN_ENABLE_PROGRESS_BAR", |_| None;

            /// The loggers of the run: some of csv, jsonl, tensorboard and mlflow, or none; auto
            /// for the first three, or for the program's own if it adds any.
            #[arg(alias = "logger")]
            loggers: LoggerSet = LoggerSet::Auto, "FULMEN_LOGGERS", |_| None;

            /// Where to serve the run's metrics to Prometheus: a port (9090), which only this
            /// machine can reach, or an address with a port (0.0.0.0:9090) for other machines too;
            /// 0 for a free port, none for off.
            metrics_port: MetricsPort = MetricsPort::default(), "FULMEN_METRICS_PORT", |_| None;

            /// The trace that a fit records: none, host (the activity of the process's threads, as
            /// trace.json in the run's folder) or xla (also the plugin's trace of its devices in
            /// ten of the first steps).
            profiler: Profiler = Profiler::None, "FULMEN_PROFILER", |_| None;

            /// A folder to which each program of a run is written: its StableHLO, the optimized
            /// HLO, memory and cost; none for off.
            dump_dir: PathBuf = PathBuf::new(), "FULMEN_DUMP_DIR", |_| None;
        }
    };
}
pub(crate) use option_table;

option_table!(options);

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(args: TrainerArgs, env: &[(&str, &str)]) -> Result<Options> {
        args.resolve(|name| env.iter().find(|e| e.0 == name).map(|e| e.1.into()))
    }

    #[test]
    fn a_given_value_overrides_the_environment_which_overrides_the_default() {
        let env = [("FULMEN_MAX_EPOCHS", "3"), ("FULMEN_SEED", "7")];
        let args = TrainerArgs { max_epochs: Some(5), ..TrainerArgs::default() };
        let options = resolve(args, &env).unwrap();
        assert_eq!((options.max_epochs, options.seed, options.log_every_n_steps), (5, 7, 50));
        let switched =
            resolve(TrainerArgs::default(), &[("FULMEN_DETECT_NAN", "1"), ("FULMEN_SEED", "")])
                .unwrap();
        assert_eq!((switched.detect_nan, switched.seed), (true, 0));
    }

    #[test]
    fn a_time_has_the_units_of_a_duration() {
        let parse = |text: &str| Duration::parse_env(OsStr::new(text));
        for (text, seconds, shown) in [
            ("25s", 25, "25s"),
            ("90s", 90, "1m30s"),
            ("1h30m", 5400, "1h30m"),
            ("2d", 172_800, "48h"),
            ("0s", 0, "0s"),
        ] {
            let time = parse(text).unwrap();
            assert_eq!(
                (time, Duration::show(&time)),
                (Duration::from_secs(seconds), shown.to_owned())
            );
        }
        assert_eq!(parse("1s500ms"), Ok(Duration::from_millis(1500)));
        for invalid in ["", "25", "s", "-1", "5x", "1h30", "1e99d"] {
            assert!(parse(invalid).unwrap_err().contains("25s or 1m30s"), "{invalid}");
        }
    }

    #[test]
    fn errors_of_invalid_values_have_the_option_name() {
        let args = TrainerArgs { max_epochs: Some(0), ..TrainerArgs::default() };
        let message = resolve(args, &[]).unwrap_err().to_string();
        assert_eq!(message, "max_epochs: 0 is not possible, it must be at least 1");
        let message =
            resolve(TrainerArgs::default(), &[("FULMEN_SEED", "x")]).unwrap_err().to_string();
        assert!(
            message.starts_with("seed: the environment variable FULMEN_SEED is `x`"),
            "{message}"
        );
        let message = resolve(TrainerArgs::default(), &[("FULMEN_ACCELERATOR", "tpux")])
            .unwrap_err()
            .to_string();
        assert!(message.contains("auto, cpu, cuda, tpu"), "{message}");
    }
}
