//! Advice: where a training wastes time and what to do about it, one line each. [`hints`] looks at
//! the recorded program before the first step, [`note_repeated_work`] at the compiled one;
//! [`fit_advice`] looks at the measurements of a fit.
//! Their lines appear on standard error, in the report of the run and in `Trainer::metrics_report`.
//!
//! The rules for programs are in `fulmen_preflight::warnings`. On a CPU only padding costs time,
//! because a CPU has neither tiles nor bf16 units.

use std::collections::BTreeMap;
use std::time::Duration;

use fulmen_data::{DataLoader, LoaderReport};
use fulmen_durable::messages::{duration, quantity};
use fulmen_pjrt::locate::Platform;
use fulmen_preflight::{Generation, Warning, warnings};
use fulmen_tensor::internal::host_reads;
use fulmen_tensor::{Function, MatmulPrecision, Mesh, RecordedOp, Runtime};

use crate::console::hint;
use crate::program::{CompiledStep, StepProgram};
use crate::step_config::StepConfig;
use crate::{Goodput, Precision, Result, Strategy};

/// Padding is reported from this share of a batch's positions on.
const MIN_PADDING: f64 = 0.25;
/// Matrix products are reported if matrix units do useful work for less than this share of the
/// time.
const LOW_MATRIX_USE: f64 = 0.5;
/// Rows that a TPU computes at once.
const TILE_ROWS: u64 = 8;
/// Waiting for data is reported above this share of the step time, and above this total.
const INPUT_WAIT_SHARE: f64 = 0.03;
const INPUT_WAIT: Duration = Duration::from_secs(1);
/// Compiling is reported above this share of a run, and above this many seconds.
const COMPILE_SHARE: f64 = 0.2;
const COMPILE_SECONDS: f64 = 10.0;
/// A line of code is reported if it reads from the device at least this often, and at least every
/// second step.
const MIN_READS: u64 = 20;

/// The advice before the first step of a fit on this runtime.
pub(crate) fn hints(
    runtime: &Runtime,
    config: &StepConfig,
    train: &DataLoader,
    steps: &[Function],
) -> Result<Vec<String>> {
    let mut hints: Vec<String> = padding(train).into_iter().collect();
    if let (true, Some(step)) =
        (runtime.client().platform_name() == Platform::Tpu.name(), steps.first())
    {
        let kind =
            runtime.devices().first().map_or(String::new(), |device| device.kind().to_owned());
        hints.extend(tpu_hints(&kind, config, train.per_device_batch_size(), &step.recorded()?));
    }
    Ok(hints)
}

/// Prints and returns the advice about work that devices of this mesh repeat in the last of these
/// steps.
pub(crate) fn note_repeated_work(
    steps: &[StepProgram],
    compiled: &[CompiledStep],
    mesh: &Mesh,
) -> Option<String> {
    if Strategy::replicas(mesh).devices == mesh.num_devices() {
        return None;
    }
    let step = steps.last()?.functions().first()?;
    let module = compiled.last()?.programs().first()?.executable().hlo().ok()?;
    let recorded = step.recorded().ok()?;
    let warning = warnings::repeated_work(&recorded, step.parameter_shardings(), mesh, &module)?;
    let hint = line(warning);
    hint!("{hint}");
    Some(hint)
}

/// The number of times that each line of the program read values from a device.
pub(crate) type HostReads = BTreeMap<(&'static str, u32), u64>;

pub(crate) struct FitMeasurements<'a> {
    /// The statistics of the training loader.
    pub(crate) loader: &'a LoaderReport,
    /// The share of the steps' time in which the devices had no batch, and the time itself.
    pub(crate) input_wait_share: f64,
    pub(crate) input_wait: Duration,
    /// Where the time of this run went.
    pub(crate) goodput: Goodput,
    /// Compiled programs.
    pub(crate) compilations: usize,
    /// Optimizer steps.
    pub(crate) steps: u64,
    /// The reads before the first step.
    pub(crate) reads_before: &'a HostReads,
}

/// The advice for a fit, from its measurements so far.
pub(crate) fn fit_advice(fit: &FitMeasurements<'_>) -> Vec<String> {
    fit_advice_with_reads(fit, &host_reads())
}

/// Like [`fit_advice`], with these reads from devices.
fn fit_advice_with_reads(fit: &FitMeasurements<'_>, reads: &HostReads) -> Vec<String> {
    let mut advice = Vec::new();
    if fit.input_wait_share > INPUT_WAIT_SHARE && fit.input_wait > INPUT_WAIT {
        advice.push(fit.loader.bottleneck());
    }
    for (line, reads) in reads {
        let reads = reads - fit.reads_before.get(line).copied().unwrap_or_default();
        if fit.steps > 0 && reads >= MIN_READS && reads >= fit.steps / 2 {
            advice.push(format!(
                "{}:{} read a value from the device {reads} times in {} steps and waited each time; log the value within \
                 the step, or read it only every n steps",
                line.0, line.1, fit.steps
            ));
        }
    }
    let compile = fit.goodput.compile;
    let total = fit.goodput.total();
    if fit.compilations > 0 && compile > COMPILE_SECONDS && compile > COMPILE_SHARE * total {
        let programs = quantity(fit.compilations, "program");
        advice.push(format!(
            "compiling {programs} took {}, {:.0} % of the run; the next run loads them from disk unless \
             FULMEN_COMPILE_CACHE is off, and `--aot` loads programs that `preflight --save` compiled before",
            duration(compile),
            100.0 * compile / total
        ));
    }
    advice
}

