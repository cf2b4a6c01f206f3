//! Checks of the resources that the kernel gives a process: memory, limits, cores.

use fulmen_durable::messages::{quantity, size};
use fulmen_tpu::{Host, Slice};

use super::{Finding, Machine};
use crate::inventory::Chips;

const GIB: u64 = 1 << 30;

pub(super) fn memory(machine: &Machine) -> Vec<Finding> {
    let text = machine.read("proc/meminfo");
    let kibibytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':')
            .split_whitespace()
            .next()?
            .parse::<u64>()
            .ok()
            .map(|number| number << 10)
    };
    let (Some(mut total), Some(mut free)) = (kibibytes("MemTotal"), kibibytes("MemAvailable"))
    else {
        return vec![Finding::ok("/proc/meminfo does not say how much")];
    };
    let number = |name: &str| machine.read(name).trim().parse::<u64>().ok();
    let mut scope = "";
    // `max` means no limit.
    if let Some(limit) = number("sys/fs/cgroup/memory.max").filter(|&limit| limit < total) {
        total = limit;
        free = free.min(limit.saturating_sub(number("sys/fs/cgroup/memory.current").unwrap_or(0)));
        scope = " of this container";
    }
    vec![if free < 2 * GIB {
        Finding::warning(
            format!(
                "{} of {}{scope} are free; when memory runs out, the kernel kills the program (exit code 137)",
                size(free),
                size(total)
            ),
            "end other programs (`ps aux --sort=-rss | head` shows the largest), lower `--num-workers`, or take a machine \
             or container with more",
        )
    } else {
        Finding::ok(format!("{} of {}{scope} are free", size(free), size(total)))
    }]
}

pub(super) fn huge_pages(machine: &Machine) -> Vec<Finding> {
    let text = machine.read("sys/kernel/mm/transparent_hugepage/enabled");
    // `always [madvise] never`: the brackets mark the choice.
    let chosen = text.split(['[', ']']).nth(1).unwrap_or("unknown");
    vec![if machine.tpus().is_empty() || chosen == "always" {
        Finding::ok(format!("transparent huge pages: {chosen}"))
    } else {
        Finding::warning(
            format!(
                "transparent huge pages: {chosen}; with `always`, libtpu starts and stops faster on v5e and later"
            ),
            "`sudo sh -c 'echo always > /sys/kernel/mm/transparent_hugepage/enabled'`, on each host and after each start of \
             the machine",
        )
    }]
}

/// A soft limit of a process.
struct Limit {
    /// Its name in `/proc/self/limits`.
    name: &'static str,
    /// The option of `ulimit` for this limit.
    option: &'static str,
    minimum: u64,
    /// The reason why a lower limit is a problem.
    reason: &'static str,
    /// Whether only a TPU opened through VFIO needs it.
    only_vfio: bool,
}

const LIMITS: [Limit; 4] = [
    Limit {
        name: "Max open files",
        option: "-n",
        minimum: 4096,
        reason: "many shards, workers and connections need more",
        only_vfio: false,
    },
    Limit {
        name: "Max processes",
        option: "-u",
        minimum: 4096,
        reason: "threads count too, and plugins start several for each core",
        only_vfio: false,
    },
    Limit {
        name: "Max address space",
        option: "-v",
        minimum: u64::MAX,
        reason: "plugins reserve much more address space than they use",
        only_vfio: false,
    },
    Limit {
        name: "Max locked memory",
        option: "-l",
        minimum: u64::MAX,
        reason: "the kernel counts memory that a TPU accesses through VFIO as locked",
        only_vfio: true,
    },
];

