//! New training loaders within a fit (`reload_dataloaders_every_n_epochs`): the module makes them, and their batches are
//! those that the step was compiled for.

use fulmen_data::DataLoader;

use super::Fit;
use crate::run::bad_samples::BadCount;
use crate::step_config::StepConfig;
use crate::{Error, Result, TrainingModule};

/// The loader of an epoch, where it is not the one that the fit was given.
pub(super) fn reloaded(module: &dyn TrainingModule, setting: &StepConfig, epoch: u64) -> Result<Option<DataLoader>> {
    let every = setting.options.reload_dataloaders_every_n_epochs;
    if every == 0 || epoch < every {
        return Ok(None);
    }
    let loader = module.train_dataloader(epoch - epoch % every)?.ok_or_else(|| {
        Error::option(format!(
            "reload_dataloaders_every_n_epochs: it is {every}, and the module's train_dataloader() makes no loader; write \
             that method, or leave the option out"
        ))
    });
    loader.map(Some)
}

/// Checks before a fit that the first loader that it is going to reload fits the step.
pub(super) fn check(module: &dyn TrainingModule, setting: &StepConfig, train: &DataLoader, epochs: u64) -> Result<()> {
    let first = setting.options.reload_dataloaders_every_n_epochs;
    match reloaded(module, setting, first)?.filter(|_| first < epochs) {
        Some(loader) => check_same(train, &setting.training_loader(&loader)?, first),
        None => Ok(()),
    }
}

/// The program and the schedule were made for these batches and their number.
fn check_same(before: &DataLoader, loader: &DataLoader, epoch: u64) -> Result<()> {
    let what = |loader: &DataLoader| {
        let padded = if loader.pads() { ", the last one padded" } else { "" };
        format!("{} batches of {}, {:?}{padded}", loader.len(), loader.batch_size(), loader.shapes())
    };
    if what(before) == what(loader) {
        return Ok(());
    }
    Err(Error::usage(format!(
        "reload_dataloaders_every_n_epochs: the loader of epoch {epoch} has {}, and the step was made for {}; make a loader \
         with as many batches of the same shapes",
        what(loader),
        what(before)
    )))
}

impl Fit<'_> {
    /// The epoch that the loader of the epoch to come is followed by another one's.
    pub(super) fn next_reload(&self) -> u64 {
        match self.options().reload_dataloaders_every_n_epochs {
            0 => self.step.limits.epochs,
            every => (self.step.position.epoch - self.step.position.epoch % every)
                .saturating_add(every)
                .min(self.step.limits.epochs),
        }
    }

    /// Takes another loader where the epoch to come begins with one.
    pub(super) fn reload(&mut self) -> Result<bool> {
        let (every, epoch) = (self.options().reload_dataloaders_every_n_epochs, self.step.position.epoch);
        let ended = epoch >= self.step.limits.epochs || self.summary.stopped.is_some();
        if every == 0 || !epoch.is_multiple_of(every) || ended {
            return Ok(false);
        }
        let setting = self.session.setting()?;
        let Some(loader) = reloaded(self.hooks.module, &setting, epoch)? else { return Ok(false) };
        let loader = setting.training_loader(&loader)?;
        check_same(&self.step.train, &loader, epoch)?;
        self.session.agree("reloaded training loader", |facts| {
            facts.insert("training data".into(), loader.description());
            Ok(())
        })?;
        self.summary.bad_samples += self.step.bad.count();
        self.step.bad = BadCount::new(&loader, "training");
        self.step.position.data = loader.description();
        self.step.train = loader;
        Ok(true)
    }
}
