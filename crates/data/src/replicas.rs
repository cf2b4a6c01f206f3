//! Who shares a global batch: how many devices and processes there are, and which part of the batch is whose.
//!
//! Not here: the order of the samples (`sampler`), and the devices themselves.

use std::ops::Range;

use crate::{Error, Result};

/// More devices than this are a mistake: no machine has them.
const MOST_DEVICES: usize = 1 << 20;

/// The devices and processes that share each batch of a [`DataLoader`](crate::DataLoader); one of each by default.
///
/// Every process feeds the same number of devices. Of each batch, the process with index `r` reads the rows from
/// `r · batch_size / num_processes` on, up to those of the next process.
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
    /// The parts that the batch axis is split into: the devices of all processes together, or, on a mesh with further
    /// axes, the size of the axis that splits the batch.
    pub devices: usize,
    /// How many processes there are.
    pub num_processes: usize,
    /// Which of them this is, from 0.
    pub process_index: usize,
}

impl Default for Replicas {
    fn default() -> Replicas {
        Replicas { devices: 1, num_processes: 1, process_index: 0 }
    }
}

impl Replicas {
    /// Checks the three numbers against each other.
    pub(crate) fn check(self) -> Result<Replicas> {
        let Replicas { devices, num_processes, process_index } = self;
        if devices == 0 || num_processes == 0 {
            return Err(Error::usage(format!(
                "a loader for {devices} devices of {num_processes} processes; there must be at least one of each"
            )));
        }
        if devices > MOST_DEVICES {
            return Err(Error::usage(format!("a loader for {devices} devices; at most {MOST_DEVICES} are possible")));
        }
        if process_index >= num_processes {
            return Err(Error::usage(format!(
                "there is no process {process_index}; with {num_processes} the last one is {}",
                num_processes - 1
            )));
        }
        if devices % num_processes != 0 {
            return Err(Error::usage(format!(
                "{devices} devices cannot be the same number in each of {num_processes} processes; give the devices of \
                 all processes together"
            )));
        }
        Ok(self)
    }

    /// Checks that each device gets as many rows as every other.
    pub(crate) fn check_batch_size(&self, batch_size: usize) -> Result<()> {
        let devices = self.devices;
        if batch_size % devices == 0 {
            return Ok(());
        }
        let below = batch_size / devices * devices;
        let fitting = match (below, below.checked_add(devices)) {
            (0, _) => format!("the smallest that does is {devices}"),
            (_, None) => format!("the nearest that does is {below}"),
            (_, Some(above)) => format!("the nearest that do are {below} and {above}"),
        };
        Err(Error::usage(format!(
            "a batch size of {batch_size} cannot be shared equally by {devices} devices; {fitting}. The batch size is \
             that of all devices together; per_device_batch_size gives it for one"
        )))
    }

    /// Which rows of a batch are this process's.
    pub(crate) fn local_rows(&self, batch_size: usize) -> Range<usize> {
        let rows = batch_size / self.num_processes;
        self.process_index * rows..(self.process_index + 1) * rows
    }

    /// What the sampler of this process is told.
    pub(crate) fn replica(&self) -> Replica {
        Replica { num_replicas: self.num_processes, rank: self.process_index }
    }
}

/// For whom a [`Sampler`](crate::Sampler) is asked: one of several processes that read the same dataset.
///
/// The names are those of PyTorch's `DistributedSampler`. A process that feeds eight devices is one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Replica {
    /// How many there are.
    pub num_replicas: usize,
    /// Which of them this is, from 0.
    pub rank: usize,
}

impl Replica {
    /// The only one.
    pub const ONLY: Replica = Replica { num_replicas: 1, rank: 0 };

    /// All `num_replicas` of them.
    pub(crate) fn all(num_replicas: usize) -> impl Iterator<Item = Replica> {
        (0..num_replicas).map(move |rank| Replica { num_replicas, rank })
    }
}

impl Default for Replica {
    fn default() -> Replica {
        Replica::ONLY
    }
}
