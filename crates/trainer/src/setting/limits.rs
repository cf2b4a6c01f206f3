//! [`Limits`]: where a fit ends and where it must not end yet, by the options and the length of an epoch.

use std::time::Duration;

use fulmen_data::DataLoader;

use crate::plan::NO_LIMIT;
use crate::rules::accumulate;
use crate::{Error, Options, Plan, Result, TrainDuration};

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
    pub(crate) fn new(options: &Options, epoch: EpochSize) -> Limits {
        let mut steps = if options.max_steps == 0 { NO_LIMIT } else { options.max_steps };
        let samples = match options.max_duration {
            TrainDuration::Samples(samples) => Some(samples),
            TrainDuration::Tokens(tokens) => Some(tokens.div_ceil(epoch.tokens.max(1))),
            _ => None,
        };
        if let Some(samples) = samples {
            let every = options.accumulate_grad_batches;
            let whole =
                (samples / epoch.samples.max(1)).saturating_mul(accumulate::steps_per_epoch(epoch.batches, every));
            let rest = (samples % epoch.samples.max(1)).div_ceil(epoch.batch_size.max(1));
            steps = steps.min(whole.saturating_add(accumulate::steps_per_epoch(rest, every)));
        }
        let time = match options.max_time {
            TrainDuration::Time(time) => Some(time),
            _ => None,
        };
        let Options { max_epochs: epochs, min_epochs, min_steps, .. } = *options;
        Limits { epochs, steps, time, min_epochs, min_steps }
    }

    /// How long training is, with epochs of so many batches, of which the optimizer steps once for `every`.
    pub(crate) fn plan(&self, batches: u64, every: u64) -> Plan {
        let steps_per_epoch = accumulate::steps_per_epoch(batches, every);
        let total_steps = steps_per_epoch.saturating_mul(self.epochs).min(self.steps);
        // An epoch without an end is as long as the run.
        let steps_per_epoch = steps_per_epoch.min(total_steps);
        let max_epochs = match total_steps.checked_div(steps_per_epoch) {
            Some(_) if self.epochs < NO_LIMIT || self.steps < NO_LIMIT => {
                self.epochs.min(total_steps.div_ceil(steps_per_epoch))
            }
            _ => self.epochs,
        };
        let total_steps = if self.epochs == NO_LIMIT && self.steps == NO_LIMIT { NO_LIMIT } else { total_steps };
        Plan { steps_per_epoch, max_epochs, total_steps }
    }

    /// After how many batches a run ends, with epochs of so many of which the optimizer steps once for `every`; time aside.
    pub(crate) fn batches(&self, batches: u64, every: u64) -> u64 {
        let of_epochs = self.epochs.saturating_mul(batches);
        let each = accumulate::steps_per_epoch(batches, every).max(1);
        let of_steps = match self.steps {
            NO_LIMIT => NO_LIMIT,
            steps => (steps / each).saturating_mul(batches).saturating_add((steps % each).saturating_mul(every)),
        };
        of_epochs.min(of_steps)
    }
}
