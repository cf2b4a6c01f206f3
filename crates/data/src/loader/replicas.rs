//! How devices and processes share a global batch.
//!
//! Out of scope: the order of the samples (`sampler`), and the transfer to the devices (`device`).

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use fulmen_durable::messages::quantity;
use fulmen_tensor::{DType, Runtime, Sharding, TensorType};

use crate::{Error, Result};

/// A larger number of devices is a mistake, because no such machine exists.
const MAX_DEVICES: usize = 1 << 20;

/// The devices and processes that share each batch of a [`DataLoader`](crate::DataLoader); one of
/// each by default.
///
/// Every process feeds the same number of devices. The process with index `r` reads the rows of
/// each batch from `r · batch_size / num_processes` up to, but not including, the first row of the
/// next process.
///
/// ```
/// use fulmen_data::{DataLoader, Replicas, TensorDataset};
///
/// let data = TensorDataset::builder().array("x", [8], (0..8).collect::<Vec<i32>>()).build()?;
/// let loader = DataLoader::builder(data).batch_size(4).build()?;
/// let second = loader.distributed(Replicas { devices: 4, num_processes: 2, process_index: 1 })?;
/// let read: Vec<Vec<i32>> =
///     second.epoch(0).map(|batch| Ok(batch?.values(0)?.to_vec())).collect::<fulmen_data::Result<_>>()?;
/// assert_eq!(read, [[2, 3], [6, 7]]);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Replicas {
    /// The number of parts into which the batch axis is split: the devices of all processes
    /// together, or, on a mesh with more axes, the size of the axis that splits the batch.
    pub devices: usize,
    /// The number of processes.
    pub num_processes: usize,
    /// The index of this process, from 0.
    pub process_index: usize,
}

impl Default for Replicas {
    fn default() -> Replicas {
        Replicas { devices: 1, num_processes: 1, process_index: 0 }
    }
}

impl Replicas {
    /// The devices and processes of a runtime, for batches whose rows are split by `sharding`.
    /// Processes that get the same rows, because the mesh splits another axis over them, count as
    /// one.
    ///
    /// ```
    /// use fulmen_data::Replicas;
    /// use fulmen_tensor::{Accelerator, Devices, Mesh, Runtime, Sharding};
    ///
    /// let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(8))?;
    /// let rows = Sharding::new([Some("data")]);
    /// assert_eq!(Replicas::from_runtime(&runtime, &rows)?, Replicas { devices: 8, ..Replicas::default() });
    /// let runtime = runtime.with_mesh(&Mesh::new([("data", 4), ("model", 2)])?)?;
    /// assert_eq!(Replicas::from_runtime(&runtime, &rows)?, Replicas { devices: 4, ..Replicas::default() });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A sharding that does not fit the mesh, or a mesh that gives a process rows from several
    /// parts of a batch.
    pub fn from_runtime(runtime: &Runtime, sharding: &Sharding) -> Result<Replicas> {
        let mesh = runtime.mesh();
        let axes = sharding.axes().first().map_or(&[][..], Vec::as_slice);
        let devices = axes.iter().filter_map(|axis| mesh.size(axis)).product();
        // A batch with one row per part shows which process has which part.
        let batch = TensorType::new(DType::U8, [devices]);
        let rows = Sharding::over([axes.iter().map(String::as_str).collect()]);
        let blocks = runtime
            .blocks(&batch, &rows)
            .map_err(|error| Error::usage(format!("a batch's rows: {error}")))?;
        let mut parts: Vec<usize> = blocks.iter().map(|block| block.start[0]).collect();
        parts.sort_unstable();
        parts.dedup();
        let (Some(&first), Some(&last)) = (parts.first(), parts.last()) else {
            return Err(Error::usage("this process has no device; batches need at least one"));
        };
        let count = parts.len();
        if last - first + 1 != count || devices % count != 0 || first % count != 0 {
            return Err(Error::usage(format!(
                "the sharding {rows} over the mesh {mesh} splits a batch into {devices} parts and gives this process \
                 {parts:?}, which are not adjacent; put the axes that split the batch first in the mesh"
            )));
        }
        Ok(Replicas { devices, num_processes: devices / count, process_index: first / count })
    }

    /// Validates the three numbers together.
    pub(crate) fn check(self) -> Result<Replicas> {
        let Replicas { devices, num_processes, process_index } = self;
        if devices == 0 || num_processes == 0 {
            return Err(Error::usage(format!(
                "a loader for {} of {}; there must be at least one of each",
                quantity(devices, "device"),
                quantity(num_processes, "process")
            )));
        }
        if devices > MAX_DEVICES {
            return Err(Error::usage(format!(
                "a loader for {devices} devices; at most {MAX_DEVICES} are possible"
            )));
        }
        if process_index >= num_processes {
            return Err(Error::usage(format!(
                "there is no process {process_index}: the last of {num_processes} processes is {}",
                num_processes - 1
            )));
        }
        if devices % num_processes != 0 {
            return Err(Error::usage(format!(
                "{devices} devices cannot be divided equally among {num_processes} processes; pass the total \
                 number of devices of all processes"
            )));
        }
        Ok(self)
    }

