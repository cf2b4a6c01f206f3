//! A validation, test or prediction step as a program. It takes the module's values and doesn't
//! change them.

use fulmen_data::{DataLoader, OnError};
use fulmen_tensor::internal::with_eval_advice;
use fulmen_tensor::{Tensor, autocast, random};

use super::forward::LOG_IT;
use super::set_random_key;
use super::step_program::{RecordedStep, StepProgram};
use crate::logs::{self, LogLayout};
use crate::recorder::placeholders::Placeholders;
use crate::stage::Stage;
use crate::state::{Entry, names};
use crate::step_config::StepConfig;
use crate::{Batch, Error, Predictions, Result, StepContext, TrainingModule};

/// Records a step for an evaluation set, on a batch of each of the loader's shapes.
pub(crate) fn record_eval_step(
    module: &dyn TrainingModule,
    stage: Stage,
    dataset: &str,
    loader: &DataLoader,
    entries: &[Entry],
    config: &StepConfig,
    seed: u64,
) -> Result<StepProgram> {
    if stage == Stage::Prediction {
        check_order(loader)?;
    }
    let shapes = Batch::placeholders(loader, config.options.precision.cast_dtype());
    let program = StepProgram::of_shapes(&shapes, stage.step(), |batch| {
        record(module, stage, dataset, batch, entries, config, seed)
    })?;
    Ok(program.variant(module.type_of_model()).variant(dataset))
}

/// Checks that predictions can be matched to samples.
fn check_order(loader: &DataLoader) -> Result<()> {
    if loader.is_presharded() && loader.replicas().num_processes > 1 {
        return Err(Error::usage(
            "the loader's sampler is final: it divides the samples among the processes itself, so predictions have no common \
             order. Predict with another sampler, or in one process",
        ));
    }
    if loader.on_error() != OnError::Fail {
        return Err(Error::usage(format!(
            "the loader skips or replaces samples that cannot be read (OnError::{:?}), so predictions cannot be matched to \
             samples. Predict with a loader that fails (OnError::Fail), and without those samples",
            loader.on_error()
        )));
    }
    if loader.shapes().len() != 1 {
        return Err(Error::usage(
            "the loader has buckets, so its batches are not in the order of its samples. Predict with a loader without \
             buckets, which pads all samples to the longest",
        ));
    }
    Ok(())
}

/// Records a step on a batch.
fn record(
    module: &dyn TrainingModule,
    stage: Stage,
    dataset: &str,
    batch: &Batch,
    entries: &[Entry],
    config: &StepConfig,
    seed: u64,
) -> Result<StepProgram> {
    let cells = Placeholders::new(module, entries);
    module.eval();
    set_random_key(module, &random::key(seed));
    let mut cx = StepContext::of_dataset(dataset);
    let mut predictions = Predictions::default();
    let advice = match stage {
        Stage::Prediction => "to see the tensor, return it as one of the predictions",
        _ => LOG_IT,
    };
    let step = || match stage {
        Stage::Validation => module.validation_step(batch, &mut cx),
        Stage::Test => module.test_step(batch, &mut cx),
        Stage::Prediction => predictions = module.predict_step(batch),
    };
    let autocast_step = || autocast(config.options.precision.autocast(), step);
    config.in_force(|| with_eval_advice(stage.step(), advice, autocast_step));
    let logged = cx.into_logged()?;
    let state = cells.placeholders();
    drop(cells);
    if stage == Stage::Prediction {
        predictions.check(batch)?;
    }
    let mut logs = LogLayout::new(&logged, batch, Some(stage))?;
    let sums_before = Tensor::placeholder(names::LOGS, logs.ty());
    let sums = [sums_before.clone(), logs.add_step(&sums_before, &logged, batch, None)];
    // Validation and test share a name: if both compute the same, they are the same program.
    let name = if stage == Stage::Prediction { "predict_step" } else { "eval_step" };
    // Replicate the outputs, so that each process can read them.
    let outputs = if stage == Stage::Prediction {
        predictions.0
    } else {
        logs::media_outputs(&logged, batch, None)?
    };
    StepProgram::new(
        RecordedStep {
            name,
            entries,
            state,
            changes: Vec::new(),
            logs,
            sums,
            key: None,
            batch,
            outputs,
        },
        config,
    )
}
