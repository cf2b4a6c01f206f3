//! [`Limits`]: where a fit ends, and where it must not end yet, from the options and the length of
//! an epoch.

use std::time::Duration;

use fulmen_data::DataLoader;

use crate::batches_per_step::BatchesPerStep;
use crate::plan::NO_LIMIT;
use crate::position::BatchPosition;
use crate::{Options, Plan, Result, TrainDuration, error};

/// The field with a sample's tokens.
const TOKENS: &str = "input_ids";

/// The size of an epoch of the training loader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EpochSize {
    pub(crate) batches: u64,
    pub(crate) samples: u64,
    pub(crate) batch_size: u64,
    /// Tokens per sample; 0 if they are not counted.
    pub(crate) tokens: u64,
}

impl EpochSize {
    /// The size of an epoch of this loader, for a run of this length.
    ///
    /// # Errors
    /// The length is in tokens, but the samples have no tokens or differ in their number.
    pub(crate) fn new(loader: &DataLoader, duration: TrainDuration) -> Result<EpochSize> {
        let samples = loader.num_samples() as u64;
        let batch_size = loader.batch_size() as u64;
        let mut tokens = 0;
        if let TrainDuration::Tokens(_) = duration {
            tokens = tokens_of_a_sample(loader).map_err(|why| {
                error::option(format!(
                    "max_duration: it is {duration}, but {why}; use samples (1e6sa)"
                ))
            })?;
        }
        Ok(EpochSize { batches: loader.len() as u64, samples, batch_size, tokens })
    }
}

/// The number of tokens in each sample of a loader, or why it is not known.
pub(crate) fn tokens_of_a_sample(loader: &DataLoader) -> Result<u64, &'static str> {
    let ids = loader
        .fields()
        .iter()
        .find(|field| field.name == TOKENS && field.dtype.is_integer())
        .ok_or("the training loader has no integer field `input_ids`")?;
    if loader.shapes().len() > 1 {
        return Err("the training loader has buckets, whose samples differ in tokens");
    }
    Ok(ids.shape.iter().product::<usize>().max(1) as u64)
}

/// Where a fit ends: at the first of these limits. A limit that is not set is [`NO_LIMIT`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Limits {
    pub(crate) epochs: u64,
    pub(crate) steps: u64,
    pub(crate) time: Option<Duration>,
    /// Callbacks and `max_time` cannot end training before these.
    pub(crate) min_epochs: u64,
    pub(crate) min_steps: u64,
}

impl Limits {
    pub(crate) fn new(options: &Options, sizes: &BatchesPerStep, epoch: EpochSize) -> Limits {
        let mut steps = if options.max_steps == 0 { NO_LIMIT } else { options.max_steps };
        let samples = match options.max_duration {
            TrainDuration::Samples(samples) => Some(samples),
            TrainDuration::Tokens(tokens) => Some(tokens.div_ceil(epoch.tokens.max(1))),
            _ => None,
        };
        if let Some(samples) = samples {
            let whole = samples / epoch.samples.max(1);
            let remainder = (samples % epoch.samples.max(1)).div_ceil(epoch.batch_size.max(1));
            let whole_steps = sizes.steps(whole, epoch.batches);
            steps = steps.min(whole_steps.saturating_add(sizes.steps_of(whole, remainder)));
        }
        let time = match options.max_time {
            TrainDuration::Time(time) => Some(time),
            _ => None,
        };
        let Options { max_epochs: epochs, min_epochs, min_steps, .. } = *options;
        Limits { epochs, steps, time, min_epochs, min_steps }
    }

    /// How long the training will be, with epochs of `batches` batches.
    pub(crate) fn plan(&self, batches: u64, sizes: &BatchesPerStep) -> Plan {
        let total_steps = sizes.steps(self.epochs, batches).min(self.steps);
        // An endless epoch is as long as the run.
        let steps_per_epoch = sizes.steps_of(0, batches).min(total_steps);
        let limited = self.epochs < NO_LIMIT || self.steps < NO_LIMIT;
        let max_epochs = match sizes.position(total_steps, batches) {
            BatchPosition { epoch, batch } if limited && total_steps > 0 => {
                self.epochs.min(epoch + u64::from(batch > 0))
            }
            _ => self.epochs,
        };
        let total_steps = if limited { total_steps } else { NO_LIMIT };
        Plan { steps_per_epoch, max_epochs, total_steps }
    }

    /// The number of batches in a run, with epochs of `batches` batches, without limits of time.
    pub(crate) fn batches(&self, batches: u64, sizes: &BatchesPerStep) -> u64 {
        let epoch_limit = self.epochs.saturating_mul(batches);
        let step_limit = match self.steps {
            NO_LIMIT => NO_LIMIT,
            steps => {
                let BatchPosition { epoch, batch } = sizes.position(steps, batches);
                epoch.saturating_mul(batches).saturating_add(batch)
            }
        };
        epoch_limit.min(step_limit)
    }
}
