//! `tune`: finds a learning rate or a batch size, before training.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::FromArgMatches as _;
use fulmen_data::DataLoader;
use fulmen_trainer::tuner::{BatchSizeFinder, BatchSizeMode, LearningRateFinder};
use fulmen_trainer::{Trainer, TrainerBuilder};
use serde_json::json;

use crate::app::{CliApp, FitData};
use crate::command::{Find, Search, TuneArgs};
use crate::failure::Failure;
use crate::output::print_in_process_0;
use crate::run::Job;

impl<A: CliApp> Job<A> {
    pub(crate) fn tune(&self, builder: TrainerBuilder) -> Result<ExitCode, Failure> {
        let args = TuneArgs::from_arg_matches(&self.invocation.matches).map_err(Failure::Usage)?;
        match args.find {
            Find::LearningRate => self.tune_learning_rate(builder, &args),
            Find::BatchSize => self.tune_batch_size(builder, &args),
        }
    }

    fn tune_learning_rate(
        &self,
        builder: TrainerBuilder,
        args: &TuneArgs,
    ) -> Result<ExitCode, Failure> {
        let mut trainer = builder.build()?;
        let options = trainer.options().clone();
        let FitData { train, validation } = self.app().fit_data(&options)?;
        if args.validation_batches.is_some() && validation.is_empty() {
            let why = "--validation-batches: this program has no validation data: its fit_data() returns none";
            return Err(Failure::Option(why.to_owned()));
        }
        let module = self.app().module()?;
        let finder = LearningRateFinder::new()
            .min_lr(args.lowest_rate)
            .max_lr(args.highest_rate)
            .num_training_steps(args.sweep_steps)
            .smoothing(args.smoothing)
            .monitor(&args.validation_loss);
        let curve = match args.validation_batches {
            None => trainer.lr_find(&module, &train, &finder)?,
            Some(batches) => {
                let finder = finder.validation_batches(batches);
                trainer.lr_find_validated(&module, &train, validation, &finder)?
            }
        };
        let report = curve.report();
        print_in_process_0(&trainer, report.text())?;
        let page = args.page.clone().unwrap_or_else(|| options.default_root_dir.join("tune.html"));
        if trainer.process_index() == 0 {
            let title = self.invocation.command.get_bin_name().unwrap_or("tune");
            write_page(&page, &report.page(title))?;
        }
        print_in_process_0(&trainer, format_args!("page: {}", page.display()))?;
        self.finish(&trainer, || {
            json!({
                "learning_rate": report.suggestion,
                "loss": report.loss,
                "rates": report.rates,
                "losses": report.losses,
                "page": page.to_string_lossy(),
            })
        })
    }

    fn tune_batch_size(
        &self,
        builder: TrainerBuilder,
        args: &TuneArgs,
    ) -> Result<ExitCode, Failure> {
        let long = args.batch_argument.replace('_', "-");
        if !self.invocation.has_own_argument(&long) {
            return Err(Failure::Option(format!(
                "--batch-argument: this program has no argument --{long}; name the one that sets its batch size"
            )));
        }
        let mode = match args.search {
            Search::Power => BatchSizeMode::Power,
            Search::Binsearch => BatchSizeMode::Binsearch,
        };
        let finder = BatchSizeFinder::new().init_val(args.first_batch_size).mode(mode);
        let mut trainer: Trainer = builder.build()?;
        let options = trainer.options().clone();
        let module = self.app().module()?;
        let loader = |batch_size: usize| -> fulmen_data::Result<DataLoader> {
            let app = self.invocation.app_with(&long, &batch_size.to_string());
            let app = app.map_err(fulmen_data::Error::usage)?;
            let data = app.fit_data(&options);
            data.map(|data| data.train).map_err(|e| fulmen_data::Error::new(e.to_string()))
        };
        let found = trainer.scale_batch_size(&module, loader, &finder)?;
        print_in_process_0(
            &trainer,
            format_args!(
                "batch size: {}; use it with --{long} {0}, and find the learning rate for it",
                found.batch_size
            ),
        )?;
        let tried = |trial: &fulmen_trainer::tuner::Trial| {
            json!({
                "batch_size": trial.batch_size,
                "needed_bytes": trial.needed_bytes,
                "fits": trial.verdict == fulmen_trainer::tuner::Verdict::Fits,
            })
        };
        self.finish(&trainer, || {
            json!({
                "batch_size": found.batch_size,
                "trials": found.trials.iter().map(tried).collect::<Vec<_>>(),
            })
        })
    }
}

fn write_page(path: &Path, page: &str) -> std::io::Result<()> {
    let with_path = |e: std::io::Error| {
        std::io::Error::new(e.kind(), format!("--page {}: {e}", path.display()))
    };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(with_path)?;
    }
    fulmen_durable::write(path, Some(page.len() as u64), |out| out.write_all(page.as_bytes()))
        .map_err(with_path)
}
