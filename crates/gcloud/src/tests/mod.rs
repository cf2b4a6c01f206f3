//! Tests commands against a fake gcloud, which rejects what the real one would reject.

mod api_server;
mod cloud;
mod google;
mod grammar;
#[path = "../../../pods/src/tests/programs.rs"]
mod programs;

use std::fs;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;

use clap::Parser;
use fulmen_signals::Signal;
use serde_json::{Value, json};

use crate::arguments::Machine;
use crate::command_runner::{CommandOutput, CommandRunner, Gcloud, PollPolicy, Tool};
use crate::create::{Lease, lease_with};
use crate::{Error, Result};
use cloud::{CallOutcome, Cloud, FAULTS};
use programs::write_script;

#[derive(Parser)]
enum Cli {
    #[command(flatten)]
    Tpu(crate::Command),
}

#[derive(Parser)]
struct OneMachine {
    #[command(flatten)]
    machine: Machine,
}

const CREATE: [&str; 6] =
    ["train", "--type", "v5e-8", "--zone=us-west4-a", "--project=p", "--ready-timeout=5"];

fn poll_policy() -> PollPolicy {
    PollPolicy { pause: Duration::ZERO, attempts: 6, required_absences: 3 }
}

fn machine(more: &[&str]) -> Machine {
    OneMachine::parse_from([&["tpu"], CREATE.as_slice(), more].concat()).machine
}

/// Runs a command, and returns how it ended, what it printed, and its log.
fn tpu(cloud: &dyn CommandRunner, arguments: &[&str]) -> (Result<u8>, String, String) {
    let Cli::Tpu(command) = Cli::parse_from([&["tpu"], arguments].concat());
    let (_send, signals) = channel();
    let mut out = Vec::new();
    let mut log = Vec::new();
    let ended =
        crate::run_with(&command, Tool::new(cloud, &mut out, &mut log, &signals, poll_policy()));
    (ended, String::from_utf8(out).unwrap(), String::from_utf8(log).unwrap())
}

/// Leases a machine, and returns the result with the whole output.
fn run_lease(
    cloud: &mut Cloud,
    machine: &Machine,
    delete_after: bool,
    work: Result<u8, String>,
) -> (Result<u8>, String) {
    let (send, signals) = channel();
    cloud.signals = Some(send);
    let mut out = Vec::new();
    let mut log = Vec::new();
    let tool = Tool::new(&*cloud, &mut out, &mut log, &signals, poll_policy());
    let lease = Lease { machine, delete_after, json: false };
    let ended = lease_with(lease, true, tool, &mut |_| work.clone());
    let mut text = String::from_utf8([out, log].concat()).unwrap();
    if let Err(error) = &ended {
        text += &error.to_string();
    }
    (ended, text)
}

#[test]
fn a_machine_is_created_used_and_deleted() {
    for (flags, created, deleted) in [
        ([].as_slice(), "tpu-vm create train", "tpu-vm delete train"),
        (&["--queued", "--spot"], "queued-resources create train", "queued-resources delete train"),
        (
            &["--flex-start", "--max-hours=2"],
            "alpha compute tpus queued-resources create",
            "--force --quiet",
        ),
    ] {
        let mut cloud = Cloud::new();
        let (ended, text) = run_lease(&mut cloud, &machine(flags), true, Ok(3));
        assert_eq!(ended, Ok(3), "{text}");
        assert!(
            !cloud.has_costs() && text.contains("train is deleted") && !text.contains("LEFT"),
            "{text}"
        );
        assert_eq!((cloud.calls(created).len(), cloud.calls(deleted).len()), (1, 1), "{text}");
        assert!(text.contains("$ gcloud") && text.contains("$230.40 a day"), "{text}");
    }
}

