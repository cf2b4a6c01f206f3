//! Measures what a training step needs, and compares it with the data sheet of the device. A slow
//! device does not fail: the note says why it may be slow.

use std::time::{Duration, Instant};

use fulmen_error::{Error, Result};
use fulmen_pjrt::locate::Platform;
use fulmen_preflight::Gpu;
use fulmen_tensor::{
    Argument, Compiled, DType, DeviceArray, Function, Literal, Runtime, Sharding, Tensor,
    TensorType, grad,
};
use fulmen_tpu::Generation;

use crate::event::{Context, Event, Measurement};

/// Below this share of a peak, something is wrong.
const LOW: f64 = 0.4;

const LOW_PRODUCTS: &str =
    "low: another process may use the device, or it is hot or limited in power";
const LOW_MEMORY: &str = "low: another process may use the device, or its memory corrects errors";

/// The bytes of arrays: 0.0115 in f32 and bf16, because a GPU multiplies zeros with less power.
const FILL: u8 = 0x3c;

/// What the data sheet says of a device.
struct DataSheet {
    name: &'static str,
    half_flops: f64,
    f32_flops: Option<f64>,
    memory_bandwidth: f64,
}

/// How much is measured. A CPU gets less, because it is slower.
struct Sizes {
    /// The side of square matrices.
    side: usize,
    /// The bytes of an array.
    bytes: usize,
}

pub(super) fn run(context: &Context) -> Result<()> {
    let runtime = context.first_device()?;
    let sheet = runtime.devices().first().and_then(|device| data_sheet(device.kind()));
    match &sheet {
        Some(sheet) => context.fact("data sheet", sheet.name),
        None => context.skip("shares of a data sheet: none is known for this device"),
    }
    let sizes = match context.platform() {
        Platform::Cpu => Sizes { side: 1024, bytes: 64 << 20 },
        Platform::Cuda | Platform::Tpu => Sizes { side: 8192, bytes: 256 << 20 },
    };
    let sheet = sheet.as_ref();
    context.check("products", || products(context, &runtime, sheet, &sizes));
    context.check("the device's memory", || memory(context, &runtime, sheet, &sizes));
    context.check("copies", || copies(context, &runtime, &sizes));
    context.check("launches", || launches(context, &runtime));
    context.check("compilation", || compilation(context, &runtime));
    let all = context.runtime()?;
    if all.devices().len() > 1 {
        context.check("a reduction over the devices", || reduction(context, &all, &sizes));
    } else {
        context.skip("a reduction over the devices: there is one");
    }
    Ok(())
}

fn data_sheet(kind: &str) -> Option<DataSheet> {
    if let Some(tpu) = Generation::of_kind(kind) {
        return Some(DataSheet {
            name: tpu.name,
            half_flops: tpu.device_flops(),
            // By default a TPU multiplies f32 numbers in one pass of bf16.
            f32_flops: Some(tpu.device_flops()),
            memory_bandwidth: tpu.device_hbm_bandwidth(),
        });
    }
    let kind = kind.to_lowercase();
    let gpu = Gpu::all().iter().find(|gpu| kind.split([' ', '-']).any(|word| word == gpu.name))?;
    Some(DataSheet {
        name: gpu.full_name,
        half_flops: gpu.half_flops,
        // By default a GPU may multiply in TensorFloat-32, whose peak is not known here.
        f32_flops: None,
        memory_bandwidth: gpu.memory_bandwidth,
    })
}

fn say(
    context: &Context,
    name: impl Into<String>,
    value: f64,
    unit: &str,
    peak: Option<f64>,
    low: &str,
) {
    let share = peak.map(|peak| value / peak);
    context.say(&Event::Measured(Measurement {
        name: name.into(),
        value,
        unit: unit.to_owned(),
        share,
        note: share.filter(|&share| share < LOW).map(|_| low.to_owned()),
    }));
}

/// The time of a call, from several that are launched before the first has ended.
fn time(compiled: &Compiled, x: &DeviceArray) -> Result<f64> {
    const CALLS: usize = 8;
    let call = || compiled.call(vec![Argument::Borrow(x)]);
    call()?.completion.wait()?;
    let mut best = Duration::MAX;
    for _ in 0..3 {
        let start = Instant::now();
        let calls = (0..CALLS).map(|_| call()).collect::<Result<Vec<_>>>()?;
        for outputs in calls {
            outputs.completion.wait()?;
        }
        best = best.min(start.elapsed());
    }
    Ok(best.as_secs_f64() / CALLS as f64)
}

/// Compiles a function of one array.
fn compile(
    runtime: &Runtime,
    ty: &TensorType,
    name: &str,
    f: impl FnOnce(&Tensor) -> Tensor,
) -> Result<Compiled> {
    runtime.compile(&Function::trace(name, ty, |x| f(&x)))
}

