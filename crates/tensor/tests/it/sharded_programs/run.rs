//! Runs a program on one device and on eight, and compares the results.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fulmen_tensor::{Accelerator, Argument, Devices, Function, Literal, Mesh, Runtime, Sharding};
use serde::{Deserialize, Serialize};

use super::program::{Program, sharding};

/// What a comparison found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Outcome {
    Same,
    /// The program cannot be compiled for one device, or its numbers are not finite, or rounding
    /// alone changes them.
    Unusable(String),
    Differs(String),
    /// It compiles for one device, but not for eight.
    Fails(String),
}

impl Outcome {
    pub(super) fn is_wrong(&self) -> bool {
        matches!(self, Outcome::Differs(_) | Outcome::Fails(_))
    }

    /// The kind of a fault, which a smaller program must have too.
    pub(super) fn kind(&self) -> &str {
        match self {
            Outcome::Same => "same",
            Outcome::Unusable(_) => "unusable",
            Outcome::Differs(_) => "differs",
            Outcome::Fails(why) if why.contains("ended") => "crash",
            Outcome::Fails(_) => "fails",
        }
    }
}

/// A runtime that compiles fast. Its flags change how LLVM compiles a device's part of a program,
/// not how XLA partitions the program. Each call gives one of its own, which frees its programs:
/// Linux allows a process 65,530 mappings of memory, and hundreds of programs would take them all.
pub(super) fn runtime(devices: usize) -> Runtime {
    Runtime::open(Accelerator::Cpu, &Devices::from(devices))
        .unwrap()
        .with_compile_cache(None)
        .with_compile_flag("xla_backend_optimization_level", 0)
        .with_compile_flag("xla_llvm_disable_expensive_passes", true)
        .with_compile_flag("xla_cpu_parallel_codegen_split_count", 1)
}

/// A parameter of a joined program.
struct Parameter {
    value: Literal,
    sharding: Sharding,
}

/// Several programs as one function, which compiles faster.
struct Joined {
    function: Function,
    parameters: Vec<Parameter>,
    /// The number of results of each program.
    counts: Vec<usize>,
}

fn join(programs: &[Program]) -> Joined {
    let mut placeholders = Vec::new();
    let mut results = Vec::new();
    let mut parameters = Vec::new();
    let mut counts = Vec::new();
    let mut result_shardings = Vec::new();
    for program in programs {
        let function = program.trace();
        placeholders.extend(function.parameters().to_vec());
        results.extend(function.results().to_vec());
        result_shardings.extend(function.result_shardings().to_vec());
        counts.push(function.results().len());
        for id in program.parameters() {
            let sharding = sharding(&program.inputs[id].split);
            parameters.push(Parameter { value: program.literal(id), sharding });
        }
    }
    let mut function = Function::new("program", placeholders, results);
    for (i, parameter) in parameters.iter().enumerate() {
        function = function.shard_parameter(i, parameter.sharding.clone());
    }
    for (i, sharding) in result_shardings.into_iter().enumerate() {
        function = function.shard_result(i, sharding);
    }
    Joined { function, parameters, counts }
}

/// The results of each program.
type Results = Vec<Vec<Vec<f64>>>;

fn run(joined: &Joined, mesh: &Mesh) -> Result<Results, String> {
    let runtime = runtime(mesh.num_devices()).with_mesh(mesh).map_err(|error| error.to_string())?;
    let compiled = runtime.compile(&joined.function).map_err(|error| error.to_string())?;
    let arrays: Vec<_> = joined
        .parameters
        .iter()
        .map(|p| {
            let whole = Sharding::replicated();
            let sharding = if mesh.num_devices() == 1 { &whole } else { &p.sharding };
            runtime.to_devices(&p.value, sharding).unwrap()
        })
        .collect();
    let outputs = compiled
        .call(arrays.iter().map(Argument::Borrow).collect())
        .map_err(|error| error.to_string())?;
    let values =
        runtime.read(&outputs.arrays.iter().collect::<Vec<_>>()).and_then(|read| read.wait());
    // Only one device is read. The program must not be freed while others still compute.
    for array in &outputs.arrays {
        let _ = array.block_until_ready();
    }
    let values = values.map_err(|error| error.to_string())?;
    let mut values = values.iter().map(Literal::to_f64);
    Ok(joined.counts.iter().map(|&n| values.by_ref().take(n).collect()).collect())
}

fn on_one_device() -> Mesh {
    Mesh::new([("a", 1)]).unwrap()
}