/// Tries every fault in each of the first ten calls, every pair of faults, and outages from each
/// call on.
#[test]
fn no_failures_leave_a_machine_unreported() {
    const CALLS: usize = 10;
    let mut faults: Vec<Vec<(usize, CallOutcome)>> = vec![Vec::new()];
    let single: Vec<(usize, CallOutcome)> =
        (0..CALLS).flat_map(|call| FAULTS.map(|outcome| (call, outcome))).collect();
    for (index, &first) in single.iter().enumerate() {
        faults.push(vec![first]);
        let others = single[index + 1..].iter().filter(|second| second.0 != first.0);
        faults.extend(others.map(|&second| vec![first, second]));
    }
    let outages = (0..=CALLS).map(|call| (Vec::new(), call));
    let works = [Ok(0), Ok(3), Err("no ssh".to_owned())];
    let node = machine(&["--data-disk=data"]);
    let queued = machine(&["--queued", "--max-hours=1"]);
    let mut leftovers = 0;
    let mut runs = 0;
    for (index, (outcomes, outage)) in
        faults.into_iter().map(|outcomes| (outcomes, usize::MAX)).chain(outages).enumerate()
    {
        for (machine, delete_after) in
            [(&node, true), (&queued, true), (&node, false), (&queued, false)]
        {
            // Test pairs only with a deletion, where more can go wrong.
            if outcomes.len() == 2 && !delete_after {
                continue;
            }
            let mut cloud = Cloud::new();
            (cloud.outcomes, cloud.outage) = (outcomes.iter().copied().collect(), outage);
            let (ended, text) =
                run_lease(&mut cloud, machine, delete_after, works[index % 3].clone());
            let case = format!("{outcomes:?} {outage} {delete_after} {ended:?}\n{text}");
            runs += 1;
            if cloud.has_costs() {
                leftovers += 1;
                let command = [
                    "Delete it: gcloud compute tpus",
                    "Delete it: fulmen tpu delete train --zone us-west4-a",
                ];
                assert!(command.iter().any(|command| text.contains(command)), "{case}");
                assert!(!(delete_after && ended == Ok(0)), "{case}");
                assert!(!text.contains("train is deleted"), "{case}");
            }
            if outcomes.is_empty() && outage == usize::MAX {
                assert_eq!(cloud.has_costs(), !delete_after, "{case}");
            }
        }
    }
    assert!(runs > 3000 && leftovers > 100, "{leftovers} of {runs}");
}

#[test]
fn a_machine_of_another_command_is_never_deleted() {
    let foreign = || {
        Cloud::new().with_node(
            "train",
            "us-west4-a",
            "v5litepod-8",
            json!({"fulmen-owner": "other"}),
        )
    };
    let mut cloud = foreign();
    let (ended, _) = run_lease(&mut cloud, &machine(&[]), true, Ok(0));
    let error = ended.unwrap_err();
    assert!(
        error.is_usage() && error.to_string().contains("there is a train in us-west4-a already"),
        "{error}"
    );
    assert!(
        cloud.has_costs() && cloud.calls("create").is_empty() && cloud.calls("delete").is_empty()
    );

    // The other machine appears between the query and the creation.
    let mut cloud = foreign();
    cloud.empty_answers = 1;
    let (ended, text) = run_lease(&mut cloud, &machine(&[]), true, Ok(0));
    assert!(ended == Ok(1) && cloud.has_costs() && cloud.calls("delete").is_empty(), "{text}");
    assert!(
        text.contains("ALREADY_EXISTS") && text.contains("Another command may have created it"),
        "{text}"
    );
}

