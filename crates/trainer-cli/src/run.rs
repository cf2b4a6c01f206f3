//! The subcommands.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::FromArgMatches as _;
use fulmen_durable::messages::quantity;
use fulmen_pjrt::fetch;
use fulmen_pjrt::locate::{Platform, locate};
use fulmen_trainer::internal::{self, format_metrics};
use fulmen_trainer::preflight::{Prices, loader_speed};
use fulmen_trainer::{Resume, Signal, Trainer, TrainerBuilder, Weights};

use crate::command::{BUILT_IN_PRICES, PredictArgs, PreflightArgs, Task};
use crate::failure::Failure;
#[cfg(feature = "completions")]
use crate::hidden_commands::run_hidden_command;
use crate::invocation::{Invocation, parse};
use crate::output::{print_in_process_0, print_line};
use crate::print_config::{arguments, print_config};
use crate::report;
use crate::tui::Tui;
use crate::{CliApp, FitData};

/// Runs the command that the arguments select.
pub(crate) fn run<A: CliApp>(args: Vec<OsString>) -> Result<ExitCode, Failure> {
    let started = Instant::now();
    if args.get(1).is_some_and(|first| first == "completions" || first == "man") {
        #[cfg(feature = "completions")]
        return run_hidden_command::<A>(&args).map(|()| ExitCode::SUCCESS);
        #[cfg(not(feature = "completions"))]
        return Err(Failure::Option(
            "`completions` and `man` need a program that is built with the feature `completions` of fulmen".to_owned(),
        ));
    }
    Signal::install_handlers();
    let mut invocation = parse::<A>(args)?;
    let trainer_args =
        std::mem::take(&mut invocation.trainer).or_env(|name| std::env::var_os(name))?;
    let builder = invocation.app.trainer(Trainer::builder());
    let own_options = internal::explicit(&builder);
    let mut builder = builder.args(trainer_args);
    let options = builder.options()?;
    let Invocation { command, matches, .. } = &invocation;
    if invocation.common.print_config {
        print_line(print_config(command, matches, &options, |_| None)?.trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    let config =
        print_config(command, matches, &options, |arg| invocation.source(arg, &own_options));
    // A value that is not UTF-8 cannot be recorded, but the program runs.
    let own = arguments::<A>(&invocation.matches).unwrap_or_default();
    builder = builder.program_arguments(own, config.ok());
    let title = command.get_bin_name().unwrap_or(command.get_name());
    let tui = invocation.common.tui.then(|| Tui::new(title)).transpose()?;
    if let Some(tui) = &tui {
        builder = tui.attach(builder);
    }
    let job = Job { invocation, started };
    match job.invocation.task {
        Task::FitAndTest => job.fit(builder, tui, true),
        Task::Fit => job.fit(builder, tui, false),
        Task::Validate | Task::Test => job.evaluate(builder, tui),
        Task::Predict => job.predict(builder, tui),
        Task::Tune => job.tune(builder),
        Task::Preflight => job.preflight(&builder),
    }
}

/// One run of an app.
pub(crate) struct Job<A> {
    pub(crate) invocation: Invocation<A>,
    started: Instant,
}

impl<A: CliApp> Job<A> {
    pub(crate) fn app(&self) -> &A {
        &self.invocation.app
    }

    fn fit(
        &self,
        builder: TrainerBuilder,
        tui: Option<Tui>,
        then_test: bool,
    ) -> Result<ExitCode, Failure> {
        let mut trainer = builder.build()?;
        let options = trainer.options().clone();
        let FitData { train, validation } = self.app().fit_data(&options)?;
        let test = if then_test { self.app().test_data(&options)? } else { None.into() };
        let module = self.app().module()?;

        let _screen = tui.map(|tui| tui.start(&trainer, Some(&train)));
        let before_fit = self.started.elapsed();
        let fit = trainer.fit(&module, &train, validation)?;
        if let Some(signal) = fit.signal {
            // After SIGHUP the terminal is gone, and writing to it fails.
            let _ = print_how_to_resume(&trainer).map_err(Failure::from).and_then(|()| {
                self.finish(&trainer, || report::fit(&trainer, &fit, None, before_fit))
            });
            return Ok(ExitCode::from(signal.exit_code()));
        }
        let mut tested = None;
        if !test.is_empty() {
            let weights =
                if trainer.best_checkpoint().is_some() { Weights::Best } else { Weights::Current };
            let point = trainer.test(&module, test, weights)?;
            print_in_process_0(&trainer, format_args!("Test: {}", format_metrics(&point.metrics)))?;
            self.app().after_test(&module, &trainer)?;
            tested = Some(point);
        }
        match (trainer.best_checkpoint(), trainer.last_checkpoint()) {
            (Some(best), _) => {
                print_in_process_0(&trainer, format_args!("best checkpoint: {}", best.display()))?
            }
            (None, Some(last)) => {
                print_in_process_0(&trainer, format_args!("last checkpoint: {}", last.display()))?
            }
            (None, None) => {}
        }
        self.finish(&trainer, || report::fit(&trainer, &fit, tested.as_ref(), before_fit))
    }

    fn evaluate(&self, builder: TrainerBuilder, tui: Option<Tui>) -> Result<ExitCode, Failure> {
        let mut trainer = builder.build()?;
        let options = trainer.options().clone();
        let (sets, none) = match self.invocation.task {
            Task::Validate => (
                self.app().fit_data(&options)?.validation,
                "validation data: its fit_data() returns none",
            ),
            _ => (self.app().test_data(&options)?, "test data: its test_data() returns none"),
        };
        if sets.is_empty() {
            return Err(Failure::Option(format!("this program has no {none}")));
        }
        let module = self.app().module()?;
        let _screen = tui.map(|tui| tui.start(&trainer, None));
        let (point, title) = match self.invocation.task {
            Task::Validate => (
                trainer.validate_with(&module, sets, Weights::from_options(&options)?)?,
                "Validation",
            ),
            _ => (trainer.test(&module, sets, Weights::from_options(&options)?)?, "Test"),
        };
        print_in_process_0(&trainer, format_args!("{title}: {}", format_metrics(&point.metrics)))?;
        if self.invocation.task == Task::Test {
            self.app().after_test(&module, &trainer)?;
        }
        self.finish(&trainer, || report::evaluation(&trainer, &point))
    }

    fn predict(&self, builder: TrainerBuilder, tui: Option<Tui>) -> Result<ExitCode, Failure> {
        let args =
            PredictArgs::from_arg_matches(&self.invocation.matches).map_err(Failure::Usage)?;
        let writer = self
            .app()
            .prediction_writer(&args.output)
            .map_err(|e| Failure::Option(format!("--output {e}")))?;
        let mut trainer = builder.build()?;
        let options = trainer.options().clone();
        let loader = self.app().predict_data(&options)?.ok_or_else(|| {
            Failure::Option(
                "this program has no data to predict for: its predict_data() returns none".into(),
            )
        })?;
        let module = self.app().module()?;
        let _screen = tui.map(|tui| tui.start(&trainer, Some(&loader)));
        let batches = trainer.predict(&module, &loader, Weights::from_options(&options)?)?;
        let samples = writer.write(batches)?;
        print_in_process_0(
            &trainer,
            format_args!(
                "predictions: {} for {}",
                args.output.display(),
                quantity(samples, "sample")
            ),
        )?;
        self.finish(&trainer, || report::predictions(&trainer, samples, &args.output))
    }

    /// Estimates the training step. This opens no device and computes no values.
    fn preflight(&self, builder: &TrainerBuilder) -> Result<ExitCode, Failure> {
        let args =
            PreflightArgs::from_arg_matches(&self.invocation.matches).map_err(Failure::Usage)?;
        let prices = match &args.price {
            // The price of the slice stands next to the prices of the GPUs.
            None if !args.against.is_empty() => Some(Prices::built_in()?),
            None => None,
            Some(path) if path.as_os_str() == BUILT_IN_PRICES => Some(Prices::built_in()?),
            Some(path) => Some(Prices::read(path)?),
        };
        if args.fetch_libtpu && locate(Platform::Tpu, None).is_err_and(|e| e.is_not_found()) {
            fetch::libtpu()?;
        }
        if args.save.is_some() && args.topology.len() > 1 {
            let why = "--save compiles for one slice; name only one with --topology";
            return Err(Failure::Option(why.to_owned()));
        }
        let FitData { train, validation } = self.app().fit_data(&builder.options()?)?;
        let module = self.app().module()?;
        if !args.topology.is_empty() {
            let mut report = builder.preflight(&module, &train, &args.topology, prices.as_ref())?;
            report.compare_with(&args.against);
            if args.loader_seconds > 0 {
                let time = Duration::from_secs(args.loader_seconds);
                report.add_loader(loader_speed(&train, time).map_err(|error| error.to_string()));
            }
            print_line(report.to_string().trim_end())?;
            if self.invocation.common.json {
                print_line(report.json())?;
            }
            if let Some(file) = &args.html {
                let page = report.html("Preflight");
                let written = fulmen_durable::write(file, Some(page.len() as u64), |out| {
                    out.write_all(page.as_bytes())
                });
                written.map_err(|e| {
                    std::io::Error::new(e.kind(), format!("--html {}: {e}", file.display()))
                })?;
                print_line(format_args!("page: {}", file.display()))?;
            }
            if !report.all_fit() {
                return Ok(ExitCode::FAILURE);
            }
        }
        if let Some(file) = &args.save {
            builder.save_programs(&module, &train, validation, args.topology.first(), file)?;
            print_line(format_args!("programs: {}; use them with `--aot {0}`", file.display()))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Prints the end of a command's output.
    pub(crate) fn finish(
        &self,
        trainer: &Trainer,
        json: impl FnOnce() -> serde_json::Value,
    ) -> Result<ExitCode, Failure> {
        // A program with its own loggers may have no such file.
        if let Some(file) =
            trainer.run_dir().map(|folder| folder.join("metrics.csv")).filter(|file| file.is_file())
        {
            print_in_process_0(trainer, format_args!("metrics: {}", file.display()))?;
        }
        if self.invocation.common.metrics {
            print_in_process_0(trainer, trainer.metrics_report().trim_end())?;
        }
        if self.invocation.common.json {
            let mut json = json();
            if self.invocation.common.metrics {
                json["metrics_report"] = trainer.metrics_json();
            }
            print_in_process_0(trainer, json)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Prints how to resume an interrupted fit.
fn print_how_to_resume(trainer: &Trainer) -> std::io::Result<()> {
    match trainer.last_checkpoint() {
        Some(_) if trainer.options().resume == Resume::Auto => {
            print_in_process_0(trainer, "to resume, run the same command again")
        }
        Some(path) => print_in_process_0(
            trainer,
            format_args!(
                "to resume, run the same command again with --ckpt-path {}",
                path.display()
            ),
        ),
        None => Ok(()),
    }
}
