//! Reloads the training loader within a fit (`reload_dataloaders_every_n_epochs`). The module
//! creates the loader. Its batches must have the shapes that the step was compiled for.

use fulmen_data::DataLoader;
use fulmen_durable::messages::quantity;

use super::Fit;
use crate::bad_samples::BadSampleCount;
use crate::step_config::StepConfig;
use crate::{Error, Result, TrainingModule, error};

/// The loader of an epoch, unless it is the loader that was passed to the fit.
pub(super) fn reloaded_loader(
    module: &dyn TrainingModule,
    config: &StepConfig,
    epoch: u64,
) -> Result<Option<DataLoader>> {
    let every = config.options.reload_dataloaders_every_n_epochs;
    if every == 0 || epoch < every {
        return Ok(None);
    }
    let loader = module.train_dataloader(epoch - epoch % every)?.ok_or_else(|| {
        error::option(format!(
            "reload_dataloaders_every_n_epochs: it is {every}, but the module's train_dataloader() returns no loader; write \
             that method, or leave the option out"
        ))
    });
    loader.map(Some)
}

/// Checks before a fit that the first reloaded loader fits the step.
pub(super) fn check(
    module: &dyn TrainingModule,
    config: &StepConfig,
    train: &DataLoader,
    epochs: u64,
) -> Result<()> {
    let first = config.options.reload_dataloaders_every_n_epochs;
    match reloaded_loader(module, config, first)?.filter(|_| first < epochs) {
        Some(loader) => check_same(train, &config.training_loader(&loader)?, first),
        None => Ok(()),
    }
}

/// Checks that a loader has the same batches as the one before. The program and the schedule depend
/// on their shapes and number.
fn check_same(before: &DataLoader, loader: &DataLoader, epoch: u64) -> Result<()> {
    let batches = |loader: &DataLoader| {
        let padded = if loader.pads() { ", the last one padded" } else { "" };
        format!(
            "{} of {}, {:?}{padded}",
            quantity(loader.len(), "batch"),
            loader.batch_size(),
            loader.shapes()
        )
    };
    if batches(before) == batches(loader) {
        return Ok(());
    }
    Err(Error::usage(format!(
        "reload_dataloaders_every_n_epochs: the loader of epoch {epoch} has {}, but the step was compiled for {}; return a \
         loader with as many batches of the same shapes",
        batches(loader),
        batches(before)
    )))
}

impl Fit<'_> {
    /// The epoch that begins with the next loader.
    pub(super) fn next_reload(&self) -> u64 {
        match self.options().reload_dataloaders_every_n_epochs {
            0 => self.step.limits.epochs,
            every => (self.step.position.epoch - self.step.position.epoch % every)
                .saturating_add(every)
                .min(self.step.limits.epochs),
        }
    }

    /// Reloads the loader if the next epoch begins with a new one. Returns whether it did.
    pub(super) fn reload(&mut self) -> Result<bool> {
        let every = self.options().reload_dataloaders_every_n_epochs;
        let epoch = self.step.position.epoch;
        let ended = epoch >= self.step.limits.epochs || self.summary.stopped.is_some();
        if every == 0 || !epoch.is_multiple_of(every) || ended {
            return Ok(false);
        }
        let config = self.session.config()?;
        let Some(loader) = reloaded_loader(self.hooks.module, &config, epoch)? else {
            return Ok(false);
        };
        let loader = config.training_loader(&loader)?;
        check_same(&self.step.train, &loader, epoch)?;
        self.session.check_consistent("reloaded training loader", |facts| {
            facts.insert("training data".into(), loader.description());
            Ok(())
        })?;
        self.summary.bad_samples += self.step.bad_samples.count();
        self.step.bad_samples = BadSampleCount::new(&loader, "training");
        self.step.position.data = loader.description();
        self.step.train = loader;
        Ok(true)
    }
}