/// The advice about padding in buckets.
fn padding(train: &DataLoader) -> Option<String> {
    let buckets = train.buckets()?;
    let share = buckets.padding_share();
    (share >= MIN_PADDING).then(|| {
        format!(
            "{:.0} % of the positions in training batches are padding: the buckets end at {:?}; \
             text::choose_boundaries() finds the boundaries with the least padding",
            100.0 * share,
            buckets.lengths()
        )
    })
}

/// The advice for a TPU of this kind (`TPU v5 lite`), for a step with `rows` rows of the batch on
/// each device.
fn tpu_hints(kind: &str, config: &StepConfig, rows: usize, recorded: &[RecordedOp]) -> Vec<String> {
    let mut hints = Vec::new();
    let mut products = warnings::recorded_products(recorded, config.replicas.devices);
    // In matrix products, even a batch of few sequences or images has many rows.
    if products.iter().map(|p| p.product.rows).max().is_some_and(|max| max < TILE_ROWS) {
        hints.push(format!(
            "the batch has {rows} rows per device, but a TPU computes {TILE_ROWS} at a time; a batch size of {} takes the \
             same time",
            TILE_ROWS as usize * config.replicas.devices
        ));
    }
    // Few rows were reported above; only the widths count here.
    products.iter_mut().for_each(|p| p.product.rows = p.product.rows.next_multiple_of(TILE_ROWS));
    let unit = Generation::of_kind(kind).map_or(128, |generation| generation.matrix_unit);
    if warnings::share_used(&products, unit).is_some_and(|used| used < LOW_MATRIX_USE) {
        hints.extend(warnings::matrix_unit(&products, unit).into_iter().next().map(line));
    }
    // Users who set a higher matmul precision don't want fewer bits.
    let exact = config.options.matmul_precision != MatmulPrecision::Default;
    if config.options.precision.resolved() == Precision::F32 && !exact {
        hints.extend(warnings::single_precision(recorded, warnings::Passes::ONE).map(line));
    }
    hints
}

fn line(warning: Warning) -> String {
    match warning.source {
        Some(source) => format!("{} ({source})", warning.message),
        None => warning.message,
    }
}

#[cfg(test)]
mod tests {
    use fulmen_data::{Buckets, TensorDataset};
    use fulmen_nn::optim::{Optimizer, Sgd};
    use fulmen_nn::{Conv2d, Linear, Module};
    use fulmen_tensor::Tensor;

    use super::*;
    use crate::program::trace_fit::trace_fit;
    use crate::step_config::Choices;
    use crate::{Batch, Plan, StepContext, Trainer, TrainingModule};

    /// The measurements of a run of 100 s that gets no advice.
    fn good_run<'a>(loader: &'a LoaderReport, reads_before: &'a HostReads) -> FitMeasurements<'a> {
        let goodput = Goodput { compile: 5.0, steps: 95.0, ..Goodput::default() };
        FitMeasurements {
            loader,
            input_wait_share: 0.01,
            input_wait: Duration::from_secs(1),
            goodput,
            compilations: 1,
            steps: 100,
            reads_before,
        }
    }

    #[test]
    fn advice_has_numbers_and_says_what_to_do() {
        let none: [&str; 0] = [];
        let mut loader = LoaderReport::default();
        let no_reads = HostReads::new();
        (loader.steps, loader.waiting, loader.busy) =
            (10, Duration::from_secs(1), Duration::from_secs(2));
        let good_run = good_run(&loader, &no_reads);
        let reads = HostReads::from([(("src/main.rs", 7), 60), (("src/main.rs", 9), 10)]);
        assert_eq!(
            fit_advice_with_reads(&FitMeasurements { reads_before: &reads, ..good_run }, &reads),
            none
        );
        let advice = fit_advice_with_reads(&good_run, &reads);
        let [read] = &advice[..] else { panic!("{advice:?}") };
        assert!(
            read.starts_with("src/main.rs:7 read a value from the device 60 times in 100 steps"),
            "{read}"
        );
        assert_eq!(
            fit_advice_with_reads(&FitMeasurements { steps: 1000, ..good_run }, &reads),
            none,
            "now and then"
        );

        let goodput = Goodput { compile: 40.0, steps: 60.0, ..Goodput::default() };
        let advice = fit_advice_with_reads(
            &FitMeasurements { goodput, compilations: 3, ..good_run },
            &no_reads,
        );
        let [compile] = &advice[..] else { panic!("{advice:?}") };
        assert!(
            compile.starts_with("compiling 3 programs took 40.0 s, 40 % of the run"),
            "{compile}"
        );
        let goodput = Goodput { compile: 4.0, steps: 6.0, ..Goodput::default() };
        assert_eq!(
            fit_advice_with_reads(&FitMeasurements { goodput, ..good_run }, &no_reads),
            none,
            "a short run"
        );

        let advice = fit_advice_with_reads(
            &FitMeasurements {
                input_wait_share: 0.33,
                input_wait: Duration::from_secs(30),
                ..good_run
            },
            &no_reads,
        );
        let [input] = &advice[..] else { panic!("{advice:?}") };
        assert!(
            input.starts_with("input-bound: 33 % of the step time is spent waiting for data"),
            "{input}"
        );
    }

