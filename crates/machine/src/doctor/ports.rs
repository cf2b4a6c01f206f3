//! Checks of the TCP ports on which libtpu and Fulmen listen.

use fulmen_coordination::DEFAULT_PORT;

use super::{Finding, Machine};

const PORTS: [(u16, &str); 4] = [
    (8431, "libtpu's metrics, which `fulmen top` reads"),
    (8471, "libtpu, to discover the other hosts of a slice"),
    (8476, "libtpu, between the processes of a slice"),
    (DEFAULT_PORT, "the coordinator of a run over many hosts"),
];

pub(super) fn ports(machine: &Machine) -> Vec<Finding> {
    let text = machine.read("proc/net/tcp") + &machine.read("proc/net/tcp6");
    let is_held = machine
        .tpus()
        .iter()
        .any(|file| file.holders.as_ref().is_some_and(|it| !it.processes.is_empty()));
    let taken = PORTS.iter().filter(|(port, _)| text.lines().any(|line| is_listening(line, *port)));
    let mut findings: Vec<_> = taken
        .map(|(port, purpose)| {
            let message = format!("a program listens on {port} (for {purpose})");
            // A running training uses these ports.
            if is_held {
                return Finding::ok(message);
            }
            let remedy =
                format!("`sudo ss -ltnp 'sport = :{port}'` shows which program; end it, or give it another port");
            Finding::warning(message, remedy)
        })
        .collect();
    if findings.is_empty() {
        let ports = PORTS.map(|(port, _)| port.to_string()).join(", ");
        findings.push(Finding::ok(format!("{ports} are free")));
    }
    findings
}

/// A line of `/proc/net/tcp` is `0: 0100007F:20EF 00000000:0000 0A …`: the local address and port
/// in hexadecimal, and state 0A for a listening socket.
fn is_listening(line: &str, port: u16) -> bool {
    let fields: Vec<&str> = line.split_whitespace().take(4).collect();
    let [_, local, _, "0A"] = fields[..] else { return false };
    local.rsplit(':').next().is_some_and(|hex| u16::from_str_radix(hex, 16) == Ok(port))
}
