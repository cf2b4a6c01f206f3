//! [`ValidationSet`]: one of several loaders to validate on, with its name and when it is due.

use std::fmt;

use fulmen_data::DataLoader;

use crate::hooks::Progress;
use crate::{BatchLimit, Error, Options, Plan, Result};

/// A loader that a fit validates on. What `validation_step` logs of it has the set's name behind its own: `val_loss/NAME`.
///
/// ```
/// # fn f(trainer: &mut fulmen_trainer::Trainer, module: &impl fulmen_trainer::TrainingModule,
/// #      train: &fulmen_data::DataLoader, clean: &fulmen_data::DataLoader, noisy: &fulmen_data::DataLoader)
/// #      -> fulmen_trainer::Result<()> {
/// use fulmen_trainer::ValidationSet;
///
/// let clean = ValidationSet::new("clean", clean);
/// let noisy = ValidationSet::new("noisy", noisy).check_val_every_n_epoch(5);
/// trainer.fit(module, train, [clean, noisy])?; // logs val_loss/clean, and every fifth epoch val_loss/noisy
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ValidationSet<'a> {
    name: String,
    loader: &'a DataLoader,
    interval: Option<BatchLimit>,
    every_n_epochs: Option<u64>,
    refused: Option<String>,
}

impl<'a> ValidationSet<'a> {
    /// A loader with a name; it is due when the options say so.
    pub fn new(name: impl Into<String>, loader: &'a DataLoader) -> ValidationSet<'a> {
        ValidationSet { name: name.into(), loader, interval: None, every_n_epochs: None, refused: None }
    }

    /// When it is validated on: each time after this share of an epoch (0.25), or after so many optimizer steps of the run
    /// (500), instead of the option of that name.
    pub fn val_check_interval(mut self, interval: impl TryInto<BatchLimit, Error: fmt::Display>) -> ValidationSet<'a> {
        match interval.try_into() {
            Ok(interval) => self.interval = Some(interval),
            Err(error) => self.refused = Some(format!("val_check_interval: {error}")),
        }
        self
    }

    /// Epochs between two validations on it, instead of the option of that name.
    pub fn check_val_every_n_epoch(mut self, epochs: u64) -> ValidationSet<'a> {
        self.every_n_epochs = Some(epochs);
        self
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn loader(&self) -> &'a DataLoader {
        self.loader
    }

    /// When it is due in a run of this plan.
    ///
    /// # Errors
    /// What it was told that cannot be.
    pub(crate) fn cadence(&self, options: &Options, train: &DataLoader, plan: &Plan) -> Result<Cadence> {
        let interval = self.interval.unwrap_or(options.val_check_interval);
        let every_n_epochs = self.every_n_epochs.unwrap_or(match self.interval {
            // The set's own number of steps has nothing to do with the epochs of the option.
            Some(BatchLimit::Count(_)) => 1,
            _ => options.check_val_every_n_epoch,
        });
        let refused = self.refused.clone().or_else(|| {
            let problem = interval.refusal_of_some().map(|why| format!("val_check_interval: {interval} {why}"));
            problem.or((every_n_epochs == 0).then(|| "check_val_every_n_epoch: it must be at least 1".into()))
        });
        let refused = refused.or_else(|| match interval {
            BatchLimit::Count(steps) if self.every_n_epochs.is_some() && self.interval.is_some() => Some(format!(
                "val_check_interval: {steps} counts the steps of the run, and check_val_every_n_epoch its epochs; give one of \
                 the two, or a share of an epoch (0.25)"
            )),
            BatchLimit::Share(_) if train.is_endless() => Some(format!(
                "val_check_interval: {interval} is a share of an epoch, and the training loader is endless; give a number of \
                 steps, such as 500"
            )),
            BatchLimit::Count(steps) if steps > plan.total_steps => Some(format!(
                "val_check_interval: {steps} steps are more than the {} of this run, which would never validate",
                plan.total_steps
            )),
            _ => None,
        });
        match refused {
            Some(why) if self.name.is_empty() => Err(Error::option(why)),
            Some(why) => Err(Error::option(format!("the validation set `{}`: {why}", self.name))),
            None => Ok(Cadence { interval, every_n_epochs }),
        }
    }
}

/// What a fit validates on: nothing (`None`), one loader (`Some(&loader)`), or several with names.
#[derive(Clone, Debug, Default)]
pub struct ValidationSets<'a>(pub(crate) Vec<ValidationSet<'a>>);

impl<'a> From<Option<&'a DataLoader>> for ValidationSets<'a> {
    fn from(loader: Option<&'a DataLoader>) -> ValidationSets<'a> {
        ValidationSets(loader.map(|loader| ValidationSet::new("", loader)).into_iter().collect())
    }
}

impl<'a> From<Vec<ValidationSet<'a>>> for ValidationSets<'a> {
    fn from(sets: Vec<ValidationSet<'a>>) -> ValidationSets<'a> {
        ValidationSets(sets)
    }
}

impl<'a, const N: usize> From<[ValidationSet<'a>; N]> for ValidationSets<'a> {
    fn from(sets: [ValidationSet<'a>; N]) -> ValidationSets<'a> {
        ValidationSets(sets.into())
    }
}

impl ValidationSets<'_> {
    /// Names tell sets apart.
    pub(crate) fn check(&self) -> Result<()> {
        for (i, set) in self.0.iter().enumerate() {
            if set.name.is_empty() && self.0.len() > 1 {
                return Err(Error::usage("of several validation sets each needs a name that is not empty"));
            }
            if self.0[..i].iter().any(|earlier| earlier.name == set.name) {
                return Err(Error::usage(format!("two validation sets have the name `{}`; names differ", set.name)));
            }
        }
        Ok(())
    }
}

/// When a validation set is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cadence {
    interval: BatchLimit,
    every_n_epochs: u64,
}

impl Cadence {
    /// Whether it is due after the latest batch; `stepped` says whether the optimizer stepped with it.
    pub(crate) fn is_due(&self, progress: &Progress, stepped: bool) -> bool {
        let Progress { epoch, batch, batches, global_step } = *progress;
        match self.interval {
            BatchLimit::Count(steps) => stepped && global_step.is_multiple_of(steps),
            BatchLimit::Share(share) => {
                // The n-th validation comes after n shares of the epoch, however they fall on batches.
                let shares = |batch: u64| (batch as f64 / (share * batches as f64) + 1e-9).floor();
                (epoch + 1).is_multiple_of(self.every_n_epochs) && shares(batch) > shares(batch.saturating_sub(1))
            }
        }
    }
}
