//! [`Limits`]: where a fit ends and where it must not end yet, by the options and the length of an epoch.

use std::time::Duration;

use fulmen_data::DataLoader;

use crate::accumulate::Accumulation;
use crate::{BatchLimit, Error, Options, Plan, Result, TrainDuration, TrainerArgs};

/// What a run without an end has of something.
pub(crate) const NO_LIMIT: u64 = u64::MAX;

/// The field whose elements are tokens.
const TOKENS: &str = "input_ids";

/// An epoch of the training loader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EpochSize {
    pub(crate) batches: u64,
    pub(crate) samples: u64,
    pub(crate) batch_size: u64,
    /// Tokens of a sample; 0 where nobody asks.
    pub(crate) tokens: u64,
}

impl EpochSize {
    /// Of a loader, for a run of this length.
    ///
    /// # Errors
    /// The length is in tokens, and the loader's samples have none, or not all as many.
    pub(crate) fn new(loader: &DataLoader, duration: TrainDuration) -> Result<EpochSize> {
        let (samples, batch_size) = (loader.num_samples() as u64, loader.batch_size() as u64);
        let mut tokens = 0;
        if let TrainDuration::Tokens(_) = duration {
            let refused =
                |why| Error::option(format!("max_duration: it is {duration}, and {why}; give samples (1e6sa)"));
            let ids = loader.fields().iter().find(|field| field.name == TOKENS && field.dtype.is_integer());
            let ids = ids.ok_or_else(|| refused("the training loader has no integer field `input_ids`"))?;
            if loader.shapes().len() > 1 {
                return Err(refused("the training loader has buckets, whose samples differ in tokens"));
            }
            tokens = ids.shape.iter().product::<usize>().max(1) as u64;
        }
        Ok(EpochSize { batches: loader.len() as u64, samples, batch_size, tokens })
    }
}

/// Where a fit ends: at the first of these that it reaches. What is not limited is [`NO_LIMIT`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Limits {
    pub(crate) epochs: u64,
    pub(crate) steps: u64,
    pub(crate) time: Option<Duration>,
    /// What no callback and no time ends earlier.
    pub(crate) min_epochs: u64,
    pub(crate) min_steps: u64,
}

impl Limits {
    pub(crate) fn new(options: &Options, accumulation: &Accumulation, epoch: EpochSize) -> Limits {
        let mut steps = if options.max_steps == 0 { NO_LIMIT } else { options.max_steps };
        let samples = match options.max_duration {
            TrainDuration::Samples(samples) => Some(samples),
            TrainDuration::Tokens(tokens) => Some(tokens.div_ceil(epoch.tokens.max(1))),
            _ => None,
        };
        if let Some(samples) = samples {
            let whole = samples / epoch.samples.max(1);
            let rest = (samples % epoch.samples.max(1)).div_ceil(epoch.batch_size.max(1));
            let of_whole = accumulation.steps(whole, epoch.batches);
            steps = steps.min(of_whole.saturating_add(accumulation.steps_of(whole, rest)));
        }
        let time = match options.max_time {
            TrainDuration::Time(time) => Some(time),
            _ => None,
        };
        let Options { max_epochs: epochs, min_epochs, min_steps, .. } = *options;
        Limits { epochs, steps, time, min_epochs, min_steps }
    }

    /// How long training is, with epochs of so many batches.
    pub(crate) fn plan(&self, batches: u64, accumulation: &Accumulation) -> Plan {
        let total_steps = accumulation.steps(self.epochs, batches).min(self.steps);
        // An epoch without an end is as long as the run.
        let steps_per_epoch = accumulation.steps_of(0, batches).min(total_steps);
        let limited = self.epochs < NO_LIMIT || self.steps < NO_LIMIT;
        let max_epochs = match accumulation.position(total_steps, batches) {
            (whole, rest) if limited && total_steps > 0 => self.epochs.min(whole + u64::from(rest > 0)),
            _ => self.epochs,
        };
        let total_steps = if limited { total_steps } else { NO_LIMIT };
        Plan { steps_per_epoch, max_epochs, total_steps }
    }

    /// After how many batches a run ends, with epochs of so many; time aside.
    pub(crate) fn batches(&self, batches: u64, accumulation: &Accumulation) -> u64 {
        let of_epochs = self.epochs.saturating_mul(batches);
        let of_steps = match self.steps {
            NO_LIMIT => NO_LIMIT,
            steps => {
                let (epochs, rest) = accumulation.position(steps, batches);
                epochs.saturating_mul(batches).saturating_add(rest)
            }
        };
        of_epochs.min(of_steps)
    }
}

