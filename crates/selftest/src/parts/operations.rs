//! Every operation of the catalogue, at several settings. The cases of one operation form one
//! program.

use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use fulmen_catalogue::{
    Array, Attrs, Case, Family, Row, Tolerance, compare, compare_with_nearby, families,
    tpu_supports,
};
use fulmen_error::{Error, Result};
use fulmen_pjrt::locate::Platform;
use fulmen_tensor::{
    Argument, DType, DeviceArray, Function, Literal, MatmulPrecision, Runtime, Sharding, Tensor,
    TensorType,
};

use super::{excerpt, in_parallel};
use crate::event::{Context, Event, Failure, Start, spans_processes};

/// How many failures of a setting have the text of their program.
const PROGRAMS: usize = 12;

/// How many cases of each operation are computed at dtypes that the catalogue has no values for. Each
/// is computed in f32 too, and neighbors are alike.
const CASES_AT_OTHER_DTYPES: usize = 4;

/// Operations whose results depend on the bits of their dtype, or on its largest numbers. What they
/// are in one dtype says nothing of another.
const OF_THE_DTYPE: [&str; 3] = ["bitcast", "nan_to_num", "nextafter"];

/// What is said of results that were not ready.
const EARLY: &str = "; read a second later it is another number: the plugin said that results were ready before they were";

/// When wrong results are read again.
const LATER: Duration = Duration::from_secs(1);

/// The family of the part `random`.
const RANDOM: &str = "random_numbers";

/// How the operations are computed.
#[derive(Clone)]
struct Setting {
    /// The dtype of inputs that are f32 in the catalogue; `None` for the dtypes of the catalogue.
    dtype: Option<DType>,
    precision: MatmulPrecision,
    runtime: Runtime,
    /// How many cases of each operation are computed.
    cases: usize,
    /// How many failures may still have the text of their program.
    programs_left: Arc<Mutex<usize>>,
}

pub(super) fn run(context: &Context) -> Result<()> {
    run_families(context, |family| family.name != RANDOM)
}

pub(super) fn run_random(context: &Context) -> Result<()> {
    run_families(context, |family| family.name == RANDOM)
}

fn run_families(context: &Context, wanted: fn(&Family) -> bool) -> Result<()> {
    let families: Vec<Family> = families().into_iter().filter(wanted).collect();
    context.fact("f32 products", default_products(context.platform()));
    let settings = settings(context, families[0].name == RANDOM)?;
    let cases: Vec<Vec<Case>> = thread::scope(|scope| {
        let parsed: Vec<_> = families.iter().map(|family| scope.spawn(|| family.cases())).collect();
        parsed.into_iter().map(|cases| cases.join().unwrap_or_else(|e| resume_unwind(e))).collect()
    });
    let rows = || {
        families.iter().zip(&cases).flat_map(|(family, cases)| {
            let wanted = family.rows.iter().filter(|row| is_wanted(context, row));
            wanted.map(move |row| (row, cases))
        })
    };
    // All processes of a pod launch the programs over their devices in the same order.
    let spanning = |setting: &&Setting| spans_processes(&setting.runtime);
    let of_own = settings.iter().filter(|setting| !spanning(setting));
    let of_all = settings.iter().filter(spanning);
    let of_own = of_own.flat_map(|setting| rows().map(move |row| (setting, row)));
    for (setting, (row, cases)) in of_all.flat_map(|setting| rows().map(move |row| (setting, row)))
    {
        of_row(context, setting, row, cases);
    }
    in_parallel(of_own, |(setting, (row, cases))| of_row(context, setting, row, cases));
    Ok(())
}

fn is_wanted(context: &Context, row: &Row) -> bool {
    context.options.only.as_ref().is_none_or(|only| row.op.contains(only))
}

/// How a platform multiplies f32 numbers by default.
fn default_products(platform: Platform) -> &'static str {
    match platform {
        Platform::Cpu => "f32",
        Platform::Cuda => "TensorFloat-32 if the GPU has it, by XLA's default; f32 with `highest`",
        Platform::Tpu => "one pass in bf16, by XLA's default; six passes with `highest`",
    }
}

