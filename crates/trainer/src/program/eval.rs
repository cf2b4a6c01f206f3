//! A validation or test step as a function.

use fulmen_data::DataLoader;
use fulmen_tensor::{Function, Tensor, autocast, random, recording};

use super::{EvalProgram, LOG_IT, for_setting};
use crate::logs::LogLayout;
use crate::module::StepContext;
use crate::placeholders::Placeholders;
use crate::setting::Setting;
use crate::state::{Entry, names};
use crate::{Batch, Error, Result, TrainingModule};

/// Which of a module's evaluation steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Validation,
    Test,
}

impl Stage {
    /// The method of the module.
    pub(crate) fn step(self) -> &'static str {
        match self {
            Stage::Validation => "validation_step",
            Stage::Test => "test_step",
        }
    }
}

/// Records a validation or test step on a batch of each of the loader's shapes.
pub(crate) fn eval(
    module: &dyn TrainingModule,
    stage: Stage,
    loader: &DataLoader,
    entries: &[Entry],
    setting: &Setting,
    seed: u64,
) -> Result<EvalProgram> {
    let shapes = Batch::placeholders(loader, setting.precision.whole());
    let (first, others) = shapes.split_first().ok_or_else(|| Error::data("the loader has batches of no shape"))?;
    let mut program = record(module, stage, first, entries, setting, seed)?;
    for batch in others {
        let other = record(module, stage, batch, entries, setting, seed)?;
        program.layout.check_same(&other.layout, stage.step())?;
        program.functions.extend(other.functions);
    }
    Ok(program)
}

/// Records a validation or test step on a batch.
fn record(
    module: &dyn TrainingModule,
    stage: Stage,
    batch: &Batch,
    entries: &[Entry],
    setting: &Setting,
    seed: u64,
) -> Result<EvalProgram> {
    let cells = Placeholders::new(module, entries);
    module.eval();
    module.set_random_key(&random::key(seed));
    let mut cx = StepContext::default();
    let step = || match stage {
        Stage::Validation => module.validation_step(batch, &mut cx),
        Stage::Test => module.test_step(batch, &mut cx),
    };
    recording(stage.step(), LOG_IT, || autocast(setting.precision.autocast(), step));
    let logged = cx.into_logged();
    let placeholders = cells.placeholders();
    drop(cells);
    let layout = LogLayout::new(&logged, batch)?;
    let so_far = Tensor::placeholder(names::LOGS, layout.ty());
    let logs = layout.accumulate(&so_far, &logged, batch, None);
    let logs_in = placeholders.len();
    let inputs = placeholders.into_iter().chain([so_far]).chain(batch.inputs().cloned()).collect();
    // One name for both: a test step that computes what validation computes is the same program.
    let mut function = Function::new("eval_step", inputs, vec![logs]).donate(logs_in, 0)?;
    for (i, entry) in entries.iter().enumerate() {
        function = function.shard_parameter(i, entry.sharding.clone());
    }
    let function = for_setting(function, logs_in + 1, setting);
    Ok(EvalProgram { functions: vec![function], layout })
}