fn products(
    context: &Context,
    runtime: &Runtime,
    sheet: Option<&DataSheet>,
    sizes: &Sizes,
) -> Result<()> {
    let side = sizes.side;
    for dtype in [DType::F32, DType::Bf16] {
        let ty = TensorType::new(dtype, [side, side]);
        let x = Literal::from_bytes(ty.clone(), &vec![FILL; ty.size_in_bytes()])?;
        let x = runtime.to_device(&x)?;
        let seconds = time(&compile(runtime, &ty, "product", |x| x.matmul(x))?, &x)?;
        let flops = 2.0 * (side as f64).powi(3) / seconds;
        let peak = sheet.and_then(|sheet| match dtype {
            DType::F32 => sheet.f32_flops,
            _ => Some(sheet.half_flops),
        });
        let name = format!("products of {side} × {side} matrices in {dtype}");
        say(context, name, flops, "FLOP/s", peak, LOW_PRODUCTS);
    }
    Ok(())
}

fn memory(
    context: &Context,
    runtime: &Runtime,
    sheet: Option<&DataSheet>,
    sizes: &Sizes,
) -> Result<()> {
    let ty = TensorType::new(DType::F32, [sizes.bytes / 4]);
    let x = runtime.to_device(&Literal::from_bytes(ty.clone(), &vec![FILL; sizes.bytes])?)?;
    let seconds = time(&compile(runtime, &ty, "increment", |x| x + 1.0)?, &x)?;
    let bandwidth = 2.0 * sizes.bytes as f64 / seconds;
    let peak = sheet.map(|sheet| sheet.memory_bandwidth);
    say(context, "memory of the device", bandwidth, "B/s", peak, LOW_MEMORY);
    Ok(())
}

fn copies(context: &Context, runtime: &Runtime, sizes: &Sizes) -> Result<()> {
    let ty = TensorType::new(DType::F32, [sizes.bytes / 4]);
    let literal = Literal::from_bytes(ty, &vec![FILL; sizes.bytes])?;
    let mut to = Duration::MAX;
    let mut back = Duration::MAX;
    for _ in 0..3 {
        let start = Instant::now();
        let array = runtime.to_device(&literal)?;
        array.block_until_ready()?;
        to = to.min(start.elapsed());
        let start = Instant::now();
        runtime.read(&[&array])?.wait()?;
        back = back.min(start.elapsed());
    }
    let rate = |time: Duration| sizes.bytes as f64 / time.as_secs_f64();
    say(context, "host to device", rate(to), "B/s", None, "");
    say(context, "device to host", rate(back), "B/s", None, "");
    Ok(())
}

fn launches(context: &Context, runtime: &Runtime) -> Result<()> {
    const CALLS: u32 = 200;
    let ty = TensorType::new(DType::F32, [8]);
    let next = compile(runtime, &ty, "next", |x| x + 1.0)?;
    let mut x = runtime.to_device(&Literal::from_slice(&[0.0f32; 8], [8])?)?;
    let start = Instant::now();
    for _ in 0..CALLS {
        x = next.call(vec![Argument::Borrow(&x)])?.arrays.remove(0);
    }
    let last = runtime.read(&[&x])?.wait()?.remove(0);
    let each = start.elapsed().as_secs_f64() / f64::from(CALLS);
    if last.to_vec::<f32>()?[0] != CALLS as f32 {
        return Err(Error::runtime("measuring launches", "the sum of 200 launches is wrong"));
    }
    say(context, "a launch, one of 200 that follow each other", each, "s", None, "");
    let start = Instant::now();
    for _ in 0..20 {
        x = next.call(vec![Argument::Borrow(&x)])?.arrays.remove(0);
        runtime.read(&[&x])?.wait()?;
    }
    let each = start.elapsed().as_secs_f64() / 20.0;
    say(context, "a launch whose result is read", each, "s", None, "");
    Ok(())
}

fn compilation(context: &Context, runtime: &Runtime) -> Result<()> {
    let ty = TensorType::new(DType::F32, [64, 64]);
    let function = Function::trace("layers", ty, |x| {
        let y = (0..8).fold(x.clone(), |y, _| y.matmul(&x).tanh().softmax(-1));
        grad(&y.sum_all(), &[&x])
    });
    if let Some(time) = runtime.compile(&function)?.compile_time() {
        let name = "compiling eight layers and their gradient";
        say(context, name, time.as_secs_f64(), "s", None, "");
    }
    Ok(())
}

/// Every device has an array; all get the sum.
fn reduction(context: &Context, runtime: &Runtime, sizes: &Sizes) -> Result<()> {
    let count = runtime.devices().len();
    let bytes = sizes.bytes / 8;
    let names: Vec<&str> = runtime.mesh().axes().iter().map(|axis| axis.0.as_str()).collect();
    let each = Sharding::over([names]);
    let ty = TensorType::new(DType::F32, [count, bytes / 4]);
    let sum = Function::trace("reduction", &ty, |x| x.sum(0)).shard_parameter(0, each.clone());
    let x = Literal::from_bytes(ty.clone(), &vec![FILL; ty.size_in_bytes()])?;
    let x = runtime.to_devices(&x, &each)?;
    let seconds = time(&runtime.compile(&sum)?, &x)?;
    let name = format!("sums over {count} devices, by the bytes of one");
    say(context, name, bytes as f64 / seconds, "B/s", None, "");
    Ok(())
}
