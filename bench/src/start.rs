//! `start`: the memory in which training starts from a folder of a large model, against the state
//! itself.
//!
//! The folder has a Llama with random weights. A process with several CPU devices, and then the
//! processes of a virtual pod, load it and start to train with fsdp and AdamW: the state is on the
//! devices and the step is compiled, but no step runs. On a CPU, the memory of the devices is the
//! memory of their process, so a process must hold its part of the state: the f32 parameters of its
//! devices, and AdamW's two running means of each. What the process held before, with the plugin
//! loaded and the step of a small model compiled, does not count.
//!
//! A process of a virtual pod computes each program for all devices. No step runs there, because its
//! results would be the whole state in each process, which they are not on hosts of their own.

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fulmen::data::TensorDataset;
use fulmen::models::Pretrained;
use fulmen::models::decoder::{Config, Decoder};
use fulmen::nn::loss::CrossEntropyLoss;
use fulmen::prelude::*;
use fulmen_checkpoint::{Dtype, header};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::hardware::Hardware;
use crate::process::{peak_bytes, rss_bytes};
use crate::row::{Row, print_row};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The size of the weights in the folder, in MB.
    #[arg(long, default_value_t = 2000)]
    megabytes: usize,
    /// The dtype of the weights in the folder: bf16 or f32. The state of one process needs 6 or 3
    /// times the memory of the folder, since it is f32.
    #[arg(long, default_value = "bf16", value_parser = ["bf16", "f32"])]
    dtype: String,
    /// The number of CPU devices, of one process and of the whole virtual pod.
    #[arg(long, default_value_t = 8)]
    devices: usize,
    /// The numbers of processes, separated by commas; several are a virtual pod.
    #[arg(long, default_value = "1,4", value_delimiter = ',')]
    processes: Vec<usize>,
    /// Where to make the folder, which is removed afterwards [default: the folder for temporary
    /// files].
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Print a line of JSON for each result.
    #[arg(long)]
    json: bool,
    /// Run as one process: start training and print the result.
    #[arg(long, hide = true)]
    serve: bool,
}

/// A decoder with AdamW.
#[derive(Module)]
struct LanguageModel {
    #[module(flatten)]
    decoder: Decoder,
}

impl TrainingModule for LanguageModel {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        self.decoder.loss(batch.get("x"), batch.get("y"), &CrossEntropyLoss::new())
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(optim::AdamW::new(3e-4))
    }
}

/// What a process measured.
#[derive(Serialize, Deserialize)]
struct Start {
    /// The state on the devices of this process.
    part_bytes: u64,
    /// The part of one device.
    shard_bytes: u64,
    /// The peak of the process's memory, without what it held before.
    peak_bytes: u64,
    /// The largest arguments of a program, on one device. Only process 0 knows.
    argument_bytes: Option<u64>,
}

/// The width of the layers: large, so that there are few of them and compiling is fast.
const WIDTH: usize = 2048;
const LENGTH: usize = 64;

