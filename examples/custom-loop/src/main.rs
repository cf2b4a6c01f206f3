//! Trains on handwritten digits with a custom loop instead of `Trainer::fit`: see `train`.

mod setup;

use std::error::Error;

use fulmen::cli::clap::{self, Parser as _};
use fulmen::prelude::*;

/// Trains on handwritten digits with a custom loop
#[derive(clap::Parser)]
struct Args {
    /// Use random pixels instead of the digits.
    #[arg(long)]
    fake_data: bool,
    #[command(flatten)]
    trainer: TrainerArgs,
}

/// Trains, saves the best state in the Trainer's root folder, and tests it.
fn train(args: Args) -> Result<LogPoint, Box<dyn Error>> {
    let mut trainer =
        Trainer::builder().max_epochs(3).gradient_clip_val(1.0).args(args.trainer).build()?;
    let folder = trainer.options().default_root_dir.clone();
    std::fs::create_dir_all(&folder)?;
    let best_checkpoint = folder.join("best");
    let model = setup::model();
    let [train, validation, test] = setup::loaders(args.fake_data)?;
    let digits = setup::training(&model);

    let mut step = trainer.train_step(&digits, &train)?;
    let validation = step.eval_step(&validation)?;
    let mut best = f64::NEG_INFINITY;
    let steps = step.plan().total_steps;
    for batch in step.batches() {
        let progress = step.run(&batch?)?;
        if progress.global_step % 50 == 0 {
            let point = step.logs()?.wait()?;
            println!("{point}");
            trainer.log(&point)?;
        }
        if progress.batch == progress.batches || progress.global_step == steps {
            let point = validation.run(&step)?;
            println!("validation, {point}");
            trainer.log(&point)?;
            if let Some(accuracy) = point.get("val_acc").filter(|&accuracy| accuracy > best) {
                best = accuracy;
                step.save(&best_checkpoint)?;
            }
        }
    }
    drop(step); // returns the trained values to the model

    Ok(trainer.test(&digits, &test, Weights::File(best_checkpoint))?)
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("test, {}", train(Args::parse())?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Trains like the program with these arguments.
    fn run(args: &[&str]) -> LogPoint {
        let folder = tempfile::tempdir().unwrap();
        let program = ["custom-loop", "--default-root-dir", folder.path().to_str().unwrap()];
        let point = train(Args::parse_from(program.iter().chain(args))).unwrap();
        assert!(folder.path().join("best").is_dir());
        point
    }

    #[test]
    fn the_loop_learns_and_keeps_its_best_state() {
        let point = run(&[]);
        assert!(point.get("test_acc") > Some(0.95), "{point}");
    }

    #[test]
    fn the_loop_runs_on_fake_data_on_one_device_and_on_eight() {
        for devices in ["1", "8"] {
            let point = run(&["--fake-data", "--fast-dev-run", "--devices", devices]);
            assert!(point.get("test_loss") > Some(0.0), "{point}");
        }
    }
}