#[test]
fn invalid_arguments_are_rejected_before_any_query() {
    let refused = |flags: &[&str], expected: &str| {
        let cloud = Cloud::new();
        let (ended, ..) = tpu(&cloud, &[&["create"], CREATE.as_slice(), flags].concat());
        let error = ended.unwrap_err();
        assert!(error.is_usage() && error.to_string().contains(expected), "{error}");
        assert!(cloud.calls("").is_empty());
    };
    refused(&["--node-count=2"], "this command creates one slice");
    refused(&["--flex-start"], "at most 168 hours");
    refused(&["--startup-script=/no/such/file"], "/no/such/file");
    refused(&["--price=/no/such/table"], "/no/such/table");
    let parse = |arguments: &[&str]| Cli::try_parse_from([&["tpu", "create"], arguments].concat());
    for wrong in [["--help=x", "--type=v5e-8"], ["a b", "--type=v5e-8"], ["train", "--type=v5e-7"]]
    {
        assert!(parse(&[&wrong[..], &["--zone=us-west4-a"]].concat()).is_err(), "{wrong:?}");
    }
    let cloud = Cloud::new();
    let arguments = ["create", "t", "--type=tpu7x-8", "--version=v", "--zone=z", "--max-cost=5"];
    let error = tpu(&cloud, &arguments).0.unwrap_err().to_string();
    assert!(error.contains("the price of tpu7x:2x2x1 is unknown"), "{error}");
}

#[test]
fn a_dry_run_changes_nothing_and_its_commands_are_gclouds() {
    let cloud = Cloud::new();
    let more = [
        "--max-cost=19.2",
        "--max-hours=5",
        "--data-disk=big:read-only",
        "--network=n",
        "--reserved",
        "--dry-run",
    ];
    let (ended, out, _) = tpu(&cloud, &[&["create"], CREATE.as_slice(), &more].concat());
    assert!(ended == Ok(0) && cloud.calls("").is_empty());
    // At $9.60 an hour, 19.20 USD are two hours, less than the limit of five hours.
    for expected in [
        "SECONDS_LEFT=7200",
        "--accelerator-type=v5litepod-8",
        "fulmen-limit=7200",
        "--scopes=https://",
    ] {
        assert!(out.contains(expected), "{expected}: {out}");
    }
    assert!(
        out.contains("--data-disk=source=projects/p/zones/us-west4-a/disks/big,mode=read-only"),
        "{out}"
    );
    let commands = out.lines().filter(|line| line.starts_with("gcloud ")).map(|line| {
        let output = Command::new("sh")
            .args(["-c", &format!("printf '%s\\n' {}", &line[7..])])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    });
    let parsed: Vec<_> =
        commands.map(|words| grammar::Call::parse(&words).unwrap().command).collect();
    assert_eq!(
        parsed,
        ["compute tpus tpu-vm list", "compute tpus tpu-vm create", "compute tpus tpu-vm ssh"]
    );
    for arguments in [
        &["delete", "train", "--zone=z", "--dry-run", "--json"][..],
        &["extend", "train", "--zone=z", "--hours=2", "--dry-run", "--json"],
    ] {
        let (_, out, _) = tpu(&cloud, arguments);
        assert_eq!(
            serde_json::from_str::<Value>(&out).unwrap()["commands"].as_array().unwrap().len(),
            2,
            "{out}"
        );
        assert!(cloud.calls("").is_empty());
    }
}

