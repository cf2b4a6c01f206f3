//! Finds a learning rate or a batch size before training, with short fits that change nothing, like
//! Lightning's `Tuner`.

mod batch_size;
mod learning_rate;

use fulmen_data::DataLoader;

pub use batch_size::{BatchSizeFinder, BatchSizeMode, BatchSizes, Trial, Verdict};
pub use learning_rate::{LearningRateCurve, LearningRateFinder};

pub use crate::rules::lr_sweep::SweepMode;

use crate::callbacks::callback::Callback;
use crate::checkpoint::run_config::RunConfig;
use crate::console::inform;
use crate::fit::fit;
use crate::goodput::Clock;
use crate::options::batch_limit::BatchLimit;
use crate::plan::NO_LIMIT;
use crate::program::trace_fit::set_up;
use crate::session::{Record, Session};
use crate::step_config::Choices;
use crate::{
    EvaluationSets, FitSummary, Options, Result, Resume, TrainDuration, Trainer, TrainingModule,
};

/// Shows a line about the progress of a search, which has no progress bar.
fn show_progress(trainer: &Trainer, line: &str) {
    if trainer.options().enable_progress_bar {
        inform!("{line}");
    }
}

/// The loss over the learning rate, for reports.
pub use fulmen_report::LearningRates;

/// The settings for a fit of `steps` steps that neither resumes, saves nor validates.
fn short_fit(choices: &Choices, steps: u64) -> Choices {
    let options = Options {
        max_epochs: NO_LIMIT,
        max_steps: steps,
        max_time: TrainDuration::Unlimited,
        max_duration: TrainDuration::Unlimited,
        min_epochs: 0,
        min_steps: 0,
        limit_val_batches: BatchLimit::Count(0),
        val_check_interval: BatchLimit::ALL,
        num_sanity_val_steps: 0,
        log_every_n_steps: 1,
        ckpt_path: Default::default(),
        resume: Resume::Never,
        detect_nan: false,
        enable_checkpointing: false,
        enable_progress_bar: false,
        enable_model_summary: false,
        // This fit needs no run folder.
        fast_dev_run: true.into(),
        ..choices.options.clone()
    };
    Choices { options, ..choices.clone() }
}

/// Runs a short fit on the Trainer's devices. Afterwards the module has its old values, even after
/// an error.
fn run_short_fit(
    trainer: &Trainer,
    module: &dyn TrainingModule,
    train: &DataLoader,
    choices: Choices,
    callbacks: Vec<Box<dyn Callback>>,
    validation: &EvaluationSets,
) -> Result<FitSummary> {
    let mut session = Session {
        choices,
        runtime: trainer.session.runtime.clone(),
        process_group: trainer.session.process_group.clone(),
        callbacks: callbacks.into(),
        loggers: Session::loggers(Vec::new())?,
        clock: Clock::new(),
        run_config: RunConfig::default(),
        open_store: trainer.session.open_store.clone(),
        record: Record::default(),
    };
    // Set the types of the module's values before saving copies of them.
    set_up(module, &session.config()?)?;
    let values: Vec<_> = module.state().into_iter().map(|(_, cell)| (cell.get(), cell)).collect();
    let result = session.with_process_group(|session| fit(session, module, train, validation));
    values.into_iter().for_each(|(value, cell)| cell.set(value));
    result
}
