//! Copies between host and devices, and donated memory.

use fulmen_durable::messages::memory;
use fulmen_error::{Error, Result};
use fulmen_pjrt::locate::Platform;
use fulmen_tensor::{
    Argument, DType, Element, Function, Literal, Runtime, Shape, Sharding, TensorType,
};

use fulmen_catalogue::tpu_supports;

use crate::event::{Context, spans_processes};

/// Empty, tiny, odd and padded shapes.
const SHAPES: &[&[usize]] = &[&[], &[1], &[0, 3], &[3, 5, 7], &[129], &[2, 1, 257], &[8, 128]];

const MIB: usize = 1 << 20;

pub(super) fn run(context: &Context) -> Result<()> {
    let runtime = context.first_device()?;
    let supported = |dtype: &DType| context.platform() != Platform::Tpu || tpu_supports(*dtype);
    for dtype in DType::all().filter(supported) {
        context.check(&format!("{dtype} there and back"), || of_dtype(&runtime, dtype));
    }
    let small = if context.options.full { 10_000 } else { 1_000 };
    context.check(&format!("{small} small arrays at once"), || many_small(&runtime, small));
    let all = context.runtime()?;
    if all.devices().len() > 1 {
        context.check("parts to each device and back", || parts(&all));
    }
    let large = if context.options.full { 2048 * MIB } else { 64 * MIB };
    match room(context, &runtime) {
        Some(room) if room < 4 * large as u64 => {
            context.skip(format!(
                "an array of {}: only {} are free",
                memory(large as u64),
                memory(room)
            ));
        }
        _ => {
            let name = format!("an array of {}", memory(large as u64));
            context.check(&name, || large_array(&runtime, large));
        }
    }
    context.check("a donated argument's memory is the result's", || donation(&runtime));
    let stats = runtime.devices().first().and_then(|device| device.memory_stats().ok());
    match stats.and_then(|stats| stats.bytes_limit) {
        Some(limit) => context.check("an array of twice the device's memory is an error", || {
            too_large(&runtime, limit)
        }),
        None => context.skip("an array that the device cannot hold: its limit is not known"),
    }
    Ok(())
}

fn wrong(message: impl Into<String>) -> Error {
    Error::runtime("testing transfers", message.into())
}

/// Bytes of valid elements, different at each place.
fn bytes(ty: &TensorType) -> Vec<u8> {
    let size = ty.shape.num_elements() * ty.dtype.size_in_bytes();
    let byte = |i: usize| ((i * 167 + i / 256 * 31 + 7) % 251) as u8;
    // A bool is 0 or 1.
    let limit = if ty.dtype == DType::Bool { 2 } else { 251 };
    (0..size).map(|i| byte(i) % limit).collect()
}

fn of_dtype(runtime: &Runtime, dtype: DType) -> Result<()> {
    for &dims in SHAPES {
        let ty = TensorType::new(dtype, Shape::from(dims));
        let literal = Literal::from_bytes(ty.clone(), &bytes(&ty))?;
        let backwards: Vec<usize> = (0..dims.len()).rev().collect();
        for sharding in [Sharding::replicated(), Sharding::replicated().in_order(&backwards)] {
            let array = runtime.to_devices(&literal, &sharding)?;
            let back = runtime.read(&[&array])?.wait()?.remove(0);
            if back.bytes() != literal.bytes() {
                let place = first_difference(back.bytes(), literal.bytes());
                return Err(wrong(format!("{ty}, in memory order {sharding}: {place}")));
            }
        }
    }
    Ok(())
}

fn first_difference(actual: &[u8], expected: &[u8]) -> String {
    let place = actual.iter().zip(expected).position(|(a, b)| a != b);
    match place {
        Some(place) => {
            let bits = actual[place] ^ expected[place];
            format!(
                "byte {place} is {}, expected {} (bits {bits:#010b})",
                actual[place], expected[place]
            )
        }
        None => format!("{} bytes, expected {}", actual.len(), expected.len()),
    }
}

fn many_small(runtime: &Runtime, count: usize) -> Result<()> {
    let arrays = (0..count)
        .map(|i| runtime.to_device(&Literal::from_slice(&[i as i32], [1])?))
        .collect::<Result<Vec<_>>>()?;
    let back = runtime.read(&arrays.iter().collect::<Vec<_>>())?.wait()?;
    for (i, literal) in back.iter().enumerate() {
        if literal.to_vec::<i32>()? != [i as i32] {
            return Err(wrong(format!("array {i} holds {:?}", literal.to_vec::<i32>()?)));
        }
    }
    Ok(())
}