#[test]
fn the_list_has_prices_ages_and_unknown_prices() {
    let labels = json!({"fulmen-limit": "7200"});
    let cloud = Cloud::new().with_node("train", "us-west4-a", "v5litepod-8", labels);
    let (ended, out, log) = tpu(&cloud, &["list", "--all-zones", "--json"]);
    assert_eq!(ended, Ok(0), "{log}");
    assert!(log.contains("tpu-vm list --zone=- --format=json"), "{log}");
    let list: Value = serde_json::from_str(&out).unwrap();
    let rows = list["rows"].as_array().unwrap();
    assert_eq!((rows.len(), &list["unknown_prices"]), (8, &json!(1)), "{list}");
    let vm = &rows[0];
    let disk = &rows[1];
    // 8 chips of $1.20 an hour; 730 GiB of 0.10 USD a month.
    assert!(
        (vm["usd_per_day"].as_f64().unwrap() - 230.4).abs() < 1e-9 && vm["zone"] == "us-west4-a",
        "{list}"
    );
    assert!((disk["usd_per_day"].as_f64().unwrap() - 2.4).abs() < 1e-9, "{list}");
    assert_eq!(
        (&vm["ends"], &disk["created"]),
        (&json!("2026-11-22T12:00:00.123456789Z"), &json!("2026-11-20T20:00:00Z"))
    );
    let price = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name);
        row.and_then(|row| row["usd_per_day"].as_f64()).map(|usd| (usd * 1e4).round() / 1e4)
    };
    // 10 GiB of 0.08 USD a month; 0.3885 and 0.01 USD an hour; 1 GiB of 0.05 USD a month.
    assert_eq!(price("fast"), Some(0.0263));
    assert_eq!(price("prep"), Some(9.324));
    assert_eq!((price("idle"), price("busy")), (Some(0.24), Some(0.0)));
    assert_eq!((price("saved"), price("shards")), (Some(0.0016), None));
    // Addresses, snapshots and buckets belong to no zone.
    let (_, out, log) = tpu(&cloud, &["list", "--zone=us-west4-a"]);
    assert!(
        log.contains("compute instances list --zones=us-west4-a") && !log.contains("buckets"),
        "{log}"
    );
    assert!(out.contains("$242.15 a day: list prices, on demand, of 20"), "{out}");
    assert!(out.contains("machine prep (us-west4-a): n2-standard-8, RUNNING"), "{out}");
    assert!(
        out.contains("deletes itself at 2026-11-22 12:00 UTC")
            && out.contains("attached to nothing"),
        "{out}"
    );

    // A failed query is reported, and the other results are shown.
    let mut cloud = cloud;
    cloud.outcomes.insert(cloud.calls("").len() + 1, CallOutcome::Fails);
    let (ended, out, _) = tpu(&cloud, &["list", "--all-zones"]);
    assert!(out.contains("train") && out.contains("fast"), "{out}");
    assert!(
        ended
            .unwrap_err()
            .to_string()
            .starts_with("cannot list queued resources: ERROR: (gcloud) UNAVAILABLE")
    );
}

#[test]
fn machines_are_described_awaited_extended_and_deleted() {
    let cloud = Cloud::new().with_node("train", "us-west4-a", "v5litepod-8", json!({}));
    let target = ["train", "--zone=us-west4-a"];
    let (_, out, _) = tpu(&cloud, &[&["describe"], target.as_slice()].concat());
    assert!(out.contains("hosts: 34.1.2.3\nhealth: HEALTHY"), "{out}");
    let (ended, out, _) = tpu(&cloud, &[&["wait"], target.as_slice(), &["--json"]].concat());
    assert_eq!(
        (ended, out.as_str()),
        (Ok(0), "{\"hosts\":[\"34.1.2.3\"],\"name\":\"train\",\"zone\":\"us-west4-a\"}\n")
    );
    let (ended, ..) = tpu(&cloud, &[&["extend"], target.as_slice(), &["--hours=1.5"]].concat());
    assert_eq!(ended, Ok(0));
    assert!(cloud.calls("ssh")[0].contains("--command=sudo /usr/local/sbin/fulmen-limit set 5400"));
    assert_eq!(cloud.calls("--update-labels=fulmen-ends=").len(), 1);
    let (ended, ..) =
        tpu(&cloud, &[&["ssh"], target.as_slice(), &["--worker=all", "--", "df", "-h"]].concat());
    assert_eq!(ended, Ok(0));
    let (ended, out, log) = tpu(&cloud, &[&["delete"], target.as_slice()].concat());
    assert_eq!((ended, out.as_str()), (Ok(0), "train is deleted\n"));
    assert!(log.contains("LEFT: the disk data costs money") && !cloud.has_costs(), "{log}");
    let absent = |command: &str| {
        tpu(&cloud, &[&[command], target.as_slice()].concat()).0.unwrap_err().to_string()
    };
    assert!(absent("delete").contains("no queued resource train in us-west4-a"));
    assert!(
        absent("wait").contains("there is no train")
            && absent("describe").contains("there is no TPU VM")
    );
}

