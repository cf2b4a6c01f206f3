//! Estimates a training step for TPUs that this machine does not have: whether it fits, what it
//! costs, what limits it.
//!
//! libtpu compiles the exact step of a fit for a slice that is given by name, without a TPU. The
//! estimate reads memory, FLOPs, bytes and the compiled program. Times come from a roofline over
//! published peaks. Nothing runs or is measured, and the model's values are never computed.

use crate::error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fulmen_data::{DataLoader, Field, Replicas, Stage, bench_loader_for};
use fulmen_durable::messages::quantity;
use fulmen_pjrt::locate::{Platform, locate};
use fulmen_pjrt::{Plugin, Topology};
use fulmen_preflight::Step;
#[doc(inline)]
pub use fulmen_preflight::{
    Against, Bound, DataDemand, Error, Feasibility, Generation, Gpu, GpuPrice, Host, LargeTensor,
    LineCost, LoaderSpeed, Price, Prices, Report, Roofline, Slice, StepCost, StepSetting, Warning,
};
use fulmen_tensor::{Function, Mesh, Runtime};

use crate::approved_kernels::{ApprovedKernels, KernelApproval};
use crate::program::trace_fit::{self, TracedFit};
use crate::program::{StepProgram, TrainProgram, is_internal};
use crate::state::{StateLayout, names, to_initialize};
use crate::step_config::limits::EpochSize;
use crate::step_config::{Choices, StepConfig};
use crate::{Batch, EvaluationSets, Options, Result, Strategy, TrainerBuilder, TrainingModule};

/// Compiles a module's training step for each of these TPU slices, without a TPU. Reports for each
/// slice whether the step fits, what it costs, and what limits it. The model's values are not
/// computed, and nothing runs.
///
/// The step is the one that a fit with these options would run. If a slice's devices do not divide
/// the batch, the estimate uses the next larger batch that they divide, and the report says so. A
/// step that does not fit is a result, not an error: see [`Report::all_fit`].
///
/// It needs libtpu, whose license forbids redistribution: [`fulmen_pjrt::fetch::libtpu`] downloads
/// it.
///
/// # Errors
/// No libtpu; a mistake in a step, reported with your line; a program that libtpu rejects for a
/// reason other than memory; a mesh whose number of devices differs from a slice's.
pub fn training_step<M: TrainingModule>(
    options: &Options,
    mesh: Option<&Mesh>,
    module: &M,
    train: &DataLoader,
    slices: &[Slice],
    prices: Option<&Prices>,
) -> Result<Report> {
    estimate(&options.clone().into(), mesh, module, train, slices, prices)
}

/// Like [`training_step`], with all settings of a builder instead of only its options.
fn estimate<M: TrainingModule>(
    choices: &Choices,
    mesh: Option<&Mesh>,
    module: &M,
    train: &DataLoader,
    slices: &[Slice],
    prices: Option<&Prices>,
) -> Result<Report> {
    let mut choices = choices.clone().for_platform(Platform::Tpu.name());
    let libtpu = libtpu()?;
    fulmen_preflight::estimate(&libtpu, slices, prices, |slice| {
        let mesh = mesh_of(choices.options.strategy, mesh, &default_mesh(slice)?)?;
        choices.kernels = ApprovedKernels::of(Platform::Tpu.name(), &libtpu, || {
            let topology = fulmen_preflight::topology(&libtpu, slice).map_err(|e| e.to_string())?;
            kind_of(&topology)
        });
        let traced = TracedStep::new(&choices, mesh.clone(), module, train)?;
        let mut step = traced.step()?;
        if !traced.kernel_advice().is_empty() {
            let kernels = ApprovedKernels::each(|_| KernelApproval::Approved);
            let approved = Choices { kernels, ..choices.clone() };
            let traced = TracedStep::new(&approved, mesh, module, train)?;
            step.with_kernel = Some(traced.stablehlo()?);
        }
        Ok(step)
    })
}