/// Compares programs for one mesh. They compile as one, or if that fails, each alone.
fn compare_joined(programs: &[Program]) -> Vec<Outcome> {
    let joined = join(programs);
    let one = run(&joined, &on_one_device());
    let many = run(&joined, &programs[0].mesh());
    match (one, many) {
        (Ok(one), Ok(many)) => programs
            .iter()
            .zip(one.iter().zip(&many))
            .map(|(program, (one, many))| difference(program, one, many))
            .collect(),
        _ if programs.len() > 1 => programs
            .iter()
            .flat_map(|program| compare_joined(std::slice::from_ref(program)))
            .collect(),
        (Err(why), _) => vec![Outcome::Unusable(why)],
        (_, Err(why)) => vec![Outcome::Fails(why)],
    }
}

/// Compares programs for one mesh, which compile as one. One that seems wrong is compared again,
/// alone.
pub(super) fn compare_all(programs: &[Program]) -> Vec<Outcome> {
    let alone = || programs.iter().map(compare).collect::<Vec<_>>();
    if programs.len() == 1 {
        return alone();
    }
    let Ok(outcomes) = catch_unwind(AssertUnwindSafe(|| compare_joined(programs))) else {
        return alone();
    };
    let recheck = |(program, outcome): (&Program, Outcome)| match outcome {
        Outcome::Differs(why) => match compare(program) {
            // XLA may optimize it differently together with the others. In f32, it is rounding.
            Outcome::Same if program.is_wide => {
                Outcome::Differs(format!("only together with other programs, {why}"))
            }
            outcome => outcome,
        },
        outcome => outcome,
    };
    programs.iter().zip(outcomes).map(recheck).collect()
}

/// Compares one program. A panic of ours is an outcome too.
pub(super) fn compare(program: &Program) -> Outcome {
    let programs = std::slice::from_ref(program);
    match catch_unwind(AssertUnwindSafe(|| compare_joined(programs).remove(0))) {
        Ok(Outcome::Differs(why)) if !program.is_wide => {
            // In f32, rounding may explain it. Then f64 has no difference, or a program that
            // amplifies rounding differs from f64 on one device, too.
            let wide = Program { is_wide: true, ..program.clone() };
            match compare(&wide) {
                Outcome::Same if is_ill_conditioned(program, &wide) => Outcome::Unusable(why),
                _ => Outcome::Differs(why),
            }
        }
        Ok(outcome) => outcome,
        Err(panic) => {
            let message = panic.downcast_ref::<String>().cloned();
            Outcome::Unusable(format!("a panic: {}", message.unwrap_or_default()))
        }
    }
}

fn is_ill_conditioned(program: &Program, wide: &Program) -> bool {
    let narrow = join(std::slice::from_ref(program));
    let wide = join(std::slice::from_ref(wide));
    match (run(&narrow, &on_one_device()), run(&wide, &on_one_device())) {
        (Ok(narrow), Ok(wide)) => {
            matches!(difference(program, &narrow[0], &wide[0]), Outcome::Differs(_))
        }
        _ => false,
    }
}

fn difference(program: &Program, one: &[Vec<f64>], many: &[Vec<f64>]) -> Outcome {
    let (relative, absolute) = if program.is_wide { (1e-7, 1e-9) } else { (2e-4, 2e-5) };
    let largest_of = |values: &[f64]| values.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    let names = program.result_names();
    let mut outcome = Outcome::Same;
    for ((name, expected), found) in names.iter().zip(one).zip(many) {
        let largest = largest_of(expected);
        if !largest.is_finite() || largest > 1e6 {
            return Outcome::Unusable(format!("{name} is up to {largest}"));
        }
        for (i, (a, b)) in expected.iter().zip(found).enumerate() {
            let same = (a.is_nan() && b.is_nan()) || (a - b).abs() <= relative * largest + absolute;
            if !same && outcome == Outcome::Same {
                outcome = Outcome::Differs(format!(
                    "element {i} of {name} is {b}, on one device {a}; all: {found:?}, on one device {expected:?}"
                ));
            }
        }
    }
    outcome
}

/// The program's text for its mesh, as the plugin gets it.
pub(super) fn text(program: &Program) -> String {
    let joined = join(std::slice::from_ref(program));
    let runtime = runtime(8).with_mesh(&program.mesh()).unwrap();
    runtime.stablehlo(&joined.function).unwrap_or_else(|error| error.to_string())
}