#[test]
fn a_list_that_is_not_whole_is_a_failure() {
    let warning = "WARNING: Some requests did not succeed.\n - NOT_FOUND: zones/us-west4-a\n";
    let output = CommandOutput { ok: true, out: "[]".into(), err: warning.into() };
    let error = output.result().unwrap_err().to_string();
    assert_eq!(error, "WARNING: Some requests did not succeed. - NOT_FOUND: zones/us-west4-a");
}

#[test]
fn each_shape_has_the_flags_that_gcloud_knows() {
    let created = |slice: &str| {
        let arguments = ["create", "t", "--version=v", "--zone=z", "--dry-run", "--type", slice];
        let (ended, out, _) = tpu(&Cloud::new(), &arguments);
        ended.map(|_| out.lines().find(|line| line.contains(" create ")).unwrap().to_owned())
    };
    for (slice, expected) in [
        (
            "v5e:2x4",
            "gcloud compute tpus tpu-vm create t --zone=z --version=v --accelerator-type=v5litepod-8",
        ),
        (
            "v5e-8",
            "gcloud compute tpus tpu-vm create t --zone=z --version=v --accelerator-type=v5litepod-8",
        ),
        (
            "v6e:2x2",
            "gcloud compute tpus tpu-vm create t --zone=z --version=v --accelerator-type=v6e-4",
        ),
        (
            "v3:2x2",
            "gcloud compute tpus tpu-vm create t --zone=z --version=v --accelerator-type=v3-8",
        ),
        (
            "v4:2x2x3",
            "gcloud compute tpus tpu-vm create t --zone=z --version=v --type=v4 --topology=2x2x3",
        ),
        (
            "v5e:2x3",
            "gcloud alpha compute tpus tpu-vm create t --zone=z --version=v --type=v5litepod --topology=2x3",
        ),
    ] {
        let line = created(slice).unwrap();
        assert!(line.starts_with(expected), "{slice}: {line}");
    }
    let error = created("tpu7x:2x2x3").unwrap_err();
    assert!(
        error.is_usage() && error.to_string().contains("only by their accelerator type"),
        "{error}"
    );
}

