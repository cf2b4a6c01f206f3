//! `fulmen env`: prints the setup of temporary machines. `env.sh` is their common part.

use clap::{Args, ValueEnum};
use fulmen_data::{Error, Result};
use fulmen_pjrt::fetch::libtpu_version;

/// Prints the setup of an environment, with the versions that match this command
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The environment
    #[arg(value_enum)]
    environment: Environment,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Environment {
    /// The first cell of a notebook on Google Colab
    Colab,
    /// The first cell of a notebook on Kaggle
    Kaggle,
    /// A shell script for a TPU VM of Google Cloud
    Gce,
}

const COMMON: &str = include_str!("env.sh");

const HUGE_PAGES: &str = "\
# The start of a program on newer TPUs takes much longer without.
echo always | $sudo tee /sys/kernel/mm/transparent_hugepage/enabled >/dev/null
";

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let libtpu = libtpu_version()
        .ok_or_else(|| Error::usage("libtpu is for x86-64; run this command on such a machine"))?;
    let (first, note, last) = match arguments.environment {
        Environment::Colab => (
            "%%bash",
            "Colab keeps no files. Give `--default-root-dir` a folder of Drive to keep runs.",
            "",
        ),
        Environment::Kaggle => (
            "%%bash",
            "Internet must be on in the notebook's settings. Kaggle keeps /kaggle/working.",
            "",
        ),
        Environment::Gce => ("#!/usr/bin/env bash", "For each host of a TPU VM.", HUGE_PAGES),
    };
    let name = arguments
        .environment
        .to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default();
    let text = COMMON
        .replace("{{name}}", &name)
        .replace("{{version}}", env!("CARGO_PKG_VERSION"))
        .replace("{{rust}}", env!("CARGO_PKG_RUST_VERSION"))
        .replace("{{libtpu}}", libtpu)
        .replace("{{note}}", note);
    outln!("{}", format!("{first}\n{text}{last}").trim_end());
    Ok(())
}