    /// Checks that all devices get the same number of rows.
    pub(crate) fn check_batch_size(&self, batch_size: usize) -> Result<()> {
        let devices = self.devices;
        if batch_size.is_multiple_of(devices) {
            return Ok(());
        }
        let lower = batch_size / devices * devices;
        let fitting = match (lower, lower.checked_add(devices)) {
            (0, _) => format!("the smallest that does is {devices}"),
            (_, None) => format!("the nearest that does is {lower}"),
            (_, Some(upper)) => format!("the nearest that do are {lower} and {upper}"),
        };
        Err(Error::usage(format!(
            "a batch size of {batch_size} cannot be shared equally by {devices} devices; {fitting}. The batch size is \
             that of all devices together; per_device_batch_size gives it for one"
        )))
    }

    /// This process's rows of a batch.
    pub(crate) fn local_rows(&self, batch_size: usize) -> Range<usize> {
        let rows = batch_size / self.num_processes;
        self.process_index * rows..(self.process_index + 1) * rows
    }

    /// The arguments for the sampler of this process.
    pub(crate) fn replica(&self) -> Replica {
        Replica { num_replicas: self.num_processes, rank: self.process_index }
    }
}

/// The part of each batch that this process reads, for a loader with these devices and processes.
pub(crate) struct ShardSpec {
    pub(crate) replicas: Replicas,
    /// Rows of a batch, over all processes.
    pub(crate) batch_size: usize,
    /// The number of samples in the order of an epoch: of all processes, or only of this one if the
    /// order is presharded.
    pub(crate) num_samples: usize,
    /// Whether the sampler has divided the samples among the processes.
    pub(crate) is_presharded: bool,
    /// Set once the sampler has been checked to give all ranks the same order.
    compared: AtomicBool,
}

impl ShardSpec {
    pub(crate) fn new(
        replicas: Replicas,
        batch_size: usize,
        num_samples: usize,
        is_presharded: bool,
    ) -> ShardSpec {
        ShardSpec {
            replicas,
            batch_size,
            num_samples,
            is_presharded,
            compared: AtomicBool::new(false),
        }
    }

    /// This process's rows of a batch.
    pub(crate) fn rows(&self) -> Range<usize> {
        self.replicas.local_rows(self.batch_size)
    }

    pub(crate) fn local_batch_size(&self) -> usize {
        self.rows().len()
    }

    /// The number of samples in the order from the start of one batch to the start of the next.
    pub(crate) fn stride(&self) -> usize {
        if self.is_presharded { self.local_batch_size() } else { self.batch_size }
    }

    /// This process's samples in the order, counted from the start of a batch.
    pub(crate) fn rows_of_order(&self) -> Range<usize> {
        if self.is_presharded { 0..self.local_batch_size() } else { self.rows() }
    }

    /// The number of samples in an epoch over all processes, before a short batch is dropped.
    pub(crate) fn global_samples(&self) -> usize {
        let processes = if self.is_presharded { self.replicas.num_processes } else { 1 };
        self.num_samples.saturating_mul(processes)
    }

    /// The rank whose order must equal the order of this process; returned only once.
    pub(crate) fn rank_to_compare(&self) -> Option<Replica> {
        let Replica { num_replicas, rank } = self.replicas.replica();
        let must_compare =
            !self.is_presharded && num_replicas > 1 && !self.compared.swap(true, Ordering::Relaxed);
        must_compare.then_some(Replica { num_replicas, rank: (rank + 1) % num_replicas })
    }
}

/// One of several processes that read the same dataset, as an argument for a
/// [`Sampler`](crate::Sampler).
///
/// The names are those of PyTorch's `DistributedSampler`. A process that feeds eight devices is one
/// replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Replica {
    /// The number of replicas.
    pub num_replicas: usize,
    /// The index of this one, from 0.
    pub rank: usize,
}

impl Replica {
    /// The only replica.
    pub const ONLY: Replica = Replica { num_replicas: 1, rank: 0 };

    /// All replicas, by rank.
    pub(crate) fn all(num_replicas: usize) -> impl Iterator<Item = Replica> {
        (0..num_replicas).map(move |rank| Replica { num_replicas, rank })
    }
}

impl Default for Replica {
    fn default() -> Replica {
        Replica::ONLY
    }
}