#[test]
fn every_command_has_a_dry_run() {
    let cloud = Cloud::new();
    for arguments in [
        &["list", "--all-zones"][..],
        &["describe", "t", "--zone=z"],
        &["wait", "t", "--zone=z"],
        &["quota", "--project=p"],
        &["ssh", "t", "--zone=z"],
        &["delete", "t", "--zone=z"],
        &["extend", "t", "--zone=z", "--hours=1"],
        &["create", "t", "--zone=z", "--type=v5e-8"],
        &["disk", "create", "d", "--zone=z", "--size=10"],
        &["disk", "attach", "d", "--zone=z", "--tpu=t", "--project=p"],
        &["disk", "detach", "d", "--zone=z", "--tpu=t", "--project=p"],
        &["disk", "list", "--zone=z"],
        &["disk", "delete", "d", "--zone=z"],
        &["machine", "create", "m", "--zone=z"],
        &["machine", "ssh", "m", "--zone=z"],
        &["machine", "run", "m", "--zone=z", "--delete-after", "--dry-run", "--", "/bin/sh"],
        &["machine", "delete", "m", "--zone=z"],
    ] {
        let mut arguments = arguments.to_vec();
        if !arguments.contains(&"--dry-run") {
            arguments.push("--dry-run");
        }
        let (ended, out, log) = tpu(&cloud, &arguments);
        assert_eq!(ended, Ok(0), "{arguments:?}: {log}");
        for line in out.lines() {
            let words =
                line.strip_prefix("gcloud ").unwrap_or_else(|| panic!("{arguments:?}: {line}"));
            let output = Command::new("sh")
                .args(["-c", &format!("printf '%s\\n' {words}")])
                .output()
                .unwrap();
            let words = String::from_utf8(output.stdout).unwrap();
            let words: Vec<String> = words.lines().map(str::to_owned).collect();
            grammar::Call::parse(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        assert!(out.starts_with("gcloud ") && cloud.calls("").is_empty(), "{arguments:?}: {out}");
    }
}

#[test]
fn disks_are_created_attached_and_deleted() {
    let target = ["--zone=us-west4-a", "--project=p"];
    let cloud = Cloud::new().with_node("train", "us-west4-a", "v5litepod-16", json!({}));
    let (ended, out, log) =
        tpu(&cloud, &[&["disk", "create", "data", "--size=730"], &target[..]].concat());
    assert_eq!(ended, Ok(0), "{log}");
    assert!(log.contains("the disk data costs $1.92 a day until it is deleted"), "{log}");
    assert!(out.contains("fulmen tpu disk attach data --tpu NAME"), "{out}");
    // Four hosts share a disk only read-only.
    let attach = [&["disk", "attach", "data", "--tpu=train"], &target[..]].concat();
    let error = tpu(&cloud, &attach).0.unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("v5e:4x4 has several hosts"), "{error}");
    assert!(cloud.calls("--attach-disk").is_empty());
    let (ended, _, log) = tpu(&cloud, &[attach.as_slice(), &["--read-only"]].concat());
    assert_eq!(ended, Ok(0), "{log}");
    let source = "source=projects/p/zones/us-west4-a/disks/data,mode=read-only";
    assert_eq!(cloud.calls(&format!("--attach-disk={source}")).len(), 1, "{log}");
    let (ended, ..) =
        tpu(&cloud, &[&["disk", "detach", "data", "--tpu=train"], &target[..]].concat());
    assert_eq!(ended, Ok(0));
    let (_, out, _) = tpu(&cloud, &[&["disk", "list"], &target[..]].concat());
    assert!(out.contains("disk data") && !out.contains("TPU VM"), "{out}");
    let (ended, out, _) = tpu(&cloud, &[&["disk", "delete", "data"], &target[..]].concat());
    assert_eq!((ended, out.as_str()), (Ok(0), "the disk data is deleted\n"));
    // A new slice with several hosts.
    let create = [&["create", "t", "--type=v5e-16", "--data-disk=data"], &target[..]].concat();
    let error = tpu(&cloud, &create).0.unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("data:read-only"), "{error}");
}

#[test]
fn a_machine_without_tpus_is_created_used_and_deleted() {
    let target = ["--zone=us-west4-a", "--project=p"];
    let mut cloud = Cloud::new();
    let (_, out, _) = tpu(&cloud, &["machine", "kinds"]);
    assert!(out.contains("n2-standard-32  32 vCPUs  128 GiB $1.55 an hour"), "{out}");
    // The stand-in has a machine `prep`.
    let create = [&["machine", "create", "prep"], &target[..]].concat();
    let error = tpu(&cloud, &create).0.unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("is there already"), "{error}");
    let run =
        [&["machine", "run", "new"], &target[..], &["--delete-after", "--", "/bin/sh"]].concat();
    let (ended, _, log) = tpu(&cloud, &run);
    assert_eq!(ended, Ok(0), "{log}");
    assert!(log.contains("[tpu] it costs $9.32 a day at list prices"), "{log}");
    assert!(
        log.contains("$ gcloud compute scp /bin/sh new:") && log.contains("new is deleted"),
        "{log}"
    );
    // It may have been created, and gcloud cannot say so any more.
    cloud.outage = cloud.calls("").len() + 1;
    let (ended, _, log) = tpu(&cloud, &run);
    assert_eq!(ended, Ok(1), "{log}");
    assert!(log.contains("LEFT: new in us-west4-a may exist"), "{log}");
    assert!(log.contains("Delete it: gcloud compute instances delete new"), "{log}");
    let missing = [&["machine", "run", "new"], &target[..], &["--", "/no/such/program"]].concat();
    let error = tpu(&cloud, &missing).0.unwrap_err();
    assert!(error.to_string().contains("nothing was created"), "{error}");
}

