//! Eight real processes that each build a Trainer. They agree before the first step. If one would
//! run something different, all end with an error that names it. CPU plugins cannot run a step over
//! several processes.

use crate::common::PAD_LAST;
use crate::test_processes::{TASK_VARIABLE, TestProcesses, say};
use std::path::Path;

use fulmen_nn::Module;
use fulmen_tensor::Literal;
use fulmen_trainer::Result;

const COUNT: usize = 8;

/// The process that the other tests start. `LEARNING_RATE`, `SAMPLES`, `BIAS` and `EPOCHS` make it
/// differ.
#[test]
#[ignore = "a part in the other tests"]
fn member() {
    let Some(part) = std::env::var_os(TASK_VARIABLE) else { return };
    let folder = std::env::var_os("FOLDER").unwrap();
    match train(Path::new(&folder), &part.to_string_lossy()) {
        Ok(()) => say("ended well"),
        Err(error) => {
            let processes = error.processes();
            let kind = match &error {
                e if e.is_peer_silent() && e.is_coordination() => "silence",
                e if e.is_coordination() => "coordination",
                e if e.is_usage() => "usage",
                _ => "other",
            };
            say(format!("ended {kind} {processes:?} {error}"));
        }
    }
}

fn train(folder: &Path, part: &str) -> Result<()> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<f64>().unwrap());
    let mut trainer = crate::common::trainer(folder)
        .max_epochs(number("EPOCHS").unwrap_or(2.0) as u64)
        .build()?;
    assert_eq!(
        trainer.num_processes(),
        COUNT.min(std::env::var("FULMEN_NUM_PROCESSES").unwrap().parse().unwrap())
    );
    let mut net = crate::common::Net::new();
    net.learning_rate = number("LEARNING_RATE").unwrap_or(net.learning_rate);
    if let Some(bias) = number("BIAS") {
        // For example, loaded weights.
        net.initialize(0);
        let (name, parameter) = net.parameters().pop().unwrap();
        assert_eq!(name, "fc2.bias");
        parameter.set(
            Literal::from_slice(&[bias as f32; crate::common::CLASSES], [crate::common::CLASSES])
                .unwrap()
                .to_tensor(),
        );
    }
    let loader = crate::common::train_loader(number("SAMPLES").unwrap_or(64.0) as usize, PAD_LAST);
    // One process can behave differently from the others.
    match std::env::var("ALONE").as_deref() {
        Ok("fails") => {
            let missing = fulmen_trainer::Weights::File(folder.join("missing"));
            return trainer.test(&net, &loader, missing).map(|_| ());
        }
        Ok("returns") => return Ok(()),
        Ok("hangs") => {
            say("hangs");
            std::thread::sleep(std::time::Duration::from_secs(600));
        }
        _ => {}
    }
    if part == "loops" {
        return trainer.train_step(&net, &loader).map(drop);
    }
    match trainer.fit(&net, &loader, Some(&crate::common::val_loader(16))) {
        // The next call of the same processes gets the same error.
        Err(error) if part == "tries twice" => {
            assert!(error.is_usage());
            trainer.test(&net, &loader, fulmen_trainer::Weights::Current).map(|_| ())
        }
        result => result.map(|_| ()),
    }
}

/// Starts processes, some of which differ.
fn start(
    folder: &Path,
    count: usize,
    part: &str,
    different: &[(usize, &str, &str)],
) -> TestProcesses {
    let mut test_processes = TestProcesses::new("processes::member", count);
    for index in 0..count {
        let mut variables =
            vec![("FOLDER", folder.to_str().unwrap()), ("FULMEN_HEARTBEAT_TIMEOUT", "8")];
        variables.extend(different.iter().filter(|d| d.0 == index).map(|d| (d.1, d.2)));
        test_processes.start(index, part, &variables);
    }
    test_processes
}

