//! A command line for a user's program: `fit`, `validate`, `test`, `predict`, `tune`, `preflight`, a
//! configuration file, and a flag for every option of the Trainer. It corresponds to Lightning's
//! `LightningCLI`.
//!
//! An app is a [`clap::Args`] struct with its own arguments that implements [`CliApp`]. [`main`]
//! does the rest:
//!
//! ```
//! use std::process::ExitCode;
//!
//! use fulmen_data::{DataLoader, TensorDataset};
//! use fulmen_nn::optim::{Optimizer, Sgd};
//! use fulmen_nn::{Linear, Module, loss};
//! use fulmen_tensor::Tensor;
//! use fulmen_trainer_cli::{self as cli, CliApp, FitData, clap};
//! use fulmen_trainer::{Batch, Options, Plan, StepContext, TrainingModule};
//!
//! #[derive(Module)]
//! struct Line(Linear);
//!
//! impl TrainingModule for Line {
//!     fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
//!         loss::mse_loss(&self.0.forward(&batch.get("x")), &batch.get("y"), loss::Reduction::Mean)
//!     }
//!     fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
//!         Box::new(Sgd::new(0.1))
//!     }
//! }
//!
//! /// Fits a line through some points.
//! #[derive(clap::Args)]
//! struct Fitting {
//!     /// Samples a step.
//!     #[arg(long, default_value_t = 10)]
//!     batch_size: usize,
//! }
//!
//! impl CliApp for Fitting {
//!     type Module = Line;
//!
//!     fn module(&self) -> cli::Result<Line> {
//!         Ok(Line(Linear::new(1, 1)))
//!     }
//!
//!     fn fit_data(&self, options: &Options) -> cli::Result<FitData> {
//!         let x: Vec<f32> = (0..50).map(|i| i as f32 / 50.0).collect();
//!         let y: Vec<f32> = x.iter().map(|x| 3.0 * x + 1.0).collect();
//!         let data = TensorDataset::builder().array("x", [50, 1], x).array("y", [50, 1], y).build()?;
//!         let train = DataLoader::builder(data).batch_size(self.batch_size).shuffle(true).seed(options.seed).build()?;
//!         Ok(FitData { train, validation: None.into() })
//!     }
//! }
//!
//! fn main() -> ExitCode {
//!     # if true { return cli::main_from::<Fitting>(["line", "fit", "--print-config", "--max-epochs", "2"]) }
//!     cli::main::<Fitting>()
//! }
//! ```
//!
//! # Precedence of values
//!
//! A flag on the command line overrides the file of `--config`. The file overrides the environment,
//! and the environment overrides the app's own defaults ([`CliApp::trainer`]). These override the
//! Trainer's defaults.
//!
//! # Exit codes
//!
//! - 0: success.
//! - 1: an error, printed on standard error after `error:`, or a step that does not fit, in
//!   `preflight`.
//! - 2: wrong usage of a flag, a file of `--config` or the environment.
//! - 75: SIGTERM or SIGHUP ended the process early; 130: Ctrl-C did. In both cases, a fit that has
//!   made at least one step has saved its state.
//!
//! This crate does not train. Your program can do everything that a subcommand does with
//! [`Trainer`](fulmen_trainer::Trainer) instead.

mod app;
mod command;
mod config;
mod failure;
#[cfg(feature = "completions")]
mod hidden_commands;
mod invocation;
mod output;
mod print_config;
mod report;
mod run;
mod secrets;
#[cfg(test)]
mod tests;
#[cfg(feature = "tui")]
mod tui;
#[cfg(not(feature = "tui"))]
#[path = "tui/disabled.rs"]
mod tui;
mod tune;

#[cfg(test)]
#[path = "../../pjrt/tests/it/common/libtpu.rs"]
mod libtpu;

use std::ffi::OsString;
use std::process::ExitCode;

pub use clap;
pub use fulmen_trainer::Secret;

pub use app::{CliApp, FitData, Result};

/// Runs an app with the arguments of this process.
pub fn main<A: CliApp>() -> ExitCode {
    main_from::<A>(std::env::args_os())
}

/// Runs an app with these arguments. The first is the name of the binary.
pub fn main_from<A: CliApp>(args: impl IntoIterator<Item = impl Into<OsString>>) -> ExitCode {
    match run::run::<A>(args.into_iter().map(Into::into).collect()) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
