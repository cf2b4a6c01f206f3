//! `trace`: the time to trace a training step and lower it to StableHLO, with gradients and
//! optimizer, against JAX's trace and lower of the same step. Nothing is compiled, and no device is
//! needed.

use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use fulmen::models::resnet::Config;
use fulmen::prelude::*;
use serde::Deserialize;

use crate::models::{Gpt, Mlp, ResNetClassifier};
use crate::peer::{PEERS, python};
use crate::preflight::{images, words};
use crate::row::{Row, print_row};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The workloads: resnet50, gpt-48 and gpt-48-scan, separated by commas.
    #[arg(long, default_value = "resnet50,gpt-48,gpt-48-scan", value_delimiter = ',')]
    workloads: Vec<String>,
    /// How often each side traces.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Skip the peer.
    #[arg(long)]
    no_peer: bool,
    /// Print a line of JSON for each result.
    #[arg(long)]
    json: bool,
}

const BATCH: usize = 8;

/// The number of layers of the deep GPT.
const LAYERS: usize = 48;

/// The result of one side.
#[derive(Deserialize)]
struct Lowering {
    version: String,
    seconds: f64,
    bytes: usize,
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    // The first use includes setup that does not belong to a workload.
    lower(&Mlp::new(), &images(BATCH, &[784])?)?;
    for name in &args.workloads {
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        let mut missing = None;
        for _ in 0..args.rounds.max(1) {
            ours.push(trace(name)?);
            if args.no_peer || missing.is_some() {
                continue;
            }
            match peer(name) {
                Ok(lowering) => theirs.push(lowering),
                Err(why) => missing = Some(why.to_string()),
            }
        }
        let milliseconds =
            |all: &[Lowering]| all.iter().map(|one| 1e3 * one.seconds).collect::<Vec<_>>();
        let mut row = Row::new("trace", name, "record and lower", "ms").ours(&milliseconds(&ours));
        row = row.detail("stablehlo_bytes", ours[0].bytes);
        if let Some(first) = theirs.first() {
            row = row
                .peer("jax", &first.version, &milliseconds(&theirs))
                .detail("jax_stablehlo_bytes", first.bytes);
        }
        if let Some(why) = missing {
            row = row.missing("jax", &why);
        }
        print_row(&row, args.json)?;
    }
    Ok(())
}

fn trace(name: &str) -> Result<Lowering, Box<dyn Error>> {
    match name {
        "resnet50" => {
            lower(&ResNetClassifier::new(Config::resnet50(), 0.1), &images(BATCH, &[3, 224, 224])?)
        }
        "gpt-48" => lower(&Gpt::deep(LAYERS, DType::Bf16, false), &words(BATCH, Gpt::LENGTH)?),
        "gpt-48-scan" => lower(&Gpt::deep(LAYERS, DType::Bf16, true), &words(BATCH, Gpt::LENGTH)?),
        _ => {
            Err(format!("there is no workload {name}; there are resnet50, gpt-48 and gpt-48-scan")
                .into())
        }
    }
}

fn lower<M: TrainingModule>(module: &M, loader: &DataLoader) -> Result<Lowering, Box<dyn Error>> {
    let builder = Trainer::builder().precision(Precision::Bf16Mixed);
    let start = Instant::now();
    let text = builder.stablehlo(module, loader, 1)?;
    Ok(Lowering {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        seconds: start.elapsed().as_secs_f64(),
        bytes: text.len(),
    })
}

/// JAX's side, in a separate process.
fn peer(name: &str) -> Result<Lowering, Box<dyn Error>> {
    let mut command = Command::new(python()?);
    command.arg(Path::new(PEERS).join("jax_cost.py")).args([
        "--trace",
        "--workload",
        name,
        "--batch",
        &BATCH.to_string(),
    ]);
    let output = command.stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line)
        .map_err(|e| format!("the peer's output `{line}` is not valid: {e}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_over_the_layers_is_a_shorter_program() {
        let words = words(BATCH, Gpt::LENGTH).unwrap();
        let bytes = |scanned| lower(&Gpt::deep(8, DType::Bf16, scanned), &words).unwrap().bytes;
        let unrolled = bytes(false);
        let scanned = bytes(true);
        assert!(scanned < unrolled / 2, "{scanned} and {unrolled} bytes");
        let deep = trace("gpt-48-scan").unwrap().bytes;
        assert!(
            deep < scanned * 5 / 4 && deep <= 300_000,
            "{deep} bytes with {LAYERS} layers, {scanned} with 8"
        );
        assert!(trace("gpt").err().unwrap().to_string().contains("no workload gpt"));
    }
}
