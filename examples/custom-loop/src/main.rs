//! Trains on handwritten digits with a loop of one's own where others call `Trainer::fit`: `train` is that loop.

mod setup;

use std::error::Error;
use std::path::Path;

use fulmen::prelude::*;

/// Trains, keeps the best state in `folder`, and tests it.
fn train(folder: &Path) -> Result<LogPoint, Box<dyn Error>> {
    std::fs::create_dir_all(folder)?;
    let best_checkpoint = folder.join("best");
    let (model, [train, validation, test]) = (setup::model(), setup::loaders()?);
    let digits = setup::training(&model);

    let mut trainer = Trainer::builder().max_epochs(3).gradient_clip_val(1.0).default_root_dir(folder).build()?;
    let mut step = trainer.train_step(&digits, &train)?;
    let validation = step.eval_step(&validation)?;
    let mut best = 0.0;
    for batch in step.batches() {
        let now = step.run(&batch?)?;
        if now.global_step % 50 == 0 {
            println!("{}", step.logs()?.wait()?);
        }
        if now.batch == now.batches {
            let point = validation.run(&step)?;
            println!("validation, {point}");
            if let Some(accuracy) = point.get("val_acc").filter(|&accuracy| accuracy > best) {
                best = accuracy;
                step.save(&best_checkpoint)?;
            }
        }
    }
    drop(step); // the model has its values back

    Ok(trainer.test(&digits, &test, Weights::File(best_checkpoint))?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "runs".into());
    println!("test, {}", train(folder.as_ref())?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_learns_and_keeps_its_best_state() {
        let folder = tempfile::tempdir().unwrap();
        let point = train(folder.path()).unwrap();
        assert!(point.get("test_acc") > Some(0.95), "{point}");
        assert!(folder.path().join("best").is_dir());
    }
}
