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
mod option_text;
pub(crate) mod precision;
pub(crate) mod profiler;
pub(crate) mod resume;
pub(crate) mod strategy;
mod table;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use fulmen_tensor::{Accelerator, Devices, MatmulPrecision};

use crate::options::config_format::{json_value, toml_line};
use crate::options::option_text::{NO_LIMIT_TEXT, OptionText};
pub(crate) use crate::options::table::option_table;
use crate::options::table::{limit, positive};
use crate::plan::NO_LIMIT;
use crate::{
    BatchLimit, FastDevRun, GradientClipAlgorithm, LearningRateScaling, LoggerSet, MetricsPort,
    Precision, Profiler, Result, Resume, Strategy, TrainDuration, error,
};

/// One row of the table of options, for documents and reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionRow {
    /// The name in the builder. On the command line, dashes replace underscores.
    pub name: &'static str,
    /// The environment variable that sets the option, unless the code sets it.
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
            $($(#[doc = $doc])* #[arg(long, overrides_with = stringify!($name), allow_negative_numbers = true, value_parser = option_text::parser::<$ty>(stringify!($name)) $(, $($arg)*)?)] pub $name: Option<$ty>,)*
        }

        impl TrainerArgs {
            /// Overrides these options with those that `other` gives.
            pub(crate) fn merge(&mut self, other: TrainerArgs) {
                $(if other.$name.is_some() {
                    self.$name = other.$name;
                })*
            }

            /// The names of the options that were set explicitly.
            pub(crate) fn explicit(&self) -> Vec<&'static str> {
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
                        self.$name = Some(option_text::parse_named::<$ty>(stringify!($name), &text).map_err(|e| {
                            let name = stringify!($name);
                            let text = text.to_string_lossy();
                            error::option(format!("{name}: the environment variable {} is `{text}`: {e}", $env))
                        })?);
                    }
                })*
                Ok(self)
            }

            /// The environment variables that have no effect, because the program sets their options
            /// to other values: a line for each.
            pub(crate) fn unused_env(&self, env: impl Fn(&str) -> Option<OsString>) -> Vec<String> {
                let mut lines = Vec::new();
                $(if let Some(value) = &self.$name
                    && let Some(text) = env($env).filter(|text| !text.is_empty())
                    && option_text::parse_named::<$ty>(stringify!($name), &text).ok().as_ref() != Some(value)
                {
                    let name = stringify!($name);
                    let text = text.to_string_lossy();
                    let set = <$ty>::show(value);
                    lines.push(format!(
                        "{}={text} has no effect: the program or its command line sets {name} to {set}",
                        $env
                    ));
                })*
                lines
            }

            /// Resolves and checks each option. An explicit value comes first, then the
            /// environment, then the default.
            pub(crate) fn resolve(self, env: impl Fn(&str) -> Option<OsString>) -> Result<Options> {
                let explicit = self.or_env(env)?;
                let options = Options { $($name: explicit.$name.clone().unwrap_or_else(|| $default),)* };
                $({
                    let check: fn(&$ty) -> Option<&'static str> = $check;
                    if let Some(expected) = check(&options.$name) {
                        return Err(error::option(format!(
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
                // With another limit, "no limit" follows from it, and needs no text.
                if self.max_epochs == NO_LIMIT {
                    let text = (!self.has_other_limit()).then(|| NO_LIMIT_TEXT.to_owned());
                    values.iter_mut().filter(|value| value.0 == "max_epochs").for_each(|value| value.1.clone_from(&text));
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

option_table!(options);

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

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

    /// Also in a parser of the user's own.
    #[test]
    fn of_an_option_given_twice_the_last_one_counts() {
        let command = TrainerArgs::augment_args(clap::Command::new("program"));
        let words = ["program", "--max-epochs", "1", "--seed", "3", "--max-epochs=2"];
        let args = TrainerArgs::from_arg_matches(&command.get_matches_from(words)).unwrap();
        assert_eq!((args.max_epochs, args.seed), (Some(2), Some(3)));
    }

    #[test]
    fn a_variable_that_the_program_overrides_is_named_with_both_values() {
        let args = TrainerArgs {
            max_epochs: Some(3),
            seed: Some(7),
            precision: Some(Precision::Bf16Mixed),
            detect_nan: Some(true),
            ..TrainerArgs::default()
        };
        let env = |name: &str| match name {
            "FULMEN_MAX_EPOCHS" => Some("5".into()),
            "FULMEN_PRECISION" => Some("bf17".into()),
            // These two say the same as the program, and the last is used.
            "FULMEN_SEED" => Some("7".into()),
            "FULMEN_DETECT_NAN" => Some("1".into()),
            "FULMEN_MAX_STEPS" => Some("9".into()),
            _ => None,
        };
        assert_eq!(
            args.unused_env(env),
            [
                "FULMEN_PRECISION=bf17 has no effect: the program or its command line sets precision to bf16-mixed",
                "FULMEN_MAX_EPOCHS=5 has no effect: the program or its command line sets max_epochs to 3",
            ]
        );
    }

    #[test]
    fn errors_of_invalid_values_have_the_option_name() {
        let args = TrainerArgs { max_epochs: Some(0), ..TrainerArgs::default() };
        let message = resolve(args, &[]).unwrap_err().to_string();
        assert_eq!(message, "max_epochs: 0 is not possible, it must be at least 1");
        let unlimited = resolve(TrainerArgs::default(), &[("FULMEN_MAX_EPOCHS", "-1")]).unwrap();
        assert_eq!(unlimited.max_epochs, u64::MAX, "-1 means no limit");
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
