//! [`DeviceArray`]: a value in the memory of a runtime's devices, whole on each of them or split over them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use fulmen_pjrt::{Buffer, Device};

use crate::sharding::Block;
use crate::{DType, Error, Mesh, Result, Sharding, TensorType};

/// The devices that a runtime computes on, as a mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) mesh: Mesh,
    /// All of them, those of other processes too, in the order of the mesh.
    pub(crate) devices: Vec<Device>,
    /// The positions of those that this process feeds.
    pub(crate) local: Vec<usize>,
}

/// A value in the memory of a runtime's devices: JAX's `Array`. What it is as a whole, how it is split, and one buffer a
/// device of this process.
pub struct DeviceArray {
    ty: TensorType,
    sharding: Sharding,
    places: Arc<Places>,
    shards: Vec<Buffer>,
}

impl DeviceArray {
    /// The caller has made one buffer for each local device, of the sharding's shape.
    pub(crate) fn new(ty: TensorType, sharding: Sharding, places: Arc<Places>, shards: Vec<Buffer>) -> DeviceArray {
        DeviceArray { ty, sharding, places, shards }
    }

    /// Dtype and shape of the whole value.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// How the value is split over the devices.
    pub fn sharding(&self) -> &Sharding {
        &self.sharding
    }

    /// The mesh that it is split over.
    pub fn mesh(&self) -> &Mesh {
        &self.places.mesh
    }

    /// What the devices of this process have of it, one buffer a device, in the order of
    /// [`Runtime::devices`](crate::Runtime::devices).
    pub fn shards(&self) -> &[Buffer] {
        &self.shards
    }

    /// Which part of the whole each of [`DeviceArray::shards`] is.
    pub fn blocks(&self) -> Vec<Block> {
        let block = |&position: &usize| self.sharding.block(&self.places.mesh, &self.ty.shape, position);
        self.places.local.iter().map(block).collect()
    }

    /// The parts that a process is to keep where all processes together keep each part once: those that no device before one
    /// of its own has. `None` is a process that is alone.
    pub fn own_parts(&self, process: Option<usize>) -> Vec<(Block, &Buffer)> {
        let Places { mesh, devices, local } = &*self.places;
        let (mut seen, mut own) = (BTreeSet::new(), vec![]);
        for (position, device) in devices.iter().enumerate() {
            let block = self.sharding.block(mesh, &self.ty.shape, position);
            let is_own = process.is_none_or(|process| device.process_index() as usize == process);
            let shard = local.iter().position(|&at| at == position).filter(|_| is_own);
            if seen.insert(block.start.clone()) {
                own.extend(shard.map(|shard| (block, &self.shards[shard])));
            }
        }
        own
    }

    /// Waits until the value is there on every device of this process (JAX's `block_until_ready`).
    ///
    /// # Errors
    /// What went wrong on the way there.
    pub fn block_until_ready(&self) -> Result<()> {
        for shard in &self.shards {
            let arrived = shard.ready().and_then(|event| event.wait());
            arrived.map_err(|e| Error::runtime(format!("waiting for {self:?}"), e))?;
        }
        Ok(())
    }

    /// Whether this process has all parts of it.
    pub(crate) fn is_readable(&self) -> bool {
        let parts: BTreeMap<_, usize> =
            self.blocks().into_iter().map(|block| (block.start, block.size.iter().product())).collect();
        parts.values().sum::<usize>() == self.ty.shape.num_elements()
    }

    pub(crate) fn places(&self) -> &Arc<Places> {
        &self.places
    }

    pub(crate) fn into_shards(self) -> Vec<Buffer> {
        self.shards
    }
}

impl fmt::Debug for DeviceArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceArray({}, {} on {})", self.ty, self.sharding, self.places.mesh)
    }
}

/// What a program is given for one parameter.
#[derive(Debug)]
pub enum Argument<'a> {
    /// The program may have the value's memory.
    Donate(DeviceArray),
    /// The program may look at the value, which stays as it is.
    Borrow(&'a DeviceArray),
}

impl Argument<'_> {
    pub(crate) fn array(&self) -> &DeviceArray {
        match self {
            Argument::Donate(array) => array,
            Argument::Borrow(array) => array,
        }
    }
}

impl From<DeviceArray> for Argument<'_> {
    fn from(array: DeviceArray) -> Self {
        Argument::Donate(array)
    }
}

impl<'a> From<&'a DeviceArray> for Argument<'a> {
    fn from(array: &'a DeviceArray) -> Self {
        Argument::Borrow(array)
    }
}
