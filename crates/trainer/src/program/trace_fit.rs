//! Traces a fit without a device: the loaders for its devices, the layout of the training state,
//! and the recorded steps.

use std::collections::BTreeSet;
use std::sync::Arc;

use fulmen_data::DataLoader;
use fulmen_nn::{Parameter, scanned};
use fulmen_tensor::{DType, Function, Variable};

use crate::console::warning;
use crate::plan::NO_LIMIT;
use crate::program::evaluation_set::{Cadence, EvaluationSets};
use crate::program::{self, DeclaredProgram, StepProgram, TrainProgram};
use crate::stage::Stage;
use crate::state::{Entry, EntryId, StateLayout};
use crate::step_config::StepConfig;
use crate::step_config::limits::{EpochSize, Limits};
use crate::step_config::optimizers::Optimizers;
use crate::step_config::phases::Phases;
use crate::{Batch, Error, Plan, Result, TrainingModule};

/// A traced fit, before any value is computed.
pub(crate) struct TracedFit {
    pub(crate) plan: Plan,
    pub(crate) limits: Limits,
    pub(crate) train: DataLoader,
    pub(crate) layout: Arc<StateLayout>,
    pub(crate) program: TrainProgram,
    /// The validation sets. It is empty if the module's validation step logs nothing.
    pub(crate) validation: Vec<Validation>,
    /// The programs that the module declares for callbacks.
    pub(crate) declared: Vec<DeclaredProgram>,
}

impl TracedFit {
    /// The program that converts evaluated weights for validation and declared programs, and the ids
    /// of these entries. `None` if nothing uses them, or no conversion is needed.
    pub(crate) fn weight_conversion(&self) -> Option<(Function, Vec<EntryId>)> {
        let uses_weights = !self.validation.is_empty() || !self.declared.is_empty();
        self.layout.to_validate_with().filter(|_| uses_weights)
    }
}

/// A validation set with its step.
pub(crate) struct Validation {
    pub(crate) name: String,
    pub(crate) cadence: Cadence,
    pub(crate) loader: DataLoader,
    pub(crate) program: StepProgram,
}

/// Records the steps of a module. This computes nothing and needs no device.
pub(crate) fn trace_fit(
    module: &dyn TrainingModule,
    config: &StepConfig,
    seed: u64,
    train: &DataLoader,
    validation: &EvaluationSets,
) -> Result<TracedFit> {
    let train = config.training_loader(train)?;
    let batches = train.len() as u64;
    let (limits, plan) = config.plan(EpochSize::new(&train, config.options.max_duration)?);
    if train.is_endless() && limits.steps == NO_LIMIT && limits.time.is_none() {
        return Err(Error::usage(
            "the training loader is endless, so no epoch ends; set max_steps, max_time or max_duration in steps",
        ));
    }
    let shapes = Batch::placeholders(&train, config.options.precision.cast_dtype());
    let (layout, program) = training_step(module, config, &plan, &shapes, batches, seed)?;
    validation.check(Stage::Validation)?;
    let mut sets = Vec::new();
    for set in validation.0.iter().filter(|_| !config.options.limit_val_batches.is_zero()) {
        let loader = config.evaluation_loader(set.loader(), Stage::Validation)?;
        let cadence = set.cadence(&config.options, &train, &plan)?;
        let eval = program::record_eval_step(
            module,
            Stage::Validation,
            set.name(),
            &loader,
            layout.module(),
            config,
            seed,
        )?;
        check_names(&program, &eval)?;
        if !eval.logs().is_empty() {
            sets.push(Validation { name: set.name().to_owned(), cadence, loader, program: eval });
        }
    }
    let declared = program::record_declared_programs(module, layout.module(), config, seed)?;
    Ok(TracedFit { plan, limits, train, layout, program, validation: sets, declared })
}

/// Records the training step on a batch of each shape, for an epoch of `batches` batches, and
/// returns the layout of its state.
pub(crate) fn training_step(
    module: &dyn TrainingModule,
    config: &StepConfig,
    plan: &Plan,
    shapes: &[Batch],
    batches: u64,
    seed: u64,
) -> Result<(Arc<StateLayout>, TrainProgram)> {
    set_up(module, config)?;
    let optimizers = Arc::new(Optimizers::from_module(module.configure_optimizers(plan)));
    let parameters = module.parameters();
    let frozen: Vec<_> = parameters
        .iter()
        .filter(|(_, p)| !p.requires_grad())
        .map(|(name, _)| name.clone())
        .collect();
    let types: Vec<_> = parameters.iter().map(|(name, p)| (name.clone(), p.ty())).collect();
    optimizers.check_for(&types, &frozen)?;
    check_trained(&parameters, &optimizers)?;
    let names: Vec<_> = optimizers.members().iter().map(|it| it.name.as_str()).collect();
    config.rules.iter().try_for_each(|rule| rule.check(&names))?;
    if let Some(evaluated) = &config.evaluated {
        let trained: Vec<_> = parameters
            .iter()
            .map(|(name, parameter)| (name.as_str(), optimizers.training(name, parameter)))
            .collect();
        evaluated.check_for(&trained, &names)?;
    }
    check_shardings(module, config)?;
    let phases = Phases::new(module, &optimizers, config, plan, batches)?;
    let layout = |scanned: &[Vec<Variable>]| {
        Arc::new(StateLayout::new(module, &optimizers, config, phases.clone(), scanned))
    };
    let record = |layout: &Arc<StateLayout>| {
        program::record_train_step(module, &optimizers, shapes, batches, layout, config, seed)
    };
    let single = layout(&[]);
    check_entries(single.entries())?;
    let (single_program, scanned) = scanned(|| record(&single));
    let single_program = single_program?;
    // The layers that run as a scan are known only after the step was recorded.
    let joined = layout(&scanned);
    if !joined.is_joined() {
        return Ok((single, single_program));
    }
    let joined_program = record(&joined)?;
    Ok((joined, joined_program))
}

