//! Resolves options that affect each other, and rejects contradictions.

use crate::plan::NO_LIMIT;
use crate::{BatchLimit, Options, Profiler, Result, TrainDuration, TrainerArgs, error};

impl Options {
    /// Resolves options that affect each other. `explicit` has the options that were set
    /// explicitly.
    ///
    /// # Errors
    /// Options contradict each other. The message names them.
    pub(crate) fn resolve_dependent(mut self, explicit: &TrainerArgs) -> Result<Options> {
        if self.barebones {
            for (name, value) in [
                ("enable_checkpointing", explicit.enable_checkpointing),
                ("enable_progress_bar", explicit.enable_progress_bar),
                ("log_grad_norm", explicit.log_grad_norm),
                ("detect_nan", explicit.detect_nan),
                ("detect_anomaly", explicit.detect_anomaly),
                ("enable_model_summary", explicit.enable_model_summary),
                ("profiler", explicit.profiler.map(|profiler| profiler != Profiler::None)),
                ("num_sanity_val_steps", explicit.num_sanity_val_steps.map(|steps| steps > 0)),
            ] {
                if value == Some(true) {
                    return Err(error::option(format!(
                        "barebones: it turns off {name}, which is set; set only one of the two"
                    )));
                }
            }
            (self.enable_checkpointing, self.enable_progress_bar, self.enable_model_summary) =
                (false, false, false);
        }
        if self.fast_dev_run.batches() > 0 {
            return Ok(self.for_fast_dev_run());
        }
        self.overfit(explicit)?;
        if let (BatchLimit::Count(steps), 2..) =
            (self.val_check_interval, self.check_val_every_n_epoch)
        {
            return Err(error::option(format!(
                "val_check_interval: {steps} counts the steps of the run, and check_val_every_n_epoch its epochs; set only \
                 one of the two, or a fraction of an epoch (0.25)"
            )));
        }
        self.resolve_limits(explicit)
    }

    /// Whether a run writes no files.
    pub(crate) fn writes_no_files(&self) -> bool {
        self.fast_dev_run.batches() > 0 || self.barebones
    }

    /// Whether a fit saves checkpoints.
    pub(crate) fn saves(&self) -> bool {
        self.enable_checkpointing && !self.writes_no_files()
    }

    /// The options for `fast_dev_run`: a few batches of each loader, and no files.
    fn for_fast_dev_run(self) -> Options {
        let limit = BatchLimit::Count(self.fast_dev_run.batches());
        Options {
            max_epochs: 1,
            max_steps: 0,
            max_time: TrainDuration::Unlimited,
            max_duration: TrainDuration::Unlimited,
            min_epochs: 0,
            min_steps: 0,
            limit_train_batches: limit,
            limit_val_batches: limit,
            limit_test_batches: limit,
            limit_predict_batches: limit,
            overfit_batches: BatchLimit::Count(0),
            val_check_interval: BatchLimit::ALL,
            check_val_every_n_epoch: 1,
            num_sanity_val_steps: 0,
            enable_checkpointing: false,
            ..self
        }
    }

    /// Applies `overfit_batches` to training and validation.
    fn overfit(&mut self, explicit: &TrainerArgs) -> Result<()> {
        let overfit = self.overfit_batches;
        if overfit.is_zero() {
            return Ok(());
        }
        if self.reload_dataloaders_every_n_epochs > 0 {
            return Err(error::option(format!(
                "overfit_batches: it is {overfit}, and reload_dataloaders_every_n_epochs is {}; set only one of the two",
                self.reload_dataloaders_every_n_epochs
            )));
        }
        for (name, value, limit) in [
            ("limit_train_batches", explicit.limit_train_batches, &mut self.limit_train_batches),
            ("limit_val_batches", explicit.limit_val_batches, &mut self.limit_val_batches),
        ] {
            if let Some(other) = value.filter(|&other| other != overfit) {
                return Err(error::option(format!(
                    "overfit_batches: it is {overfit}, and {name} is {other}; set only one of the two"
                )));
            }
            *limit = overfit;
        }
        Ok(())
    }

    /// Whether another option than `max_epochs` limits training.
    pub(crate) fn has_other_limit(&self) -> bool {
        self.max_steps > 0
            || self.max_time != TrainDuration::Unlimited
            || self.max_duration != TrainDuration::Unlimited
    }

    fn resolve_limits(mut self, explicit: &TrainerArgs) -> Result<Options> {
        if self.has_other_limit() && explicit.max_epochs.is_none() {
            self.max_epochs = NO_LIMIT;
        }
        let duration = self.max_duration;
        let conflict = |other: &str, value: String| {
            Err(error::option(format!(
                "max_duration: it is {duration}, and {other} is {value}; set only one of the two"
            )))
        };
        match duration {
            TrainDuration::Epochs(epochs) => {
                if let Some(other) =
                    explicit.max_epochs.filter(|&other| other != epochs && other != NO_LIMIT)
                {
                    return conflict("max_epochs", other.to_string());
                }
                self.max_epochs = epochs;
            }
            TrainDuration::Steps(steps) => {
                if self.max_steps > 0 && self.max_steps != steps {
                    return conflict("max_steps", self.max_steps.to_string());
                }
                self.max_steps = steps;
            }
            TrainDuration::Time(_) => {
                if self.max_time != TrainDuration::Unlimited && self.max_time != duration {
                    return conflict("max_time", self.max_time.to_string());
                }
                self.max_time = duration;
            }
            TrainDuration::Samples(_) | TrainDuration::Tokens(_) | TrainDuration::Unlimited => {}
        }
        for (min_name, min, max_name, max) in [
            ("min_epochs", self.min_epochs, "max_epochs", self.max_epochs),
            (
                "min_steps",
                self.min_steps,
                "max_steps",
                if self.max_steps == 0 { NO_LIMIT } else { self.max_steps },
            ),
        ] {
            if min > max {
                return Err(error::option(format!(
                    "{min_name}: it is {min}, more than {max_name}, which is {max}; raise {max_name}"
                )));
            }
        }
        Ok(self)
    }
}
