//! Checks of environment variables: variables that only other frameworks read, and variables that
//! Fulmen and its plugins read.
//!
//! Out of scope: misspelled `FULMEN_…` variables. A program rejects them when it starts.

use fulmen_coordination::Process;
use fulmen_pjrt::diagnosis::obsolete_variables;

use super::{Finding, Machine};

/// Variables of PyTorch/XLA and JAX, and what to use instead.
const FOREIGN_VARIABLES: [(&str, &str); 13] = [
    ("PJRT_DEVICE", "use FULMEN_ACCELERATOR or `--accelerator`"),
    ("JAX_PLATFORMS", "use FULMEN_ACCELERATOR or `--accelerator`"),
    ("TPU_NUM_DEVICES", "use FULMEN_DEVICES or `--devices`"),
    ("XLA_USE_BF16", "use FULMEN_PRECISION=bf16-true or `--precision`"),
    ("XLA_DOWNCAST_BF16", "use FULMEN_PRECISION=bf16-true or `--precision`"),
    ("JAX_DEFAULT_MATMUL_PRECISION", "use FULMEN_MATMUL_PRECISION or `--matmul-precision`"),
    ("XLA_USE_SPMD", "use FULMEN_STRATEGY or `--strategy`"),
    (
        "JAX_COMPILATION_CACHE_DIR",
        "use FULMEN_COMPILE_CACHE for another folder; programs are cached without it, too",
    ),
    (
        "XLA_PERSISTENT_CACHE_PATH",
        "use FULMEN_COMPILE_CACHE for another folder; programs are cached without it, too",
    ),
    ("PT_XLA_DEBUG", "unset it; Fulmen reports repeated compilation without it"),
    ("PT_XLA_DEBUG_LEVEL", "unset it; Fulmen reports repeated compilation without it"),
    ("XLA_METRICS_FILE", "use `--metrics`"),
    ("XLA_HLO_DEBUG", "unset it; programs always have source locations"),
];

pub(super) fn foreign_variables(machine: &Machine) -> Vec<Finding> {
    let variable = |name: &str| machine.variable(name);
    let mut findings: Vec<_> = obsolete_variables(&variable)
        .into_iter()
        .map(|it| Finding::warning(format!("{} is set, but it is obsolete", it.name), it.instead))
        .collect();
    let foreign = FOREIGN_VARIABLES.iter().filter(|(name, _)| machine.variable(name).is_some());
    findings.extend(foreign.map(|(name, remedy)| {
        Finding::note(format!("{name} is set, but Fulmen does not read it"), *remedy)
    }));
    if findings.is_empty() {
        findings.push(Finding::ok("none are set"));
    }
    findings
}

pub(super) fn fulmen_variables(machine: &Machine) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(flags) = machine.text("XLA_FLAGS") {
        findings.push(Finding::error(
            format!("XLA_FLAGS is {flags:?}; Fulmen rejects it, because an unknown flag ends the process"),
            "unset it; `CompileOptions::override_flag` sets a flag for one program",
        ));
    }
    if let Some(flags) = machine.text("LIBTPU_INIT_ARGS") {
        findings.push(Finding::note(
            format!("LIBTPU_INIT_ARGS is {flags:?}; libtpu reads it, and an unknown flag ends the process"),
            "unset it if it is meant for another program",
        ));
    }
    for name in ["TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES"] {
        if let Some(value) = machine.text(name) {
            findings.push(Finding::note(
                format!("{name} is {value:?}; libtpu sees only these chips"),
                "unset it to train on all chips",
            ));
        }
    }
    if machine.text("FULMEN_OFFLINE").is_some_and(|value| value != "0") {
        findings.push(Finding::note(
            "FULMEN_OFFLINE is set; no plugin is downloaded, and no metadata server is queried",
            "unset it where there is a network",
        ));
    }
    match Process::from_env(|name| machine.variable(name)) {
        Err(error) => findings.push(Finding::error(
            error.to_string(),
            "correct it; the book's chapter “Many hosts” lists the variables that go together",
        )),
        Ok(process) if process.count() > 1 => findings.push(Finding::note(
            format!(
                "a program that starts here is {process}, and waits for the others at {}",
                process.coordinator()
            ),
            "start it on all hosts, for example with `fulmen pod run`",
        )),
        Ok(_) => {}
    }
    if findings.is_empty() {
        findings.push(Finding::ok("no variable needs a change"));
    }
    findings
}
