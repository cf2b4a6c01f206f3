//! `fulmen tpu run`: a TPU VM for the duration of a run. `gcloud` and `ssh` are fakes, but the run
//! is real.

use std::fs;
use std::process::{Command, Output};

use crate::programs::write_script;

/// This script represents one TPU as a file.
const GCLOUD: &str = r#"#!/bin/sh
echo "$*" >>"$HOME/calls"
case "$*" in
*"tpu-vm create"*) touch "$HOME/tpu" ;;
*"tpu-vm delete"*) rm "$HOME/tpu" ;;
*"tpu-vm ssh"*) ;;
*"tpu-vm list"* | *"tpu-vm describe"*)
  case "$*" in *list*) open='[' close=']' ;; esac
  tpu='{"name": "projects/p/locations/z/nodes/t", "state": "READY", "acceleratorType": "v5litepod-8",
    "networkEndpoints": [{"ipAddress": "host-a"}]}'
  [ -e "$HOME/tpu" ] || tpu=
  echo "$open$tpu$close" ;;
*) echo "ERROR: unexpected: $*" >&2; exit 2 ;;
esac
"#;

/// This script runs the command on this machine.
const SSH: &str = "#!/bin/sh\nfor last; do :; done\nexec bash -c \"$last\"\n";

#[test]
fn a_tpu_lives_as_long_as_its_run() {
    let home = tempfile::tempdir().unwrap();
    let script = |name: &str, text: &str| {
        let path = home.path().join(name);
        write_script(&path, text);
        path
    };
    script("gcloud", GCLOUD);
    script("ssh", SSH);
    let text = "#!/bin/sh\necho \"process $FULMEN_PROCESS_ID with $1 on $FULMEN_ACCELERATOR\"\n\
                echo \"libtpu $TPU_LIBRARY_PATH\"\nexit 3\n";
    let train = script("train", text);
    script("python3", "#!/bin/sh\necho 'no network' >&2\nexit 1\n");
    let run = |more: &[&str], program: &str| -> Output {
        Command::new(env!("CARGO_BIN_EXE_fulmen"))
            .args(
                [
                    &["tpu", "run", "t", "--type=v5e-8", "--zone=z"],
                    more,
                    &["--", program, "--lr=1"],
                ]
                .concat(),
            )
            .env("PATH", format!("{}:{}", home.path().display(), std::env::var("PATH").unwrap()))
            .env("HOME", home.path())
            .env("FULMEN_OFFLINE", "1")
            .env_remove("XDG_CACHE_HOME")
            .env_remove("CLOUDSDK_CORE_PROJECT")
            .output()
            .unwrap()
    };
    let calls = || fs::read_to_string(home.path().join("calls")).unwrap_or_default();

    let dry = run(&["--delete-after", "--dry-run"], train.to_str().unwrap());
    assert!(
        String::from_utf8_lossy(&dry.stdout)
            .contains("fulmen pod run --tpu t --zone z --libtpu install -- "),
        "{dry:?}"
    );
    let absent = run(&["--delete-after"], "/no/such/program");
    assert!(absent.status.code() == Some(2) && calls().is_empty(), "{absent:?}");

    let relative = run(&["--libtpu", "libtpu.so"], train.to_str().unwrap());
    let log = String::from_utf8_lossy(&relative.stderr);
    assert!(relative.status.code() == Some(2) && calls().is_empty(), "{log}");
    assert!(log.contains("expected `install`, `none`, or the absolute path"), "{log}");

    // Nothing starts on a host that has no libtpu and cannot get it.
    let ended = run(&["--delete-after"], train.to_str().unwrap());
    let out = String::from_utf8_lossy(&ended.stdout);
    let log = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{out}{log}");
    assert!(
        log.contains("worker 0 (host-a): it cannot download libtpu 0.0.51 (pip: no network)"),
        "{log}"
    );
    assert!(
        log.contains("and this machine cannot send it: libtpu is missing, and FULMEN_OFFLINE"),
        "{log}"
    );
    assert!(!out.contains("[worker 0]"), "{out}");
    assert!(log.contains("[tpu] t is deleted") && !home.path().join("tpu").exists(), "{log}");

    // Any library, since the program loads none.
    let library = env!("CARGO_BIN_EXE_fulmen");
    let ended = run(&["--delete-after", "--libtpu", library], train.to_str().unwrap());
    let out = String::from_utf8_lossy(&ended.stdout);
    let log = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(3), "{out}{log}");
    assert!(out.contains("[worker 0] process 0 with --lr=1 on tpu\n"), "{out}{log}");
    assert!(out.contains(&format!("[worker 0] libtpu {library}\n")), "{out}{log}");
    assert!(log.contains("[tpu] t is deleted") && !home.path().join("tpu").exists(), "{log}");
    assert!(
        calls().contains("tpu-vm ssh t --zone=z --worker=all --command=true --quiet"),
        "{}",
        calls()
    );

    let kept = run(&["--libtpu", "none"], train.to_str().unwrap());
    let log = String::from_utf8_lossy(&kept.stderr);
    assert!(kept.status.code() == Some(3) && home.path().join("tpu").exists(), "{log}");
    assert!(log.contains("t in z is READY and costs $230.40 a day."), "{log}");
    assert!(
        log.contains("Delete it: gcloud compute tpus tpu-vm delete t --zone=z --quiet"),
        "{log}"
    );
}
