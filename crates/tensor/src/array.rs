//! [`DeviceArray`]: a value in device memory, replicated on the devices of a runtime or split over
//! them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use fulmen_pjrt::{Buffer, Device, HostBuffer, PendingRead};

use crate::axis_order::{AxisOrder, transpose_elements};
use crate::sharding::Block;
use crate::{DType, Error, Mesh, Metrics, Result, Sharding, TensorType};

/// The devices that a runtime computes on, as a mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceSet {
    pub(crate) mesh: Mesh,
    /// All devices, including those of other processes, in the order of the mesh.
    pub(crate) devices: Vec<Device>,
    /// The indices of this process's devices in `devices`.
    pub(crate) local: Vec<usize>,
}

/// What a program knows about an array before it runs: its type, and how it is split over the
/// devices. The results of all calls of a program share it, since a step makes many arrays.
pub(crate) struct ShardedType {
    /// Dtype and shape of the whole value.
    pub(crate) ty: TensorType,
    pub(crate) sharding: Sharding,
    pub(crate) device_set: Arc<DeviceSet>,
    /// Counts the buffers.
    pub(crate) metrics: Arc<Metrics>,
}

impl ShardedType {
    /// Whether both are on the same devices, in the same order.
    pub(crate) fn has_devices_of(&self, other: &ShardedType) -> bool {
        Arc::ptr_eq(&self.device_set, &other.device_set) || self.device_set == other.device_set
    }
}

/// A value in the memory of a runtime's devices, like JAX's `Array`: its type, its sharding, and
/// one buffer for each device of this process.
pub struct DeviceArray {
    sharded_type: Arc<ShardedType>,
    shards: Vec<Buffer>,
}

impl DeviceArray {
    /// `shards` has one buffer for each local device, with the shape that the sharding gives it.
    pub(crate) fn new(sharded_type: Arc<ShardedType>, shards: Vec<Buffer>) -> DeviceArray {
        sharded_type.metrics.count_created_handles(shards.len());
        DeviceArray { sharded_type, shards }
    }

    pub(crate) fn sharded_type(&self) -> &Arc<ShardedType> {
        &self.sharded_type
    }

    /// Dtype and shape of the whole value.
    pub fn ty(&self) -> &TensorType {
        &self.sharded_type.ty
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.ty().dtype
    }

    /// How the value is split over the devices.
    pub fn sharding(&self) -> &Sharding {
        &self.sharded_type.sharding
    }

    /// The mesh that the value is split over.
    pub fn mesh(&self) -> &Mesh {
        &self.device_set().mesh
    }

    /// The parts on this process's devices, one buffer per device, in the order of
    /// [`Runtime::devices`](crate::Runtime::devices).
    pub fn shards(&self) -> &[Buffer] {
        &self.shards
    }

    /// The block of the whole value that each of [`DeviceArray::shards`] holds.
    pub fn blocks(&self) -> Vec<Block> {
        let block =
            |&position: &usize| self.sharding().block(self.mesh(), &self.ty().shape, position);
        self.device_set().local.iter().map(block).collect()
    }

    /// The parts of each value that `process` should save, so that all processes together save each
    /// part once. If several processes hold a part, one of them is chosen, so that all save about
    /// the same number of bytes. All processes compute the same choice for the same values. With
    /// `None`, there is only one process.
    pub fn own_parts<'a>(
        arrays: &[&'a DeviceArray],
        process: Option<usize>,
    ) -> Vec<Vec<DevicePart<'a>>> {
        let mut parts = Vec::new();
        for (value, array) in arrays.iter().enumerate() {
            let DeviceSet { mesh, devices, local } = array.device_set();
            let mut parts_by_start = BTreeMap::new();
            for (position, device) in devices.iter().enumerate() {
                let block = array.sharding().block(mesh, &array.ty().shape, position);
                let (_, holders, shard) = parts_by_start
                    .entry(block.start.clone())
                    .or_insert_with(|| (block, BTreeSet::new(), None));
                holders.insert(device.process_index() as usize);
                *shard = shard.or_else(|| local.iter().position(|&index| index == position));
            }
            parts.extend(
                parts_by_start
                    .into_values()
                    .map(|(block, holders, shard)| (value, block, holders, shard)),
            );
        }
        let width = |value: usize| arrays[value].dtype().size_in_bytes();
        let bytes =
            |value: usize, block: &Block| block.size.iter().product::<usize>() * width(value);
        let savers = choose_savers(
            parts.iter().map(|(value, block, holders, _)| (bytes(*value, block), holders)),
        );
        let mut own: Vec<_> = arrays.iter().map(|_| Vec::new()).collect();
        for ((value, block, _, shard), saver) in parts.into_iter().zip(savers) {
            if let Some(shard) = shard.filter(|_| process.is_none_or(|process| process == saver)) {
                own[value].push(arrays[value].part(block, shard));
            }
        }
        own
    }

    /// The part in one of the buffers.
    fn part(&self, block: Block, shard: usize) -> DevicePart<'_> {
        DevicePart { block, buffer: &self.shards[shard], order: self.sharding().order() }
    }

    /// The parts of the value, each once: from the first device that holds it.
    pub(crate) fn distinct_parts(&self) -> Vec<DevicePart<'_>> {
        let mut parts = BTreeMap::new();
        for (shard, block) in self.blocks().into_iter().enumerate() {
            parts.entry(block.start.clone()).or_insert_with(|| self.part(block, shard));
        }
        parts.into_values().collect()
    }

    /// Waits until the value is ready on every device of this process (JAX's `block_until_ready`).
    ///
    /// # Errors
    /// The computation or the copy of the value failed.
    pub fn block_until_ready(&self) -> Result<()> {
        for shard in &self.shards {
            let result = shard.ready().and_then(|event| event.wait());
            result.map_err(|e| Error::runtime(format!("waiting for {self:?}"), e))?;
        }
        Ok(())
    }

    /// Whether this process holds every part of the value.
    pub(crate) fn is_readable(&self) -> bool {
        let parts = self.distinct_parts();
        let elements: usize =
            parts.iter().map(|part| part.block.size.iter().product::<usize>()).sum();
        elements == self.ty().shape.num_elements()
    }

    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.sharded_type.metrics
    }

    pub(crate) fn device_set(&self) -> &DeviceSet {
        &self.sharded_type.device_set
    }

    pub(crate) fn into_shards(mut self) -> Vec<Buffer> {
        let shards = std::mem::take(&mut self.shards);
        self.sharded_type.metrics.count_destroyed_handles(shards.len());
        shards
    }
}

