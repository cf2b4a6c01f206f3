//! What the processes of a run print: process 0 prints for all.

use std::path::Path;

use fulmen_trainer::{Result, Weights};

use super::{count, start};
use crate::common::{DROP_LAST, Net, train_loader, trainer, val_loader};
use crate::test_processes::say;

const SHAPE: &str = "2x2";

/// The process of a pod.
pub(super) fn member(folder: &Path) -> Result<()> {
    let builder = trainer(folder).enable_progress_bar(true).enable_model_summary(true);
    // The command line of a program asks for the options first.
    builder.options()?;
    let mut trainer = builder.max_epochs(1).build()?;
    let net = Net::new();
    let weights = Weights::from_options(trainer.options())?;
    trainer.test(&net, &val_loader(8), weights)?;
    trainer.fit(&net, &train_loader(16, DROP_LAST), None)?;
    say("ended well");
    Ok(())
}

#[test]
fn only_process_0_prints_the_lines_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let variable = |_| vec![("FULMEN_OF_NOTHING", "1".to_owned())];
    let mut processes = start(folder.path(), SHAPE, "console", variable);
    assert_eq!(processes.endings(0..count(SHAPE)), ["well", "well"]);
    let printed = processes.stderr(0);
    for expected in [
        "note: these environment variables have no effect on Fulmen: FULMEN_OF_NOTHING",
        "note: ckpt_path is not set, so the weights are the module's initial ones",
        "Compiled the training step in ",
        "Epoch 1/1: ",
    ] {
        let lines = printed.iter().filter(|line| line.starts_with(expected)).count();
        assert_eq!(lines, 1, "{expected}: {printed:#?}");
    }
    assert_eq!(processes.stderr(1), [""; 0]);
}