/// The kind of the devices.
fn kind_of(topology: &Topology) -> Result<String, String> {
    let first = topology.devices().first();
    first.map(|device| device.kind().to_owned()).ok_or_else(|| "there is no device".to_owned())
}

/// The mesh of a Trainer without a mesh of its own on this slice.
fn default_mesh(slice: &Slice) -> Result<Mesh> {
    let slices = slice.num_slices();
    Mesh::of_slices(slices, slice.num_devices() / slices)
}

/// Measures a loader on this machine for about this time, without training and without a device, for
/// [`Report::add_loader`]. The time to the first batch does not count.
///
/// ```
/// use std::time::Duration;
///
/// use fulmen_data::{DataLoader, TensorDataset};
///
/// let data = TensorDataset::builder().array("x", [64, 8], vec![0.5f32; 512]).build()?;
/// let loader = DataLoader::builder(data).batch_size(16).build()?;
/// let speed = fulmen_trainer::preflight::loader_speed(&loader, Duration::from_millis(10))?;
/// assert!(speed.samples_per_s > 0.0 && speed.workers == 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The error of the first batch that cannot be read.
pub fn loader_speed(train: &DataLoader, time: Duration) -> Result<LoaderSpeed> {
    let bench = bench_loader_for(train, time)?;
    let samples = bench.samples.max(1) as f64;
    let name = |stage: Option<Stage>| {
        stage.map_or("write".to_owned(), |stage| format!("{stage:?}").to_lowercase())
    };
    Ok(LoaderSpeed {
        samples_per_s: bench.steady_samples_per_second(),
        samples: bench.samples as u64,
        seconds: bench.elapsed.as_secs_f64(),
        workers: bench.report.num_workers,
        cores: bench.report.cores,
        in_order_s: bench.report.in_order.as_secs_f64() / samples,
        slowest_stage: bench.report.slow_stage().map(|(stage, _)| name(stage)),
    })
}

fn libtpu() -> Result<Plugin, Error> {
    locate(Platform::Tpu, None).and_then(Plugin::load).map_err(|e| Error::runtime("preflight", e))
}

impl TrainerBuilder {
    /// Estimates the training step for TPU slices, like
    /// [`preflight::training_step`](crate::preflight::training_step) with the options and the mesh
    /// of this builder. No device is opened.
    ///
    /// # Errors
    /// An invalid option; the errors of
    /// [`preflight::training_step`](crate::preflight::training_step).
    pub fn preflight<M: TrainingModule>(
        &self,
        module: &M,
        train: &DataLoader,
        slices: &[Slice],
        prices: Option<&Prices>,
    ) -> Result<Report> {
        estimate(&self.choices(self.options()?)?, self.mesh.as_ref(), module, train, slices, prices)
    }

    /// The training step for this number of devices as StableHLO text, like JAX's
    /// `jit(step).lower(...).as_text()`. No device is opened, and nothing is compiled.
    ///
    /// ```
    /// # use fulmen_data::{DataLoader, TensorDataset};
    /// # use fulmen_nn::{Linear, Module, optim};
    /// # use fulmen_trainer::{Trainer, TrainingFn};
    /// # let data = TensorDataset::builder().array("x", [64, 1], vec![1.0f32; 64]).build()?;
    /// # let loader = DataLoader::builder(data).batch_size(16).build()?;
    /// # let line = Linear::new(1, 1);
    /// # let module = TrainingFn::new(&line, |line, batch, _| line.forward(&batch.get("x")).mean_all(), |_| optim::Sgd::new(0.1));
    /// let text = Trainer::builder().max_epochs(1).stablehlo(&module, &loader, 8)?;
    /// assert!(text.contains("stablehlo."));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// An invalid option; a mistake in the step; a mesh with a different number of devices.
    pub fn stablehlo<M: TrainingModule>(
        &self,
        module: &M,
        train: &DataLoader,
        devices: usize,
    ) -> Result<String> {
        let choices = self.choices(self.options()?)?;
        let default = Mesh::of_slices(1, devices)?;
        let mesh = mesh_of(choices.options.strategy, self.mesh.as_ref(), &default)?;
        let traced = TracedStep::new(&choices, mesh, module, train)?;
        traced.function()?.stablehlo_for(&traced.config.mesh)
    }

