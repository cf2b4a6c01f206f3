//! Transfers of a [`Runtime`]: copies values between host and devices, whole or in parts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use fulmen_pjrt::{Buffer, Client, Device, HostBuffer, PendingRead};

use crate::sharding::Block;
use crate::timeline::span;
use crate::{DeviceArray, Error, Literal, Metrics, Result, Runtime, Sharding, TensorType};

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
        let (_copy, start) = (span("copy to device"), Instant::now());
        let (element_type, size) = (ty.dtype.element_type(), ty.dtype.size_in_bytes());
        let array = self.assemble(ty, sharding, |client, device, block| {
            if block.size[..] == ty.shape[..] {
                return client.buffer_from_host(bytes, element_type, &block.size, device);
            }
            let mut part = vec![0; block.size.iter().product::<usize>() * size];
            block.contiguous_runs(&ty.shape, |offset, part_offset, length| {
                part[part_offset * size..][..length * size]
                    .copy_from_slice(&bytes[offset * size..][..length * size]);
            });
            client.buffer_from_host(&part, element_type, &block.size, device)
        })?;
        self.metrics.record_time("TransferToDeviceTime", start.elapsed());
        self.metrics.record_bytes("OutboundData", bytes.len());
        Ok(array)
    }

    /// The part of a value that each of [`Runtime::local_devices`] holds.
    ///
    /// # Errors
    /// The sharding does not fit the value or the mesh.
    pub fn blocks(&self, ty: &TensorType, sharding: &Sharding) -> Result<Vec<Block>> {
        let (mesh, sharding) = (self.mesh(), self.effective_sharding(sharding));
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
        if self.mesh().num_devices() > 1 { sharding.clone() } else { Sharding::replicated() }
    }

    /// Assembles a value from parts. `make` is called for each device of this process, and returns
    /// the buffer of the given block. Use this in code that has the parts in its own memory, such
    /// as a loader.
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
        let doing = || format!("copying {ty} to the device");
        let blocks = self.blocks(ty, sharding)?;
        let mut shards = Vec::with_capacity(blocks.len());
        for (device, block) in self.local_devices().zip(&blocks) {
            let buffer =
                make(self.client(), device, block).map_err(|e| Error::runtime(doing(), e))?;
            if buffer.dims() != block.size
                || buffer.element_type() != ty.dtype.element_type()
                || buffer.device() != device
            {
                return Err(Error::usage(format!(
                    "{}: the part for {device} must be {}{:?} on this device, but is {buffer:?}",
                    doing(),
                    ty.dtype,
                    block.size
                )));
            }
            shards.push(buffer);
        }
        let (sharding, device_set) = (self.effective_sharding(sharding), self.device_set.clone());
        Ok(DeviceArray::new(ty.clone(), sharding, device_set, shards, &self.metrics))
    }

    /// Copies parts of values to the host in one transfer, and waits for them.
    ///
    /// # Errors
    /// A program failed on the device, or the host is out of memory.
    pub fn read_parts(&self, parts: &[&Buffer]) -> Result<Vec<HostBuffer>> {
        let (_copy, start) = (span("copy from device"), Instant::now());
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
        let start = Instant::now();
        let reads =
            arrays.iter().map(|array| PendingLiteral::start(array)).collect::<Result<Vec<_>>>()?;
        Ok(PendingLiterals { reads, start, metrics: self.metrics.clone() })
    }
}

/// One value in transfer, as its distinct parts.
struct PendingLiteral {
    ty: TensorType,
    parts: Vec<(Block, PendingRead)>,
}

impl PendingLiteral {
    fn start(array: &DeviceArray) -> Result<PendingLiteral> {
        // Read each part once, from the first device that holds it.
        let mut parts: BTreeMap<Vec<usize>, (Block, &Buffer)> = BTreeMap::new();
        for (block, shard) in array.blocks().into_iter().zip(array.shards()) {
            parts.entry(block.start.clone()).or_insert((block, shard));
        }
        let elements: usize =
            parts.values().map(|(block, _)| block.size.iter().product::<usize>()).sum();
        if elements != array.ty().shape.num_elements() {
            return Err(Error::usage(format!(
                "{array:?} cannot be read: this process holds only a part of it; compute it replicated first"
            )));
        }
        let parts = parts
            .into_values()
            .map(|(block, buffer)| {
                let read =
                    buffer.read().map_err(|e| Error::runtime("copying a value to the host", e))?;
                Ok((block, read))
            })
            .collect::<Result<_>>()?;
        Ok(PendingLiteral { ty: array.ty().clone(), parts })
    }

    fn wait(self) -> Result<Literal> {
        let ty = self.ty;
        let doing = |e| Error::runtime(format!("copying {ty} to the host"), e);
        let mut parts = self.parts;
        if let [(block, _)] = &parts[..]
            && block.size[..] == ty.shape[..]
        {
            let Some((_, read)) = parts.pop() else {
                return Err(Error::usage("a value has no parts"));
            };
            return Ok(Literal::from_host_buffer(ty.clone(), read.wait().map_err(doing)?));
        }
        let size = ty.dtype.size_in_bytes();
        let mut whole = vec![0; ty.size_in_bytes()];
        for (block, read) in parts {
            let part = read.wait().map_err(doing)?;
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
    /// Whether all transfers have ended or failed, so that [`PendingLiterals::wait`] returns at
    /// once.
    pub fn is_ready(&self) -> bool {
        self.reads
            .iter()
            .flat_map(|read| &read.parts)
            .all(|(_, read)| read.is_ready().unwrap_or(true))
    }

    /// Waits for the values.
    ///
    /// # Errors
    /// A program failed on the device.
    pub fn wait(self) -> Result<Vec<Literal>> {
        let _wait = span("wait for values");
        let bytes = self.reads.iter().map(|read| read.ty.size_in_bytes()).sum();
        let literals =
            self.reads.into_iter().map(PendingLiteral::wait).collect::<Result<Vec<_>>>()?;
        self.metrics.record_time("TransferFromDeviceTime", self.start.elapsed());
        self.metrics.record_bytes("InboundData", bytes);
        Ok(literals)
    }
}