impl Options {
    /// Brings together what options say of the same thing; `given` are those that do not have their default.
    ///
    /// # Errors
    /// Options that contradict each other, by their names.
    pub(crate) fn settle(mut self, given: &TrainerArgs) -> Result<Options> {
        if self.barebones {
            for (name, given) in [
                ("enable_checkpointing", given.enable_checkpointing),
                ("enable_progress_bar", given.enable_progress_bar),
                ("log_grad_norm", given.log_grad_norm),
                ("detect_nan", given.detect_nan),
                ("detect_anomaly", given.detect_anomaly),
                ("enable_model_summary", given.enable_model_summary),
                ("num_sanity_val_steps", given.num_sanity_val_steps.map(|steps| steps > 0)),
            ] {
                if given == Some(true) {
                    return Err(Error::option(format!(
                        "barebones: it leaves out {name}, which is on; give one of the two"
                    )));
                }
            }
            (self.enable_checkpointing, self.enable_progress_bar, self.enable_model_summary) = (false, false, false);
        }
        if self.fast_dev_run.batches() > 0 {
            return Ok(self.tried_out());
        }
        self.overfit(given)?;
        if let (BatchLimit::Count(steps), 2..) = (self.val_check_interval, self.check_val_every_n_epoch) {
            return Err(Error::option(format!(
                "val_check_interval: {steps} counts the steps of the run, and check_val_every_n_epoch its epochs; give one of \
                 the two, or a share of an epoch (0.25)"
            )));
        }
        self.settle_limits(given)
    }

    /// Whether a run writes no file at all.
    pub(crate) fn leaves_nothing(&self) -> bool {
        self.fast_dev_run.batches() > 0 || self.barebones
    }

    /// With `fast_dev_run`: a batch or some of each loader, and nothing left behind.
    fn tried_out(self) -> Options {
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

    /// With `overfit_batches`: so many batches for training and validation.
    fn overfit(&mut self, given: &TrainerArgs) -> Result<()> {
        let overfit = self.overfit_batches;
        if overfit.is_zero() {
            return Ok(());
        }
        if self.reload_dataloaders_every_n_epochs > 0 {
            return Err(Error::option(format!(
                "overfit_batches: it is {overfit}, and reload_dataloaders_every_n_epochs is {}; give one of the two",
                self.reload_dataloaders_every_n_epochs
            )));
        }
        for (name, given, limit) in [
            ("limit_train_batches", given.limit_train_batches, &mut self.limit_train_batches),
            ("limit_val_batches", given.limit_val_batches, &mut self.limit_val_batches),
        ] {
            if let Some(other) = given.filter(|&other| other != overfit) {
                return Err(Error::option(format!(
                    "overfit_batches: it is {overfit}, and {name} is {other}; give one of the two"
                )));
            }
            *limit = overfit;
        }
        Ok(())
    }

    fn settle_limits(mut self, given: &TrainerArgs) -> Result<Options> {
        let limited = self.max_steps > 0
            || self.max_time != TrainDuration::Unlimited
            || self.max_duration != TrainDuration::Unlimited;
        if limited && given.max_epochs.is_none() {
            self.max_epochs = NO_LIMIT;
        }
        let duration = self.max_duration;
        let twice = |other: &str, value: String| {
            Err(Error::option(format!("max_duration: it is {duration}, and {other} is {value}; give one of the two")))
        };
        match duration {
            TrainDuration::Epochs(epochs) => {
                if let Some(other) = given.max_epochs.filter(|&other| other != epochs) {
                    return twice("max_epochs", other.to_string());
                }
                self.max_epochs = epochs;
            }
            TrainDuration::Steps(steps) => {
                if self.max_steps > 0 && self.max_steps != steps {
                    return twice("max_steps", self.max_steps.to_string());
                }
                self.max_steps = steps;
            }
            TrainDuration::Time(_) => {
                if self.max_time != TrainDuration::Unlimited && self.max_time != duration {
                    return twice("max_time", self.max_time.to_string());
                }
                self.max_time = duration;
            }
            TrainDuration::Samples(_) | TrainDuration::Tokens(_) | TrainDuration::Unlimited => {}
        }
        for (least, min, most, max) in [
            ("min_epochs", self.min_epochs, "max_epochs", self.max_epochs),
            ("min_steps", self.min_steps, "max_steps", if self.max_steps == 0 { NO_LIMIT } else { self.max_steps }),
        ] {
            if min > max {
                return Err(Error::option(format!(
                    "{least}: it is {min}, more than {most}, which is {max}; raise {most}"
                )));
            }
        }
        Ok(self)
    }
}