    /// Compiles all programs of a fit and writes them to a file: starting values, training step,
    /// validation steps, the module's programs, the state's copy for checkpoints and the conversion
    /// of averaged weights. A Trainer with the same options and [`aot`](TrainerBuilder::aot) then
    /// starts without compiling. The programs are compiled for `slice`, without a TPU, or else for
    /// the devices of this builder.
    ///
    /// ```
    /// # use fulmen_data::{DataLoader, TensorDataset};
    /// # use fulmen_nn::{Linear, Module, optim};
    /// # use fulmen_tensor::Accelerator;
    /// # use fulmen_trainer::{Trainer, TrainingFn};
    /// # let folder = std::env::temp_dir().join(format!("fulmen-save-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// # let data = TensorDataset::builder().array("x", [64, 1], vec![1.0f32; 64]).build()?;
    /// # let loader = DataLoader::builder(data).batch_size(16).build()?;
    /// # let line = Linear::new(1, 1);
    /// # let module = TrainingFn::new(&line, |line, batch, _| line.forward(&batch.get("x")).mean_all(), |_| optim::Sgd::new(0.1));
    /// let builder = || Trainer::builder().accelerator(Accelerator::Cpu).max_epochs(1).default_root_dir(&*folder);
    /// let file = folder.join("step.fulmen");
    /// builder().save_programs(&module, &loader, None, None, &file)?;
    /// // In another process:
    /// let summary = builder().aot(&*file).build()?.fit(&module, &loader, None)?;
    /// assert_eq!(summary.train_compilations, 0);
    /// # std::fs::remove_dir_all(folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// An invalid option; a mistake in a step; a batch that the devices do not divide; a program
    /// that does not fit or compile; no libtpu for a slice; a file that cannot be written.
    pub fn save_programs<M: TrainingModule>(
        &self,
        module: &M,
        train: &DataLoader,
        validation: impl Into<EvaluationSets>,
        slice: Option<&Slice>,
        file: &Path,
    ) -> Result<()> {
        let choices = self.choices(self.options()?)?;
        let mesh_over =
            |default: &Mesh| mesh_of(choices.options.strategy, self.mesh.as_ref(), default);
        let (topology, mesh) = match slice {
            Some(slice) => {
                (fulmen_preflight::topology(&libtpu()?, slice)?, mesh_over(&default_mesh(slice)?)?)
            }
            None => {
                let runtime = Runtime::open(choices.options.accelerator, &choices.options.devices)?;
                let topology =
                    runtime.client().topology().map_err(|e| Error::runtime("preflight", e))?;
                (topology, mesh_over(runtime.mesh())?)
            }
        };
        let mut choices = choices.for_platform(topology.platform_name());
        let platform = topology.platform_name();
        choices.kernels = ApprovedKernels::of(platform, topology.plugin(), || kind_of(&topology));
        let config = choices.for_mesh(mesh.clone(), Strategy::replicas(&mesh));
        let traced =
            trace_fit::trace_fit(module, &config, config.options.seed, train, &validation.into())?;
        let conversion = traced.weight_conversion();
        let TracedFit { layout, program, validation, declared, .. } = traced;
        // On CPUs, checkpoints read the state without a copy.
        let copies = config.options.saves() && topology.platform_name() != "cpu";
        let copy = copies.then(|| layout.to_copy(&layout.ids().collect::<Vec<_>>()));
        module.initialize(config.options.seed);
        let start = to_initialize(layout.entries(), platform);
        let steps = validation
            .iter()
            .map(|set| &set.program)
            .chain(&program.steps)
            .flat_map(StepProgram::functions);
        let functions = steps
            .chain(declared.iter().map(|program| &program.function))
            .chain([&start])
            .chain(conversion.iter().map(|(function, _)| function))
            .chain(&copy);
        fulmen_preflight::save(&topology, &mesh, functions, file)
    }
}

