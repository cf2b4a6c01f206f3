//! Trains on handwritten digits with a loop of one's own where others call `Trainer::fit`: `main` is that loop.

mod setup;

use std::error::Error;

use fulmen::prelude::*;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "runs".into());
    std::fs::create_dir_all(&folder)?;
    let best_checkpoint = format!("{folder}/best.safetensors");
    let (model, [train, validation, test]) = (setup::model(), setup::loaders()?);
    let digits = setup::training(&model);

    let mut trainer = Trainer::builder().max_epochs(3).gradient_clip_val(1.0).build()?;
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

    let point = trainer.test(&digits, &test, Weights::File(best_checkpoint.into()))?;
    println!("test, {point}");
    Ok(())
}
