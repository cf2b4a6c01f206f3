//! [`EvaluationSet`]: a loader to validate or test on, with a name and a schedule.

use std::fmt;

use fulmen_data::DataLoader;

use crate::hooks::Progress;
use crate::stage::Stage;
use crate::{BatchLimit, Error, Options, Plan, Result, error};

/// A loader to validate or test on, with a unique name. The name is appended to the names of its
/// logged values, as in `val_loss/NAME`. The step gets it from
/// [`StepContext::dataset`](crate::StepContext::dataset).
///
/// ```
/// # fn f(trainer: &mut fulmen_trainer::Trainer, module: &impl fulmen_trainer::TrainingModule,
/// #      train: &fulmen_data::DataLoader, clean: &fulmen_data::DataLoader, noisy: &fulmen_data::DataLoader)
/// #      -> fulmen_trainer::Result<()> {
/// use fulmen_trainer::{EvaluationSet, Weights};
///
/// let clean = EvaluationSet::new("clean", clean);
/// let noisy = EvaluationSet::new("noisy", noisy).check_val_every_n_epoch(5);
/// let sets = [clean, noisy];
/// trainer.fit(module, train, sets.clone())?; // logs val_loss/clean, and every fifth epoch val_loss/noisy
/// trainer.test(module, sets, Weights::Best)?; // logs test_acc/clean and test_acc/noisy
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct EvaluationSet {
    name: String,
    loader: DataLoader,
    interval: Option<BatchLimit>,
    every_n_epochs: Option<u64>,
    error: Option<String>,
}

impl EvaluationSet {
    /// Creates a set from a loader. The options decide when a fit validates on this set.
    pub fn new(name: impl Into<String>, loader: &DataLoader) -> EvaluationSet {
        EvaluationSet {
            name: name.into(),
            loader: loader.clone(),
            interval: None,
            every_n_epochs: None,
            error: None,
        }
    }

    /// Sets when a fit validates on this set: after each such fraction of an epoch (0.25), or
    /// number of optimizer steps of the run (500). It replaces the option of this name.
    pub fn val_check_interval(
        mut self,
        interval: impl TryInto<BatchLimit, Error: fmt::Display>,
    ) -> EvaluationSet {
        match interval.try_into() {
            Ok(interval) => self.interval = Some(interval),
            Err(error) => self.error = Some(format!("val_check_interval: {error}")),
        }
        self
    }

