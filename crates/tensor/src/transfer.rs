//! Transfers of a [`Runtime`]: copies values between host and devices, whole or in parts.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Instant;

use fulmen_pjrt::{Buffer, Client, Device, HostBuffer};
use tracing::trace_span;

use crate::array::{PendingPart, ShardedType};
use crate::axis_order::transpose_elements;
use crate::sharding::Block;
use crate::stored_value::HostElements;
use crate::{
    DeviceArray, DevicePart, Error, Literal, Metrics, Result, Runtime, Sharding, TensorType,
};

impl Runtime {
    /// Copies a value to every device.
    ///
    /// # Errors
    /// The copy fails, for example because a device is out of memory.
    pub fn to_device(&self, literal: &Literal) -> Result<DeviceArray> {
        self.to_devices(literal, &Sharding::replicated())
    }

    /// Copies to each device its part of a value.
    ///
    /// # Errors
    /// The sharding does not fit the value or the mesh, or a device is out of memory.
    pub fn to_devices(&self, literal: &Literal, sharding: &Sharding) -> Result<DeviceArray> {
        self.bytes_to_devices(literal.ty(), literal.bytes(), sharding)
    }

    pub(crate) fn bytes_to_devices(
        &self,
        ty: &TensorType,
        bytes: &[u8],
        sharding: &Sharding,
    ) -> Result<DeviceArray> {
        self.parts_to_devices(ty, sharding, |block| block.elements_of(ty, bytes))
    }

    /// Copies to each device its part of a value on the host.
    pub(crate) fn host_to_devices(
        &self,
        ty: &TensorType,
        elements: &HostElements,
        sharding: &Sharding,
    ) -> Result<DeviceArray> {
        self.parts_to_devices(ty, sharding, |block| elements.block(ty, block))
    }

    /// A value on the devices of this runtime: the same array, or a copy, through the host, if it
    /// is on others.
    pub(crate) fn array_here(
        &self,
        array: &Arc<DeviceArray>,
        sharding: &Sharding,
    ) -> Result<Arc<DeviceArray>> {
        if array.device_set() == &*self.device_set {
            return Ok(array.clone());
        }
        match self.read(&[array])?.wait()?.first() {
            Some(literal) => self.to_devices(literal, sharding).map(Arc::new),
            None => Ok(array.clone()),
        }
    }