#[test]
fn a_region_is_not_a_zone() {
    let error =
        Cli::try_parse_from(["tpu", "list", "--zone=us-central1"]).err().unwrap().to_string();
    assert!(
        error.contains("`us-central1` is a region; expected a zone, such as us-central1-a"),
        "{error}"
    );
}

#[test]
fn a_quota_above_zero_is_shown() {
    let (_, out, _) = tpu(&Cloud::new(), &["quota", "--project=p", "--zone=us-west4-a"]);
    assert_eq!(
        out,
        "TPU v5 lite pod cores (TPUV5sLitepodPerProjectPerZone): 16 in us-west4-a\nRequests (Requests): no limit in global\n"
    );
    // Older versions of gcloud have the command in beta.
    let old = Cloud::old();
    let (_, out, _) = tpu(&old, &["quota", "--project=p", "--json"]);
    assert_eq!(old.calls("beta quotas info list").len(), 1);
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()[0]["value"], "16");
}

#[test]
fn the_limit_on_a_host_deletes_its_tpu_at_the_deadline_and_can_be_extended() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // Replacements for `curl` and the clock.
    write_script(
        &path("curl"),
        "#!/bin/bash\ncase \"$*\" in\n*/token) echo '{\"access_token\":\"s3cret\",\"expires_in\":3599}' ;;\n\
         */project-id) echo proj ;;\n*:testIamPermissions) cat \"$MAY\" ;;\n*) echo \"$*\" >>\"$CALLS\"; cat >>\"$CALLS\" ;;\nesac\n",
    );
    write_script(&path("date"), "#!/bin/bash\ncat \"$CLOCK\"\n");
    write_script(&path("systemctl"), "#!/bin/bash\nexit 0\n");
    let mut plain = machine(&["--queued"]);
    plain.zone_args.project = None;
    let limit = crate::limit::Limit { seconds: 60 };
    let startup_script = crate::limit::Limit::startup_script(Some(limit), &plain).unwrap().unwrap();
    let limit_script = startup_script
        .split("END_OF_FULMEN_FILE'\n")
        .nth(1)
        .unwrap()
        .split("END_OF_FULMEN_FILE\n")
        .next()
        .unwrap();
    write_script(&path("limit"), limit_script);
    let run = |arguments: &[&str]| {
        let output = Command::new(path("limit"))
            .args(arguments)
            .env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()))
            .envs([
                ("FULMEN_TEST_STATE", path("state")),
                ("CALLS", path("calls")),
                ("CLOCK", path("clock")),
                ("MAY", path("may")),
            ])
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    };
    let clock = |seconds: u64| fs::write(path("clock"), format!("{seconds}\n")).unwrap();
    clock(1000);
    assert!(!run(&["status"]).0, "there is no deadline");
    run(&["begin"]);
    clock(1030);
    // A later start keeps the deadline.
    run(&["begin"]);
    let (ok, unknown) = run(&["status"]);
    assert!(
        ok && unknown.starts_with("it deletes itself in 30 s; whether it may is unknown: cat:"),
        "{unknown}"
    );
    fs::write(path("may"), r#"{"permissions": ["tpu.queuedResources.delete"]}"#).unwrap();
    assert_eq!(run(&["status"]), (true, "it deletes itself in 30 s; it may\n".to_owned()));
    fs::write(path("may"), "{}").unwrap();
    let lacks =
        "ERROR: the service account of this host lacks the permission tpu.queuedResources.delete\n";
    assert_eq!(run(&["status"]), (false, lacks.to_owned()));
    run(&["set", "100"]);
    clock(1129);
    run(&["check"]);
    assert!(!path("calls").exists());
    clock(1130);
    run(&["check"]);
    let calls = fs::read_to_string(path("calls")).unwrap();
    let resource = "projects/proj/locations/us-west4-a/queuedResources/train?force=true";
    assert!(
        calls.contains(&format!(
            "--config - --request DELETE https://tpu.googleapis.com/v2/{resource}\n"
        )),
        "{calls}"
    );
    assert_eq!(calls.matches("s3cret").count(), 1, "the token is an argument: {calls}");
    assert!(calls.contains("header = \"Authorization: Bearer s3cret\""), "{calls}");
    let syntax = Command::new("bash").args(["-n", "-c", &startup_script]).status().unwrap();
    assert!(syntax.success(), "{startup_script}");
}

