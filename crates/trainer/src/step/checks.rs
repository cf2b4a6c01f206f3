//! Checks before the first step: that all processes train the same, and that a user's own loop
//! supports the options and callbacks.

use fulmen_durable::messages::quantity;

use crate::checkpoint::resume::ResumePoint;
use crate::program::trace_fit::TracedFit;
use crate::session::Session;
use crate::stage::Stage;
use crate::{Error, Profiler, Result, TrainDuration, TrainingModule, error, process_group, state};

/// Checks with the other processes that all train the same programs from the same values.
pub(crate) fn check_consistent(
    session: &Session,
    what: &str,
    module: &dyn TrainingModule,
    traced: &TracedFit,
    start: &ResumePoint,
) -> Result<()> {
    let runtime = &session.runtime;
    let seed = start.position.seed;
    session.check_consistent(what, |facts| {
        for (phase, step) in traced.program.steps.iter().enumerate() {
            let name =
                if phase == 0 { "training".into() } else { traced.layout.phases.title(phase) };
            process_group::add_program(facts, &name, step.functions(), &traced.train, runtime)?;
        }
        for set in &traced.validation {
            process_group::add_program(
                facts,
                &Stage::Validation.title(&set.name),
                set.program.functions(),
                &set.loader,
                runtime,
            )?;
        }
        for program in &traced.declared {
            facts.insert(
                format!("program `{}`", program.name),
                program.function.fingerprint(runtime.mesh())?,
            );
        }
        match start.fingerprint() {
            Some(fingerprint) => {
                facts.insert("checkpoint".into(), fingerprint);
            }
            None => {
                module.initialize(seed);
                let initial =
                    state::to_compute(traced.layout.entries()).fingerprint(runtime.mesh())?;
                facts.insert("initial values".into(), initial);
            }
        }
        Ok(())
    })
}

/// Rejects options and callbacks that only a fit supports.
pub(super) fn check_options(session: &Session) -> Result<()> {
    let options = &session.choices.options;
    if let TrainDuration::Time(_) = options.max_time {
        let time = options.max_time;
        return Err(error::option(format!(
            "max_time: it is {time}, but train_step leaves the loop to you; end the loop yourself, and leave the option out"
        )));
    }
    if !options.overfit_batches.is_zero() {
        return Err(error::option(
            "overfit_batches: train_step leaves the loop to you; run the same batches again, or set limit_train_batches",
        ));
    }
    if options.reload_dataloaders_every_n_epochs > 0 {
        return Err(error::option(
            "reload_dataloaders_every_n_epochs: train_step leaves the loop to you; make a TrainStep for each \
             loader, and pass the state on with save and load",
        ));
    }
    if options.profiler != Profiler::None {
        return Err(error::option(
            "profiler: train_step makes no run folder; leave the option out, and record with fulmen_trainer::Recording",
        ));
    }
    let mut other = None;
    session.callbacks.each(|callback| {
        // The Trainer adds these two itself.
        if !["ModelCheckpoint", "ProgressBar"].contains(&callback.name()) {
            other.get_or_insert(callback.name());
        }
    });
    match other {
        Some(callback) => Err(Error::usage(format!(
            "the Trainer has the callback {callback}, which only fit, validate, test and predict call; remove it, and do its \
             work in your own loop"
        ))),
        None => Ok(()),
    }
}

/// The number of parameters that a warning names.
const NAMED: usize = 8;

/// The warning about parameters that no loss trains, although they are not frozen.
pub(super) fn warning_without_gradient(names: &[String]) -> Option<String> {
    let named = names.iter().take(NAMED).map(|name| format!("`{name}`")).collect::<Vec<_>>();
    let others = match names.len().saturating_sub(NAMED) {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    (!names.is_empty()).then(|| {
        format!(
            "the loss has no gradient with respect to {} ({}{others}), so training does not change them. If that is \
             intended, freeze them with set_requires_grad(false)",
            quantity(names.len(), "parameter"),
            named.join(", ")
        )
    })
}