/// Refuses to train integers, such as an int8 weight that is not frozen.
fn check_trained(parameters: &[(String, Parameter)], optimizers: &Optimizers) -> Result<()> {
    let mut integers = parameters.iter().filter(|(name, parameter)| {
        !parameter.ty().dtype.is_inexact() && optimizers.training(name, parameter).is_some()
    });
    match integers.next() {
        None => Ok(()),
        Some((name, parameter)) => Err(Error::usage(format!(
            "`{name}` is {}, and integers have no gradient; freeze it with `set_requires_grad(false)`",
            parameter.ty()
        ))),
    }
}

/// Prepares a module for training, testing and predicting: calls the user's hook, and converts the
/// module to the element type of the precision. A second call changes nothing.
pub(crate) fn set_up(module: &dyn TrainingModule, config: &StepConfig) -> Result<()> {
    after_setup(module)?;
    if let Some(dtype) = config.options.precision.cast_dtype() {
        return module.to_dtype(dtype);
    }
    let title = |(name, parameter): (String, Parameter)| {
        matches!(parameter.ty().dtype, DType::Bf16 | DType::F16)
            .then(|| format!("`{name}` ({})", parameter.ty()))
    };
    let narrow: Vec<_> = module.parameters().into_iter().filter_map(title).collect();
    if let Some(first) = narrow.first() {
        warning!(
            "the precision is {}, but {} parameters have 16 bits (the first is {first}); they are not converted. \
             module.to_dtype(DType::F32) converts them to f32",
            config.options.precision,
            narrow.len()
        );
    }
    Ok(())
}

/// Calls the user's hook, and warns if it tied or untied parameters.
fn after_setup(module: &dyn TrainingModule) -> Result<()> {
    let names = || module.parameters().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let before = names();
    let count = module.num_parameters();
    module.on_after_setup()?;
    let after = names();
    if before.len() != after.len() {
        let differ: Vec<_> = before
            .iter()
            .filter(|name| !after.contains(name))
            .chain(after.iter().filter(|name| !before.contains(name)))
            .map(|name| format!("`{name}`"))
            .collect();
        warning!(
            "on_after_setup changed the number of parameters from {} to {} ({count} to {} elements): {}. Tied \
             parameters are one parameter, in the optimizer and in checkpoints",
            before.len(),
            after.len(),
            module.num_parameters(),
            differ.join(", ")
        );
    }
    Ok(())
}

/// Checks that the user's shardings and the rules for axes fit the mesh. On one device they have no
/// effect.
pub(crate) fn check_shardings(module: &dyn TrainingModule, config: &StepConfig) -> Result<()> {
    for (name, parameter) in module.parameters() {
        if let (None, Some(Err(error))) =
            (parameter.sharding(), config.sharding_by_rules(&parameter))
        {
            let location = parameter
                .axes_location()
                .map_or(String::new(), |location| format!("\n  at {location}"));
            return Err(Error::usage(format!("the parameter `{name}`: {error}{location}")));
        }
        let Some(sharding) = parameter.sharding().filter(|_| config.mesh.num_devices() > 1) else {
            continue;
        };
        if let Err(error) = sharding.shard_shape(&config.mesh, &parameter.ty().shape) {
            let location = parameter
                .sharding_location()
                .map_or(String::new(), |location| format!("\n  at {location}"));
            return Err(Error::usage(format!("the parameter `{name}`: {error}{location}")));
        }
    }
    Ok(())
}

/// Checks that names are unique. Checkpoints and the keys for initialization use them.
fn check_entries(entries: &[Entry]) -> Result<()> {
    let mut names = BTreeSet::new();
    match entries.iter().find(|entry| !names.insert(&entry.name)) {
        Some(duplicate) => Err(Error::usage(format!(
            "two tensors of the model have the name `{}`; rename one of them with #[module(rename = \"…\")]",
            duplicate.name
        ))),
        None => Ok(()),
    }
}

/// Checks that names of validation values differ from those of the training means, since both
/// belong to the epoch's log point.
fn check_names(train: &TrainProgram, validation: &StepProgram) -> Result<()> {
    let clash = |name: &&str| train.logs().names().any(|n| **name == format!("{n}_epoch"));
    match validation.logs().names().find(clash) {
        Some(name) => Err(Error::usage(format!(
            "log `{name}`: validation_step logs this name, but a training metric's mean over the epoch has it already; \
             choose another"
        ))),
        None => Ok(()),
    }
}
