//! [`BatchSizeFinder`]: finds the largest batch size whose step fits in device memory. It checks
//! each size with the compiler first, so most sizes that are too large never run.

use fulmen_data::DataLoader;
use fulmen_pjrt::Executable;
use fulmen_tensor::Runtime;

use super::{run_short_fit, short_fit, show_progress};
use crate::program::trace_fit::trace_fit;
use crate::step_config::Choices;
use crate::{Error, Result, Trainer, TrainingModule, error, host_memory};

/// How to choose the next batch size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BatchSizeMode {
    /// Double the size until one does not fit.
    #[default]
    Power,
    /// Double the size until one does not fit; then bisect between the largest that fits and the
    /// smallest that does not.
    Binsearch,
}

/// Finds the largest batch size that fits in device memory, like Lightning's `scale_batch_size` and
/// with its arguments and defaults.
///
/// ```no_run
/// use fulmen_data::DataLoader;
/// use fulmen_trainer::tuner::{BatchSizeFinder, BatchSizeMode};
/// # fn f(trainer: &mut fulmen_trainer::Trainer, module: &impl fulmen_trainer::TrainingModule,
/// #      data: fulmen_data::TensorDataset) -> fulmen_trainer::Result<()> {
/// let finder = BatchSizeFinder::new().mode(BatchSizeMode::Binsearch).init_val(32);
/// let loader = |batch_size| DataLoader::builder(data.clone()).batch_size(batch_size).shuffle(true).build();
/// let batch_size = trainer.scale_batch_size(module, loader, &finder)?.batch_size;
/// # let _ = batch_size; Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct BatchSizeFinder {
    mode: BatchSizeMode,
    steps_per_trial: u64,
    init_val: usize,
    max_trials: usize,
    memory_limit: Option<u64>,
}

impl Default for BatchSizeFinder {
    fn default() -> BatchSizeFinder {
        let mode = BatchSizeMode::Power;
        BatchSizeFinder {
            mode,
            steps_per_trial: 3,
            init_val: 2,
            max_trials: 25,
            memory_limit: None,
        }
    }
}

impl BatchSizeFinder {
    /// Starts with a batch of 2 and doubles it.
    pub fn new() -> BatchSizeFinder {
        BatchSizeFinder::default()
    }

    /// Selects how to choose the next batch size.
    pub fn mode(mut self, mode: BatchSizeMode) -> BatchSizeFinder {
        self.mode = mode;
        self
    }

    /// Sets the number of optimizer steps to run with each size that the compiler accepts.
    pub fn steps_per_trial(mut self, steps: u64) -> BatchSizeFinder {
        self.steps_per_trial = steps;
        self
    }

    /// Sets the first batch size, over all devices. It is rounded up to a multiple of the number of
    /// devices.
    pub fn init_val(mut self, batch_size: usize) -> BatchSizeFinder {
        self.init_val = batch_size;
        self
    }

    /// Sets the maximum number of sizes to try.
    pub fn max_trials(mut self, trials: usize) -> BatchSizeFinder {
        self.max_trials = trials;
        self
    }

    /// Sets how many bytes a step may use on each device. The default is the device's whole memory.
    /// For CPU devices, the default is the machine's available memory when a size is tried, divided
    /// among them.
    pub fn memory_limit(mut self, bytes: u64) -> BatchSizeFinder {
        self.memory_limit = Some(bytes);
        self
    }

    fn check(&self) -> Result<()> {
        let numbers = [
            ("steps_per_trial", self.steps_per_trial),
            ("init_val", self.init_val as u64),
            ("max_trials", self.max_trials as u64),
            ("memory_limit", self.memory_limit.unwrap_or(1)),
        ];
        match numbers.iter().find(|number| number.1 == 0) {
            Some((name, _)) => Err(Error::usage(format!(
                "BatchSizeFinder: {name} must be at least 1, but it is 0"
            ))),
            None => Ok(()),
        }
    }

    /// The size to try after `tried`. `fits` is the largest size that fits, and `fails` the
    /// smallest that does not. Sizes are multiples of `unit`.
    fn next(&self, tried: usize, fits: usize, fails: Option<usize>, unit: usize) -> Option<usize> {
        match fails {
            None => tried.checked_mul(2),
            Some(_) if self.mode == BatchSizeMode::Power && fits > 0 => None,
            Some(fails) => Some((fits + fails) / 2 / unit * unit).filter(|&middle| middle > fits),
        }
    }
}

/// The result of the search.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchSizes {
    /// The largest tried batch size that fits, over all devices.
    pub batch_size: usize,
    /// The trials, in order.
    pub trials: Vec<Trial>,
}

/// One tried batch size.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// The batch size, over all devices.
    pub batch_size: usize,
    /// Bytes that the step needs on each device according to the compiler, if known.
    pub needed_bytes: Option<u64>,
    /// Whether it fits.
    pub verdict: Verdict,
}

/// Whether a batch size fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The steps ran.
    Fits,
    /// The compiler reports that it does not fit; it was not run.
    RefusedByCompiler,
    /// A step ran out of memory.
    OutOfMemory,
}

/// The bytes that a program needs on each device.
fn needed_bytes(program: &Executable) -> Option<u64> {
    u64::try_from(program.memory_analysis().ok()?.total_bytes()).ok()
}

