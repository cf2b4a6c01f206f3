//! [`Providers`]: what the command gets from its caller. Out of scope: how they do it.

use std::io::Write;
use std::path::PathBuf;

use crate::Result;

/// A TPU VM as the user names it. Zone and project default to those of gcloud's configuration.
#[derive(Clone, Copy, Debug)]
pub struct TpuVm<'a> {
    /// The name.
    pub name: &'a str,
    /// The zone.
    pub zone: Option<&'a str>,
    /// The project.
    pub project: Option<&'a str>,
}

/// The plugins that make several processes a virtual pod.
#[derive(Clone, Debug)]
pub struct VirtualPodPlugins {
    /// The one that a program opens.
    pub plugin: PathBuf,
    /// The one behind it, which computes.
    pub cpu_plugin: PathBuf,
}

/// What the command needs of clouds and of plugins for devices, which this crate does not know. The
/// caller has a function for each.
#[derive(Clone, Copy, Debug)]
pub struct Providers {
    /// The hosts of a TPU VM, in the order of its workers.
    pub tpu_hosts: fn(TpuVm<'_>) -> Result<Vec<String>>,
    /// The command that finds these hosts, as shell input.
    pub tpu_hosts_command: fn(TpuVm<'_>) -> String,
    /// The file of the tested libtpu on this machine. It is downloaded if it is missing.
    pub libtpu: fn() -> Result<PathBuf>,
    /// The plugins of a virtual pod. Those that are missing are built and downloaded. Progress goes
    /// to the writer.
    pub virtual_pod: fn(&mut dyn Write) -> Result<VirtualPodPlugins>,
}
