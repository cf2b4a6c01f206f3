//! [`BatchSizeFinder`]: the largest batch size whose step has room on the devices. The compiler is asked first, so that most
//! sizes that are too large are never run.

use fulmen_data::DataLoader;
use fulmen_pjrt::Executable;
use fulmen_tensor::Runtime;

use super::{attempt, short};
use crate::program::trace_fit::trace_fit;
use crate::step_config::Choices;
use crate::{Error, Result, Trainer, TrainingModule, host_memory};

/// How the next batch size is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BatchSizeMode {
    /// Twice the size, until one has no room.
    #[default]
    Power,
    /// Twice the size, until one has no room; then the middle between the largest that has and the least that has not.
    Binsearch,
}

/// Looks for the largest batch size that there is room for: Lightning's `scale_batch_size`, with its arguments and defaults.
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
        BatchSizeFinder { mode, steps_per_trial: 3, init_val: 2, max_trials: 25, memory_limit: None }
    }
}

impl BatchSizeFinder {
    /// Begins with a batch of 2, and doubles it.
    pub fn new() -> BatchSizeFinder {
        BatchSizeFinder::default()
    }

    /// How the next batch size is chosen.
    pub fn mode(mut self, mode: BatchSizeMode) -> BatchSizeFinder {
        self.mode = mode;
        self
    }

    /// Optimizer steps that are run with a size that the compiler has room for.
    pub fn steps_per_trial(mut self, steps: u64) -> BatchSizeFinder {
        self.steps_per_trial = steps;
        self
    }

    /// The first batch size, of all devices together; it is raised to the next that the devices divide.
    pub fn init_val(mut self, batch_size: usize) -> BatchSizeFinder {
        self.init_val = batch_size;
        self
    }

    /// How many sizes are tried.
    pub fn max_trials(mut self, trials: usize) -> BatchSizeFinder {
        self.max_trials = trials;
        self
    }

    /// Bytes that a step may take on each device; without it all that a device has. On a CPU that is the memory that is
    /// available when a size is tried, shared by its devices.
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
            Some((name, _)) => Err(Error::usage(format!("BatchSizeFinder: {name} must be at least 1, it is 0"))),
            None => Ok(()),
        }
    }

    /// The size to try after one, where `fits` is the largest that has room and `fails` the least that has not; sizes are
    /// multiples of `unit`.
    fn next(&self, tried: usize, fits: usize, fails: Option<usize>, unit: usize) -> Option<usize> {
        match fails {
            None => tried.checked_mul(2),
            Some(_) if self.mode == BatchSizeMode::Power && fits > 0 => None,
            Some(fails) => Some((fits + fails) / 2 / unit * unit).filter(|&middle| middle > fits),
        }
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchSizes {
    /// The largest batch size that was tried and has room, of all devices together.
    pub batch_size: usize,
    /// The sizes that were tried, in that order.
    pub trials: Vec<Trial>,
}

/// A batch size that was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// The batch size, of all devices together.
    pub batch_size: usize,
    /// Bytes that the step takes on each device by the compiler's count, where it tells.
    pub needed_bytes: Option<u64>,
    /// Whether it has room.
    pub verdict: Verdict,
}

/// Whether a batch size has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It ran.
    Fits,
    /// The compiler says that it has no room; it was not run.
    RefusedByCompiler,
    /// It ran out of memory.
    OutOfMemory,
}

/// Bytes that a program takes on each device.
fn needed(program: &Executable) -> Option<u64> {
    u64::try_from(program.memory_analysis().ok()?.total_bytes()).ok()
}

/// Bytes that a program can take on each device of this process.
fn available(runtime: &Runtime) -> Option<u64> {
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
    /// Looks for the largest batch size that there is room for. For each size that is tried, the training step is compiled;
    /// if the compiler finds room for it, some steps are run. `loader` makes the training loader of a batch size. The search
    /// ends too where an epoch is one batch. The module has its values back afterwards, and nothing is logged, validated
    /// or saved.
    ///
    /// Of several processes, all come to the same size by the compilers' words; a step that then runs out of memory in one
    /// of them is an error in all.
    ///
    /// # Errors
    /// An argument of the finder that cannot be, by its name; no size that has room; a loader of another batch size than it
    /// was asked for; those of [`Trainer::fit`]; a signal.
    pub fn scale_batch_size<M: TrainingModule>(
        &mut self,
        module: &M,
        mut loader: impl FnMut(usize) -> fulmen_data::Result<DataLoader>,
        finder: &BatchSizeFinder,
    ) -> Result<BatchSizes> {
        finder.check()?;
        let unit = self.session.setting()?.replicas.devices.max(1);
        let choices = short(&self.session.choices, finder.steps_per_trial);
        let (mut fits, mut fails, mut trials) = (0, None, vec![]);
        let mut next = Some(finder.init_val.next_multiple_of(unit));
        while let Some(size) = next.filter(|_| trials.len() < finder.max_trials) {
            let loader = loader(size)?;
            if loader.batch_size() != size {
                return Err(Error::usage(format!(
                    "scale_batch_size: the loader for a batch size of {size} has one of {}",
                    loader.batch_size()
                )));
            }
            let trial = self.try_batch_size(module, &loader, &choices, finder)?;
            match trial.verdict {
                Verdict::Fits => fits = size,
                Verdict::RefusedByCompiler | Verdict::OutOfMemory => fails = Some(size),
            }
            next = if fits == size && loader.len() == 1 { None } else { finder.next(size, fits, fails, unit) };
            trials.push(trial);
        }
        match fits {
            0 => {
                let tried: Vec<String> = trials.iter().map(|trial| trial.batch_size.to_string()).collect();
                Err(Error::usage(format!(
                    "scale_batch_size: no batch size has room on the devices; tried {}. Use a smaller model, more devices \
                     (strategy fsdp) or bf16-mixed precision",
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
        let setting = choices.on(session.runtime.mesh().clone(), session.setting()?.replicas);
        let prepared = trace_fit(module, &setting, choices.options.seed, loader, &None.into())?;
        let available = finder.memory_limit.or_else(|| available(&session.runtime));
        let (mut needs, mut refused) = (None, false);
        // A fit over all phases comes to the one that trains the most.
        for function in prepared.program.largest().functions() {
            match session.runtime.compile(function) {
                Ok(program) => needs = needs.max(needed(program.executable())),
                Err(error) if error.is_out_of_memory() => refused = true,
                Err(error) => return Err(error.into()),
            }
        }
        refused |= needs.zip(available).is_some_and(|(needs, available)| needs > available);
        if let Some(hosts) = &session.hosts {
            refused = hosts.any("scale_batch_size", refused)?;
        }
        let trial = |verdict| Trial { batch_size: loader.batch_size(), needed_bytes: needs, verdict };
        if refused {
            return Ok(trial(Verdict::RefusedByCompiler));
        }
        match attempt(self, module, loader, choices.clone(), vec![]) {
            Ok(summary) => match summary.signal {
                Some(signal) => Err(Error::interrupted("finding a batch size", signal)),
                None => Ok(trial(Verdict::Fits)),
            },
            Err(error) if error.is_out_of_memory() && session.hosts.is_none() => Ok(trial(Verdict::OutOfMemory)),
            Err(error) => Err(error),
        }
    }
}
