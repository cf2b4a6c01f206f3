//! `preflight`: what libtpu's compiler says of our training steps, against hand-written JAX programs of the same steps,
//! compiled for the same slice of TPUs by the same libtpu. No TPU is needed, and nothing is measured but time to compile.

use std::error::Error;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use fulmen::data::TensorDataset;
use fulmen::models::resnet::Config;
use fulmen::prelude::*;
use fulmen::trainer::Precision;
use fulmen::trainer::preflight::{Judgement, Slice};
use serde::Deserialize;
use serde_json::json;

use crate::models::{Gpt, Mlp, ResNetClassifier};
use crate::peer::{PEERS, python};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which of mlp, gpt and resnet50, separated by commas.
    #[arg(long, default_value = "mlp,gpt,resnet50", value_delimiter = ',')]
    workloads: Vec<String>,
    /// The slice to compile for.
    #[arg(long, default_value = "v3:2x2")]
    topology: Slice,
    /// Leave out the peer.
    #[arg(long)]
    no_peer: bool,
    /// End with one line of JSON.
    #[arg(long)]
    json: bool,
}

/// What the compiler says of one device.
#[derive(Debug, Deserialize)]
pub(crate) struct Cost {
    pub(crate) flops: f64,
    bytes_accessed: f64,
    pub(crate) hbm_bytes: f64,
    optimal_seconds: Option<f64>,
    parameters: u64,
    pub(crate) compile_s: f64,
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let mut lines = vec![];
    for workload in &args.workloads {
        let batch = match workload.as_str() {
            "mlp" | "resnet50" => 1024,
            "gpt" => 64,
            _ => return Err(format!("there is no workload {workload}; there are mlp, gpt, resnet50").into()),
        };
        let ours = ours(workload, batch, &args.topology)?;
        println!(
            "{workload}, batch {batch}, {}: {:.4e} FLOPs, {:.4e} bytes, {:.1} MiB HBM, compiled in {:.1} s",
            args.topology,
            ours.flops,
            ours.bytes_accessed,
            ours.hbm_bytes / f64::from(1 << 20),
            ours.compile_s
        );
        let mut line = json!({ "workload": workload, "batch": batch, "topology": args.topology.name(),
            "flops": ours.flops, "bytes_accessed": ours.bytes_accessed, "hbm_bytes": ours.hbm_bytes,
            "optimal_seconds": ours.optimal_seconds, "compile_s": ours.compile_s, "parameters": ours.parameters });
        if !args.no_peer {
            let peer = peer(workload, batch, &args.topology)?;
            if ours.parameters != peer.parameters {
                let (a, b) = (ours.parameters, peer.parameters);
                return Err(format!("the models differ: {a} parameters here, {b} there").into());
            }
            let seconds = ours.optimal_seconds.zip(peer.optimal_seconds).map(|(a, b)| a / b);
            let ratios = [
                ("flops", Some(ours.flops / peer.flops)),
                ("bytes_accessed", Some(ours.bytes_accessed / peer.bytes_accessed)),
                ("hbm_bytes", Some(ours.hbm_bytes / peer.hbm_bytes)),
                ("optimal_seconds", seconds),
                ("compile_s", Some(ours.compile_s / peer.compile_s)),
            ];
            for (what, ratio) in ratios {
                match ratio {
                    Some(ratio) => println!("  {what:<16} {ratio:.4} × JAX's"),
                    None => println!("  {what:<16} unknown"),
                }
                line["ratio"][what] = json!(ratio);
            }
        }
        lines.push(line);
    }
    if args.json {
        println!("{}", json!({ "preflight": lines }));
    }
    Ok(())
}

fn ours(workload: &str, batch: usize, slice: &Slice) -> Result<Cost, Box<dyn Error>> {
    match workload {
        "mlp" => judge(&Mlp::new(), &[784], false, batch, slice),
        "gpt" => judge(&Gpt::new(DType::Bf16), &[Gpt::LENGTH], true, batch, slice),
        _ => judge(&ResNetClassifier::new(Config::resnet50(), 0.1), &[3, 224, 224], false, batch, slice),
    }
}

/// Judges the step on batches of inputs of this shape: numbers with a class each, or words with the next ones.
pub(crate) fn judge<M: TrainingModule>(
    module: &M,
    shape: &[usize],
    words: bool,
    batch: usize,
    slice: &Slice,
) -> Result<Cost, Box<dyn Error>> {
    // Only shapes matter; one batch is enough.
    let (n, dims) = (batch * shape.iter().product::<usize>(), [&[batch], shape].concat());
    let data = TensorDataset::builder();
    let data = match words {
        true => data.array("x", dims.clone(), vec![0_i32; n]).array("y", dims, vec![0_i32; n]),
        false => data.array("x", dims, vec![0_f32; n]).array("y", [batch], vec![0_i32; batch]),
    };
    let loader = DataLoader::builder(data.build()?).batch_size(batch).last_batch(LastBatch::Drop).build()?;
    let builder = Trainer::builder().precision(Precision::Bf16Mixed);
    let report = builder.preflight(module, &loader, std::slice::from_ref(slice), None)?;
    let judgement: &Judgement = report.slices.first().ok_or("there is no judgement")?;
    let Some(step) = &judgement.step else { return Err(format!("{judgement}").into()) };
    Ok(Cost {
        flops: step.counted_once.0,
        bytes_accessed: step.counted_once.1,
        hbm_bytes: judgement.hbm_needed_bytes.unwrap_or_default() as f64,
        optimal_seconds: step.optimal_seconds,
        parameters: module.num_parameters() as u64,
        compile_s: judgement.compile_s,
    })
}

fn peer(workload: &str, batch: usize, slice: &Slice) -> Result<Cost, Box<dyn Error>> {
    let script = PathBuf::from(PEERS).join("jax_cost.py");
    let mut command = Command::new(python()?);
    command.arg(script).args(["--workload", workload, "--batch", &batch.to_string(), "--topology", slice.name()]);
    if let Ok(libtpu) = fulmen::pjrt::locate::locate(fulmen::pjrt::locate::Platform::Tpu, None) {
        command.env("TPU_LIBRARY_PATH", libtpu);
    }
    let output = command.stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line).map_err(|e| format!("the peer said `{line}`: {e}").into())
}
