//! Runs in a real terminal whose output nobody reads: a pager, Ctrl-S, tmux's copy mode.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;

use super::HOMES;
use super::hosts::{Hosts, parse, wait_until};

/// The variable with the path of a file that has the launcher's arguments, one on each line.
const ARGUMENTS: &str = "FULMEN_TEST_POD_ARGUMENTS";

/// A tmux server with one terminal.
struct Tmux {
    server: String,
}

impl Tmux {
    fn new(name: &str, script: &Path) -> Tmux {
        let tmux = Tmux { server: format!("fulmen-pods-{}-{name}", std::process::id()) };
        let script = format!("exec bash {}", script.display());
        tmux.call(&["-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "20", &script]);
        tmux
    }

    fn call(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux").args(["-L", &self.server]).args(arguments).output();
        let output = output.expect("tmux is needed: apt-get install tmux");
        assert!(output.status.success(), "tmux {arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.server, "kill-server"]).output();
    }
}

#[test]
#[ignore = "the launcher of the test below"]
fn launcher() {
    let Some(path) = std::env::var_os(ARGUMENTS) else { return };
    let text = fs::read_to_string(path).unwrap();
    let pod = parse(&text.lines().collect::<Vec<_>>());
    let code =
        crate::run(pod, super::PROVIDERS, &mut std::io::stdout(), || Ok(channel().1)).unwrap();
    std::process::exit(code.into());
}

#[test]
#[ignore = "needs root, sshd, tmux and less: cargo test -p fulmen-pods -- --include-ignored"]
fn a_run_continues_behind_a_pager_after_ctrl_s_and_in_the_copy_mode_of_tmux() {
    // What keeps the output from being read, and what ends it.
    let cases: [(&str, &str, &[&str], &[&str]); 3] = [
        ("pager", "| less", &["send-keys", "g"], &["send-keys", "q"]),
        ("ctrl-s", "", &["send-keys", "C-s"], &["send-keys", "C-q"]),
        ("copy", "", &["copy-mode"], &["send-keys", "-X", "cancel"]),
    ];
    for (name, reader, stop, end) in cases {
        let hosts = Hosts::new(HOMES);
        let program = hosts.script(0);
        let shared = |name: &str| hosts.shared(name).display().to_string();
        let go = shared("go");
        // More than waits in memory, and longer than the lease.
        let talks = format!(
            "until [ -e {go} ]; do sleep 0.1; done; for i in {{1..12000}}; do printf '%0999d\\n' $i; done; sleep 12; touch {go}$me"
        );
        let options = "run --hosts host-a,host-b,host-c --lost-timeout 5 --grace 1";
        let options = options.replace(' ', "\n");
        let arguments = format!("{options}\n-F\n{}\n--\n{program}\n{talks}", shared("ssh_config"));
        fs::write(hosts.shared("arguments"), arguments).unwrap();
        let script = format!(
            "{ARGUMENTS}={} {} --exact tests::terminals::launcher --ignored --nocapture {reader}\necho ${{PIPESTATUS[0]}} >{}\nread\n",
            shared("arguments"),
            std::env::current_exe().unwrap().display(),
            shared("code"),
        );
        fs::write(hosts.shared("script"), script).unwrap();
        let tmux = Tmux::new(name, &hosts.shared("script"));
        wait_until("the programs have begun", || {
            tmux.call(&["capture-pane", "-p"]).matches("resume never").count() == 3
        });
        tmux.call(stop);
        fs::write(&go, "").unwrap();
        wait_until(&format!("all programs have ended: {name}"), || {
            (0..3).all(|me| hosts.shared(&format!("go{me}")).exists())
        });
        hosts.wait_until_idle();
        tmux.call(end);
        // It prints the rest first.
        let code = || fs::read_to_string(hosts.shared("code")).unwrap_or_default();
        wait_until("the launcher ends", || code().ends_with('\n'));
        assert_eq!(code(), "0\n", "{name}");
    }
}