    /// A module of one layer. Its loss is the mean of the layer's result.
    #[derive(Module)]
    struct Sum<L: Module>(L, #[module(skip)] fn(&L, Tensor) -> Tensor);

    impl<L: Module> TrainingModule for Sum<L> {
        fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
            self.1(&self.0, batch.get("x")).mean_all()
        }
        fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
            Box::new(Sgd::new(0.1))
        }
    }

    /// The hints for a layer on samples of this shape, with `rows` samples on each of `devices`.
    fn hints_for<L: Module>(
        module: &Sum<L>,
        shape: &[usize],
        rows: usize,
        devices: usize,
        precision: Precision,
    ) -> Vec<String> {
        let batch = rows * devices;
        let x = vec![0.5f32; batch * shape.iter().product::<usize>()];
        let data =
            TensorDataset::builder().array("x", [&[batch], shape].concat(), x).build().unwrap();
        let loader = DataLoader::builder(data).batch_size(batch).build().unwrap();
        let options = Trainer::builder().precision(precision).options().unwrap();
        let mesh = Mesh::new([("data", devices)]).unwrap();
        let config = Choices::from(options).for_mesh(mesh.clone(), Strategy::replicas(&mesh));
        let prepared = trace_fit(module, &config, 0, &loader, &None.into()).unwrap();
        let recorded = prepared.program.largest().functions()[0].recorded().unwrap();
        tpu_hints("TPU v5 lite", &config, prepared.train.per_device_batch_size(), &recorded)
    }

    fn linear(inputs: usize, outputs: usize) -> Sum<Linear> {
        Sum(Linear::new(inputs, outputs), |layer, x| layer.forward(x))
    }

    #[test]
    fn a_tpu_gets_hints_about_few_rows_narrow_widths_and_f32() {
        let hints = hints_for(&linear(16, 24), &[16], 4, 2, Precision::F32);
        let [rows, widths, precision] = &hints[..] else { panic!("{hints:?}") };
        assert_eq!(
            rows,
            "the batch has 4 rows per device, but a TPU computes 8 at a time; a batch size of 16 takes the same time"
        );
        assert!(
            widths.starts_with(
                "1 × a product of 8×16 by 16×24 fills at most 2 % of the 128×128 matrix unit"
            ),
            "{widths}"
        );
        assert!(
            precision.contains("bf16-mixed") && precision.contains("advice.rs:"),
            "{precision}"
        );
        assert!(hints.iter().all(|hint| !hint.contains('\n')), "{hints:?}");
    }

    #[test]
    fn a_step_that_fills_a_tpu_gets_no_hint() {
        let none: [&str; 0] = [];
        assert_eq!(hints_for(&linear(256, 128), &[256], 8, 4, Precision::Bf16Mixed), none);
        // Four samples of many positions have many rows, as images do.
        assert_eq!(hints_for(&linear(256, 128), &[64, 256], 4, 1, Precision::Bf16Mixed), none);
        let conv = Sum(Conv2d::new(128, 128, 3), |layer, x| layer.forward(x));
        assert_eq!(hints_for(&conv, &[128, 8, 8], 2, 1, Precision::Bf16Mixed), none);
    }

    #[test]
    fn padding_is_reported_on_each_device_and_the_rest_not_on_a_cpu() {
        let loader = |lengths: [usize; 4]| {
            let data = TensorDataset::builder().array("x", [4, 8], [0.5f32; 32]).build().unwrap();
            let buckets = Buckets::new(lengths, &[8]).unwrap();
            DataLoader::builder(data).batch_size(2).buckets(buckets).build().unwrap()
        };
        let hint = |lengths| padding(&loader(lengths));
        assert_eq!(
            hint([2, 2, 4, 8]).unwrap(),
            "50 % of the positions in training batches are padding: the buckets end at [8]; text::choose_boundaries() finds \
             the boundaries with the least padding"
        );
        assert_eq!(hint([7, 7, 7, 8]), None);

        let loader = loader([8; 4]);
        let trainer = Trainer::builder().accelerator("cpu").build().unwrap();
        let mesh = trainer.runtime().mesh().clone();
        let config = Choices::from(trainer.options().clone())
            .for_mesh(mesh.clone(), Strategy::replicas(&mesh));
        let prepared = trace_fit(&linear(8, 8), &config, 0, &loader, &None.into()).unwrap();
        let hints =
            hints(trainer.runtime(), &config, &loader, prepared.program.largest().functions())
                .unwrap();
        assert!(hints.is_empty(), "{hints:?}");
    }
}