    /// Copies to each device its part of a value. `bytes_of` returns the elements of the given
    /// block. It is called once for each block that devices of this process hold, and the elements
    /// are dropped after their last use.
    ///
    /// # Errors
    /// The sharding does not fit the value or the mesh, `bytes_of` fails, the bytes do not match
    /// their block, or a device is out of memory.
    pub fn parts_to_devices<'a>(
        &self,
        ty: &TensorType,
        sharding: &Sharding,
        mut bytes_of: impl FnMut(&Block) -> Result<Cow<'a, [u8]>>,
    ) -> Result<DeviceArray> {
        let _copy = trace_span!("copy to device").entered();
        let start = Instant::now();
        let element_type = ty.dtype.element_type();
        let size = ty.dtype.size_in_bytes();
        let mut uses: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
        for block in self.blocks(ty, sharding)? {
            *uses.entry(block.start).or_default() += 1;
        }
        let mut parts: BTreeMap<Vec<usize>, Cow<'a, [u8]>> = BTreeMap::new();
        let mut bytes_copied = 0;
        let array = self.assemble_with(ty, sharding, |device, block| {
            let bytes: &[u8] = match parts.entry(block.start.clone()) {
                Entry::Occupied(part) => part.into_mut(),
                Entry::Vacant(part) => {
                    let bytes = part.insert(bytes_of(block)?);
                    bytes_copied += bytes.len();
                    bytes
                }
            };
            let is_whole = bytes.len() == block.size.iter().product::<usize>() * size;
            let buffer = match sharding.order().filter(|_| is_whole) {
                Some(order) => {
                    let mut reordered = vec![0; bytes.len()];
                    transpose_elements(bytes, size, &block.size, order.axes(), &mut reordered);
                    let dims = order.reorder(&block.size);
                    self.client().buffer_from_host(&reordered, element_type, &dims, device)
                }
                None => self.client().buffer_from_host(bytes, element_type, &block.size, device),
            };
            if let Some(left) = uses.get_mut(&block.start) {
                *left -= 1;
                if *left == 0 {
                    parts.remove(&block.start);
                }
            }
            buffer.map_err(|e| Error::runtime(copying(ty), e))
        })?;
        self.metrics.record_time("TransferToDeviceTime", start.elapsed());
        self.metrics.record_bytes("OutboundData", bytes_copied);
        Ok(array)
    }

    /// The part of a value that each of [`Runtime::local_devices`] holds.
    ///
    /// # Errors
    /// The sharding does not fit the value or the mesh.
    pub fn blocks(&self, ty: &TensorType, sharding: &Sharding) -> Result<Vec<Block>> {
        let mesh = self.mesh();
        let sharding = self.effective_sharding(sharding);
        sharding
            .shard_shape(mesh, &ty.shape)
            .map_err(|reason| Error::usage(format!("splitting {ty}: {reason}")))?;
        Ok(self
            .device_set
            .local
            .iter()
            .map(|&position| sharding.block(mesh, &ty.shape, position))
            .collect())
    }

    /// The sharding for this mesh: replicated on one device.
    fn effective_sharding(&self, sharding: &Sharding) -> Sharding {
        if self.mesh().num_devices() > 1 { sharding.clone() } else { sharding.on_one_device() }
    }

    /// Assembles a value from parts. `make` is called for each device of this process, and returns
    /// the buffer of the given block, with its axes in the order of the sharding. Use this in code
    /// that has the parts in its own memory, such as a loader.
    ///
    /// # Errors
    /// The sharding does not fit the value or the mesh, `make` fails, or a buffer does not match
    /// its block.
    pub fn assemble(
        &self,
        ty: &TensorType,
        sharding: &Sharding,
        mut make: impl FnMut(&Client, &Device, &Block) -> fulmen_pjrt::Result<Buffer>,
    ) -> Result<DeviceArray> {
        self.assemble_with(ty, sharding, |device, block| {
            make(self.client(), device, block).map_err(|e| Error::runtime(copying(ty), e))
        })
    }

    fn assemble_with(
        &self,
        ty: &TensorType,
        sharding: &Sharding,
        mut make: impl FnMut(&Device, &Block) -> Result<Buffer>,
    ) -> Result<DeviceArray> {
        let blocks = self.blocks(ty, sharding)?;
        let mut shards = Vec::with_capacity(blocks.len());
        for (device, block) in self.local_devices().zip(&blocks) {
            let buffer = make(device, block)?;
            let dims = sharding.order().map(|order| order.reorder(&block.size));
            if buffer.dims() != dims.as_ref().unwrap_or(&block.size)
                || buffer.element_type() != ty.dtype.element_type()
                || buffer.device() != device
            {
                return Err(Error::usage(format!(
                    "{}: the part for {device} must be {}{:?} on this device, but is {buffer:?}",
                    copying(ty),
                    ty.dtype,
                    block.size
                )));
            }
            shards.push(buffer);
        }
        let sharded_type = ShardedType {
            ty: ty.clone(),
            sharding: self.effective_sharding(sharding),
            device_set: self.device_set.clone(),
            metrics: self.metrics.clone(),
        };
        Ok(DeviceArray::new(Arc::new(sharded_type), shards))
    }

    /// Copies parts of values to the host in one transfer, and waits for them.
    ///
    /// # Errors
    /// A program failed on the device, or the host is out of memory.
    pub fn read_parts(&self, parts: &[&DevicePart<'_>]) -> Result<Vec<HostBuffer>> {
        let _copy = trace_span!("copy from device").entered();
        let start = Instant::now();
        let failed = |e| Error::runtime("copying a value to the host", e);
        let reads =
            parts.iter().map(|part| part.read().map_err(failed)).collect::<Result<Vec<_>>>()?;
        let read = reads
            .into_iter()
            .map(|read| read.wait().map_err(failed))
            .collect::<Result<Vec<_>>>()?;
        self.metrics.record_time("TransferFromDeviceTime", start.elapsed());
        self.metrics.record_bytes("InboundData", read.iter().map(|part| part.len()).sum());
        Ok(read)
    }

    /// Starts to copy values to the host in one transfer, and does not wait for them.
    ///
    /// # Errors
    /// This process does not hold all parts of a value.
    pub fn read(&self, arrays: &[&DeviceArray]) -> Result<PendingLiterals> {
        PendingLiterals::start(arrays, &self.metrics)
    }
}