/// The bytes that a program can use on each device of this process.
fn available_bytes(runtime: &Runtime) -> Option<u64> {
    let devices = runtime.local_devices();
    let shared = devices.len().max(1) as u64;
    let limits = devices.map(|device| {
        let stats = device.memory_stats().ok()?;
        u64::try_from(stats.bytes_limit?).ok()
    });
    match limits.collect::<Option<Vec<u64>>>() {
        Some(limits) => limits.into_iter().min(),
        None => host_memory::available().map(|bytes| bytes / shared),
    }
}

impl Trainer {
    /// Finds the largest batch size that fits in device memory. For each size, the Trainer compiles
    /// the training step, and runs some steps if the compiler reports that it fits. `loader` makes
    /// the training loader for a batch size. The search also ends when one batch covers the epoch.
    /// Afterwards, the module has its old values. Nothing is logged, validated or saved.
    ///
    /// With several processes, all agree on a size from the compilers' reports. If a step then runs
    /// out of memory in one of them, the search fails in all of them.
    ///
    /// Returns an error if an argument of the finder is invalid, if no size fits, if `loader`
    /// returns a loader with a different batch size than the requested one, or if a signal ends the
    /// search. The errors of [`Trainer::fit`] apply too.
    pub fn scale_batch_size<M: TrainingModule>(
        &mut self,
        module: &M,
        mut loader: impl FnMut(usize) -> fulmen_data::Result<DataLoader>,
        finder: &BatchSizeFinder,
    ) -> Result<BatchSizes> {
        finder.check()?;
        let unit = self.session.config()?.replicas.devices.max(1);
        let choices = short_fit(&self.session.choices, finder.steps_per_trial);
        let mut fits = 0;
        let mut fails = None;
        let mut trials = Vec::new();
        let mut next = Some(finder.init_val.next_multiple_of(unit));
        while let Some(size) = next.filter(|_| trials.len() < finder.max_trials) {
            let loader = loader(size)?;
            if loader.batch_size() != size {
                return Err(Error::usage(format!(
                    "scale_batch_size: the loader for a batch size of {size} has a batch size of {}",
                    loader.batch_size()
                )));
            }
            show_progress(
                self,
                &format!(
                    "scale_batch_size: compiling the training step for a batch size of {size} ..."
                ),
            );
            let trial = self.try_batch_size(module, &loader, &choices, finder)?;
            let result = match trial.verdict {
                Verdict::Fits => "fits",
                Verdict::RefusedByCompiler => "needs too much memory, according to the compiler",
                Verdict::OutOfMemory => "ran out of memory",
            };
            show_progress(self, &format!("scale_batch_size: a batch size of {size} {result}"));
            match trial.verdict {
                Verdict::Fits => fits = size,
                Verdict::RefusedByCompiler | Verdict::OutOfMemory => fails = Some(size),
            }
            next = if fits == size && loader.len() == 1 {
                None
            } else {
                finder.next(size, fits, fails, unit)
            };
            trials.push(trial);
        }
        match fits {
            0 => {
                let tried: Vec<String> =
                    trials.iter().map(|trial| trial.batch_size.to_string()).collect();
                Err(Error::usage(format!(
                    "scale_batch_size: no batch size fits in device memory; tried {}. Use a smaller model, more \
                     devices (strategy fsdp) or bf16-mixed precision",
                    tried.join(", ")
                )))
            }
            batch_size => Ok(BatchSizes { batch_size, trials }),
        }
    }

    fn try_batch_size<M: TrainingModule>(
        &self,
        module: &M,
        loader: &DataLoader,
        choices: &Choices,
        finder: &BatchSizeFinder,
    ) -> Result<Trial> {
        let session = &self.session;
        let config = choices.for_mesh(session.runtime.mesh().clone(), session.config()?.replicas);
        let traced = trace_fit(module, &config, choices.options.seed, loader, &None.into())?;
        let available = finder.memory_limit.or_else(|| available_bytes(&session.runtime));
        let mut needs = None;
        let mut refused = false;
        // The step of the phase that trains the most decides for all phases.
        for function in traced.program.largest().functions() {
            match session.runtime.compile(function) {
                Ok(program) => needs = needs.max(needed_bytes(program.executable())),
                Err(error) if error.is_out_of_memory() => refused = true,
                Err(error) => return Err(error),
            }
        }
        refused |= needs.zip(available).is_some_and(|(needs, available)| needs > available);
        if let Some(process_group) = &session.process_group {
            refused = process_group.any("scale_batch_size", refused)?;
        }
        let trial =
            |verdict| Trial { batch_size: loader.batch_size(), needed_bytes: needs, verdict };
        if refused {
            return Ok(trial(Verdict::RefusedByCompiler));
        }
        match run_short_fit(self, module, loader, choices.clone(), Vec::new(), &None.into()) {
            Ok(summary) => match summary.signal {
                Some(signal) => Err(error::interrupted("finding a batch size", signal)),
                None => Ok(trial(Verdict::Fits)),
            },
            Err(error) if error.is_out_of_memory() && session.process_group.is_none() => {
                Ok(trial(Verdict::OutOfMemory))
            }
            Err(error) => Err(error),
        }
    }
}
