//! `fulmen devices`: the devices of this machine, and whether they work.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use fulmen_data::{Error, Result};
use fulmen_durable::messages::{duration, memory, quantity};
use fulmen_pjrt::diagnosis::{Diagnosis, PluginState, diagnose, evidence, explain};
use fulmen_pjrt::locate::{Platform, locate};
use fulmen_pjrt::{Argument, Client, CompileOptions, Device, ElementType, Plugin};
use serde_json::{Value, json};

/// Shows the devices of this machine and which processes have them open
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The kind of device [default: the CPU, and the other kinds that the machine has]
    #[arg(long, value_parser = ["cpu", "cuda", "tpu"])]
    platform: Option<String>,
    /// Opens the devices and multiplies two matrices on each. No other process may have a TPU open
    #[arg(long = "try")]
    test: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The size of the square matrices that are multiplied.
const SIDE: usize = 1024;

/// How many products are timed; the fastest is reported.
const PRODUCTS: usize = 5;

/// The result of testing one device.
struct DeviceTest {
    id: i32,
    kind: String,
    memory_bytes: Option<u64>,
    product: Duration,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let platforms = match arguments.platform.as_deref().and_then(Platform::from_name) {
        Some(platform) => vec![platform],
        None => [Platform::Cpu, Platform::Cuda, Platform::Tpu]
            .into_iter()
            .filter(|&platform| platform == Platform::Cpu || evidence(platform).is_some())
            .collect(),
    };
    let mut lines = Vec::new();
    let mut failed = None;
    for platform in platforms {
        // The test comes first, because it may download the plugin.
        let results = arguments.test.then(|| test_located(platform));
        let diagnosis = diagnose(platform);
        if arguments.json {
            lines.push(as_json(&diagnosis, results.as_ref()));
        } else {
            outln!("{diagnosis}");
            results.iter().flatten().flatten().for_each(|result| outln!("  {result}"));
        }
        failed = results.and_then(Result::err).or(failed);
    }
    if arguments.json {
        outln!("{}", Value::Array(lines));
    }
    failed.map_or(Ok(()), Err)
}

/// Lets a plugin compile and run a program on the devices of this kind. Without such devices, it only
/// compiles one, if it can. Describes the plugin and what it did.
pub(crate) fn try_plugin(platform: Platform, path: &Path) -> Result<String> {
    let plugin = Plugin::load(path).map_err(failed)?;
    let done = if platform == Platform::Cpu || evidence(platform).is_some() {
        let devices = test_devices(platform, path)?.len();
        format!("multiplies matrices on {}", quantity(devices, "device"))
    } else if platform == Platform::Tpu {
        let compile = || {
            plugin.compile(
                &plugin.topology("v5e:1x1")?,
                &program_of_product(),
                &CompileOptions::new(),
            )
        };
        compile().map_err(failed)?;
        "compiles for a v5e; no TPU is here to run it".to_owned()
    } else {
        "loads; no device is here to run a program".to_owned()
    };
    let identity = plugin.identity().map_err(failed)?;
    Ok(format!("PJRT API {}, {done}, SHA-256 {identity}", plugin.api_version()))
}

/// Finds the plugin of a kind of device, and tests its devices.
fn test_located(platform: Platform) -> Result<Vec<DeviceTest>> {
    let plugin = locate(platform, None).map_err(|error| failed(explain(error, platform, None)))?;
    test_devices(platform, &plugin)
}

/// Multiplies two matrices on each device of a kind.
fn test_devices(platform: Platform, plugin: &Path) -> Result<Vec<DeviceTest>> {
    let open = || {
        let options: &[(&str, fulmen_pjrt::NamedValue)] = if platform == Platform::Cpu {
            &[("cpu_device_count", fulmen_pjrt::NamedValue::Int(1))]
        } else {
            &[]
        };
        Plugin::load(plugin)?.create_client(options)
    };
    let client = open().map_err(|error| failed(explain(error, platform, Some(plugin))))?;
    let devices = client.addressable_devices().iter();
    devices
        .map(|device| {
            test_device(&client, device).map_err(failed)?.ok_or_else(|| wrong_product(device))
        })
        .collect()
}

