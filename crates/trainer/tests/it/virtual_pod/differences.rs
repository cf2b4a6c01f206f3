//! One of several processes is about to train something else. All end with an error that names it and
//! what differs, before anything is launched. The plugin's own comparison is on, or off, as with
//! real devices.

use std::path::Path;

use fulmen_data::DataLoader;
use fulmen_nn::Module;
use fulmen_nn::loss::{Reduction, cross_entropy};
use fulmen_nn::optim::Optimizer;
use fulmen_trainer::callbacks::{EarlyStopping, Mode};
use fulmen_trainer::{Batch, Plan, Result, Resume, StepContext, TrainingModule};

use super::start;
use crate::common::{Net, samples, trainer};

/// What differs in a process.
const DIFFERENCE: &str = "FULMEN_TEST_DIFFERENCE";

/// A process that differs in one thing, and what the error says about it.
type Difference = (&'static str, &'static [&'static str]);

/// The differences of the processes 1 to 7. Process 0 has none.
const OF_THE_RUN: [Difference; 7] = [
    ("program", &["`training program`", "`validation program`"]),
    ("learning rate", &["`training program`"]),
    ("seed", &["`option seed`", "has 7, the other 7 have"]),
    ("precision", &["`option precision`", "has bf16-mixed, the other 7 have"]),
    ("max_epochs", &["`option max_epochs`", "has 3, the other 7 have 2"]),
    ("accumulate", &["`option accumulate_grad_batches`", "has 2, the other 7 have 1"]),
    ("callbacks", &["`callbacks`", "has EarlyStopping, ModelCheckpoint, the other 7 have"]),
];

const OF_THE_DATA: [Difference; 7] = [
    ("shorter data", &["`training data`", "has 16 of 16 samples"]),
    ("order of the data", &["`training data`", "seed 4"]),
    ("batch size", &["`training data`", "batches of 16"]),
    ("shorter validation", &["`validation data`", "has 8 of 8 samples"]),
    ("no validation", &["`validation data`: process 5", "has nothing"]),
    ("limit_train_batches", &["`option limit_train_batches`", "has 2, the other 7 have"]),
    ("gradient_clip_val", &["`option gradient_clip_val`", "has 0.5, the other 7 have"]),
];

/// [`Net`], without rectifying.
#[derive(Module)]
struct Other(Net);

impl TrainingModule for Other {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> fulmen_tensor::Tensor {
        let loss = self.0.training_step(batch, cx);
        loss.square()
    }
    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        let logits = self.0.forward(&batch.get("x")).sin();
        cx.log("val_loss", &cross_entropy(&logits, &batch.get("y"), Reduction::None));
    }
    fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer> {
        self.0.configure_optimizers(plan)
    }
}

/// The process of a pod.
pub(super) fn member(folder: &Path) -> Result<()> {
    let difference = std::env::var(DIFFERENCE).unwrap_or_default();
    let differs = |what: &str| difference == what;
    let builder = trainer(folder).max_epochs(if differs("max_epochs") { 3 } else { 2 });
    let builder = match &*difference {
        "seed" => builder.seed(7),
        "precision" => builder.precision("bf16-mixed"),
        "accumulate" => builder.accumulate_grad_batches(2),
        "callbacks" => builder.callback(EarlyStopping::new("val_loss", Mode::Min)),
        "limit_train_batches" => builder.limit_train_batches(2),
        "resume" => builder.resume(Resume::Auto),
        "gradient_clip_val" => builder.gradient_clip_val(0.5),
        _ => builder,
    };
    let mut trainer = builder.build()?;
    let mut net = Net::new();
    if differs("learning rate") {
        net.learning_rate = 0.06;
    }
    let data = DataLoader::builder(samples(if differs("shorter data") { 16 } else { 48 }));
    let data = data.batch_size(if differs("batch size") { 16 } else { 8 }).shuffle(true);
    let train = data.seed(if differs("order of the data") { 4 } else { 3 }).build().unwrap();
    let validation = samples(if differs("shorter validation") { 8 } else { 16 });
    let validation = DataLoader::builder(validation).batch_size(8).build().unwrap();
    let validation = (!differs("no validation")).then_some(&validation);
    if differs("program") {
        trainer.fit(&Other(net), &train, validation)?;
    } else {
        trainer.fit(&net, &train, validation)?;
    }
    Ok(())
}

/// A loop of one's own, in which one process validates before its first step.
pub(super) fn own_loop(folder: &Path) -> Result<()> {
    let mut trainer = trainer(folder).build()?;
    let net = Net::new();
    let data = DataLoader::builder(samples(16)).batch_size(8).build().unwrap();
    let mut step = trainer.train_step(&net, &data)?;
    let validation = step.eval_step(&data)?;
    if std::env::var_os(DIFFERENCE).is_some() {
        validation.run(&step)?;
    }
    for batch in step.batches() {
        step.run(&batch?)?;
    }
    validation.run(&step)?;
    step.block_until_ready()
}

fn check(differences: [Difference; 7], mismatch: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut processes = start(folder.path(), "8x1", "differences", |process| {
        let mut variables = vec![("FULMEN_VIRTUAL_POD_MISMATCH", mismatch.to_owned())];
        if process > 0 {
            variables.push((DIFFERENCE, differences[process - 1].0.to_owned()));
        }
        variables
    });
    let endings = processes.endings(0..8);
    for ending in &endings {
        assert_eq!(ending, &endings[0], "all processes say the same");
    }
    let message = &endings[0];
    assert!(message.starts_with("the processes do not agree on `fit`: "), "{message}");
    for (index, (difference, expected)) in differences.into_iter().enumerate() {
        let process = format!("process {} (", index + 1);
        for expected in expected {
            let part = message.split("; ").find(|part| {
                let fact = expected.split(':').next().unwrap();
                part.contains(&process) && (part.contains(fact))
            });
            assert!(part.is_some(), "{difference}: {expected}: {message}");
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing began");
}

#[test]
fn a_process_with_another_program_or_option_is_named_before_the_first_launch() {
    check(OF_THE_RUN, "hang");
    check(OF_THE_RUN, "error");
}

#[test]
#[ignore = "slow: ci/slow"]
fn a_process_that_launches_in_another_order_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut processes = start(folder.path(), "4x1", "differences: own loop", |process| {
        if process == 1 { vec![(DIFFERENCE, "order".to_owned())] } else { Vec::new() }
    });
    for ending in processes.endings(0..4) {
        assert!(ending.contains("processes 0, 2 and 3 launch `train"), "{ending}");
        assert!(ending.contains("process 1 launches `eval"), "{ending}");
        assert!(ending.contains("the same programs in the same order"), "{ending}");
    }
}

#[test]
fn a_process_that_alone_looks_for_a_checkpoint_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut processes = start(folder.path(), "3x1", "differences", |process| {
        if process == 1 { vec![(DIFFERENCE, "resume".to_owned())] } else { Vec::new() }
    });
    for ending in processes.endings(0..3) {
        let start = "the processes do not agree on `fit`: `checkpoint of ckpt_path and resume`: process 1 (";
        assert!(ending.starts_with(start), "{ending}");
        assert!(ending.contains("has the last one, the other 2 have none"), "{ending}");
    }
}

#[test]
fn a_process_with_other_data_is_named_before_the_first_launch() {
    check(OF_THE_DATA, "hang");
}
