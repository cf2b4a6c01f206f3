//! The custom loop as a peer: a process of this program that trains with `TrainStep` instead of
//! `Trainer::fit`. It runs a block of steps on request.

use std::error::Error;
use std::io::{BufRead as _, Write as _};
use std::time::Instant;

use fulmen::prelude::*;
use serde_json::{Value, json};

use crate::hardware::Hardware;
use crate::process::peak_bytes;
use crate::workload::{ModelVisitor, Workload};

/// The subcommand that starts this peer.
pub(crate) const SUBCOMMAND: &str = "custom-loop";

/// Steps between two reads of the logged values; the default of `fit`.
const READ_EVERY: u64 = 50;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    workload: String,
    #[arg(long, default_value = "cpu")]
    accelerator: Accelerator,
    #[arg(long)]
    devices: usize,
    #[arg(long, default_value_t = 1)]
    num_workers: usize,
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let workload = Workload::find(&args.workload)?;
    workload.with_model(Loop { args, workload })
}

struct Loop<'a> {
    args: &'a Args,
    workload: Workload,
}

impl ModelVisitor for Loop<'_> {
    type Output = Result<(), Box<dyn Error>>;

    fn visit<M: TrainingModule>(self, model: &M) -> Self::Output {
        let Loop { args, workload } = self;
        let loader = workload.loader(args.num_workers)?;
        let hardware = Hardware { accelerator: args.accelerator, devices: args.devices };
        let mut trainer =
            workload.trainer(hardware)?.max_epochs(u64::MAX / loader.len() as u64).build()?;
        let mut step = trainer.train_step(model, &loader)?;
        let mut batches = step.batches();
        let version = env!("CARGO_PKG_VERSION");
        let mut first_losses = Vec::new();
        if workload.has_same_start() {
            for batch in batches.by_ref().take(loader.len()) {
                step.run(&batch?)?;
                let loss = step.logs()?.wait()?.get("train_loss");
                first_losses.push(loss.ok_or("the step logs no train_loss")?);
            }
        }
        let first_losses = (!first_losses.is_empty()).then_some(first_losses);
        print_line(&json!({
            "version": version,
            "n_params": model.num_parameters(),
            "steps_per_epoch": loader.len(),
            "first_losses": first_losses,
        }))?;
        for line in std::io::stdin().lock().lines() {
            let line = line?;
            let Some(steps) =
                line.strip_prefix("block ").and_then(|steps| steps.parse::<u64>().ok())
            else {
                break;
            };
            let begin = Instant::now();
            let mut reading = None;
            let mut loss = f64::NAN;
            for n in 1..=steps {
                let batch = batches.next().ok_or("the loader ended")??;
                step.run(&batch)?;
                if n % READ_EVERY == 0 || n == steps {
                    reading = Some(step.logs()?);
                }
                if reading.as_ref().is_some_and(|values| values.is_ready())
                    && let Some(values) = reading.take()
                {
                    loss = values.wait()?.get("train_loss").unwrap_or(loss);
                }
            }
            if let Some(values) = reading {
                loss = values.wait()?.get("train_loss").unwrap_or(loss);
            }
            step.block_until_ready()?;
            print_line(
                &json!({ "seconds": begin.elapsed().as_secs_f64(), "loss": loss, "peak_bytes": peak_bytes() }),
            )?;
        }
        Ok(())
    }
}

fn print_line(line: &Value) -> Result<(), Box<dyn Error>> {
    let mut output = std::io::stdout();
    writeln!(output, "{line}")?;
    Ok(output.flush()?)
}