pub(super) fn limits(machine: &Machine) -> Vec<Finding> {
    let text = machine.read("proc/self/limits");
    let has_vfio = machine
        .tpus()
        .iter()
        .any(|file| file.path.parent().is_some_and(|folder| folder.ends_with("vfio")));
    let mut findings = Vec::new();
    for Limit { name, option, minimum, reason, .. } in
        LIMITS.iter().filter(|limit| has_vfio || !limit.only_vfio)
    {
        let Some(rest) = text.lines().find_map(|line| line.strip_prefix(name)) else { continue };
        let number = |text: &str| {
            if text == "unlimited" { Some(u64::MAX) } else { text.parse::<u64>().ok() }
        };
        let mut numbers = rest.split_whitespace().map_while(number);
        let (Some(soft), Some(hard)) = (numbers.next(), numbers.next()) else { continue };
        if soft >= *minimum {
            continue;
        }
        // Recommend a margin above the minimum.
        let enough = minimum.saturating_mul(16);
        let value = if enough == u64::MAX { "unlimited".to_owned() } else { enough.to_string() };
        let message = format!("{}: {soft}; {reason}", name.to_lowercase());
        findings.push(Finding::warning(
            message,
            if hard >= enough {
                format!("`ulimit {option} {value}` before the program starts")
            } else {
                format!(
                    "raise the hard limit: in /etc/security/limits.conf, by systemd's Limit… or docker's `--ulimit`; then \
                     `ulimit {option} {value}`"
                )
            },
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok("all limits are high enough"));
    }
    findings
}

pub(super) fn cores(machine: &Machine) -> Vec<Finding> {
    let status = machine.read("proc/self/status");
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let Some(allowed) = list.and_then(count_cores) else {
        return vec![Finding::ok("/proc/self/status does not say")];
    };
    let chips = machine.tpus().len() as u64;
    // `200000 100000` means two cores; `max 100000` means no limit.
    let cpu_max = machine.read("sys/fs/cgroup/cpu.max");
    let numbers: Vec<f64> =
        cpu_max.split_whitespace().map_while(|number| number.parse().ok()).collect();
    let cores = match numbers[..] {
        [quota, period] if period > 0.0 => (quota / period).min(allowed as f64),
        _ => allowed as f64,
    };
    let mut findings = Vec::new();
    if cores + 0.5 < allowed as f64 {
        let last = (cores.ceil() as u64).saturating_sub(1);
        findings.push(Finding::note(
            format!("the container may use {cores:.1} of {allowed} cores, but plugins start threads for all {allowed}"),
            format!("`taskset -c 0-{last} ./train …` limits the threads to the cores that the container may use"),
        ));
    }
    if cores < 4.0 * chips as f64 {
        findings.push(Finding::warning(
            format!(
                "{} for {}; decoding and augmentation may take longer than the steps",
                quantity(cores.round(), "core"),
                quantity(chips, "TPU chip")
            ),
            "keep samples decoded (`.cache(…)`, `fulmen data presize`), or augment on the device; the book's chapter “When \
             data is slow” says how to find out",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(match chips {
            0 => allowed.to_string(),
            _ => format!("{allowed} for {}", quantity(chips, "TPU chip")),
        }));
    }
    findings.extend(host_vcpus(machine, allowed));
    findings
}

/// Compares the vCPUs of a TPU host with those that Google gives a host of its kind; `None` if the
/// kind is not known. `allowed` is the number of cores that this process may use.
fn host_vcpus(machine: &Machine, allowed: u64) -> Option<Finding> {
    if machine.tpus().is_empty() {
        return None;
    }
    let kind = host_of_slice(machine).or_else(|| host_of_chips(machine))?;
    let expected = kind.host.vcpus as u64;
    // A process may be limited to some of them.
    let online = count_cores(&machine.read("sys/devices/system/cpu/online"));
    let actual = online.unwrap_or(allowed).max(allowed);
    let name = format!("a host with {} of {}", quantity(kind.host.chips, "chip"), kind.generation);
    Some(if actual < expected {
        Finding::warning(
            format!("the host has {actual} vCPUs, and {name} has {expected}"),
            "`lscpu` shows vCPUs that are off line; if this is a virtual machine within the host, or a container with a set \
             of cores, give it all of them",
        )
    } else {
        Finding::ok(format!("the host has {actual} vCPUs; {name} has {expected}"))
    })
}

/// A kind of TPU host.
struct HostKind {
    generation: &'static str,
    host: &'static Host,
}

/// The hosts of the slice that the metadata server names. A container may see only some of the
/// host's chips.
fn host_of_slice(machine: &Machine) -> Option<HostKind> {
    let slice: Slice = machine.metadata()?.accelerator_type()?.parse().ok()?;
    Some(HostKind { generation: slice.generation().name, host: slice.host() })
}

/// The host with as many chips as the kernel shows.
fn host_of_chips(machine: &Machine) -> Option<HostKind> {
    let chips = Chips::find(&machine.root);
    let generation = chips.generation()?;
    let host = generation.host_with_chips(chips.number())?;
    Some(HostKind { generation: generation.name, host })
}

/// The number of cores in a list such as `0-3,8`.
fn count_cores(list: &str) -> Option<u64> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        (last.parse::<u64>().ok()? + 1).checked_sub(first.parse().ok()?)
    };
    list.trim().split(',').map(range).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_counted() {
        assert_eq!(count_cores("\t0-3,8\n"), Some(5));
        assert_eq!(count_cores("7"), Some(1));
        assert_eq!(count_cores(""), None);
        assert_eq!(count_cores("3-1"), None);
    }
}
