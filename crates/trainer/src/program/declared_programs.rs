//! The programs that a module declares for callbacks. Each takes the module's values and doesn't
//! change them.

use fulmen_tensor::internal::with_eval_advice;
use fulmen_tensor::{Function, autocast, random};

use super::set_random_key;
use crate::recorder::placeholders::Placeholders;
use crate::state::Entry;
use crate::step_config::StepConfig;
use crate::{Error, Result, TrainingModule};

/// A program with the names of its results.
pub(crate) struct DeclaredProgram {
    pub(crate) name: &'static str,
    pub(crate) function: Function,
    pub(crate) outputs: Vec<String>,
}

/// Records the programs of a module.
pub(crate) fn record_declared_programs(
    module: &dyn TrainingModule,
    entries: &[Entry],
    config: &StepConfig,
    seed: u64,
) -> Result<Vec<DeclaredProgram>> {
    let cells = Placeholders::new(module, entries);
    module.eval();
    set_random_key(module, &random::key(seed));
    let advice = "to see the tensor, return it as a result of the program";
    let programs = with_eval_advice("programs", advice, || {
        autocast(config.options.precision.autocast(), || module.programs())
    });
    let state = cells.placeholders();
    drop(cells);
    let mut declared: Vec<DeclaredProgram> = Vec::new();
    for (name, outputs) in programs {
        let failed = |problem: &str| {
            Err(Error::usage(format!("the program `{name}` of the module {problem}")))
        };
        if name.is_empty() || declared.iter().any(|earlier| earlier.name == name) {
            return failed(
                "has an empty name or that of another program; give each a different name",
            );
        }
        if outputs.0.is_empty() {
            return failed("computes nothing; return at least one tensor");
        }
        let (outputs, results): (Vec<String>, Vec<_>) = outputs.0.into_iter().unzip();
        if outputs.iter().enumerate().any(|(i, output)| outputs[..i].contains(output)) {
            return failed("has two results with the same name; give each a different name");
        }
        for result in &results {
            result.check()?;
        }
        let mut function = Function::new("program", state.clone(), results)
            .matmul_precision(config.options.matmul_precision)
            .variant(module.type_of_model())
            .variant(name);
        for (i, entry) in entries.iter().enumerate() {
            function = function.shard_parameter(i, entry.sharding.clone());
        }
        declared.push(DeclaredProgram { name, function, outputs });
    }
    Ok(declared)
}