fn settings(context: &Context, random: bool) -> Result<Vec<Setting>> {
    let full = context.options.full;
    let one = context.first_device()?;
    let all = context.runtime()?;
    let setting = |dtype, precision, runtime: &Runtime, cases| Setting {
        dtype,
        precision,
        runtime: runtime.clone(),
        cases,
        programs_left: Arc::new(Mutex::new(PROGRAMS)),
    };
    let every = usize::MAX;
    let some = if full { every } else { 2 };
    let default = MatmulPrecision::Default;
    let mut settings = vec![setting(None, default, &one, some)];
    let several = all.devices().len();
    if several > 1 {
        let count = if full { every } else { 1 };
        settings.push(setting(None, default, &grid(&all)?, count));
    } else {
        context.skip("operations sharded over several devices: there is one");
    }
    if random {
        return Ok(settings);
    }
    if full || context.platform() != Platform::Cpu {
        settings.push(setting(None, MatmulPrecision::Highest, &one, some));
    }
    let of_others = if full { CASES_AT_OTHER_DTYPES } else { 1 };
    settings.push(setting(Some(DType::Bf16), default, &one, of_others));
    if full {
        settings.push(setting(Some(DType::F16), default, &one, of_others));
        if context.platform() == Platform::Tpu {
            context.skip("f64, i64, u64 and c128: a TPU does not have them");
        } else {
            settings.push(setting(Some(DType::F64), default, &one, of_others));
        }
    }
    Ok(settings)
}

/// The devices as a grid of two axes, so that an axis with an even number of elements can be split.
fn grid(runtime: &Runtime) -> Result<Runtime> {
    let count = runtime.devices().len();
    let sizes = if count.is_multiple_of(2) { [count / 2, 2] } else { [count, 1] };
    runtime.with_mesh(&fulmen_tensor::Mesh::new([("a", sizes[0]), ("b", sizes[1])])?)
}

/// Splits the axes of a value over the axes of the mesh as far as the sizes allow.
fn split(runtime: &Runtime, ty: &TensorType) -> Sharding {
    let mut free: Vec<&(String, usize)> = runtime.mesh().axes().iter().collect();
    free.retain(|axis| axis.1 > 1);
    let names = ty.shape.iter().map(|&size| {
        let fits = |axis: &&(String, usize)| size > 0 && size.is_multiple_of(axis.1);
        let place = free.iter().position(fits);
        place.map(|place| free.remove(place).0.as_str())
    });
    Sharding::new(names.collect::<Vec<_>>())
}

/// Computes the cases of an operation, and reports what differs.
fn of_row(context: &Context, setting: &Setting, row: &Row, cases: &[Case]) {
    let cases: Vec<Trial<'_>> = cases
        .iter()
        .filter(|case| case.op == row.op)
        .filter(|case| row.unlike.iter().all(|unlike| unlike.0 != case.name))
        .filter_map(|case| Trial::new(context.platform(), setting, row, case))
        .collect();
    let cases = spread(cases, setting.cases);
    if cases.is_empty() {
        return;
    }
    let doing = format!("{} ({})", row.op, setting.describe());
    of_cases(context, setting, &doing, &cases);
}

/// Computes cases as one program, and reports what differs. If it fails, each case is computed
/// alone, because one must not hide the others. Not if other processes do the same: it may not have
/// failed there.
fn of_cases(context: &Context, setting: &Setting, doing: &str, cases: &[Trial<'_>]) {
    let mut results = Vec::new();
    let wrong = match context.start(doing) {
        Start::Ended => return,
        Start::Fatal(how) => Some(how),
        Start::Begun(_turn) => match compute(setting, cases) {
            Ok(computed) => {
                report(setting, cases, computed, &mut results);
                None
            }
            Err(error) => Some(error.to_string()),
        },
    };
    match (wrong, cases) {
        (None, _) => {}
        (Some(wrong), [case, rest @ ..])
            if rest.is_empty() || spans_processes(&setting.runtime) =>
        {
            results.push(failure(setting, case, &case.case.name, wrong, None));
        }
        (Some(wrong), _) => {
            context.say(&Event::Divided(doing.to_owned()));
            for case in cases {
                let alone = format!("{} alone, of {doing}", case.case.name);
                of_cases(context, setting, &alone, std::slice::from_ref(case));
            }
            let text = format!("the program with all cases failed: {wrong}");
            results.push(failure(setting, &cases[0], cases[0].row.op, text, None));
        }
    }
    context.end(doing, results);
}

/// Whether the input with this position is larger in [`Trial::results_nearby`]: about half are, in no
/// order.
fn is_larger(position: usize) -> bool {
    let mixed = (position as u32).wrapping_mul(0x9e37_79b9);
    mixed >> 31 == 0
}

/// At most `count` items, evenly spaced: neighbors are alike.
fn spread<T>(items: Vec<T>, count: usize) -> Vec<T> {
    let all = items.len();
    if all <= count {
        return items;
    }
    let is_chosen = |i: usize| i * count / all != (i + 1) * count / all;
    items.into_iter().enumerate().filter(|(i, _)| is_chosen(*i)).map(|(_, item)| item).collect()
}

/// A case at a setting.
struct Trial<'a> {
    case: &'a Case,
    row: &'a Row,
    attrs: Attrs,
    inputs: Vec<Literal>,
    /// The dtype to compare with f32, for the same numbers; `None` to compare with JAX.
    dtype: Option<DType>,
    platform: Platform,
}

