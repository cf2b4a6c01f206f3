//! The order in which an epoch reads the samples.
//!
//! Out of scope: batches. A sampler does not know the batch size or the workers, so they cannot
//! change the order.

pub(crate) mod mix;

use crate::Replica;
use crate::dataset::random::{Purpose, permutation};

pub use mix::{MixSampler, WeightedRandomSampler};

/// Decides which samples an epoch reads, and in which order.
///
/// ```
/// use fulmen_data::{DataLoader, Replica, Sampler, TensorDataset};
///
/// /// Every second sample, from the back.
/// struct Backwards;
///
/// impl Sampler for Backwards {
///     fn num_samples(&self, len: usize, _: Replica) -> usize {
///         len.div_ceil(2)
///     }
///     fn order(&self, _epoch: u64, len: usize, _: Replica) -> Vec<usize> {
///         (0..len).rev().step_by(2).collect()
///     }
/// }
///
/// let data = TensorDataset::builder().array("x", [5], [0u8, 1, 2, 3, 4]).build()?;
/// let loader = DataLoader::builder(data).batch_size(3).sampler(Backwards).build()?;
/// let batch = loader.epoch(0).next().ok_or("no batch")??;
/// assert_eq!(batch.values::<u8>(0)?, [4, 2, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Several processes
///
/// The order covers the whole epoch and is the same in every process; the loader gives each process
/// its rows of each batch. A sampler that divides the samples itself must declare that it is
/// [presharded](Sampler::is_presharded). [`order`](Sampler::order) then returns only the samples
/// that this process reads, and the loader does not divide them further. A sampler whose order
/// differs between ranks without this declaration is rejected.
///
/// ```
/// use fulmen_data::{DataLoader, Replica, Replicas, Sampler, TensorDataset};
///
/// /// Every process reads every `num_replicas`-th sample, as it would from a file of its own.
/// struct Strided;
///
/// impl Sampler for Strided {
///     fn is_presharded(&self) -> bool {
///         true
///     }
///     fn num_samples(&self, len: usize, replica: Replica) -> usize {
///         // The same for all replicas: what is left over is not read.
///         len / replica.num_replicas
///     }
///     fn order(&self, _epoch: u64, len: usize, replica: Replica) -> Vec<usize> {
///         (0..self.num_samples(len, replica)).map(|i| i * replica.num_replicas + replica.rank).collect()
///     }
/// }
///
/// let data = TensorDataset::builder().array("x", [9], (0..9).collect::<Vec<u8>>()).build()?;
/// let loader = DataLoader::builder(data).batch_size(4).sampler(Strided).build()?;
/// let second = loader.distributed(Replicas { devices: 2, num_processes: 2, process_index: 1 })?;
/// let read: Vec<Vec<u8>> =
///     second.epoch(0).map(|batch| Ok(batch?.values(0)?.to_vec())).collect::<fulmen_data::Result<_>>()?;
/// assert_eq!(read, [[1, 3], [5, 7]]);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
pub trait Sampler: Send + Sync + 'static {
    /// The indices that epoch `epoch` reads from a dataset of `len` samples:
    /// [`num_samples`](Sampler::num_samples) of them, each below `len`. It must be the same for the
    /// same arguments, or a run cannot be resumed. Unless the sampler [is
    /// presharded](Sampler::is_presharded), it must also be the same for every replica.
    fn order(&self, epoch: u64, len: usize, replica: Replica) -> Vec<usize>;

    /// How many samples an epoch reads from a dataset of `len` samples; all by default. It must be
    /// the same for every replica, because all of them take the same number of steps.
    fn num_samples(&self, len: usize, _replica: Replica) -> usize {
        len
    }

    /// Whether [`order`](Sampler::order) and [`num_samples`](Sampler::num_samples) describe one
    /// replica's own samples instead of the whole epoch; false by default.
    fn is_presharded(&self) -> bool {
        false
    }

    /// A short description of the sampler with everything its order depends on, such as a seed.
    /// Processes compare their descriptions before they train together, and a run that resumes in
    /// the middle of an epoch compares its description with the checkpoint's. The default is the
    /// name of the type.
    fn describe(&self) -> String {
        std::any::type_name::<Self>().to_owned()
    }
}

/// Reads the samples in the order of the dataset.
#[derive(Clone, Copy, Debug, Default)]
pub struct SequentialSampler;

impl Sampler for SequentialSampler {
    fn order(&self, _epoch: u64, len: usize, _: Replica) -> Vec<usize> {
        (0..len).collect()
    }

    fn describe(&self) -> String {
        "SequentialSampler".to_owned()
    }
}

/// Reads every sample once, in a new order in each epoch.
///
/// The order depends only on the seed, the epoch and the number of samples. It is the same on every
/// machine and in every process, and stays the same in later releases.
///
/// ```
/// use fulmen_data::{RandomSampler, Replica, Sampler};
///
/// let order = |seed, epoch| RandomSampler::new(seed).order(epoch, 100, Replica::ONLY);
/// assert_eq!(order(7, 0), order(7, 0));
/// assert_ne!(order(7, 0), order(7, 1));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RandomSampler {
    seed: u64,
}

impl RandomSampler {
    /// A sampler with this seed.
    pub fn new(seed: u64) -> RandomSampler {
        RandomSampler { seed }
    }
}

impl Sampler for RandomSampler {
    fn order(&self, epoch: u64, len: usize, _: Replica) -> Vec<usize> {
        permutation(Purpose::Epoch, self.seed, epoch, len)
    }

    fn describe(&self) -> String {
        format!("RandomSampler(seed {})", self.seed)
    }
}
