//! `scaling`: the step on 1, 2, 4 and 8 CPU devices, which share the cores, against JAX's. Also the
//! compile time of libtpu for slices of 8, 32 and 256 chips, which needs no TPU. With `--processes`
//! instead: the step in several processes of a virtual pod against one process with as many devices.

use std::error::Error;

use fulmen::trainer::preflight::Slice;

use crate::hardware::Hardware;
use crate::peer::{self, Peer};
use crate::preflight;
use crate::row::{Row, print_row};
use crate::steps::Comparison;
use crate::workload::Workload;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The workloads, from W1 to W5, separated by commas.
    #[arg(long, default_value = "W1,W3", value_delimiter = ',')]
    workloads: Vec<String>,
    /// The numbers of CPU devices, separated by commas; 0 for no steps.
    #[arg(long, default_value = "1,2,4,8", value_delimiter = ',')]
    devices: Vec<usize>,
    /// Compare this many processes of a virtual pod with one process, on the same number of CPU
    /// devices, and nothing else.
    #[arg(long)]
    processes: Option<usize>,
    /// Timed blocks of each side.
    #[arg(long, default_value_t = 10)]
    rounds: u64,
    /// The peers of the steps, separated by commas; only jax shares a batch over several devices.
    #[arg(long, default_value = "jax", value_delimiter = ',')]
    peers: Vec<String>,
    /// The slices to compile ResNet-50 for, separated by commas.
    #[arg(long, default_value = "v5e:2x4,v5e:4x8,v5e:16x16", value_delimiter = ',')]
    topologies: Vec<Slice>,
    /// How often each side compiles; 0 for no compilation.
    #[arg(long, default_value_t = 3)]
    compilations: usize,
    /// Print a line of JSON for each result.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    peer::check(&args.peers)?;
    if let Some(processes) = args.processes {
        return run_pods(args, processes);
    }
    for name in &args.workloads {
        let workload = Workload::find(name)?;
        for &devices in args.devices.iter().filter(|&&devices| devices > 0) {
            let hardware = Hardware::cpu(devices);
            let mut row = Comparison { workload, hardware, rounds: args.rounds, num_workers: 1 }
                .run(&args.peers)?;
            row.suite = "scaling".to_owned();
            print_row(&row, args.json)?;
        }
    }
    for slice in args.topologies.iter().filter(|_| args.compilations > 0) {
        print_row(&compile(slice, args.compilations, &args.peers)?, args.json)?;
    }
    Ok(())
}

/// The step times of a pod and of one process, block by block in turns.
fn run_pods(args: &Args, processes: usize) -> Result<(), Box<dyn Error>> {
    if !(2..=64).contains(&processes) {
        return Err(format!("--processes {processes}: expected 2 to 64").into());
    }
    for name in &args.workloads {
        let workload = Workload::find(name)?;
        for &devices in args.devices.iter().filter(|&&n| n > 0 && n.is_multiple_of(processes)) {
            let of_each = devices / processes;
            let mut pod = Peer::start_pod(name, processes, Hardware::cpu(of_each))?;
            let mut one = Peer::start("custom-loop", name, Hardware::cpu(devices))?;
            let steps = workload.steps_per_epoch as u64;
            let mut times = [Vec::new(), Vec::new()];
            // The first block of each side warms up.
            for round in 0..=args.rounds {
                for (times, side) in times.iter_mut().zip([&mut pod, &mut one]) {
                    let seconds = side.block(steps)?.seconds;
                    if round > 0 {
                        times.push(seconds * 1e3 / steps as f64);
                    }
                }
            }
            let [pod_times, one_times] = times;
            let subject = format!("{name} on a virtual pod of {processes} × {of_each} devices");
            let row = Row::new("scaling-pods", subject, "step", "ms").ours(&pod_times);
            let version = format!("{devices} devices");
            print_row(&row.peer("one process", &version, &one_times), args.json)?;
        }
    }
    Ok(())
}

/// Compile times of ResNet-50's step, of both sides in turns.
fn compile(slice: &Slice, rounds: usize, peers: &[String]) -> Result<Row, Box<dyn Error>> {
    let workload = preflight::Workload::find("resnet50").ok_or("there is no workload resnet50")?;
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    let mut version = String::new();
    let mut missing = None;
    for _ in 0..rounds {
        let cost = preflight::ours(&workload, slice)?.ok_or("the step does not fit")?;
        ours.push(cost.compile_s);
        if missing.is_some() || !peers.iter().any(|peer| peer == "jax") {
            continue;
        }
        match preflight::peer(&workload, slice) {
            Ok(Some(cost)) => {
                theirs.push(cost.compile_s);
                version = cost.version;
            }
            Ok(None) => missing = Some("its step does not fit".to_owned()),
            Err(why) => missing = Some(why.to_string()),
        }
    }
    let row =
        Row::new("scaling", format!("resnet50 for {slice}"), "libtpu's compiler", "s").ours(&ours);
    Ok(match missing {
        Some(why) => row.missing("jax", &why),
        None if theirs.is_empty() => row,
        None => row.peer("jax", &version, &theirs),
    })
}