    /// Sets the number of epochs between two validations on this set. It replaces the option of
    /// this name.
    pub fn check_val_every_n_epoch(mut self, epochs: u64) -> EvaluationSet {
        self.every_n_epochs = Some(epochs);
        self
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn loader(&self) -> &DataLoader {
        &self.loader
    }

    /// When the set is due in a run with this plan.
    ///
    /// # Errors
    /// A setting is invalid for this run.
    pub(crate) fn cadence(
        &self,
        options: &Options,
        train: &DataLoader,
        plan: &Plan,
    ) -> Result<Cadence> {
        let interval = self.interval.unwrap_or(options.val_check_interval);
        let every_n_epochs = self.every_n_epochs.unwrap_or(match self.interval {
            // The option's number of epochs doesn't apply to the set's own number of steps.
            Some(BatchLimit::Count(_)) => 1,
            _ => options.check_val_every_n_epoch,
        });
        let invalid_interval = || {
            interval
                .config_error_of_some()
                .map(|expected| format!("val_check_interval: {interval} {expected}"))
        };
        let invalid_epochs = || {
            (every_n_epochs == 0)
                .then(|| "check_val_every_n_epoch: it must be at least 1".to_owned())
        };
        let contradiction = || match interval {
            BatchLimit::Count(steps)
                if self.every_n_epochs.is_some() && self.interval.is_some() =>
            {
                Some(format!(
                    "val_check_interval: {steps} counts the steps of the run, and check_val_every_n_epoch its epochs; set only \
                 one of the two, or a fraction of an epoch (0.25)"
                ))
            }
            BatchLimit::Share(_) if train.is_endless() => Some(format!(
                "val_check_interval: {interval} is a fraction of an epoch, but the training loader is endless; use a \
                 number of steps, such as 500"
            )),
            BatchLimit::Count(steps) if steps > plan.total_steps => Some(format!(
                "val_check_interval: {steps} steps are more than the {} of this run, so it would never validate; use fewer",
                plan.total_steps
            )),
            _ => None,
        };
        let error = self
            .error
            .clone()
            .or_else(invalid_interval)
            .or_else(invalid_epochs)
            .or_else(contradiction);
        match error {
            Some(error) if self.name.is_empty() => Err(error::option(error)),
            Some(error) => {
                Err(error::option(format!("the validation set `{}`: {error}", self.name)))
            }
            None => Ok(Cadence { interval, every_n_epochs }),
        }
    }
}

/// The loaders to validate or test on: none (`None`, only for a fit), one (`loader`, `&loader` or
/// `Some(&loader)`), or several with names.
///
/// ```
/// use fulmen_data::{DataLoader, TensorDataset};
/// use fulmen_trainer::{EvaluationSet, EvaluationSets};
///
/// let data = TensorDataset::builder().array("x", [2], vec![1.0f32, 2.0]).build()?;
/// let loader = DataLoader::builder(data).batch_size(2).build()?;
/// assert!(EvaluationSets::from(None).is_empty());
/// let one = EvaluationSets::from(&loader);
/// let several = EvaluationSets::from([EvaluationSet::new("clean", &loader)]);
/// # assert!(!one.is_empty() && !several.is_empty());
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct EvaluationSets(pub(crate) Vec<EvaluationSet>);

impl From<&DataLoader> for EvaluationSets {
    fn from(loader: &DataLoader) -> EvaluationSets {
        EvaluationSets(vec![EvaluationSet::new("", loader)])
    }
}

impl From<DataLoader> for EvaluationSets {
    fn from(loader: DataLoader) -> EvaluationSets {
        EvaluationSets::from(&loader)
    }
}

impl From<Option<&DataLoader>> for EvaluationSets {
    fn from(loader: Option<&DataLoader>) -> EvaluationSets {
        loader.map(EvaluationSets::from).unwrap_or_default()
    }
}

impl From<Vec<EvaluationSet>> for EvaluationSets {
    fn from(sets: Vec<EvaluationSet>) -> EvaluationSets {
        EvaluationSets(sets)
    }
}

impl<const N: usize> From<[EvaluationSet; N]> for EvaluationSets {
    fn from(sets: [EvaluationSet; N]) -> EvaluationSets {
        EvaluationSets(sets.into())
    }
}

impl EvaluationSets {
    /// Returns whether there are no sets.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks that the names are unique.
    pub(crate) fn check(&self, stage: Stage) -> Result<()> {
        let noun = stage.noun();
        for (i, set) in self.0.iter().enumerate() {
            if set.name.is_empty() && self.0.len() > 1 {
                return Err(Error::usage(format!(
                    "there are several {noun} sets; give each a name that is not empty"
                )));
            }
            if self.0[..i].iter().any(|earlier| earlier.name == set.name) {
                return Err(Error::usage(format!(
                    "two {noun} sets have the name `{}`; rename one of them",
                    set.name
                )));
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
    /// Whether the set is due after the latest batch. `stepped` is whether the optimizer stepped
    /// after that batch.
    pub(crate) fn is_due(&self, progress: &Progress, stepped: bool) -> bool {
        let Progress { epoch, batch, batches, global_step } = *progress;
        match self.interval {
            BatchLimit::Count(steps) => stepped && global_step.is_multiple_of(steps),
            BatchLimit::Share(share) => {
                // The n-th validation runs after the batch that completes n shares of the epoch.
                let shares = |batch: u64| (batch as f64 / (share * batches as f64) + 1e-9).floor();
                (epoch + 1).is_multiple_of(self.every_n_epochs)
                    && shares(batch) > shares(batch.saturating_sub(1))
            }
        }
    }
}