impl Drop for DeviceArray {
    fn drop(&mut self) {
        self.sharded_type.metrics.count_destroyed_handles(self.shards.len());
    }
}

/// A part of a value, in the memory of one device.
pub struct DevicePart<'a> {
    /// Where the part is in the whole value.
    pub block: Block,
    buffer: &'a Buffer,
    order: Option<&'a AxisOrder>,
}

impl DevicePart<'_> {
    /// Starts to copy the part to the host.
    pub(crate) fn read(&self) -> fulmen_pjrt::Result<PendingPart> {
        Ok(PendingPart {
            block: self.block.clone(),
            order: self.order.cloned(),
            read: self.buffer.read()?,
        })
    }
}

/// A part of a value in transfer to the host.
pub(crate) struct PendingPart {
    pub(crate) block: Block,
    order: Option<AxisOrder>,
    read: PendingRead,
}

impl PendingPart {
    pub(crate) fn is_ready(&self) -> bool {
        self.read.is_ready().unwrap_or(true)
    }

    /// Waits for the elements, and puts them into the value's own order of axes.
    pub(crate) fn wait(self) -> fulmen_pjrt::Result<HostBuffer> {
        let elements = self.read.wait()?;
        let count = self.block.size.iter().product::<usize>();
        let Some(order) = self.order.filter(|_| count > 0) else { return Ok(elements) };
        let mut result = HostBuffer::zeroed(elements.len())?;
        let size = elements.len() / count;
        let dims = order.reorder(&self.block.size);
        transpose_elements(&elements, size, &dims, &order.positions(), &mut result);
        Ok(result)
    }
}

impl fmt::Debug for DeviceArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceArray({}, {} on {})", self.ty(), self.sharding(), self.mesh())
    }
}

/// Chooses the process that saves each part, from the part's bytes and the processes that hold it.
/// Goes through the parts from the largest to the smallest, and chooses the holder with the fewest
/// bytes so far.
fn choose_savers<'a>(parts: impl Iterator<Item = (usize, &'a BTreeSet<usize>)>) -> Vec<usize> {
    let parts: Vec<_> = parts.collect();
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|&part| Reverse(parts[part].0));
    let mut savers = vec![0; parts.len()];
    let mut saved_bytes: BTreeMap<usize, usize> = BTreeMap::new();
    for part in order {
        let (bytes, holders) = parts[part];
        let saver = holders.iter().min_by_key(|&process| {
            (saved_bytes.get(process).copied().unwrap_or_default(), process)
        });
        if let Some(&saver) = saver {
            *saved_bytes.entry(saver).or_default() += bytes;
            savers[part] = saver;
        }
    }
    savers
}

/// The value that a call passes for one parameter.
#[derive(Debug)]
pub enum Argument<'a> {
    /// Gives the value's memory to the program.
    Donate(DeviceArray),
    /// Lends the value to the program, which does not change it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_several_processes_have_are_spread_by_their_bytes() {
        let savers = |parts: &[(usize, &[usize])]| {
            let sets: Vec<(usize, BTreeSet<usize>)> = parts
                .iter()
                .map(|(bytes, holders)| (*bytes, holders.iter().copied().collect()))
                .collect();
            choose_savers(sets.iter().map(|(bytes, holders)| (*bytes, holders)))
        };
        let shared: &[usize] = &[0, 1];
        assert_eq!(savers(&[(8, shared), (4, shared), (4, shared), (0, shared)]), [0, 1, 1, 0]);
        // A part that only one process holds counts too, at any position.
        assert_eq!(savers(&[(4, shared), (4, shared), (8, &[0])]), [1, 1, 0]);
        assert_eq!(savers(&[(1, &[5]), (1, &[3, 5]), (1, &[3, 5])]), [5, 3, 3]);
        // With many parts, no process saves more than its share and one part.
        let all: Vec<usize> = (0..7).collect();
        let parts: Vec<(usize, &[usize])> =
            (0..500).map(|part| (part * 7919 % 1000, &all[..])).collect();
        let mut saved_bytes = [0; 7];
        for (saver, (bytes, _)) in savers(&parts).into_iter().zip(&parts) {
            saved_bytes[saver] += bytes;
        }
        let sum: usize = saved_bytes.iter().sum();
        assert!(saved_bytes.iter().all(|&bytes| bytes <= sum / 7 + 1000), "{saved_bytes:?}");
    }
}