/// The strategy's or the user's mesh, or else the default for the same devices.
fn mesh_of(strategy: Strategy, mesh: Option<&Mesh>, default: &Mesh) -> Result<Mesh> {
    let devices = default.num_devices();
    match strategy.mesh(mesh, devices)? {
        Some(mesh) if mesh.num_devices() == devices => Ok(mesh),
        Some(mesh) => {
            let size = mesh.num_devices();
            Err(crate::Error::usage(format!(
                "the mesh {mesh} has {}, and a slice has {devices}; use slices of {size}, or a mesh of {devices}",
                quantity(size, "device")
            )))
        }
        None => Ok(default.clone()),
    }
}

/// A traced training step for some number of devices.
struct TracedStep {
    config: StepConfig,
    layout: Arc<StateLayout>,
    program: TrainProgram,
    batch_size: usize,
    steps_per_epoch: u64,
    /// The bytes of a sample as the loader sends it.
    sample_bytes: u64,
    /// How this step differs from the requested one, if it does.
    note: Option<String>,
}

impl TracedStep {
    fn new<M: TrainingModule>(
        choices: &Choices,
        mesh: Mesh,
        module: &M,
        train: &DataLoader,
    ) -> Result<TracedStep> {
        let replicas = Strategy::replicas(&mesh);
        let config = choices.for_mesh(mesh, replicas);
        let (batch_size, steps_per_epoch, batch_note) = batch_for(train, config.replicas);
        let notes: Vec<String> = batch_note.into_iter().chain(bucket_note(train)).collect();
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        let steps_per_epoch = config.options.limit_train_batches.count_of(steps_per_epoch).max(1);
        let samples =
            (train.num_samples() as u64).min(steps_per_epoch.saturating_mul(batch_size as u64));
        let epoch = EpochSize {
            batches: steps_per_epoch,
            samples,
            batch_size: batch_size as u64,
            ..EpochSize::new(train, config.options.max_duration)?
        };
        let (_, plan) = config.plan(epoch);
        let batch = Batch::of_size(train, batch_size, config.options.precision.cast_dtype());
        let (layout, program) = trace_fit::training_step(
            module,
            &config,
            &plan,
            &[batch],
            steps_per_epoch,
            config.options.seed,
        )?;
        let sample_bytes = train.fields().iter().map(bytes_of).sum();
        Ok(TracedStep { config, layout, program, batch_size, steps_per_epoch, sample_bytes, note })
    }

    fn function(&self) -> Result<&Function> {
        self.program
            .largest()
            .functions()
            .first()
            .ok_or_else(|| error::data("no step was recorded"))
    }

    /// The program for TPUs.
    fn stablehlo(&self) -> Result<String> {
        self.function()?.stablehlo_on(Platform::Tpu, &self.config.mesh)
    }

    /// How to take the kernels that fit and are not approved.
    fn kernel_advice(&self) -> Vec<String> {
        self.config.kernels.advice(&self.program.taken)
    }

    /// How this step differs from the requested one, and how to take kernels.
    fn note(&self) -> Option<String> {
        let notes: Vec<String> = self.note.iter().cloned().chain(self.kernel_advice()).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }

    /// The step to estimate.
    fn step(&self) -> Result<Step> {
        let TracedStep { config, layout, .. } = self;
        Ok(Step {
            is_internal,
            parameter_of: names::parameter_of,
            steps_per_epoch: Some(self.steps_per_epoch),
            setting: Some(StepSetting {
                batch_size: self.batch_size,
                precision: config.options.precision.name().into(),
                strategy: config.options.strategy.to_string(),
                mesh: config.mesh.to_string(),
                sample_bytes: Some(self.sample_bytes),
            }),
            note: self.note(),
            copied_bytes: config
                .options
                .saves()
                .then(|| layout.device_bytes(layout.ids(), &config.mesh)),
            ..Step::new(self.function()?, &config.mesh)?
        })
    }
}

/// The bytes of a field in one sample.
fn bytes_of(field: &Field) -> u64 {
    let elements = field.shape.iter().fold(1_u64, |n, &length| n.saturating_mul(length as u64));
    elements.saturating_mul(field.dtype.size_in_bytes() as u64)
}

/// The batch size, the steps per epoch, and a note if the batch size had to change.
fn batch_for(train: &DataLoader, replicas: Replicas) -> (usize, u64, Option<String>) {
    let parts = replicas.devices;
    // With a batch size per device, more devices make larger batches.
    if let Ok(loader) = train.distributed(replicas) {
        return (loader.batch_size(), loader.len() as u64, None);
    }
    let batch = train.batch_size().next_multiple_of(parts.max(1));
    let steps = train.num_samples() as u64 / batch as u64;
    let note = format!(
        "a batch of {} cannot be split over {parts} devices, so the estimate uses a batch of {batch}",
        train.batch_size()
    );
    (batch, steps.max(1), Some(note))
}