fn parts(runtime: &Runtime) -> Result<()> {
    let count = runtime.devices().len();
    let names: Vec<&str> = runtime.mesh().axes().iter().map(|axis| axis.0.as_str()).collect();
    let ty = TensorType::new(DType::I32, [3 * count, 5]);
    let literal = Literal::from_bytes(ty.clone(), &bytes(&ty))?;
    let array = runtime.to_devices(&literal, &Sharding::over([names]))?;
    let row = literal.bytes().len() / ty.shape.dims()[0];
    for (shard, block) in array.shards().iter().zip(array.blocks()) {
        let part = shard.read().and_then(fulmen_pjrt::PendingRead::wait)?;
        let start = (block.start[0] * row).min(literal.bytes().len());
        let expected = &literal.bytes()[start..];
        if !expected.starts_with(&part) {
            let place = first_difference(&part, &expected[..part.len().min(expected.len())]);
            return Err(wrong(format!("the part from row {}: {place}", block.start[0])));
        }
    }
    if spans_processes(runtime) {
        return Ok(());
    }
    let back = runtime.read(&[&array])?.wait()?.remove(0);
    if back.bytes() == literal.bytes() {
        return Ok(());
    }
    Err(wrong(first_difference(back.bytes(), literal.bytes())))
}

/// The free memory of the first device, or of the host if the device is a CPU, where the processes
/// of a virtual pod share it. `None` if it is not known.
fn room(context: &Context, runtime: &Runtime) -> Option<u64> {
    let device = runtime.devices().first()?;
    if let Ok(stats) = device.memory_stats()
        && let Some(limit) = stats.bytes_limit
    {
        return u64::try_from(limit - stats.bytes_in_use).ok();
    }
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes * 1024 / context.processes() as u64)
}

/// A large array there and back, and through a program.
fn large_array(runtime: &Runtime, size: usize) -> Result<()> {
    let count = size / 4;
    let value = |i: usize| (i as u32).wrapping_mul(2_654_435_761);
    let values: Vec<u32> = (0..count).map(value).collect();
    let ty = TensorType::new(DType::U32, [count]);
    let literal = Literal::from_bytes(ty.clone(), &u32::to_bytes(&values))?;
    drop(values);
    let array = runtime.to_device(&literal)?;
    let flip = Function::trace("flip", ty, |x| x.not()).donate(0, 0)?;
    let mut outputs = runtime.compile(&flip)?.call(vec![Argument::Donate(array)])?;
    let result = outputs.arrays.remove(0);
    let back = runtime.read(&[&result])?.wait()?.remove(0);
    let differs = |(a, b): (&u8, &u8)| *a != !*b;
    match back.bytes().iter().zip(literal.bytes()).position(differs) {
        None if back.bytes().len() == size => Ok(()),
        place => Err(wrong(format!("the first wrong byte is {place:?} of {size}"))),
    }
}

/// The result of a program must be where its donated argument was.
fn donation(runtime: &Runtime) -> Result<()> {
    let ty = TensorType::new(DType::F32, [MIB / 4]);
    let next = Function::trace("next", &ty, |x| &x + 1.0).donate(0, 0)?;
    let compiled = runtime.compile(&next)?;
    if let Ok(analysis) = compiled.executable().memory_analysis()
        && analysis.alias_bytes < MIB as i64
    {
        let bytes = analysis.alias_bytes;
        return Err(wrong(format!(
            "the compiler ignored the donation: {bytes} bytes of the result reuse an argument, expected {MIB}"
        )));
    }
    let array = runtime.to_device(&Literal::from_bytes(ty, &vec![0; MIB])?)?;
    array.block_until_ready()?;
    // Not every plugin tells addresses.
    let before = array.shards()[0].address().ok();
    let outputs = compiled.call(vec![Argument::Donate(array)])?;
    outputs.completion.wait()?;
    let result = &outputs.arrays[0];
    result.block_until_ready()?;
    let after = result.shards()[0].address().ok();
    if before != after {
        return Err(wrong(
            "the donation was dropped: the result has memory of its own, so a training step needs its state twice",
        ));
    }
    let back = runtime.read(&[result])?.wait()?.remove(0);
    if back.to_vec::<f32>()?.iter().any(|&number| number != 1.0) {
        return Err(wrong("the result in donated memory is wrong"));
    }
    Ok(())
}

/// More memory than the device has must be an error that says so, after which the device works.
fn too_large(runtime: &Runtime, limit: i64) -> Result<()> {
    let count = usize::try_from(limit).unwrap_or(0) / 2;
    let ty = TensorType::scalar(DType::F32);
    let huge = Function::trace("huge", ty, |x| x.broadcast_to([count]));
    let zero = runtime.to_device(&Literal::from_slice(&[0.0f32], [])?)?;
    let outcome = runtime.compile(&huge).and_then(|compiled| {
        let outputs = compiled.call(vec![Argument::Borrow(&zero)])?;
        outputs.completion.wait()
    });
    match outcome {
        Ok(()) => return Err(wrong("a result of twice the device's memory was computed")),
        Err(error) if error.is_out_of_memory() => {}
        Err(error) => {
            return Err(wrong(format!("expected an error about memory, but it is: {error}")));
        }
    }
    of_dtype(runtime, DType::F32)
}