fn failed(error: fulmen_pjrt::Error) -> Error {
    Error::new(error.to_string())
}

fn wrong_product(device: &Device) -> Error {
    let id = device.id();
    let kind = device.kind();
    Error::new(format!(
        "device {id} ({kind}) computes a wrong product of two matrices of ones; do not train on it"
    ))
}

/// The program that multiplies a matrix with itself.
fn program_of_product() -> String {
    let matrix = format!("tensor<{SIDE}x{SIDE}xf32>");
    format!(
        "func.func @main(%x: {matrix}) -> {matrix} {{
           %y = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : ({matrix}, {matrix}) -> {matrix}
           return %y : {matrix}
         }}"
    )
}

/// Tests one device. `None` if the product is wrong.
fn test_device(client: &Client, device: &Device) -> fulmen_pjrt::Result<Option<DeviceTest>> {
    let options = CompileOptions::new().device_assignment(vec![vec![device.id()]]);
    let product = client.compile(&program_of_product(), &options)?;
    // Every sum of ones is exact in every precision that a device may use.
    let ones = 1.0_f32.to_ne_bytes().repeat(SIDE * SIDE);
    let x = client.buffer_from_host(&ones, ElementType::F32, &[SIDE, SIDE], device)?;
    let mut fastest = Duration::MAX;
    for _ in 0..PRODUCTS {
        let begin = Instant::now();
        let run = product.execute(vec![vec![Argument::Borrow(&x)]])?;
        let bytes = run.outputs[0][0].read()?.wait()?;
        fastest = fastest.min(begin.elapsed());
        let expected = (SIDE as f32).to_ne_bytes();
        if !bytes.chunks_exact(expected.len()).all(|value| value == expected) {
            return Ok(None);
        }
    }
    Ok(Some(DeviceTest {
        id: device.id(),
        kind: device.kind().to_owned(),
        memory_bytes: device.memory_bytes(),
        product: fastest,
    }))
}

impl fmt::Display for DeviceTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeviceTest { id, kind, memory_bytes, product } = self;
        write!(f, "device {id} ({kind}")?;
        if let Some(bytes) = memory_bytes {
            write!(f, ", {}", memory(*bytes))?;
        }
        write!(
            f,
            "): a product of {SIDE} × {SIDE} matrices took {}, and is right",
            duration(product.as_secs_f64())
        )
    }
}

fn as_json(diagnosis: &Diagnosis, results: Option<&Result<Vec<DeviceTest>>>) -> Value {
    let files = diagnosis.device_files.iter().map(|file| {
        let holders = file.holders.as_ref().map(|holders| {
            let processes =
                holders.processes.iter().map(|it| json!({ "pid": it.pid, "name": it.name }));
            json!({ "processes": processes.collect::<Vec<_>>(), "unseen": holders.unseen })
        });
        json!({ "path": file.path, "allowed": file.allowed, "holders": holders })
    });
    let devices = results.map(|results| match results {
        Ok(devices) => devices
            .iter()
            .map(|it| {
                let product = it.product.as_secs_f64() * 1e3;
                json!({ "id": it.id, "kind": it.kind, "memory_bytes": it.memory_bytes, "product_ms": product })
            })
            .collect(),
        Err(error) => json!({ "error": error.to_string() }),
    });
    json!({
        "platform": diagnosis.platform.name(),
        "files": files.collect::<Vec<_>>(),
        "plugin": plugin_json(&diagnosis.plugin),
        "obsolete_variables": diagnosis.obsolete_variables.iter().map(|it| it.name).collect::<Vec<_>>(),
        "devices": devices,
    })
}

/// Describes a plugin as JSON, also for `fulmen plugin list`.
pub(crate) fn plugin_json(plugin: &PluginState) -> Value {
    match plugin {
        PluginState::Usable { path, version } => {
            json!({ "path": path, "api_version": version.to_string() })
        }
        PluginState::Unusable { path, why } => json!({ "path": path, "error": why }),
        PluginState::Missing(why) => json!({ "error": why }),
        other => json!({ "error": other.to_string() }),
    }
}
