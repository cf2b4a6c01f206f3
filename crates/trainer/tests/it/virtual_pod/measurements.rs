//! What a run of several processes writes about each of them, and the file that each writes for its
//! supervisor.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use fulmen_trainer::Result;
use serde_json::Value as Json;

use super::{count, start};
use crate::common::{DROP_LAST, Net, files, train_loader, trainer};
use crate::test_processes::say;

const SHAPE: &str = "2x2";

const STEPS: u64 = 4;

/// The file for the supervisor of a process.
fn progress(folder: &Path, process: usize) -> PathBuf {
    folder.join(format!("progress_{process}"))
}

/// The process of a pod. It ends when its file has the last step.
pub(super) fn member(folder: &Path) -> Result<()> {
    let mut trainer = trainer(&folder.join("runs")).max_epochs(1).build()?;
    trainer.fit(&Net::new(), &train_loader(8 * STEPS as usize, DROP_LAST), None)?;
    let own = std::env::var_os("FULMEN_PROGRESS_FILE").unwrap();
    let expected = format!("{STEPS} {STEPS}");
    while std::fs::read_to_string(&own).ok().as_ref() != Some(&expected) {
        sleep(Duration::from_millis(20));
    }
    say("ended well");
    Ok(())
}

fn json(path: PathBuf) -> Json {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn the_files_of_a_run_have_the_measurements_of_all_processes() {
    let folder = tempfile::tempdir().unwrap();
    let mut processes = start(folder.path(), SHAPE, "measurements", |process| {
        let path = progress(folder.path(), process);
        vec![("FULMEN_PROGRESS_FILE", path.to_str().unwrap().to_owned())]
    });
    let endings = processes.endings(0..count(SHAPE));
    assert_eq!(endings, ["well", "well"]);
    assert_eq!(files(&folder.path().join("runs")), ["version_0"]);
    let run = folder.path().join("runs/version_0");

    let environment = json(run.join("environment.json"));
    let hosts = environment["hosts"].as_array().unwrap();
    assert_eq!(hosts.len(), 2, "{environment:#}");
    for (process, host) in hosts.iter().enumerate() {
        assert_eq!(host["host"], environment["host"], "{host}");
        let devices = [2 * process, 2 * process + 1];
        assert_eq!(host["own_devices"], Json::from(devices.to_vec()), "{host}");
    }
    // What is the same is there once, and what differs is there for each.
    assert!(hosts[1].get("platform").is_none() && hosts[0].get("variables").is_none());
    assert_eq!(environment["variables"]["FULMEN_PROCESS_ID"], "0");
    assert_eq!(hosts[1]["variables"]["FULMEN_PROCESS_ID"], "1");

    let goodput = &json(run.join("goodput.json"))["runs"][0];
    let seconds = goodput["hosts"].as_array().unwrap();
    assert_eq!(seconds.len(), 2, "{goodput:#}");
    assert!(seconds.iter().all(|host| host["steps"].as_f64().unwrap() > 0.0), "{goodput:#}");

    let summary = json(run.join("summary.json"));
    let hosts = summary["hosts"].as_array().unwrap();
    assert_eq!(hosts.len(), 2, "{summary:#}");
    for host in hosts {
        assert_eq!(host["memory"].as_array().unwrap().len(), 2, "{host:#}");
        assert!(host["host_memory"].as_u64().unwrap() > 0, "{host:#}");
        assert!(host["loader"].is_string(), "{host:#}");
    }
    assert_ne!(hosts[0]["memory"][0]["device"], hosts[1]["memory"][0]["device"]);
    let page = std::fs::read_to_string(run.join("report.html")).unwrap();
    assert!(page.contains("Process 1 on "), "the page shows the memory of both");
}