/// Which of the loader's buckets is estimated, if it has several.
fn bucket_note(train: &DataLoader) -> Option<String> {
    let buckets = train.shapes().len();
    if buckets == 1 {
        return None;
    }
    let fields: Vec<String> = train.fields().iter().map(ToString::to_string).collect();
    Some(format!(
        "the loader has {buckets} buckets, and the estimate is for the largest: {}",
        fields.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use fulmen_data::{Buckets, TensorDataset};
    use fulmen_nn::attention::Attention;
    use fulmen_nn::loss::{Reduction, cross_entropy};
    use fulmen_nn::optim::{AdamW, Optimizer};
    use fulmen_nn::{Linear, Module, Relu, Sequential};
    use fulmen_pjrt::hlo::{Collective, CollectiveKind};
    use fulmen_tensor::Tensor;

    use super::*;
    use crate::{Plan, StepContext, Trainer};

    #[derive(Module)]
    struct Mlp(Sequential);

    impl Mlp {
        fn new(width: usize) -> Mlp {
            Mlp(Sequential::new()
                .add(Linear::new(784, width))
                .add(Relu)
                .add(Linear::new(width, 10)))
        }
    }

    impl TrainingModule for Mlp {
        fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
            cross_entropy(&self.0.forward(&batch.get("x")), &batch.get("y"), Reduction::Mean)
        }
        fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
            Box::new(AdamW::new(1e-3))
        }
    }

    fn loader(batch: usize) -> DataLoader {
        let data = TensorDataset::builder()
            .array("x", [640, 784], vec![0.0f32; 640 * 784])
            .array("y", [640], vec![0i32; 640])
            .build()
            .unwrap();
        DataLoader::builder(data).batch_size(batch).drop_last(true).build().unwrap()
    }

    #[test]
    fn the_estimated_bucket_is_named() {
        let data = TensorDataset::builder().array("x", [2, 8], vec![0u8; 16]).build().unwrap();
        let one_shape = DataLoader::builder(data.clone()).build().unwrap();
        assert_eq!(bucket_note(&one_shape), None);
        let buckets = Buckets::new([2, 8], &[4, 8]).unwrap();
        let loader = DataLoader::builder(data).buckets(buckets).build().unwrap();
        assert_eq!(
            bucket_note(&loader).unwrap(),
            "the loader has 2 buckets, and the estimate is for the largest: x u8[8]"
        );
    }

    #[test]
    fn a_sample_has_the_bytes_of_its_fields() {
        let fields: u64 = loader(64).fields().iter().map(bytes_of).sum();
        assert_eq!(fields, 784 * 4 + 4);
    }

    #[test]
    fn the_loader_is_measured_with_its_workers() {
        let data = TensorDataset::builder().array("x", [96, 8], vec![0u8; 768]).build().unwrap();
        let loader = DataLoader::builder(data).batch_size(16).num_workers(2).build().unwrap();
        // Several epochs pass in this time, and at least one batch is read without any time.
        for time in [Duration::ZERO, Duration::from_millis(50)] {
            let speed = loader_speed(&loader, time).unwrap();
            assert!(speed.samples >= 16 && speed.workers == 2, "{speed:?}");
            assert!(speed.samples_per_s > 0.0 && speed.in_order_s == 0.0, "{speed:?}");
        }
        assert_eq!(loader.report().batches, 0, "the loader's own report is not touched");
    }

    #[test]
    #[ignore = "slow: ci/slow"]
    fn the_same_step_is_estimated_for_every_slice() {
        if crate::libtpu::libtpu().is_none() {
            return;
        }
        let slices = Slice::parse_list("v3-8,v4:2x2x1,v5e:1x1,tpu7x-8,v5e:16x16").unwrap();
        let report =
            Trainer::builder().preflight(&Mlp::new(512), &loader(64), &slices, None).unwrap();
        println!("{report}");
        assert!(report.all_fit());
        let devices: Vec<_> =
            report.slices.iter().map(|j| (j.slice.num_devices(), j.steps_per_epoch)).collect();
        assert_eq!(
            devices,
            [(8, Some(10)), (4, Some(10)), (1, Some(10)), (8, Some(10)), (256, Some(2))]
        );
        let notes: Vec<_> = report.slices.iter().map(|j| j.note.is_some()).collect();
        assert_eq!(notes, [false, false, false, false, true]);
        // Gradients of all parameters are summed over the devices, in f32.
        let parameters = 784 * 512 + 512 + 512 * 10 + 10;
        for feasibility in &report.slices {
            let step = feasibility.step.as_ref().unwrap();
            let summed: u64 = step.collectives.iter().map(|c| c.total_bytes()).sum();
            match feasibility.slice.num_devices() {
                1 => assert_eq!(summed, 0),
                _ => assert!(
                    (4 * parameters..4 * parameters + 4096).contains(&summed),
                    "{summed} {report}"
                ),
            }
            let lines = feasibility.warnings.iter().filter_map(|w| w.source.as_ref());
            assert!(
                feasibility.warnings.len()
                    == lines.filter(|line| line.contains("preflight.rs:")).count(),
                "{report}"
            );
            assert_ne!(
                step.roofline.bound_by,
                Bound::MatrixUnit,
                "batches this small leave it idle"
            );
        }
    }

    #[test]
    fn under_fsdp_parameters_are_gathered() {
        if crate::libtpu::libtpu().is_none() {
            return;
        }
        let slices = Slice::parse_list("v5e:2x4").unwrap();
        let estimate = |strategy| {
            let builder = Trainer::builder().strategy(strategy);
            builder.preflight(&Mlp::new(2048), &loader(64), &slices, None).unwrap().slices.remove(0)
        };
        let ddp = estimate(Strategy::Ddp);
        let fsdp = estimate(Strategy::Fsdp);
        let copied = |feasibility: &Feasibility| feasibility.copied_bytes.unwrap();
        assert!(
            copied(&ddp) > 7 * copied(&fsdp) && fsdp.copy_fits() == Some(true),
            "each device copies its part"
        );
        let has = |feasibility: &Feasibility, kind| {
            feasibility.step.as_ref().unwrap().collectives.iter().any(|c| c.kind == kind)
        };
        assert!(has(&fsdp, CollectiveKind::AllGather) && !has(&ddp, CollectiveKind::AllGather));
        assert!(fsdp.hbm_needed_bytes.unwrap() * 2 < ddp.hbm_needed_bytes.unwrap(), "{ddp} {fsdp}");
    }

    #[test]
    fn fsdp_gathers_parameters_within_a_slice() {
        if crate::libtpu::libtpu().is_none() {
            return;
        }
        let slices = Slice::parse_list("2*v5e:2x2").unwrap();
        let builder = Trainer::builder().strategy(Strategy::Fsdp);
        let report = builder.preflight(&Mlp::new(2048), &loader(64), &slices, None).unwrap();
        let feasibility = &report.slices[0];
        assert_eq!(feasibility.setting.as_ref().unwrap().mesh, "data=2 × fsdp=4");
        let collectives = &feasibility.step.as_ref().unwrap().collectives;
        let between: Vec<_> = collectives.iter().filter(|c| c.is_between_slices).collect();
        assert!(between.iter().all(|c| c.kind == CollectiveKind::AllReduce), "{report}");
        // Each device sends its quarter of the gradients in f32, some of them padded.
        let parameters = 784 * 2048 + 2048 + 2048 * 10 + 10;
        let sent: u64 = between.iter().map(|c| c.total_bytes()).sum();
        assert!((parameters..parameters + parameters / 50).contains(&sent), "{sent} {report}");
        let gathers = |c: &&Collective| c.kind == CollectiveKind::AllGather && c.group_size == 4;
        assert!(collectives.iter().any(|c| gathers(&c)), "{report}");
        // A mesh of one's own.
        let mesh = Mesh::new([("data", 8)]).unwrap();
        let report = builder.mesh(mesh).preflight(&Mlp::new(512), &loader(64), &slices, None);
        assert_eq!(report.unwrap().slices[0].setting.as_ref().unwrap().mesh, "data=8");
    }

    /// Attention of the tokens of a sequence to each other.
    #[derive(Module)]
    struct Attend(Linear);

    impl TrainingModule for Attend {
        fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
            let x = self.0.forward(batch.get("x"));
            Attention::new().causal(true).forward(&x, &x, &x).square().mean_all()
        }
        fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
            Box::new(AdamW::new(1e-3))
        }
    }

    #[test]
    fn auto_takes_an_approved_kernel_if_devices_share_the_batch_alone_and_a_preflight_says_what_is_missing()
     {
        let x = vec![0.0f32; 4 * 128 * 8];
        let data = TensorDataset::builder().array("x", [4, 128, 8], x).build().unwrap();
        let loader = DataLoader::builder(data).batch_size(4).build().unwrap();
        let traced = |kernel: KernelApproval, axis: &str| {
            let options = Trainer::builder().options().unwrap();
            let kernels = ApprovedKernels::each(|_| kernel.clone());
            let choices = Choices { kernels, ..Choices::from(options) };
            let mesh = Mesh::new([("data", 2), (axis, 2)]).unwrap();
            let traced =
                TracedStep::new(&choices, mesh, &Attend(Linear::new(8, 8)), &loader).unwrap();
            let text = traced.function().unwrap().stablehlo().unwrap();
            let takes_kernel = text.contains("@flash_attention");
            let line = traced.config.kernels.describe(&traced.program.taken).join("\n");
            (takes_kernel, line, traced.note().unwrap_or_default())
        };
        let (takes, line, note) = traced(KernelApproval::Approved, "fsdp");
        assert!(takes && note.is_empty(), "{note}");
        assert_eq!(
            line,
            "attention: auto takes kernel; `fulmen selftest` approved the kernel for these TPUs"
        );
        let (takes, line, _) = traced(KernelApproval::Approved, "model");
        assert!(!takes && line.contains("auto takes plain; the kernel is approved, but"), "{line}");
        let missing = KernelApproval::NotApproved("no selftest".into());
        let (takes, line, note) = traced(missing, "fsdp");
        assert!(
            !takes && line.contains("auto takes plain; the kernel is not approved (no selftest)"),
            "{line}"
        );
        assert!(
            note.contains(
                "`attention = \"kernel\"` takes it at once, and auto after `fulmen selftest`"
            ),
            "{note}"
        );
        let (takes, line, note) = traced(KernelApproval::None, "fsdp");
        assert!(
            !takes && line == "attention: auto takes plain" && note.is_empty(),
            "{line} {note}"
        );
    }

    #[test]
    fn what_a_kernel_would_save_is_estimated() {
        if crate::libtpu::libtpu().is_none() {
            return;
        }
        let x = vec![0.0f32; 2 * 1024 * 8];
        let data = TensorDataset::builder().array("x", [2, 1024, 8], x).build().unwrap();
        let loader = DataLoader::builder(data).batch_size(2).build().unwrap();
        let slices = Slice::parse_list("v5e:1x1").unwrap();
        let module = Attend(Linear::new(8, 8));
        let report = Trainer::builder().preflight(&module, &loader, &slices, None).unwrap();
        let feasibility = &report.slices[0];
        let without = feasibility.hbm_needed_bytes.unwrap();
        let with = feasibility.hbm_with_kernel_bytes.unwrap();
        // The scores of both sequences are 8 MiB.
        assert!(with + (2 << 20) < without, "{with} {without} {report}");
        assert!(report.to_string().contains("with kernels, it needs"), "{report}");
    }

    #[test]
    fn a_model_of_forty_gigabytes_is_rejected_at_once() {
        if crate::libtpu::libtpu().is_none() {
            return;
        }
        // 784 × 13 million weights in f32, before gradients and the optimizer's state.
        let width = 40_000_000_000 / 4 / 794;
        let slices = Slice::parse_list("v5e:1x1").unwrap();
        let start = Instant::now();
        let report =
            Trainer::builder().preflight(&Mlp::new(width), &loader(64), &slices, None).unwrap();
        println!("{report} {:?}", start.elapsed());
        assert!(!report.all_fit());
        let feasibility = &report.slices[0];
        assert!(
            feasibility.hbm_needed_bytes.unwrap() > 100_000_000_000,
            "with two moments: {report}"
        );
        let names: Vec<_> = feasibility.largest.iter().map(|t| t.name.as_str()).collect();
        assert!(names.iter().any(|name| name.ends_with("weight")), "{names:?}");
        assert!(names.iter().any(|name| name.starts_with("optimizer/")), "{names:?}");
        assert!(feasibility.largest.iter().all(|t| t.source.contains("preflight.rs:")), "{report}");
    }

    #[test]
    fn the_copy_for_checkpoints_is_saved_for_a_slice() {
        if crate::libtpu::libtpu().is_none() {
            return;
        }
        let slice = "v5e:1x1".parse().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("step.fulmen");
        let has_copy = [true, false].map(|checkpoints| {
            let builder = Trainer::builder().enable_checkpointing(checkpoints);
            builder.save_programs(&Mlp::new(8), &loader(64), None, Some(&slice), &file).unwrap();
            // The program's name, after its length.
            std::fs::read(&file).unwrap().windows(11).any(|bytes| bytes == b"\x0acheckpoint")
        });
        assert_eq!(has_copy, [true, false]);
    }

    #[test]
    fn a_mesh_that_does_not_fit_a_slice_is_an_error() {
        if crate::libtpu::libtpu().is_none() {
            return;
        }
        let slices = Slice::parse_list("v5e:1x1").unwrap();
        let mesh = Mesh::new([("data", 4)]).unwrap();
        let error = Trainer::builder()
            .mesh(mesh)
            .preflight(&Mlp::new(8), &loader(64), &slices, None)
            .unwrap_err();
        assert!(error.to_string().contains("data=4 has 4 devices, and a slice has 1"), "{error}");
    }
}
