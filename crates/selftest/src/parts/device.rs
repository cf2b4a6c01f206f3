//! The devices: what the plugin says of them, and whether values are where they should be.

use std::collections::BTreeSet;

use fulmen_durable::messages::memory;
use fulmen_error::{Error, Result};
use fulmen_pjrt::{Device, DeviceDescription};
use fulmen_tensor::{Argument, DType, Function, Literal, Runtime, Sharding, TensorType};

use crate::event::Context;

pub(super) fn run(context: &Context) -> Result<()> {
    let runtime = context.runtime()?;
    let client = runtime.client();
    let plugin = client.plugin();
    if let Some(name) = plugin.path().file_name() {
        context.fact("plugin", name.to_string_lossy());
    }
    context.fact("plugin sha-256", plugin.identity()?);
    context.fact("PJRT C API", plugin.api_version());
    context.fact("platform", client.platform_name());
    context.fact("platform version", client.platform_version());
    for (name, value) in plugin.attributes().unwrap_or_default() {
        context.fact(format!("plugin attribute {name}"), format!("{value:?}"));
    }
    match client.topology() {
        Ok(topology) => {
            for (name, value) in topology.attributes() {
                context.fact(format!("topology attribute {name}"), format!("{value:?}"));
            }
            context.check("the topology lists the client's devices in their order", || {
                same_order(topology.devices(), client.devices())
            });
        }
        Err(error) => context.skip(format!("the topology: {error}")),
    }
    context.fact("devices", client.devices().len());
    context.fact("processes", context.processes());
    for (index, device) in runtime.devices().iter().enumerate() {
        context.fact(format!("device {index}"), describe(device));
    }
    context.check("no two devices have the same id or place", || different(client.devices()));
    context.check("each part of a value is on its device", || places(&runtime));
    Ok(())
}

fn describe(device: &Device) -> String {
    let mut text = format!("{device}, kind {}", device.kind());
    if let Some(place) = device.coordinates() {
        text += &format!(", coordinates {place:?}");
    }
    if let Some(core) = device.core_on_chip() {
        text += &format!(", core {core}");
    }
    if let Some(slice) = device.slice_index() {
        text += &format!(", slice {slice}");
    }
    if let Some(bytes) = device.memory_bytes() {
        text += &format!(", memory {}", memory(bytes));
    }
    if let Ok(stats) = device.memory_stats() {
        text += &format!(", {} in use", memory(stats.bytes_in_use.unsigned_abs()));
        if let Some(limit) = stats.bytes_limit {
            text += &format!(" of {}", memory(limit.unsigned_abs()));
        }
    }
    text
}

fn wrong(message: String) -> Error {
    Error::runtime("testing the devices", message)
}

fn same_order(topology: &[DeviceDescription], devices: &[Device]) -> Result<()> {
    let listed: Vec<i32> = topology.iter().map(DeviceDescription::id).collect();
    let opened: Vec<i32> = devices.iter().map(|device| device.id()).collect();
    if listed == opened {
        return Ok(());
    }
    Err(wrong(format!("the topology lists the ids {listed:?}, and the client {opened:?}")))
}

fn different(devices: &[Device]) -> Result<()> {
    let mut ids = BTreeSet::new();
    let mut places = BTreeSet::new();
    for device in devices {
        if !ids.insert(device.id()) {
            return Err(wrong(format!("two devices have the id {}", device.id())));
        }
        let Some(place) = device.coordinates() else { continue };
        if !places.insert((place.clone(), device.core_on_chip(), device.slice_index())) {
            return Err(wrong(format!("two devices have the coordinates {place:?}")));
        }
    }
    Ok(())
}

/// Gives each device its index, lets a program over all devices add 1, and looks at the buffers.
fn places(runtime: &Runtime) -> Result<()> {
    let count = runtime.devices().len();
    let each = Sharding::over([runtime.mesh().axes().iter().map(|axis| axis.0.as_str()).collect()]);
    let ty = TensorType::new(DType::I32, [count]);
    let next = Function::trace("places", ty, |x| &x + 1.0)
        .shard_parameter(0, each.clone())
        .shard_result(0, each.clone());
    let indices: Vec<i32> = (0..count as i32).collect();
    let x = runtime.to_devices(&Literal::from_slice(&indices, [count])?, &each)?;
    let mut outputs = runtime.compile(&next)?.call(vec![Argument::Borrow(&x)])?;
    let result = outputs.arrays.remove(0);
    for (array, added) in [(&x, 0), (&result, 1)] {
        for ((shard, block), device) in
            array.shards().iter().zip(array.blocks()).zip(runtime.local_devices())
        {
            if shard.device() != device {
                return Err(wrong(format!(
                    "a buffer of the device {} is on the device {}",
                    device.id(),
                    shard.device().id()
                )));
            }
            let bytes = shard.read().and_then(fulmen_pjrt::PendingRead::wait)?;
            let expected = block.start[0] as i32 + added;
            if bytes[..] != expected.to_ne_bytes() {
                return Err(wrong(format!(
                    "the device {} holds the bytes {:?}, expected the number {expected}",
                    device.id(),
                    &bytes[..]
                )));
            }
        }
    }
    Ok(())
}
