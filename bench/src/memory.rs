//! `memory`: the peak memory of a process that trains on the CPU, against the peers'.
//!
//! Each side trains in a separate process, with the same number of steps on data of the same size.
//! They run one after the other: the peak does not depend on other processes. It is the kernel's
//! count of resident memory (`VmHWM`), which includes the program, the data and the compiler. Our
//! reported step time is not a measurement; see `steps`.

use std::env;
use std::error::Error;
use std::process::{Command, Stdio};

use fulmen::prelude::*;
use serde::{Deserialize, Serialize};

use crate::hardware::Hardware;
use crate::peer::{self, Peer};
use crate::process::peak_bytes;
use crate::row::{Row, print_row};
use crate::steps::label;
use crate::workload::{ModelVisitor, Workload};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The workloads, from W1 to W6, separated by commas.
    #[arg(long, default_value = "W1,W2,W3,W4,W5", value_delimiter = ',')]
    workloads: Vec<String>,
    /// The numbers of CPU devices, separated by commas.
    #[arg(long, default_value = "1,8", value_delimiter = ',')]
    devices: Vec<usize>,
    /// Epochs to train, of 100 steps (W1, W2), 5 (W3, W5, W6) or 10 (W4).
    #[arg(long, default_value_t = 4)]
    epochs: u64,
    /// The peers, as in `steps`, separated by commas.
    #[arg(long, default_value = "jax", value_delimiter = ',')]
    peers: Vec<String>,
    /// Print a line of JSON for each result.
    #[arg(long)]
    json: bool,
    /// Run as our side: train one workload and print the result.
    #[arg(long, hide = true)]
    serve: bool,
}

/// The result of our side.
#[derive(Serialize, Deserialize)]
struct TrainingResult {
    peak_bytes: u64,
    step_ms: f64,
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    peer::check(&args.peers)?;
    for name in &args.workloads {
        let workload = Workload::find(name)?;
        for &devices in &args.devices {
            if args.serve {
                let result =
                    workload.with_model(Training { workload, devices, epochs: args.epochs })?;
                println!("{}", serde_json::to_string(&result)?);
                continue;
            }
            let ours = ours(name, devices, args.epochs)?;
            let suite = if workload.has_same_start() { "memory-packed" } else { "memory" };
            let row = Row::new(suite, label(name, devices), "peak memory", "MB")
                .ours(&[megabytes(ours.peak_bytes)]);
            let mut row = row.detail("step_ms", ours.step_ms);
            for name in &args.peers {
                let peak = Peer::start(name, workload.name, Hardware::cpu(devices)).and_then(
                    |mut peer| {
                        let block = peer.block(args.epochs * workload.steps_per_epoch as u64)?;
                        Ok((peer.ready.version.clone(), block.peak_bytes))
                    },
                );
                row = match peak {
                    Ok((version, bytes)) => row.peer(name, &version, &[megabytes(bytes)]),
                    Err(why) => row.missing(name, &why.to_string()),
                };
            }
            print_row(&row, args.json)?;
        }
    }
    Ok(())
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Our side, in a separate process.
fn ours(workload: &str, devices: usize, epochs: u64) -> Result<TrainingResult, Box<dyn Error>> {
    let output = Command::new(env::current_exe()?)
        .args(["memory", "--serve", "--workloads", workload, "--devices", &devices.to_string()])
        .args(["--epochs", &epochs.to_string()])
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("training {workload} on {devices} failed; see its output above").into());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line)
        .map_err(|e| format!("our side's output `{line}` is not valid: {e}").into())
}

struct Training {
    workload: Workload,
    devices: usize,
    epochs: u64,
}

impl ModelVisitor for Training {
    type Output = Result<TrainingResult, Box<dyn Error>>;

    fn visit<M: TrainingModule>(self, model: &M) -> Self::Output {
        let loader = self.workload.loader(1)?;
        let folder = tempfile::tempdir()?;
        let mut trainer = self
            .workload
            .trainer(Hardware::cpu(self.devices))?
            .max_epochs(self.epochs)
            .default_root_dir(folder.path())
            .enable_checkpointing(false)
            .enable_progress_bar(false)
            .build()?;
        let summary = trainer.fit(model, &loader, None)?;
        let peak_bytes = peak_bytes().ok_or("the kernel does not report VmHWM")?;
        Ok(TrainingResult { peak_bytes, step_ms: summary.step_time_p50.as_secs_f64() * 1e3 })
    }
}