impl<'a> Trial<'a> {
    /// `None` if the case has nothing to say at this setting.
    fn new(
        platform: Platform,
        setting: &Setting,
        row: &'a Row,
        case: &'a Case,
    ) -> Option<Trial<'a>> {
        let literals = || case.inputs.iter().map(|input| input.literal());
        let attrs = case.attrs.clone();
        let arrays = case.inputs.iter().chain(&case.outputs);
        if platform == Platform::Tpu && !arrays.map(|a| a.ty().dtype).all(tpu_supports) {
            return None;
        }
        let Some(dtype) = setting.dtype else {
            let inputs = literals().collect();
            let trial = Trial { case, row, attrs, inputs, dtype: None, platform };
            let exact = setting.precision != MatmulPrecision::Default;
            return (!exact || trial.has_products()).then_some(trial);
        };
        if OF_THE_DTYPE.contains(&row.op)
            || attrs.has("dtype")
            || case.types().all(|ty| ty.dtype != DType::F32)
        {
            return None;
        }
        let rounded = literals().map(|input| match input.ty().dtype {
            DType::F32 => input.to_dtype(dtype).ok(),
            _ => Some(input),
        });
        let inputs = rounded.collect::<Option<Vec<_>>>()?;
        let trial = Trial { case, row, attrs, inputs, dtype: Some(dtype), platform };
        // An operation that cannot be recorded with a dtype does not claim to have it.
        let types: Vec<TensorType> = trial.inputs.iter().map(|x| x.ty().clone()).collect();
        let placeholders: Vec<Tensor> =
            types.into_iter().map(|ty| Tensor::placeholder("x", ty)).collect();
        let results = trial.record(&placeholders).ok()?;
        // c64 has no values to compare c128 with.
        results.iter().all(|result| result.dtype() != DType::C128).then_some(trial)
    }

    /// Whether the operation multiplies matrices.
    fn has_products(&self) -> bool {
        let types: Vec<TensorType> = self.inputs.iter().map(|x| x.ty().clone()).collect();
        let function = Function::trace("case", &types, |x| self.record(&x).unwrap_or_default());
        let text = function.stablehlo().unwrap_or_default();
        ["stablehlo.dot", "stablehlo.convolution"].iter().any(|product| text.contains(product))
    }

    /// The results and, to compare another dtype with, the same in f32.
    fn record(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        let Some(dtype) = self.dtype else {
            return self.case.record(self.row, x, &self.attrs, |weights| weights.tensor());
        };
        let rounded_weights = |weights: &Array| match weights.tensor() {
            weights if weights.dtype() == DType::F32 => weights.to_dtype(dtype),
            weights => weights,
        };
        let mut results = self.case.record(self.row, x, &self.attrs, rounded_weights)?;
        results.extend(self.record_in_f32(x, dtype, Tensor::clone)?);
        Ok(results)
    }

    /// The results in f32 for numbers that are rounded to `dtype`. `change` is applied to these.
    fn record_in_f32(
        &self,
        x: &[Tensor],
        dtype: DType,
        change: impl Fn(&Tensor) -> Tensor,
    ) -> Result<Vec<Tensor>> {
        let in_f32 = |x: Tensor, own: DType| match own {
            DType::F32 => change(&x.to_dtype(dtype).to_dtype(DType::F32)),
            _ => x,
        };
        let inputs = x.iter().zip(&self.case.inputs);
        let inputs: Vec<Tensor> =
            inputs.map(|(x, input)| in_f32(x.clone(), input.ty().dtype)).collect();
        let weights = |weights: &Array| in_f32(weights.tensor(), weights.ty().dtype);
        self.case.record(self.row, &inputs, &self.attrs, weights)
    }

    /// The results in f32 for inputs whose numbers differ by this part of themselves: some are larger,
    /// some smaller. An operation may turn such small differences into large ones, as a difference of
    /// two numbers that are alike does. Then rounding within it does so too.
    fn results_nearby(&self, setting: &Setting, part: f64) -> Result<Vec<Literal>> {
        let change = |x: &Tensor| {
            let factors: Vec<f32> = (0..x.shape().num_elements())
                .map(|i| if is_larger(i) { 1.0 + part as f32 } else { 1.0 - part as f32 })
                .collect();
            x * Tensor::from_slice(&factors, x.shape().clone())
        };
        let types: Vec<TensorType> = self.inputs.iter().map(|x| x.ty().clone()).collect();
        let mut recorded = Ok(());
        let function = Function::trace(self.row.op, &types, |x| {
            let dtype = self.dtype.unwrap_or(DType::F32);
            self.record_in_f32(&x, dtype, change).unwrap_or_else(|error| {
                recorded = Err(error);
                Vec::new()
            })
        });
        recorded?;
        let runtime = &setting.runtime;
        let inputs =
            self.inputs.iter().map(|input| runtime.to_device(input)).collect::<Result<Vec<_>>>()?;
        let outputs =
            runtime.compile(&function)?.call(inputs.iter().map(Argument::Borrow).collect())?;
        runtime.read(&outputs.arrays.iter().collect::<Vec<_>>())?.wait()
    }

    fn tolerance(&self, dtype: DType, exact: bool, products: bool) -> Tolerance {
        let own = Tolerance::of(dtype);
        let loose = |relative: f64, of_largest: f64| Tolerance {
            relative: own.relative.max(relative),
            of_largest: own.of_largest.max(of_largest),
        };
        if !dtype.is_inexact() {
            return own;
        }
        match self.platform {
            Platform::Cpu => own,
            // Operands of products are rounded to 10 bits; functions are NVIDIA's.
            Platform::Cuda if products && !exact => loose(4e-3, 2e-3),
            Platform::Cuda => loose(5e-5, 1e-5),
            // Operands of products are rounded to 8 bits.
            Platform::Tpu if products && !exact => loose(2e-2, 2e-2),
            // JAX's own tests allow 1e-3 on TPUs, whose functions have fewer digits.
            Platform::Tpu => loose(1e-3, 1e-4),
        }
    }
}