/// How the processes ended.
fn endings(count: usize, part: &str, different: &[(usize, &str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let mut test_processes = start(folder.path(), count, part, different);
    let endings = test_processes.endings(0..count);
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        0,
        "nothing began, so there is no run folder"
    );
    endings
}

#[test]
fn eight_equal_processes_agree_and_learn_what_a_cpu_cannot_do() {
    for ending in endings(COUNT, "tries twice", &[]) {
        assert!(
            ending.starts_with("usage [] 8 processes have joined and agree on what to run"),
            "{ending}"
        );
        assert!(ending.contains("CPU plugins have no collectives across processes"), "{ending}");
    }
}

#[test]
fn a_process_with_another_learning_rate_ends_all_and_is_named() {
    for ending in endings(COUNT, "trains", &[(3, "LEARNING_RATE", "0.06")]) {
        assert!(
            ending.starts_with("coordination [3] the processes do not agree on `fit`"),
            "{ending}"
        );
        assert!(ending.contains("`training program`: process 3 ("), "{ending}");
        assert!(!ending.contains("`validation program`") && !ending.contains("data`"), "{ending}");
    }
}

#[test]
fn processes_agree_on_a_users_own_loop_too() {
    for ending in endings(3, "loops", &[]) {
        assert!(
            ending.starts_with("usage [] 3 processes have joined and agree on what to run"),
            "{ending}"
        );
    }
    for ending in endings(3, "loops", &[(1, "LEARNING_RATE", "0.06")]) {
        assert!(
            ending.starts_with("coordination [1] the processes do not agree on `train_step`"),
            "{ending}"
        );
    }
}

#[test]
fn different_data_options_and_weights_are_distinguished() {
    for ending in
        endings(4, "trains", &[(1, "SAMPLES", "72"), (2, "EPOCHS", "3"), (3, "BIAS", "0.5")])
    {
        assert!(ending.starts_with("coordination [1, 2, 3] "), "{ending}");
        assert!(
            ending.contains("`training data`: process 1 (")
                && ending.contains("has 72 of 72 samples"),
            "{ending}"
        );
        assert!(
            ending.contains("`option max_epochs`: process 2 (")
                && ending.contains("has 3, the other 3"),
            "{ending}"
        );
        assert!(ending.contains("`initial values`: process 3 ("), "{ending}");
        assert!(!ending.contains("program`"), "{ending}");
    }
}

#[test]
fn a_mistake_in_one_process_is_reported_in_all() {
    let endings = endings(3, "trains", &[(1, "ALONE", "fails")]);
    assert!(endings[1].starts_with("other []") && endings[1].contains("missing"), "{}", endings[1]);
    for ending in [&endings[0], &endings[2]] {
        assert!(ending.starts_with("coordination [1] process 1 ("), "{ending}");
        assert!(ending.contains("missing"), "{ending}");
    }
}

#[test]
fn a_process_that_is_killed_ends_the_fit_of_all() {
    let folder = tempfile::tempdir().unwrap();
    // Both runs wait for the heartbeats at the same time.
    let runs = [0, 2].map(|killed| {
        let mut test_processes = start(folder.path(), 4, "trains", &[(killed, "ALONE", "hangs")]);
        test_processes.wait_for(killed, "hangs");
        test_processes.kill(killed);
        (killed, test_processes)
    });
    for (killed, mut test_processes) in runs {
        for ending in test_processes.endings((0..4).filter(|&index| index != killed)) {
            let named = format!("silence [{killed}] process {killed} (");
            assert!(ending.starts_with(&named) && ending.contains("for 8 s"), "{ending}");
        }
    }
}

#[test]
fn a_process_that_ends_without_training_is_reported_in_all() {
    let endings = endings(3, "trains", &[(1, "ALONE", "returns")]);
    assert_eq!(endings[1], "well");
    for ending in [&endings[0], &endings[2]] {
        assert!(ending.starts_with("coordination [1] process 1 ("), "{ending}");
        assert!(
            ending.contains("has reached the end of the program and will not arrive at `fit`"),
            "{ending}"
        );
    }
}