fn config(layers: usize, width: usize) -> Config {
    Config {
        vocab_size: 8192,
        hidden_size: width,
        intermediate_size: 11 * width / 4,
        num_hidden_layers: layers,
        num_attention_heads: width / 64,
        ..Config::default()
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    if args.serve {
        let folder = args.folder.as_deref().ok_or("--serve needs --folder")?;
        println!("{}", serde_json::to_string(&start(folder, args.devices)?)?);
        return Ok(());
    }
    let parent = args.folder.clone().unwrap_or_else(env::temp_dir);
    let folder = tempfile::tempdir_in(parent)?;
    let bytes = write_model(folder.path(), args)?;
    for &processes in &args.processes {
        if processes == 0 || !args.devices.is_multiple_of(processes) {
            return Err(format!(
                "{} devices cannot be shared by {processes} processes",
                args.devices
            )
            .into());
        }
        let starts = run_processes(folder.path(), args.devices / processes, processes)?;
        let pod = match processes {
            1 => String::new(),
            _ => format!(" of {processes} processes of a virtual pod"),
        };
        let name = format!(
            "{:.2} GB of {} on {} devices{pod} with AdamW",
            bytes as f64 / 1e9,
            args.dtype,
            args.devices
        );
        let ratios: Vec<f64> =
            starts.iter().map(|s| s.peak_bytes as f64 / s.part_bytes as f64).collect();
        let largest = ratios.iter().copied().fold(0.0, f64::max);
        let row = Row::new("start", &*name, "peak memory against the state's part", "×")
            .ours(&[largest])
            .detail("of_each_process", ratios)
            .detail("part_bytes", starts[0].part_bytes);
        print_row(&row, args.json)?;
        let arguments = starts.iter().find_map(|start| start.argument_bytes);
        let arguments = arguments.ok_or("no process wrote its programs")?;
        let shard = starts[0].shard_bytes;
        let row = Row::new("start", name, "a program's arguments against a device's part", "×")
            .ours(&[arguments as f64 / shard as f64])
            .detail("argument_bytes", arguments)
            .detail("shard_bytes", shard);
        print_row(&row, args.json)?;
    }
    Ok(())
}

/// Writes `config.json` and `model.safetensors` with random weights, and returns their size.
fn write_model(folder: &Path, args: &Args) -> Result<u64, Box<dyn Error>> {
    let (dtype, size) = if args.dtype == "bf16" { (Dtype::BF16, 2) } else { (Dtype::F32, 4) };
    let parameters = |layers| -> Result<_, Box<dyn Error>> {
        Ok(Decoder::new(config(layers, WIDTH))?.num_parameters())
    };
    let one = parameters(1)?;
    let layer = parameters(2)? - one;
    let others = (args.megabytes * 1_000_000 / size).saturating_sub(one);
    let config = config(1 + (others + layer / 2) / layer, WIDTH);
    fs::write(folder.join("config.json"), serde_json::to_string(&config)?)?;
    let model = Decoder::new(config)?;
    let shape = |shape: &[usize]| shape.iter().map(|&size| size as u64).collect();
    let parameters = model.parameters();
    let entries: Vec<_> =
        parameters.iter().map(|(name, p)| (name.clone(), dtype, shape(&p.ty().shape))).collect();
    let mut file = BufWriter::new(File::create(folder.join("model.safetensors"))?);
    file.write_all(&header(&entries, &BTreeMap::new())?)?;
    let mut number = 0_u32;
    let mut values = Vec::new();
    for (_, parameter) in parameters {
        values.clear();
        for _ in 0..parameter.ty().shape.num_elements() {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = (number as f32 / u32::MAX as f32 - 0.5) * 0.05;
            // The last two of the four bytes are a bf16.
            values.extend_from_slice(&value.to_le_bytes()[4 - size..]);
        }
        file.write_all(&values)?;
    }
    file.into_inner()?.sync_all()?;
    Ok((model.num_parameters() * size) as u64)
}

/// Starts training in each of the processes, at the same time.
fn run_processes(
    folder: &Path,
    devices: usize,
    processes: usize,
) -> Result<Vec<Start>, Box<dyn Error>> {
    // The port is free again, and nothing else on this machine is likely to take it at once.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut children = Vec::new();
    for index in 0..processes {
        let mut command = Command::new(env::current_exe()?);
        command.args(["start", "--serve", "--devices", &devices.to_string(), "--folder"]);
        command.arg(folder).stdout(Stdio::piped());
        if processes > 1 {
            command
                .env("FULMEN_PJRT_PLUGIN", fulmen_virtual_pod::library()?)
                .env("FULMEN_VIRTUAL_POD", format!("{processes}x{devices}"))
                .env("FULMEN_COORDINATOR", format!("127.0.0.1:{port}"))
                .env("FULMEN_NUM_PROCESSES", processes.to_string())
                .env("FULMEN_PROCESS_ID", index.to_string());
        }
        children.push(command.spawn()?);
    }
    let outputs: Vec<_> = children.into_iter().map(|child| child.wait_with_output()).collect();
    let mut starts = Vec::new();
    for output in outputs {
        let output = output?;
        if !output.status.success() {
            return Err("a process could not start training; see its output above".into());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().last().unwrap_or_default();
        starts.push(
            serde_json::from_str(line)
                .map_err(|e| format!("the process's output `{line}` is not valid: {e}"))?,
        );
    }
    Ok(starts)
}

/// Starts to train the model in the folder on these devices, and measures this process.
fn start(folder: &Path, devices: usize) -> Result<Start, Box<dyn Error>> {
    let root = tempfile::tempdir()?;
    let dumps = root.path().join("programs");
    let trainer = |dumps: &Path| -> Result<Trainer, Box<dyn Error>> {
        Ok(Hardware::cpu(devices)
            .trainer()?
            .strategy(Strategy::Fsdp)
            .default_root_dir(root.path())
            .dump_dir(dumps)
            .max_epochs(1)
            .build()?)
    };
    let data = TensorDataset::builder()
        .array("x", [8, LENGTH], vec![1_i32; 8 * LENGTH])
        .array("y", [8, LENGTH], vec![1_i32; 8 * LENGTH])
        .build()?;
    let loader = DataLoader::builder(data).batch_size(8).build()?;
    let small = LanguageModel { decoder: Decoder::new(config(1, 64))? };
    drop(trainer(&root.path().join("small"))?.train_step(&small, &loader)?);

    fs::write("/proc/self/clear_refs", "5")?;
    let before = rss_bytes().ok_or("the kernel does not report VmRSS")?;
    let model = LanguageModel { decoder: Decoder::from_folder(folder)? };
    drop(trainer(&dumps)?.train_step(&model, &loader)?);
    let peak = peak_bytes().ok_or("the kernel does not report VmHWM")?;
    // Of each parameter: itself and two running means.
    let arrays = 3;
    let mut of_devices = BTreeMap::new();
    for (name, parameter) in model.parameters() {
        let value = parameter.get();
        let array = value.array().ok_or_else(|| format!("`{name}` is not on the devices"))?;
        for (device, shard) in array.shards().iter().enumerate() {
            *of_devices.entry(device).or_insert(0) += arrays * shard.size_in_bytes() as u64;
        }
    }
    Ok(Start {
        part_bytes: of_devices.values().sum(),
        shard_bytes: of_devices.values().copied().max().unwrap_or_default(),
        peak_bytes: peak.saturating_sub(before),
        argument_bytes: largest_arguments(&dumps)?,
    })
}

/// The largest arguments of a program, as its dump says; `None` if nothing was dumped.
fn largest_arguments(dumps: &Path) -> Result<Option<u64>, Box<dyn Error>> {
    let Ok(files) = fs::read_dir(dumps) else { return Ok(None) };
    let mut largest = None;
    for file in files {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let program: Value = serde_json::from_slice(&fs::read(&path)?)?;
            largest = largest.max(program["memory"]["argument_bytes"].as_u64());
        }
    }
    Ok(largest)
}