impl Setting {
    fn describe(&self) -> String {
        let dtype = self.dtype.map_or("the catalogue's dtypes", DType::name);
        let devices = self.runtime.devices().len();
        let precision = match self.precision {
            MatmulPrecision::Default => String::new(),
            other => format!(", precision {other}"),
        };
        let over = if devices > 1 { format!(", sharded over {devices}") } else { String::new() };
        format!("{dtype}{precision}{over}")
    }

    fn function(&self, name: &str, trials: &[Trial<'_>]) -> Result<Function> {
        let types: Vec<TensorType> =
            trials.iter().flat_map(|trial| &trial.inputs).map(|x| x.ty().clone()).collect();
        let mut recorded = Ok(());
        let mut function = Function::trace(name, &types, |x| {
            let mut rest = &x[..];
            let mut results = Vec::new();
            for trial in trials {
                let (x, later) = rest.split_at(trial.inputs.len());
                rest = later;
                match trial.record(x) {
                    Ok(all) => results.extend(all),
                    Err(error) => recorded = Err(error),
                }
            }
            results
        });
        recorded?;
        if self.runtime.devices().len() > 1 {
            for (i, ty) in types.iter().enumerate() {
                function = function.shard_parameter(i, split(&self.runtime, ty));
            }
        }
        Ok(function.matmul_precision(self.precision))
    }
}

/// The results of a program, on the device and as they were read.
struct Computed {
    arrays: Vec<DeviceArray>,
    /// Of each trial.
    values: Vec<Vec<Literal>>,
}

/// Runs the trials as one program.
fn compute(setting: &Setting, trials: &[Trial<'_>]) -> Result<Computed> {
    let runtime = &setting.runtime;
    let function = setting.function(trials[0].row.op, trials)?;
    let compiled = runtime.compile(&function)?;
    let inputs = trials.iter().flat_map(|trial| &trial.inputs);
    let arrays = inputs
        .zip(function.parameter_shardings())
        .map(|(input, sharding)| runtime.to_devices(input, sharding))
        .collect::<Result<Vec<_>>>()?;
    let outputs = compiled.call(arrays.iter().map(Argument::Borrow).collect())?;
    let values = read(runtime, trials, &outputs.arrays)?;
    outputs.completion.wait()?;
    Ok(Computed { arrays: outputs.arrays, values })
}

/// The results of each trial.
fn read(
    runtime: &Runtime,
    trials: &[Trial<'_>],
    arrays: &[DeviceArray],
) -> Result<Vec<Vec<Literal>>> {
    let mut values = runtime.read(&arrays.iter().collect::<Vec<_>>())?.wait()?.into_iter();
    let count = |trial: &Trial<'_>| {
        let results = trial.case.expected().len();
        if trial.dtype.is_some() { 2 * results } else { results }
    };
    let values: Vec<Vec<Literal>> =
        trials.iter().map(|trial| values.by_ref().take(count(trial)).collect()).collect();
    if values.iter().zip(trials).any(|(values, trial)| values.len() != count(trial)) {
        return Err(Error::runtime(
            trials[0].row.op,
            "a case has another number of results than JAX",
        ));
    }
    Ok(values)
}

/// Whether wrong results are other numbers when they are read later: then they were not ready.
fn were_not_ready(setting: &Setting, trials: &[Trial<'_>], computed: &Computed) -> bool {
    thread::sleep(LATER);
    let again = read(&setting.runtime, trials, &computed.arrays);
    let bytes = |values: &[Vec<Literal>]| -> Vec<Vec<u8>> {
        values.iter().flatten().map(|value| value.bytes().to_vec()).collect()
    };
    again.is_ok_and(|again| bytes(&again) != bytes(&computed.values))
}

/// Compares the results of a program with the expected ones.
fn report(setting: &Setting, trials: &[Trial<'_>], computed: Computed, results: &mut Vec<Event>) {
    let mut passed = 0;
    let mut early = None;
    let exact = setting.precision != MatmulPrecision::Default;
    for (trial, values) in trials.iter().zip(&computed.values) {
        let products = trial.platform != Platform::Cpu && trial.has_products();
        let mut nearby = None;
        let names = trial.case.expected();
        let count = names.len();
        for (i, (name, expected)) in names.into_iter().enumerate() {
            let own = &values[i];
            let wide = values.get(count + i);
            // Of f64 and f32, the result in f32 has fewer digits.
            let dtype = match wide {
                Some(wide) if trial.dtype == Some(DType::F64) => wide.ty().dtype,
                _ => own.ty().dtype,
            };
            let expected = wide.map_or_else(|| Ok(expected.literal()), |wide| wide.to_dtype(dtype));
            let (value, expected) = match own.to_dtype(dtype).and_then(|own| Ok((own, expected?))) {
                Ok(pair) => pair,
                Err(error) => {
                    let text = error.to_string();
                    results.push(failure(setting, trial, &name, text, None));
                    continue;
                }
            };
            let tolerance = trial.tolerance(dtype, exact, products);
            let mut comparison = compare(&value, &expected, tolerance);
            if comparison.difference.is_some() && wide.is_some() {
                let all =
                    nearby.get_or_insert_with(|| trial.results_nearby(setting, tolerance.relative));
                if let Some(nearby) = all.as_ref().ok().and_then(|all| all.get(i)) {
                    comparison = compare_with_nearby(&value, &expected, nearby, tolerance);
                }
            }
            match comparison.difference {
                None => passed += 1,
                Some(mut text) => {
                    // It takes a second, so not for each of many failures.
                    let few = *setting.programs_left.lock().unwrap_or_else(|e| e.into_inner()) > 0;
                    if few
                        && *early.get_or_insert_with(|| were_not_ready(setting, trials, &computed))
                    {
                        text += EARLY;
                    }
                    let ulps = Some(comparison.ulps);
                    results.push(failure(setting, trial, &name, text, ulps));
                }
            }
        }
    }
    results.push(Event::Passed(passed));
}

fn failure(
    setting: &Setting,
    trial: &Trial<'_>,
    name: &str,
    message: String,
    ulps: Option<f64>,
) -> Event {
    let mut left = setting.programs_left.lock().unwrap_or_else(|e| e.into_inner());
    let program = (*left > 0).then(|| program(setting, trial)).flatten();
    *left = left.saturating_sub(1);
    Event::Failed(Failure {
        name: format!("{}: {name}", trial.row.op),
        setting: setting.describe(),
        message,
        inputs: trial.inputs.iter().map(|input| input.ty().to_string()).collect(),
        ulps,
        program,
    })
}

/// The program of one case.
fn program(setting: &Setting, trial: &Trial<'_>) -> Option<String> {
    let function = setting.function(trial.row.op, std::slice::from_ref(trial)).ok()?;
    setting.runtime.stablehlo(&function).ok().map(excerpt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cases_of_a_quick_test_are_evenly_spaced() {
        assert_eq!(spread((0..9).collect(), 2), [4, 8]);
        assert_eq!(spread((0..3).collect(), 5), [0, 1, 2]);
        assert_eq!(spread((0..100).collect::<Vec<_>>(), 7).len(), 7);
    }
}