#[test]
fn gcloud_can_be_missing_fail_or_be_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gcloud");
    let call = |words: &[&str], interrupted: &mut dyn FnMut() -> bool| {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        Gcloud(path.clone()).call(&words, Duration::from_secs(600), interrupted)
    };
    assert!(call(&[], &mut || false).err.contains("install the Google Cloud CLI"));
    write_script(
        &path,
        "#!/bin/sh\nif [ \"$1\" = hang ]; then exec sleep 600; fi\necho \"[$1]\"; echo 'ERROR: no' >&2; exit 3\n",
    );
    let output = call(&["a b"], &mut || false);
    assert_eq!(
        (output.ok, output.out.as_str(), output.err.as_str()),
        (false, "[a b]\n", "ERROR: no\n")
    );
    assert_eq!(call(&["hang"], &mut || true).err, "interrupted");
}

#[test]
fn a_machine_whose_limit_cannot_work_is_deleted_at_once() {
    let mut cloud = Cloud::new();
    cloud.forbidden = true;
    let (ended, text) = run_lease(&mut cloud, &machine(&["--max-hours=1"]), true, Ok(0));
    assert!(ended == Ok(1) && !cloud.has_costs() && cloud.calls("tpu-vm ssh").len() == 1, "{text}");
    assert!(
        text.contains("fails on the hosts of train: ERROR: the service account lacks"),
        "{text}"
    );
}

#[test]
fn ctrl_c_ends_the_deletion_and_leftovers_are_named() {
    let mut cloud = Cloud::new();
    // Find, create, find twice, log in; the work; find, and delete, which Ctrl-C interrupts before
    // it is done.
    cloud.outcomes.insert(6, CallOutcome::Fails);
    cloud.signal_after = Some((6, Signal::Interrupt));
    let (ended, text) = run_lease(&mut cloud, &machine(&[]), true, Ok(0));
    assert_eq!(ended, Ok(1), "{text}");
    assert!(text.contains("Ctrl-C ended the deletion.") && cloud.has_costs(), "{text}");
    // A closed terminal does not end the deletion.
    let mut cloud = Cloud::new();
    cloud.signal_after = Some((6, Signal::HangUp));
    let (ended, text) = run_lease(&mut cloud, &machine(&[]), true, Ok(0));
    assert!(ended == Ok(0) && !cloud.has_costs(), "{text}");
}

#[test]
fn an_error_says_what_gcloud_says() {
    let mut cloud = Cloud::new();
    cloud.outage = 0;
    let error: Error = tpu(&cloud, &["list", "--zone=z"]).0.unwrap_err();
    assert!(
        error.to_string().contains("ERROR: (gcloud) UNAVAILABLE")
            && !error.to_string().contains("WARNING")
    );
    let error =
        tpu(&cloud, &["delete", "train", "--zone=z", "--project=o:p"]).0.unwrap_err().to_string();
    assert!(
        error.starts_with(
            "LEFT: train in z may exist, and would cost an unknown amount a day. gcloud cannot be queried"
        )
    );
    assert!(
        error.ends_with("Delete it: fulmen tpu delete train --zone z --project o:p"),
        "{error}"
    );
    // The machine exists, and cannot be deleted.
    let mut cloud = Cloud::new().with_node("train", "z", "v4-8", json!({}));
    cloud.outcomes =
        (0..100).filter(|call| call % 3 == 2).map(|call| (call, CallOutcome::Fails)).collect();
    let error = tpu(&cloud, &["delete", "train", "--zone=z"]).0.unwrap_err().to_string();
    assert!(
        error.starts_with("LEFT: train in z is READY and costs $309.12 a day. gcloud says: ERROR"),
        "{error}"
    );
}