fn copying(ty: &TensorType) -> String {
    format!("copying {ty} to the device")
}

/// One value in transfer, as its distinct parts.
struct PendingLiteral {
    ty: TensorType,
    parts: Vec<PendingPart>,
}

impl PendingLiteral {
    fn start(array: &DeviceArray) -> Result<PendingLiteral> {
        if !array.is_readable() {
            return Err(Error::usage(format!(
                "{array:?} cannot be read: this process holds only a part of it; compute it replicated first"
            )));
        }
        let failed = |e| Error::runtime("copying a value to the host", e);
        let parts = array
            .distinct_parts()
            .iter()
            .map(|part| part.read().map_err(failed))
            .collect::<Result<_>>()?;
        Ok(PendingLiteral { ty: array.ty().clone(), parts })
    }

    fn wait(self) -> Result<Literal> {
        let ty = self.ty;
        let doing = |e| Error::runtime(format!("copying {ty} to the host"), e);
        let mut parts = self.parts;
        if let [part] = &parts[..]
            && part.block.size[..] == ty.shape[..]
        {
            let Some(part) = parts.pop() else {
                return Err(Error::usage("a value has no parts"));
            };
            return Ok(Literal::from_host_buffer(ty.clone(), part.wait().map_err(doing)?));
        }
        let size = ty.dtype.size_in_bytes();
        let mut whole = vec![0; ty.size_in_bytes()];
        for part in parts {
            let block = part.block.clone();
            let part = part.wait().map_err(doing)?;
            block.contiguous_runs(&ty.shape, |offset, part_offset, length| {
                whole[offset * size..][..length * size]
                    .copy_from_slice(&part[part_offset * size..][..length * size]);
            });
        }
        Literal::from_bytes(ty.clone(), &whole)
    }
}

/// Values in transfer to the host. Dropping this waits until the device no longer uses the host's
/// memory.
pub struct PendingLiterals {
    reads: Vec<PendingLiteral>,
    start: Instant,
    metrics: Arc<Metrics>,
}

impl PendingLiterals {
    pub(crate) fn start(
        arrays: &[&DeviceArray],
        metrics: &Arc<Metrics>,
    ) -> Result<PendingLiterals> {
        let start = Instant::now();
        let reads =
            arrays.iter().map(|array| PendingLiteral::start(array)).collect::<Result<Vec<_>>>()?;
        Ok(PendingLiterals { reads, start, metrics: metrics.clone() })
    }

    /// Whether all transfers have ended or failed, so that [`PendingLiterals::wait`] returns at
    /// once.
    pub fn is_ready(&self) -> bool {
        self.reads.iter().flat_map(|read| &read.parts).all(PendingPart::is_ready)
    }

    /// Waits for the values.
    ///
    /// # Errors
    /// A program failed on the device.
    pub fn wait(self) -> Result<Vec<Literal>> {
        let _wait = trace_span!("wait for values").entered();
        let bytes = self.reads.iter().map(|read| read.ty.size_in_bytes()).sum();
        let literals =
            self.reads.into_iter().map(PendingLiteral::wait).collect::<Result<Vec<_>>>()?;
        self.metrics.record_time("TransferFromDeviceTime", self.start.elapsed());
        self.metrics.record_bytes("InboundData", bytes);
        Ok(literals)
    }
}
